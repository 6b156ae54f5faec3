"""A backbone whose weights were loaded and proven, and the files that hold one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from iecl.backbones.factory import make_backbone, stem_of, width_of
from iecl.errors import UserError
from iecl.registry import is_import
from iecl.weights.file import FORMATS, load_into, load_weights, proof, save_weights, start_of_pickle
from iecl.weights.info import BackboneInfo
from iecl.weights.proof import FeatureProof, proof_features


@dataclass(frozen=True)
class LoadedModel:
    """A backbone in evaluation mode, and what it expects of its images."""

    backbone: nn.Module
    info: BackboneInfo
    checkpoint: str
    """Which weights these are, as in `final` or `last, step 1200`."""
    proof: str
    """How many tensors were loaded, and their fingerprint."""

    @property
    def name(self) -> str:
        """The backbone's name, as for `--backbone`."""
        return self.info.backbone

    @property
    def image_size(self) -> int:
        """Side of a view."""
        return self.info.image_size

    @property
    def mean(self) -> tuple[float, ...]:
        """Of each channel, for normalization."""
        return self.info.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Of each channel, for normalization."""
        return self.info.std

    @property
    def method(self) -> str:
        """What trained it, where that is known."""
        return self.info.method

    @property
    def width(self) -> int:
        """The length of a feature."""
        return width_of(self.backbone)

    def refuse_other(self, target: Path | str, **said: str | int) -> "LoadedModel":
        """The same model, unless somebody said something else of it than it says itself; empty words say nothing.

        Raises:
            UserError: what was said is not so.
        """
        for name, value in said.items():
            held = getattr(self.info, name)
            if value and value != held:
                raise UserError(
                    f"{target} says that its {name.replace('_', ' ')} is {held}, not {value}",
                    where=f"--{name.replace('_', '-')}",
                    do="leave it out: what a run or file says of itself stands",
                )
        return self

    def described(self) -> BackboneInfo:
        """What a file says of it, its features of the built-in images included."""
        features = FeatureProof.of(proof_features(self.backbone, self.image_size, self.info.channels))
        return replace(self.info, width=self.width, stem=stem_of(self.backbone), feature_proof=features)


def load_backbone(state: Mapping[str, Tensor], info: BackboneInfo, checkpoint: str, where: str) -> LoadedModel:
    """A new backbone with exactly these tensors, and the proof of it."""
    backbone = make_backbone(info.backbone, channels=info.channels)
    load_into(backbone, state, where)
    return LoadedModel(backbone.eval(), info, checkpoint, proof(backbone, state))


def save_model(path: Path, model: LoadedModel, name: str = "") -> None:
    """Write a `.safetensors` file that says all that is needed to use the backbone; `name` is its final name."""
    save_weights(path, model.backbone.state_dict(), model.described().to_metadata(name or path.name))


def load_file(path: Path, *, trusted: str | None = None) -> LoadedModel:
    """The backbone in a file that a run or `iecl export` wrote.

    A file may say that its backbone is `package.module:factory`. That is code, which a file from elsewhere must not
    choose: unless it is None, `trusted` is the only such name that may be imported.

    Raises:
        UserError: the file does not say which backbone it holds, or is not as it was written.
    """
    state, metadata = ({}, {}) if start_of_pickle(path) == b"PK" else load_weights(path)
    if metadata.get("format") not in FORMATS:
        raise UserError(
            f"{path} does not say which backbone it holds: its format is {metadata.get('format', 'not given')}",
            where=str(path),
            do="name it with --backbone, or give a file that iecl export wrote",
        )
    info = BackboneInfo.from_metadata(metadata, str(path))
    if is_import(info.backbone) and trusted not in (None, info.backbone):
        raise UserError(
            f"{path} holds a {info.backbone}, which is code outside of iecl",
            where=str(path),
            do=f"where you trust it, say so: --backbone {info.backbone}",
        )
    return load_backbone(state, info, "final", str(path))
