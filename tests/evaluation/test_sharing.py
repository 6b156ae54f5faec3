"""Features by several processes, and in fewer bits: the same rows in the same order, and a record that says so."""

from pathlib import Path

import pytest
import torch
from torch import nn

import iecl
from iecl.backbones.factory import make_backbone
from iecl.cli.command import main
from iecl.data.factory import open_source
from iecl.data.settings import DataSettings
from iecl.errors import UserError
from iecl.evaluation.compute import compute_called
from iecl.evaluation.features import extract
from iecl.evaluation.sharing import extract_together, rows_of

LOOK = {"image_size": 16, "mean": (0.5,) * 3, "std": (0.25,) * 3, "share": 1.0, "batch": 8}
CPU = torch.device("cpu")
OWN = {"backbone": "resnet10-w16", "image_size": 16, "quiet": True}


@pytest.mark.parametrize(("total", "batch", "world"), [(40, 8, 2), (41, 8, 3), (5, 8, 2), (1000, 7, 4)])
def test_every_row_has_one_process_and_batches_stay_together(total: int, batch: int, world: int) -> None:
    parts = [rows_of(total, batch, rank, world).tolist() for rank in range(world)]
    assert sorted(row for part in parts for row in part) == list(range(total))
    cut = [part[first : first + batch] for part in parts for first in range(0, len(part), batch)]
    assert sorted(cut) == [list(range(total))[first : first + batch] for first in range(0, total, batch)]


def test_two_processes_give_the_rows_of_one_bit_for_bit(image_folder: Path) -> None:
    files = sorted(image_folder.rglob("*.png"))
    files[11].write_bytes(b"no image")
    data = DataSettings(name=str(image_folder), image_size=16, decode_size=16, cache_megabytes=0)
    source, backbone = open_source(data, "pretrain", lambda *_: None), make_backbone("resnet10-w16", 0)
    missed: dict[str, list[tuple[str, str]]] = {"one": [], "two": []}
    one = extract(backbone, source, **LOOK, on_bad=lambda *bad: missed["one"].append(bad))
    steps = []
    two = extract_together(
        backbone,
        source,
        devices=[CPU, CPU],
        **LOOK,
        on_bad=lambda *bad: missed["two"].append(bad),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert torch.equal(one.values, two.values)
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.index, two.index)
    assert len(missed["one"]) == 1
    assert missed["one"] == missed["two"]
    assert max(done for done, _ in steps) == len(one)


class Odd(nn.Module):
    """A backbone that no other process can be sent."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.secret = lambda x: x


def test_a_backbone_that_cannot_be_sent_is_refused_by_name(image_folder: Path) -> None:
    source = open_source(DataSettings(name=str(image_folder), image_size=16), "pretrain", lambda *_: None)
    with pytest.raises(UserError, match="cannot be sent to another process"):
        extract_together(Odd(), source, devices=[CPU, CPU], **LOOK)


def test_bf16_is_a_protocol_of_its_own_with_nearly_the_same_features(image_folder: Path, tmp_path: Path) -> None:
    full, short = (
        iecl.evaluate("knn", "random", str(image_folder), precision=word, out=tmp_path / f"{word}.json", **OWN)
        for word in ("32", "bf16")
    )
    assert "precision" not in full["protocol"]
    assert short["protocol"]["precision"] == "bf16-mixed"
    assert full["protocol_hash"] != short["protocol_hash"]
    source = open_source(DataSettings(name=str(image_folder), image_size=16), "pretrain", lambda *_: None)
    backbone = make_backbone("resnet10-w16", 0)
    a, b = (extract(backbone, source, **LOOK, precision=name).values for name in ("32-true", "bf16-mixed"))
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * a.std().item())


def test_what_trains_the_backbone_is_not_measured_in_fewer_bits(image_folder: Path) -> None:
    with pytest.raises(UserError, match="finetune trains the backbone, in 32 bits"):
        iecl.evaluate("finetune", "random", str(image_folder), precision="bf16", **OWN)


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "knn", "random", "--precision", "bf61"]) == 2
    assert "no arithmetic is called 'bf61'" in capsys.readouterr().err
    with pytest.raises(UserError, match="0 processes measure nothing"):
        compute_called(devices=0)
    with pytest.raises(UserError, match="would wait for each other"):
        compute_called("cpu", devices=100_000)


@pytest.mark.slow
def test_the_command_with_two_processes_prints_the_number_of_one(image_folder: Path, tmp_path: Path) -> None:
    words = [
        "evaluate",
        "knn",
        "random",
        "--backbone",
        "resnet10-w16",
        "--image-size",
        "16",
        "--data",
        str(image_folder),
    ]
    found = []
    for count in ("1", "2"):
        out = tmp_path / f"{count}.json"
        assert main([*words, "--devices", count, "--device", "cpu", "--precision", "bf16", "--out", str(out)]) == 0
        found.append(iecl.files.read_json(out))
    assert {**found[0], "seconds": 0} == {**found[1], "seconds": 0}
