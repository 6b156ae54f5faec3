"""The printed block: shapes, skips, its facts, and the claim about it that does not hold."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.errors import UserError
from iecl.saib.printed import SAIB, patchify, unpatchify


def images(count: int = 8, side: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


@settings(derandomize=True, deadline=None, max_examples=25)
@given(rows=st.integers(1, 5), columns=st.integers(1, 5), patch_size=st.integers(1, 4), count=st.integers(1, 3))
def test_patchify_is_a_bijection(rows: int, columns: int, patch_size: int, count: int) -> None:
    height, width = rows * patch_size, columns * patch_size
    x = torch.arange(count * 3 * height * width, dtype=torch.float64).reshape(count, 3, height, width)
    tokens = patchify(x, patch_size)
    assert tokens.shape == (count, 3, rows * columns, patch_size * patch_size)
    assert torch.equal(unpatchify(tokens, height, width, patch_size), x)
    assert sorted(tokens.flatten().tolist()) == sorted(x.flatten().tolist())


def test_a_token_is_one_square_of_the_image() -> None:
    x = images(2, 8)
    # The patch in row 1, column 0 of a grid of two by two, channel 2, image 1.
    assert torch.equal(patchify(x, 4)[1, 2, 2], x[1, 2, 4:8, 0:4].flatten())


@pytest.mark.parametrize(("convs", "weights"), [(3, 2_621_440), (4, 1_638_400)])
def test_a_batch_of_256_costs_as_many_weights_as_the_paper_implies(convs: int, weights: int) -> None:
    block = SAIB(image_size=32, batch=256, convs=convs)
    assert sum(p.numel() for name, p in block.named_parameters() if p.ndim == 4) == weights


@pytest.mark.parametrize("form", ["batch", "sample"])
@pytest.mark.parametrize("convs", [3, 4])
@pytest.mark.parametrize("cascade", [1, 2, 3])
def test_every_form_gives_finite_images_and_a_gradient_to_every_weight(form: str, convs: int, cascade: int) -> None:
    block = SAIB(image_size=16, batch=8, form=form, convs=convs, cascade=cascade)
    out = block(images())
    out.square().mean().backward()
    assert out.shape == (8, 3, 16, 16)
    assert out.isfinite().all()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in block.parameters())


@pytest.mark.parametrize("pos_embed", ["learned", "sincos", "none"])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_every_position_code_and_norm_works(pos_embed: str, norm: str) -> None:
    assert SAIB(image_size=16, batch=8, pos_embed=pos_embed, norm=norm)(images()).isfinite().all()


def test_an_image_need_not_be_square() -> None:
    x = torch.randn(4, 3, 8, 20)
    assert SAIB(image_size=(8, 20), batch=4, patch_size=4)(x).shape == x.shape


def quiet_block(**choices: object) -> SAIB:
    """A block whose convolutions give nothing, so that only the skips are left."""
    block = SAIB(image_size=16, batch=8, pos_embed="none", **choices)
    torch.nn.init.zeros_(block.blocks[0].stages[-1][1].weight)  # the last norm's scale; its shift is zero already
    return block


@pytest.mark.parametrize(
    ("skips", "gain"), [((), 0), (("image",), 1), (("stack",), 1), (("stack", "image"), 2), (("inner", "image"), 1)]
)
def test_the_skips_alone_multiply_the_image(skips: tuple[str, ...], gain: int) -> None:
    # With all skips the image is doubled: the whole of the printed block's "incremental entropy".
    x = images()
    assert torch.allclose(quiet_block(skips=skips)(x), gain * x, atol=1e-6)


def test_the_inner_skip_changes_what_comes_out() -> None:
    torch.manual_seed(0)
    with_skip = SAIB(image_size=16, batch=8, skips=("inner", "image"))
    without = SAIB(image_size=16, batch=8, skips=("image",))
    without.load_state_dict(with_skip.state_dict())
    assert not torch.allclose(with_skip(images()), without(images()), atol=1e-3)


def test_permuting_a_batch_permutes_what_the_sample_form_gives() -> None:
    block, x = SAIB(image_size=16, form="sample"), images()
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    assert torch.allclose(block(x[order]), block(x)[order], atol=1e-5)


def test_the_batch_form_mixes_the_images_of_a_batch() -> None:
    block, x = SAIB(image_size=16, batch=8), images()
    changed = x.clone()
    changed[1] = images(seed=1)[1]
    assert not torch.allclose(block(changed)[0], block(x)[0], atol=1e-3)


def test_the_sample_form_in_evaluation_sees_one_image_only() -> None:
    block, x = SAIB(image_size=16, form="sample").eval(), images()
    assert torch.allclose(block(x[:1]), block(x)[:1], atol=1e-6)


@pytest.mark.parametrize(
    ("choices", "x", "message"),
    [
        (
            {"image_size": 32, "batch": 8, "patch_size": 5},
            None,
            "images of 32×32 into patches of 5 .* 1, 2, 4, 8, 16, 32",
        ),
        ({"image_size": (32, 24), "batch": 8, "patch_size": 16}, None, "images of 32×24 .* 1, 2, 4, 8"),
        ({"image_size": 32}, None, "must know its batch"),
        ({"image_size": 16, "batch": 8}, images(7), "built for 8 images, this batch has 7 .* saib.form = sample"),
        ({"image_size": 32, "batch": 8}, images(8), "built for images of 3×32×32, these are 3×16×16"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_both_numbers(
    choices: dict[str, object], x: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        SAIB(**choices)(x)


def jacobian_spectrum(block: SAIB, x: torch.Tensor) -> torch.Tensor:
    flat = torch.autograd.functional.jacobian(block, x)
    matrix = flat.reshape(x.numel(), x.numel())
    return torch.linalg.svdvals(matrix)


def smooth_images(seed: int) -> torch.Tensor:
    noise = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.avg_pool2d(noise, 3, 1, 1) * 3


def printed_block(seed: int, skips: tuple[str, ...]) -> SAIB:
    torch.manual_seed(seed)
    block = SAIB(image_size=8, batch=8, patch_size=4, skips=skips)
    for part in block.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
    return block.double()


def test_the_printed_block_contracts_many_directions() -> None:
    # The paper claims |det J| > 1 almost everywhere because every singular value is at least 1. It is not.
    sigma = jacobian_spectrum(printed_block(0, ("image",)), smooth_images(0))
    assert 0.3 < (sigma < 1).double().mean() < 0.7
    assert sigma.min() < 0.5


def test_with_all_skips_the_entropy_gain_is_that_of_doubling_the_image() -> None:
    sigma = jacobian_spectrum(printed_block(0, ("inner", "stack", "image")), smooth_images(0))
    assert sigma.log().mean() == pytest.approx(math.log(2), abs=0.07)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"form": "sampel"}, r"SAIB has no form 'sampel' \(form\); did you mean sample\?"),
        ({"norm": "layer"}, "saib.norm is 'layer'"),
        ({"pos_embed": "sine"}, r"saib.pos_embed is 'sine'.*did you mean sincos\?"),
        ({"skips": ("outer",)}, "saib.skips is 'outer'"),
        ({"convs": 2}, "saib.convs is 2, it must be at least 3"),
        ({"cascade": 0}, "saib.cascade is 0, it must be at least 1"),
        ({"activation": "gelu"}, "saib.activation is 'gelu'"),
        ({"image_size": 32.5}, r"image_size is 32.5 \(SAIB\); give a side in pixels, or height and width"),
    ],
)
def test_a_wrong_word_is_refused_as_on_the_command_line(choice: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SAIB(**({"image_size": 32, "batch": 4} | choice))


@pytest.mark.parametrize("form", ["batch", "sample"])
def test_the_last_of_four_convolutions_has_no_norm_and_no_activation(form: str) -> None:
    # The appendix: W4 ends the stack. With three convolutions, as in the main text, each has both.
    stages = SAIB(image_size=16, batch=8, form=form, convs=4).blocks[0].stages
    assert [len(stage) for stage in stages] == [3, 3, 3, 1]
    assert isinstance(stages[-1][0], torch.nn.Conv2d)
    assert [stage[0].bias is not None for stage in stages] == [False, False, False, True]
    assert [len(stage) for stage in SAIB(image_size=16, batch=8, form=form).blocks[0].stages] == [3, 3, 3]


def test_a_stack_of_four_convolutions_can_darken_as_well_as_brighten() -> None:
    # What an activation after the last convolution would forbid: SiLU never goes below -0.28.
    torch.manual_seed(0)
    block = SAIB(image_size=16, batch=8, convs=4, skips=(), pos_embed="none")
    with torch.no_grad():
        block.blocks[0].stages[-1][0].bias.fill_(-5.0)
    assert block(images()).max() < -1
