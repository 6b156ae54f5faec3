"""The verdict on synthetic logs, one per ending, and on real trainings that are made to end well or badly."""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.info_nce import info_nce
from iecl.meters.embedding import read_embedding
from iecl.meters.verdict import MORE_STEPS, verdict

Row = dict[str, float]


def log(rows: int = 40, every: int = 100, **columns: Callable[[float], float]) -> list[Row]:
    """Rows of a log; each column is a function of the share of the run that is over."""
    names = {name: "loss" if name == "loss" else f"meter/{name}" for name in columns}
    return [
        {"step": i * every, **{names[name]: value(i / (rows - 1)) for name, value in columns.items()}}
        for i in range(rows)
    ]


HEALTHY: Mapping[str, Callable[[float], float]] = {
    "loss": lambda share: 5 - 3 * math.sqrt(share),
    "effective_rank": lambda share: 8 + 50 * share,
    "feature_std": lambda share: 0.2 + 0.7 * share,
    "alignment": lambda share: 0.1 + 0.2 * share,
    "uniformity": lambda share: -0.5 - 3 * share,
}


def test_one_reading_is_not_called_readings() -> None:
    judged = verdict([{"step": 1, "loss": 5.0}])
    assert (judged.word, judged.reasons) == (
        "too short",
        ("1 reading of the loss, 8 are needed for a verdict",),
    )


def came_out(name: str, trained: float, untrained: float, pixels: float) -> dict[str, object]:
    scores = {"trained": trained, "untrained": untrained, "pixels": pixels}
    return {"images": 1000, "scores": {row: {name: share} for row, share in scores.items()}}


@pytest.mark.parametrize("name", ["knn", "own_view"])
def test_a_run_that_changed_nothing_is_not_healthy(name: str) -> None:
    judged = verdict(log(**HEALTHY), outcome=came_out(name, 0.31, 0.30, 0.2))
    assert (judged.word, judged.advice) == ("slow", MORE_STEPS)
    assert "31.0 %, the untrained network has 30.0 %: nothing was gained yet" in judged.reasons[0]
    better = verdict(log(**HEALTHY), outcome=came_out(name, 0.36, 0.30, 0.2))
    assert better.word == "healthy"
    assert "36.0 % (untrained 30.0 %, raw pixels 20.0 %)" in better.reasons[1]


def test_classes_that_raw_pixels_tell_apart_better_are_not_learned_yet() -> None:
    judged = verdict(log(**HEALTHY), outcome=came_out("knn", 0.40, 0.30, 0.45))
    assert judged.word == "slow"
    assert judged.reasons == ("kNN is 40.0 %, raw pixels have 45.0 %",)


@pytest.mark.parametrize("name", ["knn", "own_view"])
def test_what_anything_finds_judges_nothing(name: str) -> None:
    assert verdict(log(**HEALTHY), outcome=came_out(name, 1.0, 1.0, 1.0)).word == "healthy"


@pytest.mark.parametrize(("last", "word"), [(0.305, "slow"), (0.35, "healthy")])
def test_without_an_outcome_the_online_knn_is_held_against_that_of_the_untrained_network(
    last: float, word: str
) -> None:
    rows = log(**HEALTHY)
    judged = verdict([{"step": 0, "knn": 0.3}, *rows, {"step": rows[-1]["step"], "knn": last}])
    assert judged.word == word
    assert ("nothing was gained yet" in judged.reasons[0]) == (word == "slow")


def test_a_run_that_learns_is_healthy_and_says_how_far_it_came() -> None:
    judged = verdict(log(**HEALTHY))
    assert judged.word == "healthy"
    assert judged.reasons == (
        "loss went from 4.5 to 2",
        "effective rank went from 9.3 to 57",
        "feature std went from 0.22 to 0.88",
    )


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (lambda share: 5 - 3 * share, "the loss is still falling: train longer"),
        (lambda share: 2 + 3 * math.exp(-10 * share), "nothing to fix"),
    ],
)
def test_a_loss_that_still_falls_asks_for_a_longer_run(loss: Callable[[float], float], advice: str) -> None:
    judged = verdict(log(loss=loss))
    assert (judged.word, judged.advice) == ("healthy", advice)


def test_a_loss_that_rises_while_a_queue_fills_is_healthy() -> None:
    rising = {**HEALTHY, "loss": lambda share: 0.5 if share < 0.08 else 7.5 - share}
    assert verdict(log(**rising)).word == "healthy"


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_a_broken_term_is_named_with_the_step_where_it_broke(value: float, word: str) -> None:
    history = [{"step": step, "loss": 5.0, "loss/contrast": 4.0, "loss/kl": 1.0} for step in range(0, 1300, 100)]
    history.append({"step": 1300, "loss": math.nan, "loss/contrast": value, "loss/kl": 1.0})
    history.append({"step": 1400, "loss": math.nan, "loss/contrast": math.nan, "loss/kl": math.nan})

    judged = verdict(history)

    assert judged.word == "diverged"
    assert judged.reasons == (f"loss/contrast became {word} at step 1,300",)
    assert "learning rate ten times smaller" in judged.advice


def test_a_run_that_breaks_at_once_is_diverged_not_too_short() -> None:
    judged = verdict([{"step": 0, "loss": 5.0}, {"step": 1, "loss": math.nan}])
    assert (judged.word, judged.reasons) == ("diverged", ("loss became NaN at step 1",))


def test_one_skipped_step_in_a_run_that_went_on_is_not_divergence() -> None:
    history = log(**HEALTHY)
    history[3]["loss"] = math.inf
    assert verdict(history).word == "healthy"


def test_a_loss_that_stays_far_above_its_start_is_diverged() -> None:
    judged = verdict(log(loss=lambda share: 5 + (900 if share > 0.5 else 0)))
    assert judged.word == "diverged"
    assert judged.reasons == ("loss rose from 5 to 905 and stayed there since step 3,000",)


def test_a_spike_that_passes_is_not_divergence() -> None:
    judged = verdict(log(loss=lambda share: 500 if 0.9 < share < 0.95 else 5 - 3 * share))
    assert judged.word == "healthy"


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_few_rows_are_too_short_to_tell(rows: int) -> None:
    judged = verdict(log(**HEALTHY)[:rows])
    assert judged.word == "too short"
    words = "1 reading" if rows == 1 else f"{rows} readings"
    assert judged.reasons == (f"{words} of the loss, 8 are needed for a verdict",)


def test_a_falling_rank_is_a_collapse_with_its_peak_and_width() -> None:
    falling = {**HEALTHY, "effective_rank": lambda share: 61 if share < 0.32 else 2.3}
    judged = verdict(log(**falling), width=128)
    assert judged.word == "collapsing"
    assert judged.reasons == ("effective rank fell from 61 to 2.3 of 128 since step 1,200",)
    assert "entropy term" in judged.advice


def test_random_directions_dropped_at_the_start_are_not_a_collapse() -> None:
    # As a small convolutional net on real images does: 21 of 128 before the first step, 6 to 7 from then on.
    dropping = {**HEALTHY, "effective_rank": lambda share: 30 if share < 0.08 else 6 + share}
    rows = log(**dropping)
    judged = verdict(rows, width=128)
    assert judged.word == "healthy"
    assert "compare its kNN with that of a random backbone" in judged.advice
    measured = [{"step": 0, "knn": 0.3}, *rows, {"step": 9000, "knn": 0.5}]
    assert "random" not in verdict(measured, width=128).advice  # what it is good for is known


@pytest.mark.parametrize(("width", "word"), [(2048, "collapsing"), (32, "healthy")])
def test_a_rank_that_never_grew_is_judged_by_the_width(width: int, word: str) -> None:
    flat = {**HEALTHY, "effective_rank": lambda share: 12.0 - share}
    assert verdict(log(**flat), width=width).word == word


def test_a_small_rank_that_grows_is_not_a_collapse() -> None:
    growing = {**HEALTHY, "effective_rank": lambda share: 1.1 + 0.8 * share}
    assert verdict(log(**growing), width=2048).word == "healthy"


def test_a_tiny_deviation_is_a_collapse() -> None:
    judged = verdict(log(**{**HEALTHY, "feature_std": lambda share: 0.03}))
    reason = "feature std is 0.03, where 1 is healthy: the features of all images are nearly equal"
    assert (judged.word, judged.reasons) == ("collapsing", (reason,))


def test_a_small_deviation_is_a_collapse_when_it_fell() -> None:
    judged = verdict(log(**{**HEALTHY, "feature_std": lambda share: 0.9 if share < 0.5 else 0.15}))
    reason = "feature std fell from 0.9 to 0.15 since step 1,900"
    assert (judged.word, judged.reasons) == ("collapsing", (reason,))


@pytest.mark.parametrize(
    "deviation",
    [
        lambda share: 0.15 + 0.02 * share,
        lambda share: 0.9 if share == 0 else 0.15,
        lambda share: 0.9 if share == 20 / 39 else 0.15,
    ],
)
def test_a_small_deviation_alone_or_after_one_odd_batch_is_not(deviation: Callable[[float], float]) -> None:
    assert verdict(log(**{**HEALTHY, "feature_std": deviation})).word == "healthy"


def test_near_views_and_near_images_together_are_a_collapse() -> None:
    same = {**HEALTHY, "alignment": lambda share: 0.01, "uniformity": lambda share: -0.05}
    judged = verdict(log(**same))
    assert judged.word == "collapsing"
    assert judged.reasons == ("alignment 0.01 with uniformity -0.05: every image looks the same",)


@pytest.mark.parametrize(("near", "spread"), [(0.01, -3.0), (0.5, -0.05)])
def test_near_views_or_near_images_alone_are_not(near: float, spread: float) -> None:
    one = {**HEALTHY, "alignment": lambda share: near, "uniformity": lambda share: spread}
    assert verdict(log(**one)).word == "healthy"


STILL: Mapping[str, Callable[[float], float]] = {
    "loss": lambda share: 6.9 - 0.05 * share,
    "effective_rank": lambda share: 20 + share,
    "feature_std": lambda share: 0.5,
    "uniformity": lambda share: -1.0,
}


def test_a_run_in_which_nothing_moves_is_slow() -> None:
    judged = verdict(log(**STILL))
    assert judged.word == "slow"
    assert judged.reasons == ("loss went from 6.9 to 6.9 in 3,900 steps",)
    assert "learning rate three times larger" in judged.advice


def test_a_flat_loss_with_features_that_move_is_not_slow() -> None:
    assert verdict(log(**{**STILL, "effective_rank": lambda share: 20 + 10 * share})).word == "healthy"


def test_meters_may_be_logged_more_rarely_than_the_loss() -> None:
    falling = {**HEALTHY, "effective_rank": lambda share: 61 if share < 0.5 else 2.3}
    history = [
        row if i % 5 == 0 else {"step": row["step"], "loss": row["loss"]} for i, row in enumerate(log(**falling))
    ]
    assert verdict(history).word == "collapsing"


def test_the_verdict_does_not_import_torch() -> None:
    question = "import sys, iecl.meters.verdict; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def pull_together(anchor: Tensor, query: Tensor) -> Tensor:
    """Positive pairs without anything that pushes images apart."""
    return 2 - 2 * torch.cosine_similarity(anchor, query).mean()


def squared(anchor: Tensor, query: Tensor) -> Tensor:
    """A loss without bound: too long a step makes it grow for ever."""
    return (anchor - query).square().sum() + (anchor.square().sum(1) - 1).square().sum()


def contrast(anchor: Tensor, query: Tensor) -> Tensor:
    return info_nce(anchor, query, temperature=0.2)


def train(loss_of: Callable[[Tensor, Tensor], Tensor], rate: float, steps: int = 240) -> list[Row]:
    """Plain gradient descent of a linear encoder with bias on noisy views of 64 points; the log of the run."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.normal(size=(64, 16)))
    weight = torch.from_numpy(rng.normal(size=(16, 8)) / 4).requires_grad_()
    bias = torch.from_numpy(rng.normal(size=8)).requires_grad_()
    history = []
    for step in range(steps):
        views = [images + 0.7 * torch.from_numpy(rng.normal(size=(64, 16))) for _ in range(2)]
        anchor, query = (view @ weight + bias for view in views)
        loss = loss_of(anchor, query)
        readings = read_embedding(anchor, anchor, query)
        history.append({"step": step, "loss": loss.item(), **{name: value.item() for name, value in readings.items()}})
        gradients = torch.autograd.grad(loss, (weight, bias))
        weight, bias = (
            (parameter - rate * gradient).detach().requires_grad_()
            for parameter, gradient in zip((weight, bias), gradients, strict=True)
        )
    return history


@pytest.mark.parametrize(
    ("loss_of", "rate", "word"),
    [
        (contrast, 0.3, "healthy"),
        (pull_together, 1.0, "collapsing"),
        (squared, 1.0, "diverged"),
        (contrast, 1e-7, "slow"),
    ],
)
def test_real_trainings_are_judged_by_how_they_end(
    loss_of: Callable[[Tensor, Tensor], Tensor], rate: float, word: str
) -> None:
    assert verdict(train(loss_of, rate), width=8).word == word


def test_projections_that_come_together_are_a_collapse_even_where_the_views_stay_apart() -> None:
    # A one-sided momentum host compares an anchor with a key: their distance stays large while all anchors are one.
    shrinking = {**HEALTHY, "alignment": lambda share: 0.9, "uniformity": lambda share: -0.6 * (1 - share)}
    judged = verdict(log(**shrinking))
    assert judged.word == "collapsing"
    assert judged.reasons == ("uniformity went from -0.58 to -0.015: the projections of all images are nearly equal",)


def test_projections_that_were_never_apart_have_lost_nothing() -> None:
    close = {**HEALTHY, "uniformity": lambda share: -0.05}
    assert verdict(log(**close)).word == "healthy"


@pytest.mark.parametrize(("end", "word"), [(0.19, "unlearning"), (0.345, "slow"), (0.6, "healthy")])
def test_features_below_those_of_the_untrained_network_are_unlearnt(end: float, word: str) -> None:
    rows = [{"step": 0, "knn": 0.35}, *log(**HEALTHY), {"step": 4000, "knn": end}]
    judged = verdict(rows)
    assert judged.word == word
    assert ("online kNN is 19.0 %, the untrained network had 35.0 %" in judged.reasons[0]) == (word == "unlearning")


def test_a_fall_after_the_first_epoch_is_not_below_the_untrained_network() -> None:
    rows = [*log(**HEALTHY), {"step": 100, "knn": 0.5}, {"step": 4000, "knn": 0.4}]
    assert verdict(rows).word == "healthy"


def test_a_loss_that_only_rises_is_not_healthy() -> None:
    judged = verdict(log(**{**HEALTHY, "loss": lambda share: 2 + 0.3 * share}))
    assert judged.word == "slow"
    assert judged.reasons == ("loss rose from 2 to 2.3 and has not come down",)
    assert "smaller" in judged.advice
