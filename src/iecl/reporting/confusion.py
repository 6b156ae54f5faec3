"""Which classes the neighbors of an image mistake it for: a look, not a result; results have protocols."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from iecl import counter
from iecl.reporting.gallery import Gallery
from iecl.reporting.sample import Sampled

MOST_QUERIES, MOST_BANK = 2000, 20_000
K, TEMPERATURE = 20, 0.07
WHOLE = 20
"""Classes of which all pairs are shown."""
PAIRS, EXAMPLES = 6, 4


def confused(sample: Sampled, gallery: Gallery) -> dict[str, Any] | None:
    """The classes that weighted kNN gives to images, test images by training images or each left out of the vote."""
    known = np.flatnonzero(sample.labels >= 0)
    if len(set(sample.labels[known].tolist())) < 2 or len(known) <= K:
        return None
    is_test = sample.split[known] == 1
    way = "test images by training images" if is_test.any() and not is_test.all() else "each image by all others"
    queries, bank = (known[is_test], known[~is_test]) if way.startswith("test") else (known, known)
    queries, bank = _some(queries, MOST_QUERIES), _some(bank, MOST_BANK)
    unit = normalize(sample.features, dim=1)
    cosine = unit[queries] @ unit[bank].T
    cosine[torch.from_numpy(queries)[:, None] == torch.from_numpy(bank)[None]] = -torch.inf
    near = cosine.topk(min(K, len(bank) - 1), dim=1)
    labels = torch.from_numpy(sample.labels)
    votes = torch.zeros(len(queries), len(sample.classes))
    votes.scatter_add_(1, labels[torch.from_numpy(bank)][near.indices], ((near.values - 1) / TEMPERATURE).exp())
    said, true = votes.argmax(1).numpy(), sample.labels[queries]
    table = np.zeros((len(sample.classes), len(sample.classes)), np.int64)
    np.add.at(table, (true, said), 1)
    wrong = table - np.diag(table.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    pairs = [divmod(int(place), len(sample.classes)) for place in order if wrong.flat[place]]
    return {
        "way": f"kNN with k = {K}, {way}",
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
                    sample, gallery, np.flatnonzero((true == a) & (said == b)), queries, bank, near.indices.numpy(), b
                ),
            }
            for a, b in pairs
        ],
    }


def _some(rows: Any, most: int) -> Any:
    order = counter.permutation(counter.key(0, "report/confusion"), len(rows))[:most].sort().values.numpy()
    return rows[order]


def _examples(
    sample: Sampled, gallery: Gallery, mistaken: Any, queries: Any, bank: Any, near: Any, said: int
) -> list[dict[str, Any]]:
    """Images of a class taken for another, each with the nearest image that misled it."""
    found = []
    for place in mistaken[:EXAMPLES]:
        row = int(queries[place])
        others = bank[near[place]]
        misled = int(others[sample.labels[others] == said][0])
        tiles = gallery.add(sample, np.array([row, misled]))
        found.append({"tile": tiles[0], "name": sample.paths[row], "by": tiles[1], "by_name": sample.paths[misled]})
    return found
