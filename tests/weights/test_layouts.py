"""Other people's files: each layout is read, and what fits none, or several, is refused with words that help."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.weights.layouts import LAYOUTS, read_layout
from made_layouts import BESIDE, backbone_from_file, named

NAME = "resnet10-w16"


@pytest.fixture(scope="module")
def trained() -> torch.nn.Module:
    return make_backbone(NAME, 3).eval()


def features(backbone: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        return backbone.eval()(torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_features(layout: str, trained: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(named(layout, trained.state_dict()), tmp_path / "file.pth")
    backbone, proof = backbone_from_file(tmp_path / "file.pth", NAME)
    assert torch.equal(features(backbone), features(trained))
    assert proof.startswith("72/72 tensors, 0 missing, 0 unexpected")
    assert f"layout {layout}" in proof
    if BESIDE[layout]:
        assert f"{len(BESIDE[layout])} tensors of heads and other parts left out" in proof


@pytest.mark.parametrize("layout", [name for name, row in LAYOUTS.items() if not row.table])
def test_safetensors_files_are_read_by_the_same_table(layout: str, trained: torch.nn.Module, tmp_path: Path) -> None:
    content = {name: tensor.clone() for name, tensor in named(layout, trained.state_dict()).items()}
    save_file(content, tmp_path / "file.safetensors")
    assert torch.equal(features(backbone_from_file(tmp_path / "file.safetensors", NAME)[0]), features(trained))


def test_old_files_without_counters_of_batches_are_read_and_said_to_lack_them(
    trained: torch.nn.Module, tmp_path: Path
) -> None:
    state = {n: t for n, t in trained.state_dict().items() if not n.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "file.pth")
    backbone, proof = backbone_from_file(tmp_path / "file.pth", NAME)
    assert torch.equal(features(backbone), features(trained))
    assert "12 counters of batches that it lacks set to 0" in proof


def damaged(kind: str, state: dict[str, Tensor]) -> dict[str, object]:
    if kind == "prefix renamed":
        return {f"modul.{name}": tensor for name, tensor in state.items()}
    if kind == "layer missing":
        return {name: tensor for name, tensor in state.items() if not name.startswith("layer3.0.conv2")}
    if kind == "other shape":
        return state | {"layer2.0.conv1.weight": state["layer2.0.conv2.weight"]}
    if kind == "extra layer":
        return state | {"layer5.0.conv1.weight": torch.zeros(1)}
    return {"optimizer": {"lr": 0.1}, "epoch": 3}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("prefix renamed", r"it holds modul\.conv1\.weight \(\[16, 3, 3, 3\]\).*none comes near"),
        ("layer missing", r"nearest: plain lacks 1 of 72 tensors, first layer3\.0\.conv2\.weight"),
        ("other shape", r"nearest: plain lacks 1 of 72 tensors, first layer2\.0\.conv1\.weight"),
        ("extra layer", r"nearest: plain lacks 0 of 72 tensors, and does not know layer5\.0\.conv1\.weight"),
        ("no weights", r"it holds optimizer \(table\), epoch \(int\), with lr"),
    ],
)
def test_what_fits_no_layout_is_refused_with_what_it_holds(
    kind: str, words: str, trained: torch.nn.Module, tmp_path: Path
) -> None:
    torch.save(damaged(kind, trained.state_dict()), tmp_path / "file.pth")
    with pytest.raises(UserError, match=f"has no known layout for this backbone.*{words}"):
        backbone_from_file(tmp_path / "file.pth", NAME)


EXCEPTIONS = {
    "layer missing": ("layer3.0.conv2.*", "71/72 tensors, 1 missing, 0 unexpected", "layer3.0.conv2.weight"),
    "other shape": ("layer2.0.conv1.weight", "71/72 tensors, 1 missing, 0 unexpected", "layer2.0.conv1.weight"),
    "extra layer": ("layer5.*", "72/72 tensors, 0 missing, 1 unexpected", "layer5.0.conv1.weight"),
}


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_an_exception_must_be_named_and_is_told_with_the_count(
    kind: str, trained: torch.nn.Module, tmp_path: Path
) -> None:
    pattern, count, name = EXCEPTIONS[kind]
    torch.save(damaged(kind, trained.state_dict()), tmp_path / "file.pth")
    with pytest.raises(UserError, match=r"name each exception, as in --allow 'layer4\.\*'"):
        backbone_from_file(tmp_path / "file.pth", NAME, allow=["layer1.*"])
    backbone, proof = backbone_from_file(tmp_path / "file.pth", NAME, allow=[pattern])
    assert proof.startswith(count)
    assert f"layout plain, allowed: {name}" in proof
    new, held, theirs = make_backbone(NAME).state_dict(), backbone.state_dict(), trained.state_dict()
    for key in held:  # what is missing is as in a new backbone, everything else is the file's
        assert torch.equal(held[key], (new if key == name else theirs)[key])


def test_an_exception_that_is_not_needed_is_refused(trained: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(damaged("layer missing", trained.state_dict()), tmp_path / "file.pth")
    with pytest.raises(UserError, match=r"'fc\.\*' allows nothing: no such tensor is missing .* \(--allow\)"):
        backbone_from_file(tmp_path / "file.pth", NAME, allow=["layer3.*", "fc.*"])


def test_however_much_is_allowed_the_layout_that_lacks_least_is_taken_and_an_empty_one_never(
    trained: torch.nn.Module, tmp_path: Path
) -> None:
    torch.save(named("moco", trained.state_dict()), tmp_path / "file.pth")
    with pytest.raises(UserError, match="allows nothing"):  # moco fits without
        backbone_from_file(tmp_path / "file.pth", NAME, allow=["*"])
    torch.save(damaged("no weights", {}), tmp_path / "file.pth")
    with pytest.raises(UserError, match="has no known layout"):
        backbone_from_file(tmp_path / "file.pth", NAME, allow=["*"])
    torch.save(damaged("prefix renamed", trained.state_dict()), tmp_path / "file.pth")
    with pytest.raises(UserError, match="has no known layout"):  # nothing of it would be loaded
        backbone_from_file(tmp_path / "file.pth", NAME, allow=["*"])


def test_a_file_with_two_backbones_asks_which(trained: torch.nn.Module, tmp_path: Path) -> None:
    other = make_backbone(NAME, 4)
    both = named("dino-teacher", trained.state_dict()) | named("dino-student", other.state_dict())
    torch.save(both, tmp_path / "file.pth")
    with pytest.raises(UserError, match=r"several backbones \(--layout\); choose one of: dino-teacher, dino-student"):
        backbone_from_file(tmp_path / "file.pth", NAME)
    chosen, _ = backbone_from_file(tmp_path / "file.pth", NAME, layout="dino-student")
    assert torch.equal(features(chosen), features(other))


def test_a_layout_that_does_not_exist_gets_a_suggestion(trained: torch.nn.Module) -> None:
    state = trained.state_dict()
    with pytest.raises(UserError, match=r"no layout is called 'mocco'.*did you mean moco\?"):
        read_layout(state, state, "a.pth", "mocco")


def test_a_truncated_file_is_refused(trained: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "file.pth")
    raw = (tmp_path / "file.pth").read_bytes()
    (tmp_path / "file.pth").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UserError, match=r"is damaged: .*; write or copy it again"):
        backbone_from_file(tmp_path / "file.pth", NAME)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_says_where_it_is_known_from(layout: str) -> None:
    assert LAYOUTS[layout].source
