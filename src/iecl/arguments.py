"""Arguments of Python's functions: objects become names that settings can hold, and errors speak of arguments."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar

from iecl.brought import PREFIX
from iecl.errors import UserError, is_command
from iecl.names import suggestion
from iecl.settings import merge

P = ParamSpec("P")
R = TypeVar("R")


class CommonSettings(TypedDict, total=False):
    """Settings that nearly every run has: arguments of `pretrain` and `plan`, and flags of the command."""

    backbone: Any
    epochs: int | None
    batch_size: int | None
    lr: float | None
    weight_decay: float | None
    image_size: int | None
    num_workers: int | None
    exclude: str
    augmentation: str
    precision: str
    seed: int | None
    accelerator: str
    devices: int | None
    nodes: int | None
    strategy: str


PLACES = {
    "data": "data.name",
    "more": "data.more",
    "backbone": "backbone.name",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "image_size": "data.image_size",
    "num_workers": "data.num_workers",
    "exclude": "data.exclude",
    "augmentation": "augmentation.policy",
    **{name: f"training.{name}" for name in ("epochs", "batch_size", "precision", "seed")},
    **{name: f"training.{name}" for name in ("accelerator", "devices", "nodes", "strategy")},
}
"""Which setting each of them is."""


class Arguments:
    """What a function was given, under names; `things` is what those names stand for that are objects."""

    def __init__(self) -> None:
        self.things: dict[str, Any] = {}

    def data(self, data: Any) -> tuple[str, ...]:
        """The names of images: folders, lists, patterns and files as they are, anything else as an object."""
        if data is None or (isinstance(data, str) and not data):
            return ()
        if isinstance(data, str | Path):
            return (str(data),)
        from iecl.data.places import is_image, is_pattern

        is_names = isinstance(data, list | tuple) and all(isinstance(item, str | Path) for item in data)
        if is_names and (is_command() or not all(is_image(item) and not is_pattern(str(item)) for item in data)):
            return tuple(map(str, data))  # images alone may be a million: they are an object
        from iecl.data.brought_source import bring

        images = bring(data)
        self.things[images.name] = images
        return (images.name,)

    def backbone(self, backbone: Any) -> str:
        """The name of a network: of the table, of an importable function or class, or of an object."""
        if backbone is None or isinstance(backbone, str):
            return backbone or ""
        from torch import nn

        if isinstance(backbone, nn.Module):
            shapes = [(name, tuple(value.shape)) for name, value in backbone.state_dict().items()]
            return self._object(backbone, type(backbone).__name__, repr(shapes))
        if not callable(backbone):
            what = f"a {type(backbone).__name__} is no network"
            raise UserError(what, where="backbone=", do="give a name, an nn.Module, or a function that makes one")
        return self._importable(backbone)

    def method(self, method: Any) -> str:
        """The name of a method: of the table, or of a class."""
        if isinstance(method, str):
            return method
        if not isinstance(method, type):
            raise UserError(f"a {type(method).__name__} is no method", where="method=", do="give a name or a class")
        return self._importable(method)

    def callbacks(self, callbacks: Iterable[Any]) -> None:
        """Objects whose methods are called while a run trains."""
        found = tuple(callbacks)
        if not found:
            return
        from iecl.training.callbacks import CALLBACKS, EVENTS

        for one in found:
            if not any(callable(getattr(one, event, None)) for event in EVENTS):
                do = f"give it a method: {', '.join(EVENTS)}"
                raise UserError(f"a {type(one).__name__} is called at no time", where="callbacks=", do=do)
        self.things[CALLBACKS] = found

    def _importable(self, thing: Any) -> str:
        """`package.module:thing`, where another process would find the same under that name."""
        module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "<object>")
        if module and not module.startswith("__") and "<" not in name:
            return f"{module}:{name}"
        return self._object(thing, name.rpartition(".")[2].strip("<>"), module)

    def _object(self, thing: Any, kind: str, fingerprint: str) -> str:
        name = f"{PREFIX}{kind}-{blake2b(fingerprint.encode(), digest_size=4).hexdigest()}"
        self.things[name] = thing
        return name

    def settings(
        self, data: Any, common: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]] | None, caller: str
    ) -> dict[str, dict[str, Any]]:
        """What was given of the common settings, and the others, by section."""
        names = self.data(data)
        values = {"data": names[0] if names else "", "more": list(names[1:]) or None, **common}
        if "backbone" in common:
            values["backbone"] = self.backbone(common["backbone"])
        given: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in PLACES:
                raise UserError(f"{caller} has no argument {name!r}", do=suggestion(name, PLACES))
            section, _, key = PLACES[name].partition(".")
            if value is not None and value != "":
                given.setdefault(section, {})[key] = value
        return merge(given, settings or {})


def speaks_python(function: Callable[P, R]) -> Callable[P, R]:
    """Let the errors of a function speak of arguments where no command called it."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as problem:
            if not is_command():
                problem.reword(in_python)
            raise

    return wrapped


_SWITCHES = ("overwrite", "resume", "quiet", "download")
_OTHER_NAMES = {"from": "init_from", "with": "run", "workers": "num_workers", "set": "sets"}


def in_python(text: str) -> str:
    """A message with arguments in the place of flags; a whole command stays one.

    >>> in_python("add --overwrite, or name another --out"), in_python("see: iecl list methods")
    ('add overwrite=True, or name another out', 'see: iecl list methods')
    >>> in_python("continue with: iecl pretrain --out runs/a --resume")
    "continue with: iecl.pretrain(out='runs/a', resume=True)"
    """
    text = re.sub(r"iecl pretrain --out (\S+) --resume", r"iecl.pretrain(out='\1', resume=True)", text)
    if re.search(r"iecl \w+ .*--", text):
        return text
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda found: _argument(found[1].replace("-", "_")), text)


def _argument(flag: str) -> str:
    return f"{flag}=True" if flag in _SWITCHES else _OTHER_NAMES.get(flag, flag)
