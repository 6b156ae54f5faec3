"""Which classes a linear probe takes for each other: a look, not a result; results have protocols."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from iecl import counter
from iecl.reporting.gallery import Gallery
from iecl.reporting.sample import Sampled

MOST_QUERIES, MOST_BANK, LEAST = 2000, 10_000, 20
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
"""On squared weights, as shares of the mean variance of a feature."""
WHOLE = 20
"""Classes of which all pairs are shown."""
PAIRS, EXAMPLES = 6, 4


@dataclass(frozen=True)
class LinearProbe:
    """Least squares on classes with the penalty that is right most often about images left out of the fit."""

    mean: Float[Tensor, " width"]
    weight: Float[Tensor, "width classes"]
    bias: Float[Tensor, " classes"]
    left_out: Int64[Tensor, " n"]
    """The class of each image by a probe that was fitted without it."""

    @classmethod
    def fit(cls, features: Float[Tensor, "n width"], labels: Int64[Tensor, " n"], classes: int) -> "LinearProbe":
        """Fit on all rows; what a fit without one of them says follows from its own share in the fit."""
        rows, wanted = features.double(), one_hot(labels, classes).double()
        mean, bias = rows.mean(0), wanted.mean(0)
        values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean))
        turned, scale = (rows - mean) @ vectors, float(values.clamp_min(0).mean()) or 1.0
        best, made = -1, None
        for penalty in PENALTIES:
            shrunk = 1 / (values.clamp_min(0) + penalty * scale)
            weight = shrunk[:, None] * (turned.T @ (wanted - bias))
            own = turned.square() @ shrunk + 1 / len(rows)
            rest = (wanted - bias - turned @ weight) / (1 - own).clamp_min(1e-9)[:, None]
            said = (wanted - rest).argmax(1)
            right = int((said == labels).sum())
            if right > best:
                best, made = right, cls(mean, vectors @ weight, bias, said)
        assert made is not None
        return made

    def classify(self, features: Float[Tensor, "n width"]) -> Int64[Tensor, " n"]:
        """The class of each row."""
        return ((features.double() - self.mean) @ self.weight + self.bias).argmax(1)


def confused(sample: Sampled, gallery: Gallery) -> dict[str, Any] | None:
    """The classes that a probe gives to images: test images by training images, or each by a fit without it."""
    known = np.flatnonzero(sample.labels >= 0)
    is_test = sample.split[known] == 1
    has_both = bool(is_test.any() and not is_test.all())
    queries, bank = (known[is_test], known[~is_test]) if has_both else (known, known)
    if len(known) < LEAST or len(set(sample.labels[bank].tolist())) < 2:
        return None
    bank = _some(bank, MOST_BANK)
    queries = _some(queries if has_both else bank, MOST_QUERIES)
    probe = LinearProbe.fit(sample.features[bank], torch.from_numpy(sample.labels[bank]), len(sample.classes))
    if has_both:
        said = probe.classify(sample.features[queries]).numpy()
    else:
        said = probe.left_out.numpy()[np.searchsorted(bank, queries)]
    true = sample.labels[queries]
    table = np.zeros((len(sample.classes), len(sample.classes)), np.int64)
    np.add.at(table, (true, said), 1)
    wrong = table - np.diag(table.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    pairs = [divmod(int(place), len(sample.classes)) for place in order if wrong.flat[place]]
    way = (
        "fitted on training images, asked about test images"
        if has_both
        else "fitted without the image it is asked about"
    )
    return {
        "way": f"a linear probe (least squares), {way}",
        "queries": len(queries),
        "bank": len(bank),
        "right": float((said == true).mean()),
        "classes": list(sample.classes),
        "table": table.tolist() if len(sample.classes) <= WHOLE else None,
        "pairs": [
            {
                "true": sample.classes[a],
                "said": sample.classes[b],
                "count": int(wrong[a, b]),
                "of": int(table[a].sum()),
                "examples": _examples(
                    sample, gallery, queries[(true == a) & (said == b)], bank[sample.labels[bank] == b]
                ),
            }
            for a, b in pairs
        ],
    }


def _some(rows: Any, most: int) -> Any:
    order = counter.permutation(counter.key(0, "report/confusion"), len(rows))[:most].sort().values.numpy()
    return rows[order]


def _examples(sample: Sampled, gallery: Gallery, mistaken: Any, others: Any) -> list[dict[str, Any]]:
    """Images of a class taken for another, each with the image of that one which is most like it."""
    found = []
    unit = normalize(sample.features[others], dim=1)
    for row in mistaken[:EXAMPLES].tolist():
        by = int(others[int((unit @ sample.features[row]).argmax())])
        tiles = gallery.add(sample, np.array([row, by]))
        found.append({"tile": tiles[0], "name": sample.paths[row], "by": tiles[1], "by_name": sample.paths[by]})
    return found
