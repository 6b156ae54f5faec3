"""Every row of the method table as a host: a block in front of it learns from its loss, on the side where it can."""

from collections.abc import Sequence

import pytest
import torch

from iecl.errors import UserError
from iecl.methods import METHODS, WRAPPER
from iecl.methods.contract import Method
from iecl.methods.ie_cl import IECL
from iecl.objective.settings import ObjectiveSettings
from iecl.saib.certified import CertifiedSAIB
from iecl.saib.settings import SAIBSettings
from iecl.testing import CLOCK, noisy_views
from iecl.testing import ready as made_ready
from methods.test_contract import make

# The block takes the query, unless the host's loss sends it no gradient.
ON_THE_ANCHOR = {"moco-v2": "one-sided: the query is seen by the momentum copy alone"}
# Rows from whose loss no block can learn. They may still be wrapped: the entropy term needs no loss of the host.
WITHOUT_GRADIENT = {"random": "nothing is trained"}
HOST_NAMES = [name for name in METHODS if name != WRAPPER]


def ready(name: str, sets: Sequence[str] = ()) -> Method:
    return made_ready(lambda: make(name, [*sets]))


def gradients(name: str, side: str = "auto") -> tuple[IECL, dict[str, float]]:
    """The wrapped host, and the size of the gradient of each of the block's weights after one step."""
    torch.manual_seed(0)
    block = CertifiedSAIB(image_size=16, patch_size=4, hidden_dim=4)
    # An expansion of weight 0 keeps a block that the host cannot teach from being refused.
    objective = ObjectiveSettings(expansion="total", expansion_weight=0.0)
    method = IECL(ready(name), block, objective, SAIBSettings(host_gradient="cooperative", side=side))
    sum(method.step(noisy_views(method.views), CLOCK).losses.values()).backward()
    return method, {n: 0.0 if p.grad is None else p.grad.abs().sum().item() for n, p in block.named_parameters()}


@pytest.mark.parametrize("name", [name for name in HOST_NAMES if name not in WITHOUT_GRADIENT])
def test_the_hosts_own_loss_reaches_every_weight_of_the_block(name: str) -> None:
    method, found = gradients(name)
    assert method.placement.side == ("anchor" if name in ON_THE_ANCHOR else "query")
    assert [n for n, size in found.items() if size == 0] == []


@pytest.mark.parametrize("name", HOST_NAMES)
@pytest.mark.parametrize("side", ["anchor", "query"])
def test_a_host_calls_a_side_online_just_where_its_loss_reaches_a_block(name: str, side: str) -> None:
    method, found = gradients(name, side)
    assert (side in method.host.online) == (max(found.values()) > 0)


@pytest.mark.parametrize("name", HOST_NAMES)
def test_without_block_and_terms_the_wrapper_is_its_host(name: str) -> None:
    plain, wrapped = ready(name), IECL(ready(name))
    first, second = (method.step(noisy_views(method.views), CLOCK).losses for method in (plain, wrapped))
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[term]) for term, value in first.items())


def test_every_exception_names_a_method_that_exists() -> None:
    assert set(ON_THE_ANCHOR) | set(WITHOUT_GRADIENT) <= set(METHODS)


HAVE_TARGETS = {"byol", "simsiam", "moco-v2", "moco-v3", "light-moco", "matrix-ssl", "all4one"}


@pytest.mark.parametrize("name", HOST_NAMES)
def test_a_block_on_the_target_side_changes_the_loss_and_nothing_that_has_gradient(name: str) -> None:
    def wrapped(side: str) -> IECL:
        torch.manual_seed(0)
        block = CertifiedSAIB(image_size=16, patch_size=4, hidden_dim=4)
        return IECL(ready(name), block, ObjectiveSettings(), SAIBSettings(weights="frozen", side=side))

    if name not in HAVE_TARGETS:
        with pytest.raises(UserError, match="this host has no target branch"):
            wrapped("target")
        return
    plain, targets = IECL(ready(name)), wrapped("target")
    first, second = (method.step(noisy_views(method.views), CLOCK) for method in (plain, targets))
    assert torch.allclose(first.features, second.features)  # of what is online
    assert not torch.allclose(sum(first.losses.values()), sum(second.losses.values()))


@pytest.mark.parametrize("name", sorted(HAVE_TARGETS))
def test_a_block_on_the_target_side_learns_from_the_entropy_and_from_nothing_else(name: str) -> None:
    torch.manual_seed(0)
    block = CertifiedSAIB(image_size=16, patch_size=4, hidden_dim=4)
    objective = ObjectiveSettings(entropy="coding-rate")
    method = IECL(ready(name), block, objective, SAIBSettings(side="target", host_gradient="none"))
    losses = method.step(noisy_views(method.views), CLOCK).losses
    weights = list(block.parameters())
    term = losses.pop("iecl/entropy")
    slopes = torch.autograd.grad(term, weights, retain_graph=True)
    assert all(slope.abs().sum() > 0 for slope in slopes)
    others = torch.autograd.grad(sum(losses.values()), weights, allow_unused=True)
    assert all(slope is None or slope.abs().sum() == 0 for slope in others)


@pytest.mark.parametrize(
    ("name", "sets", "is_known"),
    [
        ("simclr", [], True),
        ("moco-v2", ["method.queue_size=0"], True),
        ("moco-v2", ["method.queue_size=16"], False),  # past keys are negatives too
        ("vicreg", [], False),
    ],
)
def test_a_method_knows_of_small_batches_and_ie_cl_too(name: str, sets: list[str], is_known: bool) -> None:
    host = ready(name, sets)
    assert (host.small_batch is not None) == is_known
    assert IECL(host).small_batch == host.small_batch
