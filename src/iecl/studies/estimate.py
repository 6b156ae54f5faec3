"""How long cells take: from finished ones of their kind, or from a few steps that are tried."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from statistics import mean
from typing import Any

from iecl.errors import UserError
from iecl.files import number
from iecl.training.config import RunConfig
from iecl.training.forecast import predict

START_SECONDS, PROBE_SECONDS, MOST_PROBES = 10.0, 5.0, 3
"""Before the first step: torch, images, compiled loops. Of a probe. Kinds that are probed, since each takes seconds."""
Kind = tuple[Any, ...]


def kind_of(config: RunConfig, content: str) -> Kind:
    """What decides how long an image takes, most of all."""
    return config.method_name, config.backbone.name, config.data.image_size, content


class Estimate:
    """Speeds by kind of cell."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known: dict[Kind, tuple[float, float, float]] = {}
        """Images in an epoch, images in a second, and seconds for evaluations, of the last cell of each kind."""
        for record in records:
            self.learn(record)

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take over what a finished cell took."""
        training = record.get("training", {})
        speed = number(training.get("images_per_second"))
        if speed and speed > 0 and "error" not in record:
            measuring = sum(number(one["seconds"]) for one in record["evaluations"].values())
            if isfinite(speed + measuring):
                self._known[tuple(record["kind"])] = training["images"], speed, measuring

    def probe(self, runs: Iterable[tuple[Kind, RunConfig]], threads: int) -> None:
        """Try some steps of kinds that nothing is known of."""
        unknown = dict(reversed([(kind, config) for kind, config in runs if kind not in self._known]))
        for kind, config in list(unknown.items())[-MOST_PROBES:]:  # of each kind the first cell
            with suppress(UserError):  # what is wrong with it is told by the cell itself
                made = predict(config, PROBE_SECONDS, threads=threads)
                self._known[kind] = made["images"], made["images_per_second"], 0.0

    def seconds(self, kind: Kind, config: RunConfig) -> float | None:
        """What a cell takes, of a kind without any record as the mean of others; None: nothing is known."""
        known = [self._known[kind]] if kind in self._known else list(self._known.values())
        epochs = config.training.epochs
        times = [START_SECONDS + epochs * images / speed + measuring for images, speed, measuring in known]
        return mean(times) if times else None
