"""What is counted before a run: bytes that are alive, steps that are real, and what becomes of small folders."""

import gc
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import iecl
from iecl.data.defaults import resolve_data
from iecl.errors import UserError
from iecl.pretraining import Asked, planned
from iecl.runs.checkpoint import check_disk, write_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, make_config, read_config, with_data
from iecl.training.factory import batch_per_process
from iecl.training.machine import _left_to_container, on_this_machine
from iecl.training.resume import settings_to_resume
from iecl.training.settings import TrainingSettings
from iecl.training.trial import LiveBytes, Steps, kept_megabytes, try_steps
from iecl.training.view_sheet import draw_sheet

Usage = namedtuple("Usage", "total used free")


def resolved(*sets: str, channels: int = 3, method: str = "simclr") -> RunConfig:
    data = {"name": "shapes", "image_size": 16, "decode_size": 16, "channels": channels}
    flags = {"data": data, "backbone": {"name": "resnet10-w16"}}
    small = ["method.hidden_dim=16", "method.out_dim=8", "training.precision=32-true", *sets]
    config = make_config(method=method, flags=flags, sets=small)
    return with_data(config, replace(config.data, mean=(0.5,) * channels, std=(0.25,) * channels, num_workers=0))


def test_bytes_count_while_a_tensor_lives_and_views_count_once() -> None:
    known = torch.zeros(1000)
    with LiveBytes([known]) as counted:
        first = torch.zeros(250)
        assert counted.now == 1000
        part = first[:10].view(2, 5)
        known.add_(1)
        assert counted.now == 1000
        del first
        assert counted.now == 1000  # the view holds it
        second = torch.zeros(500)
        del part
        gc.collect()
        assert counted.now == 2000
        del second
    assert (counted.now, counted.most) == (0, 3000)


@pytest.mark.parametrize("method", ["deepcluster", "deepcluster-v2", "supervised"])
def test_methods_that_ask_how_many_images_and_classes_there_are_can_be_tried_and_shown(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(method=method, flags={"data": {"name": "digits"}, "backbone": {"name": "resnet10-w16"}})
    config = with_data(config, replace(resolve_data(config.data), num_workers=0))
    assert try_steps(replace(config, training=on_this_machine(config.training))).image > 0
    assert len(draw_sheet(config, 2)) > 2
    assert "clusters are too many" not in caplog.text  # for the few images of a trial, of which nobody asked


def test_images_of_other_channels_are_tried_too() -> None:
    usual, more = (resolved("augmentation.policy=crop", channels=channels) for channels in (3, 4))
    assert try_steps(more).backbone - try_steps(usual).backbone == 4 * 16 * 9  # of the first convolution, in bytes
    assert kept_megabytes(more, 1000) == pytest.approx(kept_megabytes(usual, 1000) * 4 / 3)


def test_a_trial_counts_the_same_each_time_and_memory_grows_with_batch_and_images() -> None:
    config = resolved()
    first, second = try_steps(config), try_steps(config)
    names = ("weights", "step", "image", "look", "checkpoint", "backbone", "least_batch")
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]
    assert first.seconds > 0
    assert first.busy >= 1
    assert first.checkpoint > first.weights > first.backbone  # AdamW remembers two numbers for each weight
    double = replace(config, training=replace(config.training, batch_size=2 * config.training.batch_size))
    grown = first.megabytes(double, 1000) - first.megabytes(config, 1000)
    assert grown == pytest.approx(config.training.batch_size * first.image / 2**20)
    larger = try_steps(resolved("data.image_size=32"))
    assert 3 * first.image < larger.image < 5 * first.image  # four times the pixels


@pytest.mark.parametrize("name", ["simclr", "moco-v2"])
def test_memory_of_a_batch_in_chunks_is_foretold(name: str, tmp_path: Path) -> None:
    batch, chunk = 128, 16
    config = resolved(f"training.grad_cache={chunk}", method=name)
    trial, real = try_steps(config), Steps(config, batch, tmp_path / "chunks").take()
    assert trial.step + batch * trial.image + chunk * trial.row == pytest.approx(real, rel=0.1)
    assert real < 0.5 * Steps(resolved(method=name), batch, tmp_path / "whole").take()


@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_folder_of_very_few_images_is_trained_on(count: int, tmp_path: Path, tiny: list[str]) -> None:
    (tmp_path / "few").mkdir()
    for number in range(count):
        color = (20 * number, 255 - 20 * number, 7)
        Image.new("L" if number % 2 else "RGB", (30 + number, 60), color[0] if number % 2 else color).save(
            tmp_path / "few" / f"{number}.png"
        )
    small = {"method": {"hidden_dim": 16, "out_dim": 8}}
    run = iecl.pretrain(
        tmp_path / "few", tmp_path / "run", backbone="resnet10-w16", epochs=2, settings=small, sets=tiny, quiet=True
    )
    assert run.summary["finished"]
    assert read_config(RunDirectory(run.path)).training.batch_size == (4 if count == 9 else 2)


def test_without_a_flag_everything_is_chosen_said_and_recorded(
    image_folder: Path, tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"method": {"hidden_dim": 16, "out_dim": 8}}
    sets = [text for text in tiny if "image_size" not in text]
    run = iecl.pretrain(image_folder, tmp_path / "run", backbone="resnet10-w16", epochs=1, settings=small, sets=sets)
    said = capsys.readouterr().err
    assert "chosen for 40 images" in said
    assert "batch size      16" in said
    assert said.index("estimate: about") < said.index("ie-cl trains")
    settings = run.settings
    assert settings["training"]["batch_size"] == 16
    assert settings["data"]["image_size"] == 32
    asked = Asked(tmp_path / "again", "", str(run.path), {"data": {"name": str(image_folder)}}, (), overwrite=False)
    assert planned(asked)[0].values() == settings  # its record is a recipe that leaves nothing to choose


def test_images_that_are_all_the_same_are_named(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    (tmp_path / "same").mkdir()
    for number in range(10):
        shutil.copy(next(image_folder.rglob("*.png")), tmp_path / "same" / f"{number}.png")
    small = {"method": {"hidden_dim": 16, "out_dim": 8}}
    run = iecl.pretrain(
        tmp_path / "same", tmp_path / "run", backbone="resnet10-w16", epochs=5, settings=small, sets=tiny, quiet=True
    )
    assert run.summary["verdict"] == "nothing to learn"
    assert "learning rate" not in run.summary["advice"]
    assert "all images are the same" in (run.path / "log.txt").read_text()


def test_more_processes_than_a_machine_has_use_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iecl.training.machine.usable_cores", lambda: 2)
    with pytest.raises(UserError, match=r"99 processes would wait for 2 cores \(--devices\); give 2 or less"):
        on_this_machine(TrainingSettings(accelerator="cpu", devices=99))
    assert on_this_machine(TrainingSettings(accelerator="cpu", devices=4)).devices == 4


def test_a_batch_that_cannot_be_shared_is_answered_with_one_that_can() -> None:
    with pytest.raises(UserError, match=r"a batch of 256 cannot be shared by 3 processes .*give --batch-size 255"):
        batch_per_process(resolved(), 3)


def test_a_resumed_run_names_its_method_and_the_other(tmp_path: Path) -> None:
    run = RunDirectory.fresh(tmp_path / "run")
    config = make_config(flags={"data": {"name": "shapes"}, "backbone": {"name": "resnet10-w16"}})
    config = with_data(config, replace(config.data, image_size=16, decode_size=16, mean=(0.5,) * 3, std=(0.25,) * 3))
    run.settings.write_text(replace(config, data=replace(config.data, num_workers=0)).to_toml(""))
    with pytest.raises(UserError, match=r"keeps its settings: method.name was ie-cl, now simclr"):
        settings_to_resume(run, "simclr", {}, ())


def test_a_full_disk_is_found_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 300 * 2**20))
    check_disk(tmp_path, 70 * 2**20)
    with pytest.raises(UserError, match="the disk has 300 MB left, the checkpoints of this run need 400 MB"):
        check_disk(tmp_path, 100 * 2**20)
    with (tmp_path / "last.ckpt").open("wb") as file:
        os.truncate(file.fileno(), 150 * 2**20)
    check_disk(tmp_path, 100 * 2**20)  # of a run that goes on some are there


def test_a_checkpoint_that_finds_no_room_says_whether_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 10))
    with pytest.raises(UserError, match="nothing was saved yet"):
        write_checkpoint(tmp_path / "fresh.ckpt", {"step": 1})
    (tmp_path / "last.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match="the last checkpoint is untouched"):
        write_checkpoint(tmp_path / "fresh.ckpt", {"step": 1})


def test_the_limit_of_a_container_counts_as_the_end_of_memory(tmp_path: Path) -> None:
    assert _left_to_container(800, tmp_path) == 800
    (tmp_path / "memory.current").write_text(f"{300 * 2**20}\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert _left_to_container(800, tmp_path) == 800
    (tmp_path / "memory.max").write_text(f"{1000 * 2**20}\n")
    assert _left_to_container(800, tmp_path) == 700
