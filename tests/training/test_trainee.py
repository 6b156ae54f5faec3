"""What a method is given arrives whole, in one process and through what wraps it for several."""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from iecl import parallel
from iecl.launch import Launch, joined, outside_launch
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.schedule import Clock
from iecl.training.loop import Trainee, take_step
from iecl.training.machine import make_fabric
from iecl.training.processes import run_in_processes
from iecl.training.settings import TrainingSettings
from iecl.views.pipeline import Views


@dataclass(frozen=True)
class TaggedViews(Views):
    """Views with two fields that the trainer has never heard of."""

    tags: tuple[str, ...] = ()
    weights: Tensor | None = None


@dataclass(frozen=True)
class NamedClock(Clock):
    """A clock with one more field."""

    name: str = ""


class Mirror(Method):
    """Gives back what it got."""

    Settings = MethodSettings

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.got: tuple[Views, Clock] | None = None

    def step(self, views: Views, clock: Clock) -> Step:
        self.got = views, clock
        rows = views.index[:, None].float()
        return Step({"loss": self.layer(rows).mean()}, rows, {"anchor": rows}, {"reading": rows.sum()})

    def project(self, x: Tensor) -> Tensor:
        return x

    def encoder(self) -> nn.Module:
        return self.layer


def values(whole: object) -> dict[str, object]:
    """Every field, tensors as lists."""
    return {f.name: plain(getattr(whole, f.name)) for f in fields(whole)}  # type: ignore[arg-type]


def plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, Tensor) else value


def given(rank: int) -> tuple[TaggedViews, NamedClock]:
    """Views and a clock with another value in each field."""
    crop, small = torch.full((2, 3, 4, 4), 1.0), torch.full((2, 3, 2, 2), 2.0)
    rows = torch.tensor([2 * rank, 2 * rank + 1])
    views = TaggedViews((crop, crop + 2), rows, rows + 10, rows + 20, (small,), ("a", "b"), rows + 0.5)
    return views, NamedClock(1, 2, 3, 4, 5, "noon")


def step_of(rank: int, launch: Launch | None = None) -> dict[str, object]:
    """What arrived in the method, what came back, and the gradient of a step alone and after one with the others."""
    with joined(launch):
        fabric = make_fabric(TrainingSettings(accelerator="cpu", precision="32-true", loggers=()), Path(), launch)
        fabric.launch()
        method = Mirror()
        trainee, _ = fabric.setup(Trainee(method), torch.optim.SGD(method.parameters(), lr=0.1))
        gradients = []
        for is_last in (False, True):
            with fabric.no_backward_sync(trainee, enabled=not is_last):
                made = take_step(trainee, *given(rank))
                fabric.backward(made.losses["loss"])
            assert method.layer.weight.grad is not None
            gradients.append(method.layer.weight.grad.item())
        assert method.got is not None
        views, clock = method.got
        kinds = [type(one).__name__ for one in (views, clock, made)]
        step = {name: value for name, value in values(made).items() if name != "losses"}
        return {"kinds": kinds, "views": values(views), "clock": values(clock), "step": step, "gradients": gradients}


def step_among_others() -> dict[str, object]:
    """The same in one of several processes: what each of them found."""
    launch = outside_launch()
    assert launch is not None
    found = parallel.gather_objects(step_of(launch.rank, launch))
    parallel.leave()
    return {"by_rank": found}


def check(found: dict[str, object], rank: int) -> None:
    views, clock = given(rank)
    assert found["kinds"] == ["TaggedViews", "NamedClock", "Step"]
    assert (found["views"], found["clock"]) == (values(views), values(clock))
    rows = [[20.0 + 2 * rank], [21.0 + 2 * rank]]
    assert found["step"] == {
        "features": rows,
        "projections": {"anchor": rows},
        "readings": {"reading": 41.0 + 4 * rank},
    }


def test_every_field_arrives_in_the_method_and_comes_back() -> None:
    found = step_of(rank=0)
    check(found, 0)
    assert found["gradients"] == [20.5, 41.0]


def test_every_field_arrives_in_each_of_two_processes_and_their_gradients_are_averaged() -> None:
    answer = run_in_processes(step_among_others, (), devices=2, nodes=1, lock=None)
    assert isinstance(answer, dict), answer
    for rank, found in enumerate(answer["by_rank"]):
        check(found, rank)
        assert found["gradients"] == [20.5 + 2 * rank, 43.0]  # alone, then the mean of 41 and 45
