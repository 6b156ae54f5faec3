"""What a file says of its tensors decides on numbers as they do: a change of it is refused by all that read it."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iecl.api import export
from iecl.cli.command import main
from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.weights.file import FORMAT, WITHOUT_DIGEST, digest_of, load_weights
from made_runs import MadeRun


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An exported file."""
    folder = tmp_path_factory.mktemp("made")
    MadeRun(folder / "run", data="digits").save_checkpoint(step=3)
    export(folder / "run", folder / "out.safetensors")
    return (folder / "out.safetensors").read_bytes()


@pytest.fixture
def exported(whole: bytes, tmp_path: Path) -> Path:
    (tmp_path / "out.safetensors").write_bytes(whole)
    return tmp_path / "out.safetensors"


def rewrite(path: Path, change: Callable[[dict[str, Any]], object], text: Callable[[str], str] = str) -> None:
    """Change the metadata in a file's header, or the header's text, and leave the tensors as they are."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header["__metadata__"])
    written = text(json.dumps(header)).encode()
    path.write_bytes(struct.pack("<Q", len(written)) + written + raw[8 + length :])


def as_before(metadata: dict[str, Any]) -> None:
    """What version 1 wrote: the same entries, but for the digest."""
    del metadata["digest"]
    metadata["format"] = WITHOUT_DIGEST


COMMANDS: dict[str, list[str]] = {
    "evaluate": ["evaluate", "knn", "FILE", "--data", "digits"],
    "embed": ["embed", "FILE", "--data", "digits", "--out", "FOLDER/features.npz"],
    "export": ["export", "FILE", "--out", "FOLDER/again.safetensors"],
    "export onnx": ["export", "FILE", "--out", "FOLDER/again.onnx"],
    "verify": ["verify", "FILE"],
    "verify against": ["verify", "FILE", "--against", "FILE"],
    "verify as from elsewhere": ["verify", "FILE", "--backbone", "resnet10-w16"],
    "describe": ["describe", "FILE"],
    "pretrain": ["pretrain", "--data", "digits", "--from", "FILE", "--out", "FOLDER/run"],
}


def refusal(command: str, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command refuses a file."""
    words = [word.replace("FILE", str(file)).replace("FOLDER", str(file.parent)) for word in COMMANDS[command]]
    assert main(words) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert len(told) == 1
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]
    return told[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_changed_mean_is_refused_by_every_command_with_one_line(
    command: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(exported, lambda metadata: metadata.update(mean="[0.9054, 0.4, 0.3]"))
    said = refusal(command, exported, capsys)
    assert f"{exported} is damaged: the digest of its metadata should be " in said
    assert said.endswith("write or copy it again")


@pytest.mark.parametrize("command", ["evaluate", "embed", "export", "verify", "pretrain"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda metadata: metadata.pop("digest"), f"it has no digest, which {FORMAT} has"),
        (lambda metadata: metadata.update(digest="0123456789abcdef"), "should be 0123456789abcdef and is "),
        (lambda metadata: metadata.pop("fingerprint"), f"it has no fingerprint, which {FORMAT} has"),
        (lambda metadata: metadata.update(format=WITHOUT_DIGEST), "the digest of its metadata should be "),
    ],
)
def test_a_digest_that_was_changed_or_removed_is_refused(
    command: str,
    exported: Path,
    change: Callable[[dict[str, Any]], object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rewrite(exported, change)
    assert words in refusal(command, exported, capsys)


def test_every_entry_is_covered(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    path.write_bytes(whole)
    _, metadata = load_weights(path)
    assert {"mean", "std", "image_size", "backbone", "stem", "width", "recipe", "loading"} < metadata.keys()
    assert {"proof_features", "proof_fingerprint", "proof_scale", "iecl", "step", "method", "source"} < metadata.keys()
    for name in metadata:
        for change in (lambda found, name=name: found.update({name: found[name] + " "}), lambda f, n=name: f.pop(n)):
            path.write_bytes(whole)
            rewrite(path, change)
            with pytest.raises(UserError, match=r"is damaged: |has the format iecl-backbone-2 ,"):
                load_weights(path)
    path.write_bytes(whole)
    rewrite(path, lambda found: found.update(more="than was written"))
    with pytest.raises(UserError, match="is damaged: the digest of its metadata should be"):
        load_weights(path)


@pytest.mark.parametrize("name", ["mean", "digest", "format", "__metadata__", "conv1.weight"])
def test_an_entry_that_stands_twice_is_refused(name: str, exported: Path) -> None:
    def doubled(text: str) -> str:
        header = json.loads(text)
        value = header.get(name, header["__metadata__"].get(name))
        entry = f"{json.dumps(name)}: {json.dumps(value)}"
        assert entry in text
        return text.replace(entry, f"{entry}, {entry}")

    rewrite(exported, lambda metadata: None, doubled)
    with pytest.raises(UserError, match=r"is damaged: "):
        load_weights(exported)


def test_a_later_format_is_refused_by_name(exported: Path) -> None:
    rewrite(exported, lambda metadata: metadata.update(format="iecl-backbone-3"))
    with pytest.raises(UserError, match=r"has the format iecl-backbone-3, .*; read it with a later version of iecl"):
        load_weights(exported)


def test_a_file_of_the_format_before_is_read_and_verified_with_a_word_on_what_is_not_covered(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = load_model(exported)
    assert main(["verify", str(exported)]) == 0
    assert f"metadata: as written, digest {now.info.digest}\n" in capsys.readouterr().out
    rewrite(exported, as_before)
    old = load_model(exported)
    assert (old.proof, old.mean, old.std, old.image_size) == (now.proof, now.mean, now.std, now.image_size)
    assert main(["verify", str(exported)]) == 0
    shown = capsys.readouterr().out
    assert "features of the built-in images: equal bit for bit" in shown
    assert "metadata: NOT COVERED: written by an older version" in shown
    export(exported, exported.with_name("again.safetensors"))
    _, metadata = load_weights(exported.with_name("again.safetensors"))
    assert (metadata["format"], metadata["digest"]) == (FORMAT, digest_of(metadata))


def test_tensors_of_the_format_before_are_checked_as_they_were(exported: Path) -> None:
    rewrite(exported, as_before)
    raw = bytearray(exported.read_bytes())
    raw[-5] ^= 1
    exported.write_bytes(raw)
    with pytest.raises(UserError, match="is damaged: its fingerprint should be"):
        load_weights(exported)


@pytest.mark.parametrize("std", ["[0.2, 0, 0.2]", "[0.2, -1, 0.2]", "[0.2, NaN, 0.2]", "[0.2, Infinity, 0.2]"])
def test_a_standard_deviation_that_no_image_can_be_divided_by_is_refused(exported: Path, std: str) -> None:
    def sealed(metadata: dict[str, Any]) -> None:
        metadata["std"] = std
        metadata["digest"] = digest_of(metadata)

    rewrite(exported, sealed)
    with pytest.raises(UserError, match=r"make no sense: image_size 16, mean"):
        load_model(exported)


def test_an_onnx_file_carries_the_digest_of_what_it_says(exported: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out = exported.with_name("out.onnx")
    export(exported, out)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    assert said["digest"] == digest_of(said)
    assert said["fingerprint"] == load_weights(exported)[1]["fingerprint"]
    assert "format" not in said
