"""How long cells take: from finished ones of their kind, or from a few steps that are tried."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from statistics import mean
from typing import Any

from iecl.errors import UserError
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
        self._known: dict[Kind, list[tuple[float, float, float]]] = {}
        """Images in an epoch, images in a second, and seconds for evaluations."""
        for record in records:
            self.learn(record)

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take over what a finished cell took."""
        training = record.get("training", {})
        if training.get("images_per_second") and "error" not in record:
            measuring = sum(one["seconds"] for one in record["evaluations"].values())
            known = self._known.setdefault(tuple(record["kind"]), [])
            known.append((training["images"], training["images_per_second"], measuring))

    def probe(self, runs: Iterable[tuple[Kind, RunConfig]], threads: int) -> None:
        """Try some steps of kinds that nothing is known of."""
        unknown: dict[Kind, RunConfig] = {}
        for kind, config in runs:
            if kind not in self._known:
                unknown.setdefault(kind, config)
        for kind, config in list(unknown.items())[:MOST_PROBES]:
            with suppress(UserError):  # what is wrong with it is told by the cell itself
                made = predict(config, PROBE_SECONDS, threads=threads)
                self._known[kind] = [(made["images"], made["images_per_second"], 0.0)]

    def seconds(self, kind: Kind, config: RunConfig) -> float | None:
        """What a cell takes, of a kind without any record as the mean of others; None: nothing is known."""
        known = self._known.get(kind) or [one for some in self._known.values() for one in some]
        epochs = config.training.epochs
        times = [START_SECONDS + epochs * images / speed + measuring for images, speed, measuring in known]
        return mean(times) if times else None
