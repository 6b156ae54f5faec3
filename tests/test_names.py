"""What users of lightly, timm, solo-learn, Lightning and torchvision type works, or the error names our word."""

from pathlib import Path
from typing import Any

import pytest

import iecl
from iecl.cli.command import main
from iecl.errors import UserError
from iecl.names import ELSEWHERE, FORMER, current_settings
from iecl.training.config import SECTIONS, make_config

WORKS = [
    ["--lr", "1e-3"],
    ["--weight-decay", "1e-4"],
    ["--batch-size", "64"],
    ["--epochs", "5"],
    ["--image-size", "32"],
    ["--workers", "2"],
    ["--precision", "bf16-mixed"],
    ["--precision", "32-true"],
    ["--augmentation", "byol"],
    ["--backbone", "resnet18"],
    ["--method", "simclr"],
    ["--seed", "3"],
    ["--devices", "2"],
    ["--accelerator", "cpu"],
    ["--strategy", "ddp"],
    ["--set", "optimizer.lr=0.1"],
    ["--set", "optimizer.name=sgd"],
    ["--set", "optimizer.grad_clip=1.0"],
    ["--set", "optimizer.warmup_epochs=10"],
    ["--set", "optimizer.min_lr_ratio=0.01"],
    ["--set", "training.grad_accumulation=2"],
    ["--set", "training.gradient_checkpointing=true"],
    ["--set", "data.num_workers=0"],
    ["--set", "method.temperature=0.2"],
    ["--set", "method.hidden_dim=64"],
    ["--set", "method.ema_momentum=0.99"],
]
NAMED = [
    (["--learning-rate", "1e-3"], "--lr"),
    (["--base-lr", "1e-3"], "--lr"),
    (["--learning_rate=1e-3"], "--lr"),
    (["--wd", "1e-4"], "--weight-decay"),
    (["--bs", "64"], "--batch-size"),
    (["--batch", "64"], "--batch-size"),
    (["--max-epochs", "5"], "--epochs"),
    (["--max_epochs", "5"], "--epochs"),
    (["--img-size", "32"], "--image-size"),
    (["--input-size", "32"], "--image-size"),
    (["--num-workers", "4"], "--workers"),
    (["--num_workers", "4"], "--workers"),
    (["--arch", "resnet18"], "--backbone"),
    (["--model", "resnet18"], "--backbone"),
    (["--gpus", "2"], "--devices"),
    (["--num-nodes", "2"], "--nodes"),
    (["--amp"], "--precision"),
    (["--fp16"], "--precision"),
    (["--opt", "sgd"], "optimizer.name"),
    (["--optimizer", "sgd"], "optimizer.name"),
    (["--momentum", "0.9"], "optimizer.momentum"),
    (["--warmup-epochs", "10"], "optimizer.warmup_epochs"),
    (["--scheduler", "cosine"], "optimizer.warmup_epochs"),
    (["--clip-grad", "1.0"], "optimizer.grad_clip"),
    (["--gradient_clip_val", "1.0"], "optimizer.grad_clip"),
    (["--accumulate_grad_batches", "4"], "training.grad_accumulation"),
    (["--temperature", "0.1"], "method.temperature"),
    (["--tau", "0.1"], "method.temperature"),
    (["--ema", "0.99"], "method.ema_momentum"),
    (["--data-dir", "photos"], "--data"),
    (["--dataset", "cifar10"], "--data"),
    (["--output-dir", "out"], "--out"),
    (["--pretrained", "file"], "--init-from"),
    (["--ckpt", "file"], "--init-from"),
    (["--config", "file"], "--recipe"),
    (["--transform", "simclr"], "--augmentation"),
    (["--set", "lr=0.1"], "optimizer.lr"),
    (["--set", "learning_rate=0.1"], "optimizer.lr"),
    (["--set", "optimizer.learning_rate=0.1"], "lr"),
    (["--set", "optimizer.wd=0.1"], "weight_decay"),
    (["--set", "optimiser.rate=0.1"], "optimizer"),
    (["--set", "optimizer.rate=0.1"], "lr"),
    (["--set", "training.bs=8"], "batch_size"),
    (["--set", "training.max_epochs=8"], "epochs"),
    (["--set", "training.amp=true"], "precision"),
    (["--set", "method.tau=0.1"], "temperature"),
    (["--set", "method.temp=0.1"], "temperature"),
    (["--set", "method.hidden=16"], "hidden_dim"),
    (["--set", "method.proj_output_dim=16"], "out_dim"),
    (["--set", "data.img_size=32"], "image_size"),
    (["--set", "data.batch_size=32"], "training.batch_size"),
    (["--precision", "fp16"], "16-mixed"),
    (["--precision", "bf16"], "bf16-mixed"),
    (["--method", "moco"], "moco-v"),
    (["--method", "BarlowTwins"], "barlow-twins"),
    (["--recipe", "simclr/cifar10"], "simclr/cifar"),
]


def told(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr("iecl.pretraining._start", lambda config, *args, **options: config.method_settings())
    monkeypatch.setattr("iecl.api.Run", lambda path, things: path)
    monkeypatch.setattr("iecl.cli.pretrain.closing", lambda args, made: {})
    chosen = ["--backbone", "resnet10-w16", "--epochs", "3", "--image-size", "32", "--quiet"]  # so nothing is tried
    code = main(["pretrain", "--data", "shapes", "--out", "nowhere", *chosen, *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", WORKS, ids=" ".join)
def test_the_words_of_the_field_work(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = told(words, capsys, monkeypatch)
    assert code == 0, said


@pytest.mark.parametrize(
    ("words", "ours"), NAMED, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_other_words_are_answered_with_ours(
    words: list[str], ours: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = told(words, capsys, monkeypatch)
    assert code == 2
    assert ours in said.splitlines()[-1].partition(";")[2], said


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"learning_rate": 1e-3}, "lr"),
        ({"max_epochs": 3}, "epochs"),
        ({"workers": 2}, "num_workers"),
        ({"gpus": 1}, "devices"),
    ],
)
def test_arguments_of_other_libraries_are_answered_with_ours(given: dict[str, Any], ours: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"iecl.pretrain has no argument .* did you mean {ours}\?"):
        iecl.pretrain("shapes", tmp_path / "run", **given)


def test_every_suggestion_is_a_setting_or_a_flag_that_exists() -> None:
    from iecl.methods import METHODS

    settings = {f"{section}.{name}" for section, cls in SECTIONS.items() for name in cls.__dataclass_fields__}
    settings |= {"method.name", "method.host"}
    for entry in METHODS.values():
        cls = getattr(entry.load(), "Settings", None)
        settings |= {f"method.{name}" for name in getattr(cls, "__dataclass_fields__", {})}
    assert {name for name in ELSEWHERE if not name.startswith("--")} <= settings
    renamed = {f"{section}.{new}" for section, table in FORMER.items() for new in table.values()}
    assert renamed <= settings


def test_no_word_means_two_things() -> None:
    words = [word for text in ELSEWHERE.values() for word in text.split()]
    assert len(words) == len(set(words))


def test_settings_under_their_first_names_are_those_of_today() -> None:
    old = {"method": {"name": "moco-v2", "keep": 0.5}, "views": {"policy": "crop"}, "training": {"batch": 8}}
    config = make_config(method="moco-v2", flags=current_settings(old | {"data": {"name": "shapes", "canvas": 32}}))
    assert config.method_settings().ema_momentum.start == 0.5
    assert (config.augmentation.policy, config.training.batch_size, config.data.decode_size) == ("crop", 8, 32)


def test_a_former_setting_beside_a_section_that_is_none_is_left_to_whoever_checks_sections() -> None:
    values = {"objective": {"saib_gradient": "entropy"}, "saib": 3}
    assert current_settings(values) == values
