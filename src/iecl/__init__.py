"""iecl: turn a folder of unlabelled images into a vision backbone, and measure how good it is.

Names are loaded on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from iecl.api import Run, embed, evaluate, export, load, pretrain
    from iecl.errors import UserError
    from iecl.objective.wrapper import IECL
    from iecl.saib.block import SAIB
    from iecl.saib.certified import CertifiedSAIB

_HOMES = {
    "Run": "iecl.api",
    "pretrain": "iecl.api",
    "evaluate": "iecl.api",
    "embed": "iecl.api",
    "export": "iecl.api",
    "load": "iecl.api",
    "UserError": "iecl.errors",
    "IECL": "iecl.objective.wrapper",
    "SAIB": "iecl.saib.block",
    "CertifiedSAIB": "iecl.saib.certified",
}

__all__ = [
    "IECL",
    "SAIB",
    "CertifiedSAIB",
    "Run",
    "UserError",
    "__version__",
    "embed",
    "evaluate",
    "export",
    "load",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'iecl' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    # `iecl.export` is a function and a folder; importing the folder puts it here, the function must win.
    globals().update({public: getattr(module, public) for public, home in _HOMES.items() if home == _HOMES[name]})
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
