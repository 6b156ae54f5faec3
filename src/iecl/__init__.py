"""iecl: turn a folder of unlabeled images into a vision backbone, and measure how good it is.

Names are loaded on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from iecl import entropy
    from iecl.allocation import keep_freed_memory
    from iecl.api import (
        Run,
        compare,
        embed,
        evaluate,
        evaluate_all,
        export,
        extend,
        inspect,
        load,
        pack,
        plan,
        pretrain,
        replay,
        report,
        verify,
    )
    from iecl.checks.call import doctor
    from iecl.drawing import draw_views, preview
    from iecl.errors import UserError
    from iecl.methods.ie_cl import IECL
    from iecl.objective.attached_block import attach_block
    from iecl.repository import bench
    from iecl.reproduction.call import reproduce
    from iecl.saib.certified import CertifiedSAIB
    from iecl.saib.printed import SAIB
    from iecl.studies.call import study
    from iecl.training.trained_block import load_block

_HOMES = {
    "Run": "iecl.api",
    "pretrain": "iecl.api",
    "evaluate": "iecl.api",
    "evaluate_all": "iecl.api",
    "embed": "iecl.api",
    "export": "iecl.api",
    "extend": "iecl.api",
    "inspect": "iecl.api",
    "keep_freed_memory": "iecl.allocation",
    "load": "iecl.api",
    "load_block": "iecl.training.trained_block",
    "pack": "iecl.api",
    "plan": "iecl.api",
    "preview": "iecl.drawing",
    "reproduce": "iecl.reproduction.call",
    "study": "iecl.studies.call",
    "verify": "iecl.api",
    "bench": "iecl.repository",
    "compare": "iecl.api",
    "doctor": "iecl.checks.call",
    "replay": "iecl.api",
    "report": "iecl.api",
    "draw_views": "iecl.drawing",
    "UserError": "iecl.errors",
    "IECL": "iecl.methods.ie_cl",
    "attach_block": "iecl.objective.attached_block",
    "SAIB": "iecl.saib.printed",
    "CertifiedSAIB": "iecl.saib.certified",
}

_MODULES = {"entropy"}

__all__ = [
    "IECL",
    "SAIB",
    "CertifiedSAIB",
    "Run",
    "UserError",
    "__version__",
    "attach_block",
    "bench",
    "compare",
    "doctor",
    "draw_views",
    "embed",
    "entropy",
    "evaluate",
    "evaluate_all",
    "export",
    "extend",
    "inspect",
    "keep_freed_memory",
    "load",
    "load_block",
    "pack",
    "plan",
    "pretrain",
    "preview",
    "replay",
    "report",
    "reproduce",
    "study",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"iecl.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'iecl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
