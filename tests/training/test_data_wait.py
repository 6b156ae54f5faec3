"""How long a run waited for its images: in its metrics and on its progress line."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import iecl
from iecl.console import ProgressLine
from iecl.data.batch import Batch
from iecl.data.loader import Loader

RUN = {"backbone": "resnet10-w16", "epochs": 1, "batch_size": 8, "quiet": True}
SETS = ["method.hidden_dim=16", "method.out_dim=8", "training.log_steps=1", "training.online_eval_epochs=0"]


@pytest.mark.parametrize(("slowly", "low", "high"), [(True, 0.4, 1.0), (False, 0.0, 0.3)])
def test_the_wait_for_data_is_a_share_of_the_time_of_the_steps(
    slowly: bool,
    low: float,
    high: float,
    image_folder: Path,
    tmp_path: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Loader.epoch
    shown: list[str] = []

    def slow(self: Loader, epoch: int, first: int = 0) -> Iterator[Batch]:
        for batch in whole(self, epoch, first):
            time.sleep(0.4)
            yield batch

    if slowly:
        monkeypatch.setattr(Loader, "epoch", slow)
    monkeypatch.setattr(ProgressLine, "show", lambda self, text, share=None: shown.append(text))
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, *SETS], **RUN)
    rows = [row for row in run.metrics if "loss" in row]
    assert "data_wait" not in rows[0]  # one step has no time between steps
    assert all(low <= row["data_wait"] <= high for row in rows[1:])
    percent = round(100 * rows[-1]["data_wait"])
    assert f"images/s  data wait {percent} %" in shown[-1]
