"""Settings as frozen dataclasses: declared once beside their owner, checked when read, written as commented TOML.

`setting(default, doc, ...)` is a dataclass field whose metadata feeds validation, `iecl describe` and the docs.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from operator import ge, gt, le
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from iecl.errors import UserError, did_you_mean
from iecl.files import LARGEST, MOST_TOML, parse_toml, read_text
from iecl.names import suggestion

T = TypeVar("T")
Values = Mapping[str, Any]
MOST = 1_000_000
"""The upper limit of a whole number that declares none: no run needs more, and a typing error may ask for years."""
LONGEST, MOST_ITEMS = 4096, 1000
"""Letters of a text, which may be a path, and values of a list."""
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", tuple: "a list in brackets"}
"""Types as a message calls them."""


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Iterable[str] | None = None,
    flag: str = "",
    needs: str = "",
) -> Any:
    """Declare a setting: its default, its meaning in one line, the values it may take.

    `flag` is its flag, if it has one. `needs` names the setting (`section.key`) that must not be `none` for this one to
    have an effect. A whole number without `high` is at most `MOST`.
    """
    first = default[0] if isinstance(default, tuple) and default else default
    if high is None and type(first) is int:
        high = MOST
    rules = {"low": low, "high": high, "above": above, "choices": tuple(choices) if choices else None}
    return field(default=default, metadata={"doc": doc, "flag": flag, "needs": needs, **rules})


def build(cls: type[T], values: Values, section: str, origin: str = "") -> T:
    """Make a `cls` from plain values; an unknown key, a wrong type or a value out of range is a `UserError`.

    `section` names the table (`training`), `origin` says who gave the values, where that is known.
    """
    hints = get_type_hints(cls)
    known: dict[str, Field[Any]] = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise UserError(f"[{section}] has no setting {key!r}", where=origin, do=suggestion(key, known, section))
        name, where = f"{section}.{key}", origin or known[key].metadata.get("flag", "")
        made[key] = _convert(value, hints[key], name, where)
        _check_range(made[key], known[key], name, where)
    try:
        return cls(**made)
    except ValueError as problem:  # a dataclass checks what concerns several of its fields in __post_init__
        raise UserError(str(problem), where=f"{origin}, [{section}]" if origin else f"[{section}]") from problem


def _convert(value: Any, kind: Any, name: str, origin: str) -> Any:
    if isinstance(value, int) and abs(value) > LARGEST:  # too large to be printed, perhaps
        raise UserError(f"{name} is a number of more than 18 digits", where=origin)
    if isinstance(value, str) and len(value) > LONGEST:
        raise UserError(f"{name} has {len(value):,} letters, it may have {LONGEST:,}", where=origin)
    if isinstance(kind, UnionType):  # `float | Ramp`: the dataclass when a table was given
        tables = [k for k in get_args(kind) if is_dataclass(k)]
        plain = next(k for k in get_args(kind) if not is_dataclass(k))
        return _convert(value, tables[0] if isinstance(value, Mapping) and tables else plain, name, origin)
    if is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return build(kind, value, name, origin)
        if hasattr(kind, "constant") and isinstance(value, int | float) and not isinstance(value, bool):
            return kind.constant(float(value))  # a Ramp may be written as one number
    elif get_origin(kind) is tuple and isinstance(value, list | tuple):
        if len(value) > MOST_ITEMS:
            raise UserError(f"{name} has {len(value):,} values, it may have {MOST_ITEMS:,}", where=origin)
        (inner, *_) = get_args(kind)
        return tuple(_convert(item, inner, name, origin) for item in value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif isinstance(kind, type) and type(value) is kind:
        return value
    table = (
        "a number, or a table with start, end and shape" if hasattr(kind, "constant") else f"a table: {name}.key=value"
    )
    wanted = WORDS.get(get_origin(kind) or kind, table)
    raise UserError(f"{name} is {value!r}, it must be {wanted}", where=origin)


def _check_range(value: Any, declared: Field[Any], name: str, origin: str) -> None:
    rules = declared.metadata
    choices = rules.get("choices")
    if choices:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in choices:
                raise UserError(f"{name} is {item!r}", where=origin, do=did_you_mean(str(item), choices))
    parts = (value.start, value.end) if hasattr(value, "start") else value if isinstance(value, tuple) else (value,)
    for item in parts:  # a ramp lies between its ends
        if not isinstance(item, int | float):
            continue
        if not math.isfinite(item):
            raise UserError(f"{name} is {item}, it must be finite", where=origin, do=_default(declared))
        for rule, holds, words in (("low", ge, "at least"), ("high", le, "at most"), ("above", gt, "above")):
            bound = rules.get(rule)
            if bound is not None and not holds(item, bound):
                raise UserError(f"{name} is {item}, it must be {words} {bound:,}", where=origin, do=_default(declared))


def _default(declared: Field[Any]) -> str:
    return "" if declared.default is MISSING else f"the default is {declared.default}"


def as_values(settings: Any) -> dict[str, Any]:
    """The plain values of a settings object, as they would stand in a TOML file."""
    made: dict[str, Any] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        nested = value.given() if hasattr(value, "given") else as_values(value) if is_dataclass(value) else None
        made[f.name] = _plain(value if nested is None else nested)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def merge(under: Values, over: Values) -> dict[str, Any]:
    """`under` with the values of `over` laid on top, table by table.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    made = dict(under)
    for key, value in over.items():
        below = made.get(key)
        made[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return made


def parse_assignment(text: str) -> dict[str, Any]:
    """`a.b=value` as a nested table; the value is read as TOML, and as a plain word if it is not TOML.

    >>> parse_assignment("method.temperature=0.1"), parse_assignment("data.labels=none")
    ({'method': {'temperature': 0.1}}, {'data': {'labels': 'none'}})
    """
    path, equals, raw = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys) or not raw.strip():
        raise UserError(f"cannot read {text!r}", where="--set", do="write section.key=value, as in training.epochs=100")
    try:
        value: Any = parse_toml(f"value = {raw}", "--set")["value"]
    except UserError:
        value = raw.strip()
    for key in reversed(keys):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or a `UserError` that gives the place of the mistake."""
    return parse_toml(read_text(path, MOST_TOML), str(path))


def to_toml(sections: Mapping[str, Any], header: str, names: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Commented TOML of settings objects by section: each key with its meaning, readable back by `read_toml`.

    `names` gives a section first keys, such as `name`, on which its further keys depend.
    """
    lines = [f"# {line}" for line in header.splitlines()]
    for section, settings in sections.items():
        lines += ["", f"[{section}]"]
        if names and section in names:
            lines += [f"{key} = {shown(value)}" for key, value in names[section].items()]
        docs = {f.name: f.metadata["doc"] for f in fields(settings)}
        lines += [f"{key} = {shown(value)}  # {docs[key]}" for key, value in as_values(settings).items()]
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, float):
        return repr(value)  # 1e-05, inf and nan are TOML as Python writes them
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {shown(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(shown(item) for item in value) + "]"
