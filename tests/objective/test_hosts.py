"""Every row of the method table as a host: a block in front of it learns from its loss, on the side where it can."""

import pytest
import torch

from iecl.methods import HOSTS, METHODS
from iecl.objective.settings import ObjectiveSettings
from iecl.objective.wrapper import IECL
from iecl.saib.certified import CertifiedSAIB
from methods.test_contract import CLOCK, ready, views

# The block takes the query, unless the host's loss sends it no gradient.
ON_THE_ANCHOR = {"moco-v2": "one-sided: the query is seen by the momentum copy alone"}
# Rows from whose loss no block can learn. They may still be wrapped: the entropy term needs no loss of the host.
WITHOUT_GRADIENT = {"random": "nothing is trained"}
HOST_NAMES = [name for name in METHODS if name not in HOSTS]


def gradients(name: str, side: str = "auto") -> tuple[IECL, dict[str, float]]:
    """The wrapped host, and the size of the gradient of each of the block's weights after one step."""
    torch.manual_seed(0)
    block = CertifiedSAIB(image_size=16, patch_size=4, hidden_dim=4)
    method = IECL(ready(name, []), block, ObjectiveSettings(saib_gradient="cooperative"), side=side)
    sum(method.step(views(method.views), CLOCK).losses.values()).backward()
    return method, {n: 0.0 if p.grad is None else p.grad.abs().sum().item() for n, p in block.named_parameters()}


@pytest.mark.parametrize("name", [name for name in HOST_NAMES if name not in WITHOUT_GRADIENT])
def test_the_hosts_own_loss_reaches_every_weight_of_the_block(name: str) -> None:
    method, found = gradients(name)
    assert method.side == ("anchor" if name in ON_THE_ANCHOR else "query")
    assert [n for n, size in found.items() if size == 0] == []


@pytest.mark.parametrize("name", HOST_NAMES)
@pytest.mark.parametrize("side", ["anchor", "query"])
def test_a_host_calls_a_side_online_just_where_its_loss_reaches_a_block(name: str, side: str) -> None:
    method, found = gradients(name, side)
    assert (side in method.host.online) == (max(found.values()) > 0)


@pytest.mark.parametrize("name", HOST_NAMES)
def test_without_block_and_terms_the_wrapper_is_its_host(name: str) -> None:
    plain, wrapped = ready(name, []), IECL(ready(name, []))
    first, second = (method.step(views(method.views), CLOCK).losses for method in (plain, wrapped))
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[term]) for term, value in first.items())


def test_every_exception_names_a_method_that_exists() -> None:
    assert set(ON_THE_ANCHOR) | set(WITHOUT_GRADIENT) <= set(METHODS)
