"""A batch that passes the backbone in chunks is trained on as a whole: losses, gradients, and all that moves.

Dropout is on in every network here, and draws from torch's own generator: a second pass that drew anew would have wrong
gradients, and nobody would see it. The whole batch gets the very masks that the chunks drew.
"""

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.parametrizations import spectral_norm

from iecl import parallel, testing
from iecl.errors import UserError
from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.parts.split_norm import sees_parts
from iecl.training.config import make_config
from iecl.training.loop import Trainee, take_step
from iecl.training.recomputation import cache_gradients
from iecl.views.pipeline import Views

HEADS = ["method.hidden_dim=16", "method.out_dim=8"]
PREDICTED = [*HEADS, "method.predictor_hidden_dim=16"]
SMALL: dict[str, list[str]] = {
    **dict.fromkeys(("ie-cl", "simclr", "swav", "dino", "deepcluster-v2", "light-moco"), HEADS),
    **dict.fromkeys(("barlow-twins", "vicreg", "viewmaker", "moco-v2"), HEADS),
    **dict.fromkeys(("moco-v3", "byol", "nnclr", "all4one", "simsiam", "matrix-ssl"), PREDICTED),
    "w-mse": ["method.hidden_dim=16", "method.out_dim=2"],
    "minent": ["method.hidden_dim=16", "method.heads=[8, 6]"],
    "s3oc": ["method.num_clusters=[8, 6]"],
    "deepcluster": ["method.num_clusters=5", "method.components=8"],
}
MORE: dict[str, list[str]] = {
    "light-moco": ["method.queue_size=32", "method.plain_epochs=0"],
    "moco-v2": ["method.queue_size=32"],
    "nnclr": ["method.queue_size=32"],
    "all4one": ["method.queue_size=32", "method.heads=2"],
    "swav": ["method.num_prototypes=6", "method.local_crops=2"],
    "dino": ["method.num_prototypes=6", "method.local_crops=2"],
    "deepcluster-v2": ["method.num_clusters=5", "method.local_crops=2"],
    "viewmaker": ["method.width=4"],
}
NORMED = ["objective.encoder=spectral-norm", "saib.form=certified", "saib.noise_scale=0.1"]
LEARNED = [*NORMED, "saib.weights=learned", "saib.budget_kind=rms", "objective.entropy=coding-rate"]
BLOCKS = {
    "a frozen block": [*NORMED, "saib.weights=frozen"],
    "a block that climbs": [*LEARNED, "saib.host_gradient=reversed"],
    "a block on both sides": [*LEARNED, "saib.side=both", "objective.kl=gaussian-diag", "method.symmetric=true"],
    "the norm of the operator": [*LEARNED, "objective.encoder_norm=operator", "method.queue_size=0"],
    "the printed block": ["objective.encoder=spectral-norm", "saib.form=batch", "objective.entropy=coding-rate"],
    "activations computed again": [*LEARNED, "training.gradient_checkpointing=true"],
}
CASES = {name: (name, []) for name in METHODS} | {
    f"ie-cl, {what}": ("ie-cl", ["method.queue_size=32", *sets]) for what, sets in BLOCKS.items()
}


class Masks(nn.Module):
    """torch's dropout; what it draws in a first pass is written down, and another network can be given it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.given:
            mask = torch.cat([self.given.pop(0) for _ in range(self._count(len(x)))])
        else:
            mask = dropout(torch.ones_like(x), 0.2)
            if torch._C._current_graph_task_id() < 0:  # not within a backward pass
                self.drawn.append(mask)
        return x * mask

    def _count(self, rows: int) -> int:
        sizes = torch.tensor([len(mask) for mask in self.given]).cumsum(0).tolist()
        return int(sizes.index(rows)) + 1


class Network(nn.Module):
    """Three blocks in which images do not meet, with dropout."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        widths = zip((3, 8, 8), (8, 8, 8), strict=True)
        self.blocks = nn.Sequential(*(self.block(few, many) for few, many in widths))

    def block(self, few: int, many: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(few, many, 3, 2, 1), nn.GroupNorm(2, many), nn.GELU(), Masks())

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(x)
        return made.mean((2, 3))


class Plain(Network):
    """The same without dropout."""

    def block(self, few: int, many: int) -> nn.Module:
        return super().block(few, many)[:-1]  # type: ignore[index]


class Normed(Network):
    """The same with batch norm, in place of dropout."""

    def block(self, few: int, many: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(few, many, 3, 2, 1), nn.BatchNorm2d(many), nn.GELU())


def built(name: str, sets: list[str], network: type[nn.Module] = Network) -> Method:
    with patch("iecl.training.factory.make_backbone", lambda *_, **__: network()):
        torch.manual_seed(0)
        return testing.build(name, [*SMALL.get(name, []), *MORE.get(name, []), *sets]).double()


def masks(method: Method) -> list[Masks]:
    return [part for part in method.modules() if isinstance(part, Masks)]


def after_two_steps(method: Method, beside: Method | None = None) -> dict[str, Tensor]:
    """Losses and gradients of two steps, and every weight and buffer after them."""
    found, optimizer = {}, torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.01)
    if beside is not None:
        for mine, theirs in zip(masks(method), masks(beside), strict=True):
            mine.given = list(theirs.drawn)
    method.before_epoch(lambda encode: testing.survey(lambda x: encode(x.double())), testing.CLOCK)
    for step in range(2):
        clock, views = replace(testing.CLOCK, step=step), testing.noisy_views(method.views)
        full, small = (tuple((1 + step) * x.double() for x in some) for some in (views.global_crops, views.local_crops))
        losses = method.step(replace(views, global_crops=full, local_crops=small), clock).losses
        sum(losses.values()).backward()
        method.after_backward(clock)
        found |= {f"{name} of step {step}": value.detach() for name, value in losses.items()}
        found |= {f"slope of {n} in step {step}": p.grad for n, p in method.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(clock)
    return found | method.state_dict()


def unlike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """How far apart they are, of all that is not the same in 64 bits."""
    assert found.keys() == expected.keys()
    pairs = {name: (found[name], value) for name, value in expected.items()}
    return {n: (a - b).abs().max().item() for n, (a, b) in pairs.items() if not torch.allclose(a, b, 1e-9, 1e-10)}


@pytest.mark.parametrize("case", CASES)
@patch.object(Tensor, "float", Tensor.double)  # what is widened to 32 bits is widened to 64 here
def test_chunks_take_the_steps_of_the_whole_batch(case: str) -> None:
    name, sets = CASES[case]
    chunked = built(name, [*sets, "training.grad_cache=3"])
    found = after_two_steps(chunked)
    whole = built(name, [*sets, "training.gradient_checkpointing=false"])
    expected = after_two_steps(whole, beside=chunked)
    assert all(part.drawn for part in masks(chunked))
    assert not any(part.drawn or part.given for part in masks(whole))  # all of them were used, in their order
    assert not unlike(found, expected)


@patch.object(Tensor, "float", Tensor.double)
def test_blocks_computed_again_read_normalized_kernels_and_pass_gradients_twice() -> None:
    sets = [*BLOCKS["a block on both sides"], "method.queue_size=32"]
    again = built("ie-cl", [*sets, "training.gradient_checkpointing=true"])
    found = after_two_steps(again)
    assert not unlike(found, after_two_steps(built("ie-cl", sets), beside=again))


@patch.object(Tensor, "float", Tensor.double)
def test_norms_in_groups_keep_their_groups() -> None:
    sets = ["method.norm_groups=4", "method.symmetric=true"]
    found = after_two_steps(built("moco-v2", [*sets, "training.grad_cache=4"], Normed))
    assert not unlike(found, after_two_steps(built("moco-v2", sets, Normed)))
    odd = built("moco-v2", [*sets, "training.grad_cache=3"], Normed)
    with pytest.raises(
        UserError, match=r"4 groups of a batch cannot be shared by 3 chunks \(method.norm_groups.*whole"
    ):
        after_two_steps(odd)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_sees_chunks_and_its_statistics_move_once(momentum: float | None) -> None:
    torch.manual_seed(0)
    network, x = Normed().double(), torch.randn(7, 3, 16, 16, dtype=torch.double, requires_grad=True)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = momentum
    network(5 * x.detach() + 1)  # statistics that are not those of the start
    copies = [deepcopy(network) for _ in range(3)]
    features = torch.cat([copy(rows) for copy, rows in zip(copies, x.split([3, 2, 2]), strict=True)])
    (slope,) = torch.autograd.grad((features @ features.T).logsumexp(1).sum(), x)
    cache_gradients(network, 3)
    made = network(x)
    after = {name: value.clone() for name, value in network.named_buffers()}
    (found,) = torch.autograd.grad((made @ made.T).logsumexp(1).sum(), x)
    torch.testing.assert_close(made, features)
    torch.testing.assert_close(found, slope)
    for name, value in network.named_buffers():
        parts = torch.stack([copy.get_buffer(name) for copy in copies]).double()
        torch.testing.assert_close(value.double(), parts.mean(0))
        assert torch.equal(value, after[name])  # the backward pass does not move them again


def test_a_buffer_that_every_pass_moves_moves_once() -> None:
    """torch's own spectral norm iterates whenever it is read: in a chunk, and in the chunk computed again."""
    torch.manual_seed(0)
    whole = spectral_norm(nn.Conv2d(3, 4, 3)).double()
    chunked, x = deepcopy(whole), torch.randn(6, 3, 8, 8, dtype=torch.double)
    cache_gradients(chunked, 2)
    for network in (whole, chunked):
        network(x).square().sum().backward()
    slopes = [{n: p.grad for n, p in network.named_parameters()} for network in (whole, chunked)]
    assert not unlike(slopes[1], slopes[0])
    assert not unlike(dict(chunked.state_dict()), dict(whole.state_dict()))


def test_an_encoder_that_only_looks_takes_all_images_at_once() -> None:
    network, seen = Plain().eval(), list[int]()
    cache_gradients(network, 2)
    network.blocks.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    network(torch.zeros(5, 3, 16, 16))
    network.train()(torch.zeros(5, 3, 16, 16))
    assert seen == [5, 2, 2, 1]


@pytest.mark.parametrize("name", ["simclr", "moco-v2"])
def test_a_run_in_chunks_is_resumed_exactly(name: str) -> None:
    sets = [*SMALL[name], *MORE.get(name, []), "training.grad_cache=3"]
    testing.resuming_is_exact(lambda: testing.build(name, sets))


@pytest.mark.parametrize("given", ["grad_cache=64", "gradient_checkpointing=true"])
def test_what_torch_cannot_compile_is_refused_by_name(given: str) -> None:
    name = given.partition("=")[0]
    with pytest.raises(UserError, match=rf"cannot compile .* \(training.compile, training.{name}\); leave one"):
        make_config(method="simclr", sets=["data.name=shapes", f"training.{given}", "training.compile=true"])


StateOf = Callable[[str, int, int], dict[str, Tensor]]
"""What a case comes to on process `rank` of `world`."""


def run_in_two_processes(state_of: StateOf, cases: Sequence[str], folder: Path) -> None:
    """The state of every case in two processes, each with its half of the batch."""
    torch.multiprocessing.spawn(_work, args=(state_of, list(cases), str(folder)), nprocs=2)


def _work(rank: int, state_of: StateOf, cases: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for case in cases:
        torch.save(state_of(case, rank, 2), Path(folder) / f"{case}-{rank}.pt")
    torch.distributed.destroy_process_group()


def unlike_one_process(whole: dict[str, Tensor], folder: Path, case: str, rtol: float, atol: float) -> set[str]:
    """Names of what either process has otherwise than one process with the whole batch."""
    wrong = set()
    for rank in (0, 1):
        half = torch.load(folder / f"{case}-{rank}.pt", weights_only=True)
        assert half.keys() == whole.keys()
        wrong |= {n for n, value in whole.items() if not torch.allclose(half[n], value, rtol=rtol, atol=atol)}
    return wrong


@patch.object(Tensor, "float", Tensor.double)
def state_after_a_step(case: str, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    """Losses, gradients as DDP brings them together, and every buffer; one process has no chunks."""
    rows = slice(rank * testing.BATCH // world, (rank + 1) * testing.BATCH // world)
    method = built(case, [f"training.grad_cache={3 * (world - 1)}"], Plain)
    views = testing.noisy_views(method.views)
    full = tuple(x[rows].double() for x in views.global_crops)
    mine = Views(full, views.positions[rows], views.labels[rows], views.index[rows])
    trainee: nn.Module = Trainee(method)
    trainee = trainee if world == 1 else nn.parallel.DistributedDataParallel(trainee)
    losses = take_step(trainee, mine, testing.CLOCK).losses
    sum(losses.values()).backward()
    found = {f"loss {name}": parallel.average(value) for name, value in losses.items()}
    return (
        found | {n: p.grad for n, p in method.named_parameters() if p.grad is not None} | dict(method.named_buffers())
    )


@pytest.mark.slow
def test_two_processes_with_chunks_take_the_step_of_one_without(tmp_path: Path) -> None:
    cases = ["simclr", "moco-v2"]
    run_in_two_processes(state_after_a_step, cases, tmp_path)
    for case in cases:
        assert not unlike_one_process(state_after_a_step(case), tmp_path, case, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("has_norms", [True, False])
def test_keys_are_shuffled_where_batch_norm_sees_chunks(has_norms: bool) -> None:
    norm = nn.BatchNorm2d(4) if has_norms else nn.Identity()
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
    assert not sees_parts(nn.Sequential(encoder))
    cache_gradients(encoder, 4)
    assert sees_parts(nn.Sequential(encoder)) == has_norms
