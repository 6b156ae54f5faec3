"""How other people's files name the tensors of a backbone: a table, and a reader that guesses nothing.

A layout says in which table of a file the tensors are, what stands before their names, and what else may be there. A
file is read by a layout only if every tensor of the backbone is there in the right shape and everything else in that
table is accounted for. Two layouts that would give different tensors, and none at all, are both refused. Whoever wants
less than that names the tensors.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from torch import Tensor

from iecl.errors import UserError, did_you_mean

_HEADS = r"fc\.|head\.|heads\.|classifier\."
_STAGES = (("0.", "conv1."), ("1.", "bn1."), *((f"{4 + n}.", f"layer{1 + n}.") for n in range(4)))
"""torchvision's ResNet as a row of its children, without the last: numbers instead of names."""
_BLOCK = (
    *((f"conv{n}.norm.", f"bn{n}.") for n in (1, 2, 3)),
    *((f"conv{n}.", f"conv{n}.") for n in (1, 2, 3)),
    ("shortcut.norm.", "downsample.1."),
    ("shortcut.", "downsample.0."),
)
_DETECTRON2 = (
    ("stem.conv1.norm.", "bn1."),
    ("stem.conv1.", "conv1."),
    *((f"res{1 + n}.#.{theirs}", f"layer{n}.#.{ours}") for n in (1, 2, 3, 4) for theirs, ours in _BLOCK),
)
"""A norm belongs to the convolution before it; `#` is the number of a block."""
COUNTS = ".num_batches_tracked"
"""Old files lack them; no output depends on them where batch norm has a momentum."""


@dataclass(frozen=True)
class Layout:
    """One way to keep a backbone in a file."""

    table: str
    """Key of the table of tensors in the file; empty: the file is that table."""
    prefix: str
    """What stands before the names of the backbone."""
    heads: str = _HEADS
    """Pattern of what follows the prefix and is no part of the backbone."""
    others: str = ""
    """Pattern of the names in the same table that do not have the prefix."""
    renames: tuple[tuple[str, str], ...] = ()
    """Beginnings of names after the prefix, and what they stand for; `#` is a number. The first that fits counts."""
    source: str = ""
    """Where this is known from."""


LAYOUTS: dict[str, Layout] = {
    "plain": Layout("", "", source="torchvision, timm, lightly-train's export, released DINO, Barlow Twins and VICReg"),
    "ddp": Layout("", "module.", source="torch DistributedDataParallel"),
    "compiled": Layout("", "_orig_mod.", source="torch.compile"),
    "wrapped": Layout("state_dict", "", source="a plain table in a checkpoint"),
    "wrapped-ddp": Layout("state_dict", "module.", source="torchvision's and PyTorch's reference training scripts"),
    "model": Layout("model", "", source="timm's and DeiT's checkpoints"),
    "moco": Layout(
        "state_dict",
        "module.encoder_q.",
        others=r"module\.(encoder_k\.|queue)",
        source="facebookresearch/moco, main_moco.py: versions 1 and 2",
    ),
    "moco-v3": Layout(
        "state_dict",
        "module.base_encoder.",
        others=r"module\.(momentum_encoder|predictor)\.",
        source="facebookresearch/moco-v3, moco/builder.py",
    ),
    "simsiam": Layout(
        "state_dict", "module.encoder.", others=r"module\.predictor\.", source="facebookresearch/simsiam, builder.py"
    ),
    "swav": Layout(
        "", "module.", heads=r"projection_head\.|prototypes\.", source="facebookresearch/swav, released weights"
    ),
    "swav-checkpoint": Layout(
        "state_dict", "module.", heads=r"projection_head\.|prototypes\.", source="facebookresearch/swav, main_swav.py"
    ),
    "dino-teacher": Layout("teacher", "backbone.", others=r"head\.", source="facebookresearch/dino, main_dino.py"),
    "dino-student": Layout(
        "student", "module.backbone.", others=r"module\.head\.", source="facebookresearch/dino, main_dino.py"
    ),
    "barlow-twins": Layout(
        "model",
        "module.backbone.",
        others=r"module\.(projector|bn)\.",
        source="facebookresearch/barlowtwins and vicreg: training checkpoints",
    ),
    "solo-learn": Layout(
        "state_dict",
        "backbone.",
        others=r"(classifier|projector|predictor|momentum_\w+|prototypes|queue|head)\b",
        source="vturrisi/solo-learn since 1.0.5, and lightly's benchmarks with a torchvision module",
    ),
    "solo-learn-old": Layout(
        "state_dict",
        "encoder.",
        others=r"(classifier|projector|predictor|momentum_\w+|prototypes|queue|head)\b",
        source="vturrisi/solo-learn before 1.0.5",
    ),
    "lightly": Layout(
        "state_dict",
        "backbone.",
        others=r"(projection_head|prediction_head|backbone_momentum|projection_head_momentum|teacher_\w+|student_\w+|"
        r"criterion|prototypes|online_classifier|memory_bank)\b",
        renames=_STAGES,
        source="lightly-ai/lightly, examples: the children of a ResNet in a row",
    ),
    "detectron2": Layout(
        "model",
        "",
        heads=r"(stem\.)?fc\.",
        renames=_DETECTRON2,
        source="facebookresearch/detectron2, modeling/backbone",
    ),
    "lightning": Layout("state_dict", "model.", others=r"\w+", source="a LightningModule with its network as `model`"),
    "lightning-net": Layout("state_dict", "net.", others=r"\w+", source="a LightningModule with its network as `net`"),
}


@dataclass(frozen=True)
class LayoutMatch:
    """The tensors of a backbone that a layout finds in a file."""

    layout: str
    tensors: dict[str, Tensor]
    other_parts: tuple[str, ...]
    """Names in the file that belong to heads and other parts: they are left out."""
    zeroed: tuple[str, ...]
    """Counters of batches that the file lacks, set to 0."""
    missing: tuple[str, ...] = ()
    """Tensors that the file lacks or has in another shape, as was allowed by name; they are as a new backbone's."""
    unexpected: tuple[str, ...] = ()
    """Names in the file that nothing accounts for, as was allowed."""

    @property
    def exceptions(self) -> tuple[str, ...]:
        """All that was allowed by name."""
        return self.missing + self.unexpected


def read_layout(
    content: Mapping[str, Any],
    wanted: Mapping[str, Tensor],
    where: str,
    layout: str = "",
    allow: Sequence[str] = (),
) -> LayoutMatch:
    """Find the tensors of a backbone in what a file holds.

    Args:
        content: the file's content: tensors by name, or tables of them.
        wanted: the tensors of a new backbone.
        where: the file, for messages.
        layout: a row of `LAYOUTS`; empty: the one that fits, if it is the only one.
        allow: patterns, as in `layer4.*`, of names that may be missing, misshapen or unexpected.

    Raises:
        UserError: no layout fits, or several do and differ, or a pattern allows nothing.
    """
    if layout and layout not in LAYOUTS:
        raise UserError(f"no layout is called {layout!r}", where="--layout", do=did_you_mean(layout, LAYOUTS))
    names = [layout] if layout else list(LAYOUTS)
    matches = [match for name in names if (match := _match(name, content, wanted, allow)) is not None]
    if not matches:
        raise _nothing_fits(content, wanted, where, layout)
    fewest = min(len(match.exceptions) for match in matches)
    first, *rest = (match for match in matches if len(match.exceptions) == fewest)
    others = [match.layout for match in rest if _sources(match) != _sources(first)]
    if others:
        do = f"choose one of: {', '.join([first.layout, *others])}"
        raise UserError(f"{where} holds several backbones", where="--layout", do=do)
    unused = [pattern for pattern in allow if not any(_fits_any(name, [pattern]) for name in first.exceptions)]
    if unused:
        raise UserError(
            f"{unused[0]!r} allows nothing: no such tensor is missing or unexpected", where="--allow", do="leave it out"
        )
    return first


def _sources(match: LayoutMatch) -> dict[str, int]:
    """Which memory each tensor is: two layouts may lead to the same one."""
    return {name: id(tensor) for name, tensor in match.tensors.items() if name not in match.zeroed}


def _match(
    name: str, content: Mapping[str, Any], wanted: Mapping[str, Tensor], allow: Sequence[str]
) -> LayoutMatch | None:
    layout = LAYOUTS[name]
    table = _table(layout, content)
    if table is None:
        return None
    tensors: dict[str, Tensor] = {}
    other_parts: list[str] = []
    unexpected: list[str] = []
    for key, tensor in table.items():
        own = _plain_name(layout, key)
        if own not in wanted:
            (other_parts if _is_other_part(layout, key) else unexpected).append(key)
        elif tensor.shape == wanted[own].shape:
            tensors[own] = tensor
    lacking = [key for key in wanted if key not in tensors]
    missing = tuple(key for key in lacking if _fits_any(key, allow))
    zeroed = tuple(key for key in lacking if key.endswith(COUNTS) and key not in missing)
    if len(missing) + len(zeroed) < len(lacking) or not all(_fits_any(key, allow) for key in unexpected):
        return None
    if not tensors:
        return None
    tensors |= {key: wanted[key].new_zeros(()) for key in zeroed} | {key: wanted[key] for key in missing}
    return LayoutMatch(name, tensors, tuple(other_parts), zeroed, missing, tuple(unexpected))


def _fits_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_other_part(layout: Layout, key: str) -> bool:
    """Whether a name is that of a head, or of a part beside the backbone."""
    if key.startswith(layout.prefix):
        return re.match(layout.heads, key.removeprefix(layout.prefix)) is not None
    return bool(layout.others) and re.match(layout.others, key) is not None


def _table(layout: Layout, content: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    table = content.get(layout.table) if layout.table else content
    if not isinstance(table, Mapping) or not table or not all(isinstance(value, Tensor) for value in table.values()):
        return None
    return table


def _plain_name(layout: Layout, key: str) -> str:
    """The name that a tensor has in the bare backbone; as it is, without the prefix that would be needed."""
    if not key.startswith(layout.prefix):
        return ""
    own = key.removeprefix(layout.prefix)
    return renamed(own, layout.renames) if layout.renames else own


def renamed(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    """A name with its beginning exchanged by the first pair that fits; empty: none does.

    >>> renamed("res2.0.conv1.norm.bias", [("res2.#.conv1.norm.", "layer1.#.bn1."), ("res2.", "layer1.")])
    'layer1.0.bn1.bias'
    """
    for old, new in pairs:
        found = _beginning(old).match(name)
        if found:
            return new.replace("#", "".join(found.groups())) + name[found.end() :]
    return ""


@cache
def _beginning(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\#", r"(\d+)"))


def _nothing_fits(content: Mapping[str, Any], wanted: Mapping[str, Tensor], where: str, layout: str) -> UserError:
    """What the file holds, and which layouts come nearest and what they lack."""
    near = sorted(_shortfalls(content, wanted, [layout] if layout else list(LAYOUTS)))[:3]
    top = ", ".join(f"{key} ({_kind(value)})" for key, value in list(content.items())[:5])
    inner = next((value for value in content.values() if isinstance(value, Mapping)), {})
    deeper = f", with {', '.join(map(str, list(inner)[:3]))}" if inner else ""
    nearest = "; ".join(f"{name} {words}" for _, name, words in near) or "none comes near"
    return UserError(
        f"{where} has no known layout for this backbone: it holds {top}{deeper}; nearest: {nearest}",
        where=where,
        do="check --backbone, give the bare backbone's state_dict, or name each exception, as in --allow 'layer4.*'",
    )


def _kind(value: Any) -> str:
    """As in `[64, 3, 7, 7]`, `table` or `int`."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return "table" if isinstance(value, Mapping) else type(value).__name__


def _shortfalls(
    content: Mapping[str, Any], wanted: Mapping[str, Tensor], names: list[str]
) -> list[tuple[int, str, str]]:
    """For each layout that finds anything: how many tensors it lacks, and the first of them."""
    found = []
    for name in names:
        table = _table(LAYOUTS[name], content)
        if table is None:
            continue
        own = {_plain_name(LAYOUTS[name], key): tensor.shape for key, tensor in table.items()}
        lacking = [key for key in wanted if own.get(key) != wanted[key].shape and not key.endswith(COUNTS)]
        if len(lacking) < len(wanted) // 2 + 1:
            strange = [key for key in own if key and key not in wanted and not re.match(LAYOUTS[name].heads, key)]
            words = f"lacks {len(lacking)} of {len(wanted)} tensors" + (f", first {lacking[0]}" if lacking else "")
            if strange:
                words += f", and does not know {strange[0]}"
            found.append((len(lacking) + len(strange), name, words))
    return found
