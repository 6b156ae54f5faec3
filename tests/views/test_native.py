"""Compiled views against tensor operations, against torchvision, and against themselves in other batches."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from iecl import compiled
from iecl.views import kernels, native
from iecl.views.params import ViewParams, draw, whole
from iecl.views.policies import POLICIES, Policy
from iecl.views.transform import BRIGHT, apply, apply_by_tensors

Maker = Callable[[int, int, int], Tensor]
quick = settings(derandomize=True, deadline=None, max_examples=40)
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
EVERYTHING = Policy(
    color_jitter_prob=1.0,
    brightness=0.8,
    contrast=0.8,
    saturation=0.8,
    hue=0.5,
    grayscale_prob=0.3,
    gaussian_blur_prob=1.0,
)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sizes_of(images: Tensor) -> Tensor:
    return torch.tensor(images.shape[2:]).repeat(len(images), 1)


def drawn_for(images: Tensor, policy: Policy, view: int = 0) -> ViewParams:
    return draw(policy, sizes_of(images), torch.arange(len(images)), seed=0, epoch=0, view=view)


def assert_same(images: Tensor, drawn: ViewParams, size: int) -> None:
    """Equal up to rounding; a tone that rounding carries over solarization's threshold may be inverted."""
    tones = replace(drawn, solarize=torch.zeros(len(images), dtype=torch.bool))
    ours, theirs = apply(images, tones, size, **PLAIN), apply_by_tensors(images, tones, size, **PLAIN)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-5)  # NaN fails here as well
    sure = (theirs - BRIGHT).abs() > 1e-5
    ours, theirs = apply(images, drawn, size, **PLAIN), apply_by_tensors(images, drawn, size, **PLAIN)
    assert torch.allclose(ours[sure], theirs[sure], rtol=0, atol=1e-5)
    assert sure.float().mean() > 0.99 or size < 8


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 32), (96, 96, 96), (30, 26, 48), (100, 40, 32), (40, 40, 1)]
)
def test_every_policy_gives_the_views_of_tensor_operations(
    make_images: Maker, name: str, height: int, width: int, size: int
) -> None:
    images = make_images(8, height, width)
    for view, policy in enumerate(POLICIES[name][:3]):
        assert_same(images, drawn_for(images, policy, view), size)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (256, 256), (300, 180)])
def test_large_views_are_those_of_tensor_operations(make_images: Maker, height: int, width: int) -> None:
    images = make_images(4, height, width)
    assert_same(images, drawn_for(images, replace(EVERYTHING, solarize_prob=0.5)), 224)


@quick
@given(height=st.integers(1, 50), width=st.integers(1, 50), size=st.integers(1, 45), view=st.integers(0, 99))
def test_views_of_any_size_are_those_of_tensor_operations(
    make_images: Maker, height: int, width: int, size: int, view: int
) -> None:
    images = make_images(3, height, width)
    assert_same(images, drawn_for(images, EVERYTHING, view), size)


def test_images_that_formulae_trip_over_are_treated_as_by_tensor_operations(drawn_images: Tensor) -> None:
    even = torch.tensor([0, 127, 128, 255]).repeat_interleave(3).to(torch.uint8)
    drawn_images = torch.cat([drawn_images, even.view(12, 1, 1, 1).expand_as(drawn_images)])
    for view in range(4):
        drawn = replace(drawn_for(drawn_images, EVERYTHING, view), box=whole(sizes_of(drawn_images)).box)
        assert_same(drawn_images, drawn, 20)


@pytest.mark.parametrize("share", [1e-3, 0.04])
def test_a_part_of_a_pixel_and_one_beyond_the_edge_are_cut_as_by_tensor_operations(
    make_images: Maker, share: float
) -> None:
    images = make_images(3, 11, 17)
    box = torch.tensor([[0.3, 0.3, share, share], [0.9, 0.0, 0.5, share], [-0.1, 0.5, 0.2, 0.7]])
    drawn = replace(whole(sizes_of(images)), box=box)
    ours, theirs = apply(images, drawn, 9, **PLAIN), apply_by_tensors(images, drawn, 9, **PLAIN)
    assert theirs[0].isfinite().all()
    assert theirs[1:].isnan().any()  # where nothing of the image is within reach
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("edge", [0.0, float("nan"), -1.0, 5.0])
def test_a_box_of_nothing_shows_as_not_a_number(make_images: Maker, edge: float) -> None:
    images = make_images(2, 6, 6)
    box = torch.tensor([[edge, edge, 0.0, 0.0]]).repeat(2, 1)
    assert apply(images, replace(whole(sizes_of(images)), box=box), 4, **PLAIN).isnan().all()


def test_a_view_is_the_same_bit_for_bit_in_any_batch(make_images: Maker) -> None:
    images = make_images(9, 40, 30)
    drawn = drawn_for(images, replace(EVERYTHING, color_jitter_prob=0.5, gaussian_blur_prob=0.5, solarize_prob=0.5))
    together = apply(images, drawn, 33, **PLAIN)
    for rows in ([7], [2, 5], [8, 7, 6, 5, 4, 3, 2, 1, 0], [3, 3, 3]):
        assert torch.equal(apply(images[rows], drawn.take(rows), 33, **PLAIN), together[rows])


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("count", [1, 2, 9, 50])
def test_a_view_is_the_same_bit_for_bit_with_any_number_of_threads(make_images: Maker, count: int) -> None:
    images = make_images(count, 24, 24)
    drawn = drawn_for(images, replace(EVERYTHING, color_jitter_prob=0.5, gaussian_blur_prob=0.5, solarize_prob=0.5))
    torch.set_num_threads(1)
    alone = apply(images, drawn, 24, **PLAIN)
    for threads in (2, 3, 7):
        torch.set_num_threads(threads)
        assert torch.equal(apply(images, drawn, 24, **PLAIN), alone)


def test_every_row_is_taken_once_by_any_number_of_threads() -> None:
    for count, threads in ((0, 1), (0, 2), (1, 1), (5, 2), (64, 3), (65, 4)):
        taken: list[int] = []
        compiled.share_out(lambda begin, end, to=taken: to.extend(range(begin, end)), count, threads)
        assert sorted(taken) == list(range(count))


@pytest.mark.parametrize("path_made", [apply, None], ids=["native", "tensors"])
@pytest.mark.parametrize("size", [1, 16])
def test_the_layout_changes_the_order_in_memory_and_no_number(
    make_images: Maker, monkeypatch: pytest.MonkeyPatch, path_made: object, size: int
) -> None:
    if path_made is None:
        monkeypatch.setattr(native, "kernel", lambda: None)
    images = make_images(5, 20, 20)
    drawn = drawn_for(images, EVERYTHING)
    look = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    planes = apply(images, drawn, size, **look)
    pixels = apply(images, drawn, size, **look, layout=torch.channels_last)
    assert planes.is_contiguous()
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(planes, pixels)


def test_images_in_any_order_in_memory_give_the_same_views(make_images: Maker) -> None:
    images = make_images(4, 12, 10)
    drawn = drawn_for(images, EVERYTHING)
    woven = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(apply(woven, drawn, 8, **PLAIN), apply(images, drawn, 8, **PLAIN))


def changed(images: Tensor, **what: object) -> Tensor:
    """Each image as it is, but for what is said."""
    count = len(images)
    full = {
        name: torch.full((count,), value, dtype=torch.bool if isinstance(value, bool) else torch.float)
        for name, value in what.items()
    }
    return apply(images, replace(whole(sizes_of(images)), **full), images.shape[2], **PLAIN)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.8])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_a_color_factor_does_what_torchvisions_does(drawn_images: Tensor, name: str, factor: float) -> None:
    expected = getattr(tv, f"adjust_{name}")(drawn_images.float() / 255, factor)
    assert torch.allclose(changed(drawn_images, jitter=True, **{name: factor}), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.0, 0.13, 0.5])
def test_a_turn_of_hue_is_torchvisions(drawn_images: Tensor, turn: float) -> None:
    expected = tv.adjust_hue(drawn_images.float() / 255, turn)
    assert torch.allclose(changed(drawn_images, jitter=True, hue=turn), expected, rtol=0, atol=1e-5)


def test_gray_is_torchvisions(drawn_images: Tensor) -> None:
    expected = tv.rgb_to_grayscale(drawn_images.float() / 255, num_output_channels=3)
    assert torch.allclose(changed(drawn_images, gray=True), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("size", "kernel"), [(2, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0, 9.0])
def test_blur_is_torchvisions(make_images: Maker, size: int, kernel: int, sigma: float) -> None:
    images = make_images(2, size, size)
    expected = tv.gaussian_blur(images.float() / 255, [kernel, kernel], [sigma, sigma])
    assert torch.allclose(changed(images, blur_sigma=sigma), expected, rtol=0, atol=1e-5)


def test_solarization_is_torchvisions_on_every_tone() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 3, 1, 1)
    assert torch.equal((changed(ramp, solarize=True) * 255).round().to(torch.uint8), tv.solarize(ramp, threshold=128))


@quick
@given(data=st.data(), height=st.integers(1, 40), width=st.integers(1, 40), size=st.integers(1, 33), flip=st.booleans())
def test_a_cut_is_torchvisions_resized_crop(
    make_images: Maker, data: st.DataObject, height: int, width: int, size: int, flip: bool
) -> None:
    tall, wide = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - wide))
    images = make_images(1, height, width)
    box = torch.tensor([[top / height, left / width, tall / height, wide / width]])
    view = apply(images, replace(whole(sizes_of(images)), box=box, flip=torch.tensor([flip])), size, **PLAIN)
    theirs = tv.resized_crop(images.float() / 255, top, left, tall, wide, [size, size], antialias=True)
    assert torch.allclose(view, tv.hflip(theirs) if flip else theirs, atol=1e-4)


STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "brightness": lambda views: views.mean(dim=(1, 2, 3)),
    "contrast": lambda views: views.mean(dim=1).flatten(1).std(dim=1),
    "color": lambda views: (views.amax(dim=1) - views.amin(dim=1)).mean(dim=(1, 2)),
    "red against blue": lambda views: (views[:, 0] - views[:, 2]).mean(dim=(1, 2)),
    "left against right": lambda views: (views[..., :8] - views[..., 8:]).mean(dim=(1, 2, 3)),
    "detail": lambda views: views.diff(dim=3).abs().mean(dim=(1, 2, 3)),
}
COUNT = 1200


@pytest.fixture(scope="module")
def many_views() -> tuple[Tensor, Tensor]:
    """Views of one image, all colors and steep edges: ours, and those of torchvision's own random transforms."""
    across = torch.linspace(0, 255, 24).expand(24, 24)
    image = torch.stack([across, across.T.flip(0) * 0.7, (across + across.T) % 128]).to(torch.uint8)
    policy = replace(POLICIES["simclr"][0], solarize_prob=0.2)
    theirs = v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomResizedCrop(16, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(3, (0.1, 2.0))], p=0.5),
            v2.RandomSolarize(128 / 255, p=0.2),
        ]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = torch.stack([theirs(image) for _ in range(COUNT)])
    images = image.expand(4 * COUNT, -1, -1, -1)
    return apply(images, drawn_for(images, policy), 16, **PLAIN), reference


@pytest.mark.parametrize("name", STATISTICS)
def test_whole_views_are_distributed_as_torchvisions_transforms_make_them(
    many_views: tuple[Tensor, Tensor], name: str
) -> None:
    ours, theirs = (STATISTICS[name](views) for views in many_views)
    assert ks_2samp(ours, theirs).pvalue > 1e-3  # seeds are fixed: this does not flicker


@pytest.fixture
def _fresh_kernel() -> Iterator[None]:
    """A process that has not looked for numba yet; afterwards it finds what is there."""
    compiled.loops.cache_clear()
    yield
    compiled.loops.cache_clear()


@pytest.mark.usefixtures("_fresh_kernel")
def test_without_numba_tensor_operations_make_the_views_and_a_message_says_so(
    make_images: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "iecl.views.kernels")
    monkeypatch.delattr("iecl.views.kernels")
    images = make_images(4, 12, 12)
    drawn = drawn_for(images, EVERYTHING)
    views = [apply(images, drawn, 8, **PLAIN) for _ in range(2)]
    assert torch.equal(views[0], apply_by_tensors(images, drawn, 8, **PLAIN))
    (said,) = caplog.messages  # once, not for every batch
    assert "numba" in said


@pytest.mark.usefixtures("_fresh_kernel")
def test_numba_that_is_switched_off_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    assert native.kernel() is None


@pytest.mark.usefixtures("_fresh_kernel")
@pytest.mark.parametrize("error", [RuntimeError("no locator"), OSError("no space"), EOFError("spoilt")])
def test_machine_code_that_cannot_be_kept_is_made_for_this_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def compile_it(*, keep: bool) -> str:
        if keep:
            raise error
        return "made"

    monkeypatch.setattr(kernels, "compiled", compile_it)
    assert native.kernel() == "made"
    assert str(error) in caplog.text


@pytest.fixture(scope="module")
def said_by_a_new_process() -> list[str]:
    """What a process says that makes views, forks, and makes views again."""
    code = """
import os, signal, sys, torch
from iecl.views.pipeline import apply
from iecl.views.params import whole

print("no numba" if not {"numba", "llvmlite"} & set(sys.modules) else "numba")
torch.set_num_threads(2)
images, sizes = torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.full((8, 2), 4)
make = lambda: apply(images, whole(sizes), 4, (0.0,) * 3, (1.0,) * 3)
make()
print("numba" if "numba" in sys.modules else "no numba", flush=True)
child = os.fork()
if not child:
    signal.alarm(60)  # waiting for threads of the parent would be for ever
    make()
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_numba_is_imported_with_the_first_view_and_not_before(said_by_a_new_process: list[str]) -> None:
    assert said_by_a_new_process[:2] == ["no numba", "numba"]


def test_a_forked_process_starts_threads_of_its_own(said_by_a_new_process: list[str]) -> None:
    assert said_by_a_new_process[2] == "child ended with 0"
