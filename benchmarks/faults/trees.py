"""Files whose form is right and whose content is not: tables of TOML and JSON with values, names and places exchanged.

Where `readers.mutated` damages bytes, which a parser notices, this makes what a parser lets pass.
"""

import json
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from iecl.names import FORMER, FORMER_PROTOCOL, FORMER_SECTIONS

Slot = tuple[Any, Any]
"""A table or a list, and the key or number of something in it."""
_FORMER = [name for section in FORMER.values() for name in section]
NAMES = [
    *("name", "host", "base", "data", "method", "saib", "objective", "optimizer", "training", "numbers", "by_seed"),
    *("hits", "protocol", "protocol_id", "n_test", "step", "loss", "last", "outcome", "scores", "trained", "knn", "x"),
    *("", "a.b", "a b", "\x1b[31m", "\u202e", "ß" * 300, "__class__", "saib_gradient", "saib_weight_decay", "form"),
    *FORMER_SECTIONS, *_FORMER, *FORMER_PROTOCOL,
]  # fmt: skip
"""Keys that mean something somewhere, in the place of others."""
VALUES: list[Any] = [
    *(0, 1, -1, 2, 7, 1.5, -0.0, 1e-300, 1e308, -1e308, True, False, None, 10**6, 2**31, 2**63 - 1, -(2**63), 10**18),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "auto", "none", "NaN", "Infinity", "\x00", "../.."),
    *("\x1b[2J", "\ud800", "1979-05-27", "%s{0}", "/dev/zero"),
    *("a" * 5000, "moco-v2", "digits", "os:system", "python/x", "memory:x"),
    *([], {}, [[]], [{}], [1, "a"], [None], ["a", "a"], [0.5, float("nan")], {"a": {}}, {"": []}),
    {"start": 1, "end": 0},
    *({"name": "x"}, {"start": float("nan")}, [1] * 1500, {"trained": {}}, {"trained": {"knn": 1}}, ["top1"]),
    [[1], [2]],
]  # fmt: skip


def edited(raw: bytes, drawn: random.Random) -> bytes:
    """A file of a run, TOML or JSON, in one or more lines, with one to four edits."""
    text = raw.decode()
    if not text.startswith("{"):
        return toml(_edited(tomllib.loads(text), drawn)).encode("utf-8", "surrogatepass")
    lines = text.splitlines() if text.startswith('{"') else [text]
    rows = [json.loads(line) for line in lines]
    made = _edited({"rows": rows}, drawn)["rows"] if len(rows) > 1 else [_edited(rows[0], drawn)]
    return "".join(json.dumps(row) + "\n" for row in made).encode()


def _edited(tree: dict[str, Any], drawn: random.Random) -> dict[str, Any]:
    made = deepcopy(tree)
    for _ in range(drawn.randint(1, 4)):
        slots = list(_slots(made))
        if slots:
            drawn.choice(EDITS)(*drawn.choice(slots), drawn)
    return made


def _slots(tree: Any) -> Iterator[Slot]:
    """Every place in a tree; a list of many is represented by some."""
    for key, value in list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))[:20]:
        if not (isinstance(tree, dict) and key == "rows"):
            yield tree, key
        if isinstance(value, dict | list):
            yield from _slots(value)


def _replace(table: Any, key: Any, drawn: random.Random) -> None:
    table[key] = deepcopy(drawn.choice(VALUES))


def _remove(table: Any, key: Any, drawn: random.Random) -> None:
    del table[key]


def _rename(table: Any, key: Any, drawn: random.Random) -> None:
    if isinstance(table, dict):
        table[drawn.choice(NAMES)] = table.pop(key)


def _add(table: Any, key: Any, drawn: random.Random) -> None:
    if isinstance(table, dict):
        table[drawn.choice(NAMES)] = deepcopy(drawn.choice(VALUES))
    else:
        table.append(deepcopy(drawn.choice(VALUES)))


def _wrap(table: Any, key: Any, drawn: random.Random) -> None:
    table[key] = drawn.choice(([table[key]], {"name": table[key]}, str(table[key]), [table[key]] * 3))


def _shift(table: Any, key: Any, drawn: random.Random) -> None:
    """A number near the one that was there, or of another kind."""
    value = table[key]
    if type(value) in (int, float) and abs(value) < 1e300:
        table[key] = drawn.choice((value + 1, value - 1, -value, value * 1000, float(value), int(value)))


EDITS: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    *(_replace, _replace, _replace, _remove, _rename, _add, _add, _wrap, _shift),
)  # fmt: skip


def toml(tree: Mapping[str, Any]) -> str:
    """Tables as TOML, whatever they hold; what TOML has no word for is text."""
    plain = [f"{_key(key)} = {_inline(value)}" for key, value in tree.items() if not isinstance(value, Mapping)]
    for name, table in tree.items():
        if isinstance(table, Mapping):
            plain += [f"[{_key(name)}]", *(f"{_key(key)} = {_inline(value)}" for key, value in table.items())]
    return "\n".join(plain) + "\n"


def _key(word: str) -> str:
    return json.dumps(word).replace("\x7f", "\\u007f")


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else _key("null" if value is None else str(value))
