"""SwAV: balanced codes and the prediction of them; closed forms, loops, lightly, precision."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.swapped_prediction import sinkhorn, swapped_prediction

ONE = torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.8, 0.1], [-0.1, 0.3, 0.7], [0.6, 0.5, 0.1]], dtype=torch.float64)
TWO = torch.tensor([[0.8, 0, 0.1], [0.1, 0.9, -0.3], [0.2, 0.1, 0.6], [0.4, 0.7, 0]], dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, size=shape))


def swav(scores: Tensor, coded: int = 2, temperature: float = 0.1, epsilon: float = 0.05) -> Tensor:
    codes = torch.stack([sinkhorn(view, epsilon, 3) for view in scores[:coded]])
    return swapped_prediction(scores, codes, temperature)


@pytest.mark.parametrize(("count", "value"), [(5, 1.609437912), (512, 6.238325), (3000, 8.006368)])
def test_scores_that_tell_nothing_apart_cost_the_log_of_the_prototypes(count: int, value: float) -> None:
    flat = torch.full((2, 4, count), 0.3, dtype=torch.float64)
    assert swav(flat).item() == pytest.approx(math.log(count), abs=1e-9)
    assert swav(flat).item() == pytest.approx(value, abs=1e-6)


def test_small_examples_have_their_known_values() -> None:
    same = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    assert swav(same).item() == pytest.approx(0.000136252, abs=1e-9)
    assert swav(torch.stack([ONE, TWO])).item() == pytest.approx(0.359122782, abs=1e-9)


def test_balancing_agrees_with_a_loop_over_prototypes_and_rows() -> None:
    shares = np.exp(draw(0, 6, 4).numpy() / 0.05)
    for _ in range(3):
        for prototype in range(4):
            shares[:, prototype] /= sum(shares[row, prototype] for row in range(6))
        for row in range(6):
            shares[row] /= sum(shares[row, prototype] for prototype in range(4))
    assert np.allclose(sinkhorn(draw(0, 6, 4), 0.05, 3).numpy(), shares, rtol=1e-10)


def test_prediction_agrees_with_a_loop_over_pairs_of_views() -> None:
    scores, codes = draw(1, 4, 5, 3), draw(2, 2, 5, 3).softmax(2)
    guesses = (scores / 0.2).softmax(2).numpy()
    by_code = []
    for code in range(2):
        others = [view for view in range(4) if view != code]
        terms = [
            -sum(codes[code, i, k] * math.log(guesses[v, i, k]) for k in range(3)) for v in others for i in range(5)
        ]
        by_code.append(sum(terms) / 5 / len(others))
    assert swapped_prediction(scores, codes, 0.2).item() == pytest.approx(sum(by_code) / 2)


def test_codes_sum_to_one_and_use_prototypes_about_equally() -> None:
    codes = sinkhorn(ONE, 0.05, 3)
    assert codes.sum(1).numpy() == pytest.approx(np.ones(4))
    assert sorted(codes.sum(0).tolist()) == pytest.approx([1.0028, 1.4986, 1.4986], abs=1e-4)  # near 4 / 3, not equal
    assert sinkhorn(ONE, 0.05, 200).sum(0).numpy() == pytest.approx(np.full(3, 4 / 3), abs=1e-3)


def test_a_prototype_that_every_row_likes_best_does_not_take_them_all() -> None:
    scores = draw(3, 12, 3) * 0.3 + torch.tensor([0.6, 0.0, 0.0])
    assert set(scores.argmax(1).tolist()) == {0}
    assert set(sinkhorn(scores, 0.05, 3).argmax(1).tolist()) == {0, 1, 2}


def test_balancing_survives_a_very_small_epsilon_and_half_precision() -> None:
    scores = draw(4, 8, 5).float()
    assert sinkhorn(scores, 0.001, 3).isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        short = sinkhorn(scores.half(), 0.05, 3)
    assert short.dtype == torch.float32
    assert torch.equal(short, sinkhorn(scores.half().float(), 0.05, 3))


def test_the_order_of_rows_and_of_the_two_views_does_not_matter() -> None:
    order = torch.tensor([2, 0, 3, 1])
    changed = torch.stack([TWO[order], ONE[order]])
    assert swav(changed).item() == pytest.approx(swav(torch.stack([ONE, TWO])).item(), abs=1e-12)


def test_codes_carry_no_gradient_and_each_view_learns_from_the_other_code() -> None:
    scores = torch.stack([ONE, TWO]).requires_grad_()
    codes = torch.stack([sinkhorn(view, 0.05, 3) for view in scores])
    assert not codes.requires_grad
    (gradient,) = torch.autograd.grad(swapped_prediction(scores, codes, 0.1), scores)
    wanted = [((scores[v] / 0.1).softmax(1) - codes[1 - v]) / 0.1 / 4 / 2 for v in range(2)]
    assert torch.allclose(gradient, torch.stack(wanted))


def test_a_small_view_predicts_and_is_never_predicted() -> None:
    scores = draw(5, 3, 4, 3).requires_grad_()
    wanted = [swapped_prediction(scores[[0, view]], sinkhorn(scores[0], 0.05, 3)[None], 0.1) for view in (1, 2)]
    wanted += [swapped_prediction(scores[[1, view]], sinkhorn(scores[1], 0.05, 3)[None], 0.1) for view in (0, 2)]
    assert swav(scores).item() == pytest.approx(torch.stack(wanted).mean().item(), abs=1e-12)


def test_single_precision_is_close() -> None:
    scores = torch.stack([ONE, TWO])
    assert swav(scores.float()).item() == pytest.approx(swav(scores).item(), abs=1e-5)


@pytest.mark.parametrize("small", [0, 2])
def test_the_loss_equals_that_of_lightly(small: int) -> None:
    lightly = pytest.importorskip("lightly.loss", reason="compares with lightly")
    scores = draw(6, 2 + small, 16, 10).float()
    theirs = lightly.SwaVLoss(temperature=0.1, sinkhorn_iterations=3, sinkhorn_epsilon=0.05)
    assert swav(scores).item() == pytest.approx(theirs(list(scores[:2]), list(scores[2:])).item(), rel=1e-5)
