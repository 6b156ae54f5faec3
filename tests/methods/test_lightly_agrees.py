"""Whole methods beside the same ones from lightly's modules: equal weights and views, equal losses step after step."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from stepping import clock, make, views_of
from torch import Tensor, nn

from iecl.methods.byol import BYOL
from iecl.methods.contract import Method
from iecl.methods.moco_v2 import MoCoV2
from iecl.methods.nnclr import NNCLR
from iecl.methods.simclr import SimCLR
from iecl.methods.simsiam import SimSiam
from iecl.schedule import Ramp

lightly = pytest.importorskip("lightly", reason="compares with lightly")
from lightly.loss import NegativeCosineSimilarity, NTXentLoss  # noqa: E402, after the skip
from lightly.models.modules import NNMemoryBankModule, heads  # noqa: E402
from lightly.models.utils import update_momentum  # noqa: E402

WIDTH, HIDDEN, OUT, QUEUE, KEEP, TEMPERATURE = 128, 16, 8, 32, 0.9, 0.2
STEPS = [list(range(8)), list(range(8, 16)), list(range(4, 12))]
KEEPS = {"ema_momentum": Ramp.constant(KEEP)}
LossOf = Callable[[Tensor, Tensor], Tensor]


def like(head: nn.Module, ours: nn.Module) -> nn.Module:
    """lightly's head with our weights."""
    head.layers.load_state_dict(ours.state_dict())
    return head


class Following(nn.Module):
    """Momentum copies of a backbone and a head, moved by lightly's own function."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.fast, self.slow = parts, nn.Sequential(*deepcopy(parts)).requires_grad_(False)

    def follow(self) -> None:
        for fast, slow in zip(self.fast, self.slow, strict=True):
            update_momentum(fast, slow, m=KEEP)


class Simclr(nn.Module):
    def __init__(self, ours: SimCLR) -> None:
        super().__init__()
        self.backbone = deepcopy(ours.backbone)
        self.head = like(heads.SimCLRProjectionHead(WIDTH, HIDDEN, OUT), ours.projector)
        self.head.layers[-1].bias.requires_grad_(False)  # as the authors have it; lightly's learns a shift
        self.criterion = NTXentLoss(temperature=TEMPERATURE)

    def forward(self, anchor: Tensor, query: Tensor) -> Tensor:
        return self.criterion(*self.head(self.backbone(torch.cat([anchor, query]))).chunk(2))


class Moco(nn.Module):
    def __init__(self, ours: MoCoV2) -> None:
        super().__init__()
        self.backbone = deepcopy(ours.backbone)
        self.head = like(heads.MoCoProjectionHead(WIDTH, HIDDEN, OUT), ours.projector)
        self.copy = Following(self.backbone, self.head)
        self.criterion = NTXentLoss(temperature=TEMPERATURE, memory_bank_size=(QUEUE, OUT))
        self.criterion.memory_bank.bank.copy_(ours.queue.rows)

    def forward(self, anchor: Tensor, query: Tensor) -> Tensor:
        return self.criterion(self.head(self.backbone(anchor)), self.copy.slow(query))


class Byol(nn.Module):
    def __init__(self, ours: BYOL) -> None:
        super().__init__()
        self.backbone = deepcopy(ours.backbone)
        self.head = like(heads.BYOLProjectionHead(WIDTH, HIDDEN, OUT), ours.projector)
        self.predictor = like(heads.BYOLPredictionHead(OUT, HIDDEN, OUT), ours.predictor)
        self.copy = Following(self.backbone, self.head)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, anchor: Tensor, query: Tensor) -> Tensor:
        p = [self.predictor(self.head(self.backbone(x))) for x in (anchor, query)]
        targets = [self.copy.slow(x) for x in (query, anchor)]
        # Ours is the authors' sum of squared distances between unit vectors, 2 - 2 cos for each direction.
        return sum(2 + 2 * self.criterion(*pair) for pair in zip(p, targets, strict=True))


class Simsiam(nn.Module):
    def __init__(self, ours: SimSiam) -> None:
        super().__init__()
        self.backbone = deepcopy(ours.backbone)
        self.head = heads.SimSiamProjectionHead(WIDTH, HIDDEN, OUT)
        self.head.layers[6] = nn.Linear(HIDDEN, OUT, bias=False)  # lightly keeps a bias that its last norm removes
        self.head = like(self.head, ours.projector)
        self.predictor = like(heads.SimSiamPredictionHead(OUT, HIDDEN, OUT), ours.predictor)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, anchor: Tensor, query: Tensor) -> Tensor:
        z = [self.head(self.backbone(x)) for x in (anchor, query)]
        p = [self.predictor(x) for x in z]
        return (self.criterion(p[0], z[1].detach()) + self.criterion(p[1], z[0].detach())) / 2


class Nnclr(nn.Module):
    def __init__(self, ours: NNCLR) -> None:
        super().__init__()
        self.backbone = deepcopy(ours.backbone)
        self.head = like(heads.NNCLRProjectionHead(WIDTH, HIDDEN, OUT), ours.projector)
        self.predictor = like(heads.NNCLRPredictionHead(OUT, HIDDEN, OUT), ours.predictor)
        self.bank = NNMemoryBankModule(size=(QUEUE, OUT))
        self.bank.bank.copy_(ours.queue.rows)

    def contrast(self, neighbors: Tensor, p: Tensor) -> Tensor:
        """The paper's loss by lightly's NT-Xent, one row after the other with the other predictions as its bank.

        With all rows at once, as in lightly's example, neighbors and predictions would be negatives among themselves.
        """
        rows = []
        for own in range(len(p)):
            criterion = NTXentLoss(temperature=TEMPERATURE, memory_bank_size=(len(p) - 1, OUT))
            others = torch.cat([p[:own], p[own + 1 :]])
            criterion.memory_bank.bank = nn.functional.normalize(others, dim=1)
            rows.append(criterion(neighbors[own : own + 1], p[own : own + 1]))
        return torch.stack(rows).mean()

    def forward(self, anchor: Tensor, query: Tensor) -> Tensor:
        z = [self.head(self.backbone(x)) for x in (anchor, query)]
        p = [self.predictor(x) for x in z]
        neighbors = [self.bank(x.detach(), update=False) for x in z]
        loss = (self.contrast(neighbors[0], p[1]) + self.contrast(neighbors[1], p[0])) / 2
        self.bank._dequeue_and_enqueue(nn.functional.normalize(z[0].detach(), dim=1))
        return loss


CASES: dict[str, tuple[type[Method], type[nn.Module], dict[str, object]]] = {
    "simclr": (SimCLR, Simclr, {"temperature": TEMPERATURE}),
    "moco-v2": (MoCoV2, Moco, {"temperature": TEMPERATURE, "queue_size": QUEUE, **KEEPS}),
    "byol": (BYOL, Byol, {"predictor_hidden_dim": HIDDEN, **KEEPS}),
    "simsiam": (SimSiam, Simsiam, {"predictor_hidden_dim": HIDDEN}),
    "nnclr": (NNCLR, Nnclr, {"predictor_hidden_dim": HIDDEN, "temperature": TEMPERATURE, "queue_size": QUEUE}),
}


RATES = {"nnclr": 0.0}
"""Values and queue only: lightly's bank, which holds the other predictions here, passes no gradient on."""


def trained(loss_of: LossOf, module: nn.Module, after: Callable[[], None], rate: float) -> list[float]:
    """The losses of some optimizer steps."""
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate)
    values = []
    for number, index in enumerate(STEPS):
        loss = loss_of(*views_of(index, seed=number).global_crops)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
        values.append(loss.item())
    return values


def ours_trained(method: Method, rate: float) -> list[float]:
    steps = iter(range(len(STEPS)))

    def loss(*_: Tensor) -> Tensor:
        number = next(steps)
        made = method.step(views_of(STEPS[number], seed=number), clock(number))
        return torch.stack(list(made.losses.values())).sum()

    return trained(loss, method, lambda: method.after_step(clock()), rate)


@pytest.mark.parametrize("name", CASES)
def test_every_step_costs_what_the_same_method_from_lightly_costs(name: str) -> None:
    (cls, peer, settings), rate = CASES[name], RATES.get(name, 0.05)
    method = make(cls, hidden_dim=HIDDEN, out_dim=OUT, **settings)
    theirs = peer(method)
    copies = [part for part in theirs.modules() if isinstance(part, Following)]
    expected = trained(theirs, theirs, lambda: [copy.follow() for copy in copies], rate)
    # Later steps compare gradient, momentum copy and queue; rounding grows with each step through batch norm.
    assert ours_trained(method, rate) == pytest.approx(expected, rel=1e-5)
