from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from iecl.counter import key, uniform
from iecl.views import native


@pytest.fixture(scope="session")  # hypothesis takes no narrower one; it holds no state
def make_pictures() -> Callable[[int, int, int], Tensor]:
    """(count, height, width) -> noise of every brightness and colour: nothing a wrong pixel could hide behind."""

    def make(count: int, height: int, width: int) -> Tensor:
        noise = uniform(key(0, "pictures"), torch.arange(count), 3 * height * width)
        return (noise * 256).to(torch.uint8).view(count, 3, height, width)

    return make


@pytest.fixture
def pictures(make_pictures: Callable[[int, int, int], Tensor]) -> Tensor:
    """Twelve pictures of 20 by 20, with the colours that formulae trip over: black, white, grey, pure ones."""
    made = make_pictures(12, 20, 20)
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
