"""What a backbone makes of images: who is near whom, who is near nobody, and by what. Imports torch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iecl.checks.duplicates import Copies
from iecl.checks.findings import Finding
from iecl.checks.scan import Numbers, Scan
from iecl.checks.shortcuts import read_shortcuts
from iecl.checks.table import CheckSettings
from iecl.console import ProgressLine
from iecl.data.settings import DataSettings
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.neighbors import nearest
from iecl.weights.model import LoadedModel

NEIGHBORS, NEAREST = 20, 3
"""That vote on a label; that may be copies."""
RIDGE, USUAL = 0.3, 0.9
"""Of the mean variance, added to that of each direction, or what hardly varies would decide alone; and the share of the
images that says what is usual: strangers do not count. Both chosen by `benchmarks/doctor_faults.py`."""
TEMPERATURE = 0.1
Values = npt.NDArray[np.float32]


class Neighborhood:
    """Every readable image among its neighbors by cosine of centered features."""

    def __init__(
        self,
        run: str,
        model: LoadedModel,
        device: torch.device,
        scan: Scan,
        settings: CheckSettings,
        data: DataSettings,
        line: ProgressLine,
    ) -> None:
        """Embed all images, and find the neighbors of each."""
        self.scan, self.settings = scan, settings
        context = EvaluationContext(model, run, data.names, line, part="test", exclude=data.exclude, device=device)
        numbers, rows = [], []
        for part in scan.parts:
            found = context.features(context.open("test" if part.name == "test" else "pretrain"), part.name)
            numbers.append(part.start + found.index.numpy())
            rows.append(found.values)
        self.numbers: Numbers = np.concatenate(numbers)
        values = torch.cat(rows)
        self.features = values - values.mean(dim=0)
        self.cosine, self.index = self._search(line)
        self.facts: dict[str, Any] = {"run": run, "weights": model.proof}

    def _search(self, line: ProgressLine) -> tuple[Values, Numbers]:
        """Cosines and rows of the nearest others of each image."""
        count = min(NEIGHBORS, len(self.features) - 1)
        cosine, index = (
            np.empty((len(self.features), count), np.float32),
            np.empty((len(self.features), count), np.int64),
        )
        show = line.count("neighbors of images")
        for found in nearest(self.features, self.features, count + 1):
            rows = np.arange(found.part.start, found.part.stop)
            is_other = found.index.numpy() != rows[:, None]
            is_other[is_other.all(axis=1), -1] = False  # copies of an image may all come before itself
            cosine[rows] = found.cosine.numpy()[is_other].reshape(-1, count)
            index[rows] = found.index.numpy()[is_other].reshape(-1, count)
            show(found.part.stop, len(self.features))
        return cosine, index

    @property
    def candidates(self) -> Numbers:
        """Pairs of images that may be copies: each with its nearest."""
        some = self.index[:, :NEAREST]
        ones = self.numbers.repeat(some.shape[1])
        pairs = np.stack([ones, self.numbers[some.ravel()]], axis=1)
        is_seen = self.scan.records["span"] >= self.settings.blank
        pairs = pairs[is_seen[pairs].all(axis=1)]
        found: Numbers = np.unique(np.sort(pairs, axis=1), axis=0)
        return found

    def findings(self, copies: Copies) -> list[Finding]:
        """Images that belong to nothing, and labels that neighbors contradict; adds what is known of shortcuts."""
        is_copy = self._is_copy(copies)
        self.facts["shortcuts"] = read_shortcuts(
            self.scan, self.numbers, self.features.numpy(), self.index, is_copy, self.settings.shortcut
        )
        outliers = list(self._outliers())
        strange = {one.number for one in outliers}  # whose neighbors say nothing of what they show
        return [*outliers, *(one for one in self._labels(is_copy) if one.number not in strange)]

    def _is_copy(self, copies: Copies) -> npt.NDArray[np.bool_]:
        """Which neighbors are the image itself once more; they know its label and its light, whatever it shows."""
        group = np.full(len(self.scan), -1)
        for number, each in enumerate(copies.groups):
            group[each] = number
        own, theirs = group[self.numbers][:, None], group[self.numbers[self.index]]
        found: npt.NDArray[np.bool_] = (own == theirs) & (own >= 0)
        return found

    def _outliers(self) -> Iterator[Finding]:
        far = _distances(self.features)
        middle = float(np.median(far))
        spread = 1.4826 * float(np.median(np.abs(far - middle))) or 1.0
        score = (far - middle) / spread
        for row in np.flatnonzero(score > self.settings.outlier).tolist():
            yield Finding("outlier", int(self.numbers[row]), round(float(score[row]), 2), f"distance {far[row]:.2f}")

    def _labels(self, is_copy: npt.NDArray[np.bool_]) -> Iterator[Finding]:
        labels = self.scan.labels[self.numbers]
        if (labels >= 0).sum() < 2 or len(self.scan.classes) < 2:
            return
        votes = np.exp((self.cosine - self.cosine[:, :1]) / TEMPERATURE)
        votes[is_copy | (labels[self.index] < 0)] = 0
        shares = np.zeros((len(labels), len(self.scan.classes)), np.float32)
        np.add.at(shares, (np.arange(len(labels))[:, None], labels[self.index]), votes)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-9)
        said = shares.argmax(axis=1)
        is_labeled = labels >= 0
        self.facts["labels_of_neighbors"] = round(float((said == labels)[is_labeled].mean()), 4)
        share = shares.max(axis=1)
        for row in np.flatnonzero(is_labeled & (said != labels) & (share >= self.settings.label)).tolist():
            other = int(self.index[row][(labels[self.index[row]] == said[row]).argmax()])
            name = self.scan.label(int(self.numbers[other]))
            value = round(float(share[row]), 3)
            yield Finding("label", int(self.numbers[row]), value, f"neighbors: {name}", int(self.numbers[other]))


def _distances(features: torch.Tensor) -> Values:
    """How far each image is from the middle of all, in units of how far images go in that direction (Mahalanobis).

    Not from its nearest: strangers that resemble each other are near each other.
    """
    rows = features.double()
    is_usual = torch.ones(len(rows), dtype=torch.bool)
    for _ in range(2):
        usual = rows[is_usual]
        middle = usual.mean(dim=0)
        variance, directions = torch.linalg.eigh((usual - middle).T @ (usual - middle) / len(usual))
        scale = (variance.clamp_min(0) + RIDGE * variance.mean() + 1e-12).rsqrt()
        far = ((rows - middle) @ (directions * scale)).norm(dim=1)
        is_usual = far <= far.quantile(USUAL)
    found: Values = far.float().numpy()
    return found
