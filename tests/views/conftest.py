from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from iecl.counter import key, uniform
from iecl.views import native


@pytest.fixture(scope="session")  # hypothesis takes no narrower one; it holds no state
def make_images() -> Callable[[int, int, int], Tensor]:
    """(count, height, width) -> noise of every brightness and color: nothing a wrong pixel could hide behind."""

    def make(count: int, height: int, width: int) -> Tensor:
        noise = uniform(key(0, "drawn_images"), torch.arange(count), 3 * height * width)
        return (noise * 256).to(torch.uint8).view(count, 3, height, width)

    return make


@pytest.fixture
def drawn_images(make_images: Callable[[int, int, int], Tensor]) -> Tensor:
    """Twelve drawn_images of 20 by 20, with the colors that formulae trip over: black, white, gray, pure ones."""
    made = make_images(12, 20, 20)
    corners = [[0, 0, 0], [255, 255, 255], [128, 128, 128], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]]
    made[:, :, 0, : len(corners)] = torch.tensor(corners, dtype=torch.uint8).T
    return made


@pytest.fixture(scope="module", params=["native", "tensors"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Either way in which `apply` makes a view; tests that use it hold for both."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tensors":
            patch.setattr(native, "kernel", lambda: None)
        else:
            assert native.kernel() is not None
        yield request.param
