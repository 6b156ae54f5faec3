"""What a protocol is when two numbers are to be compared, and a short id of it. Free of numpy and torch."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

FREE = ("backbone", "backbone_weights", "checkpoint", "repetitions", "seed", "reference")
"""Parts of a protocol that are what is compared, or chance, or only add further numbers: they may differ."""


def deciding(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a protocol that must be equal for two numbers to be compared."""
    return {key: value for key, value in protocol.items() if key not in FREE}


def version_of(protocol_id: str) -> str:
    """The evaluation and the number of its version, as a protocol's sentence begins.

    >>> version_of("knn/1 k=20 T=0.07 cosine whole 32px")
    'knn/1'
    """
    return protocol_id.partition(" ")[0]


def protocol_hash(protocol_id: str, protocol: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that change with every part that decides whether numbers may be compared.

    Data are no part of it: the same way of measuring has the same id on any machine and on any images.

    >>> protocol_hash("knn/1 k=20", {"k": 20, "seed": 0}) == protocol_hash("knn/1 k=20", {"seed": 1, "k": 20})
    True
    >>> protocol_hash("knn/1 k=20", {"k": 20}) == protocol_hash("knn/1 k=200", {"k": 200})
    False
    """
    whole = {"version": version_of(protocol_id), **deciding(protocol)}
    canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake2b(canonical.encode(), digest_size=4).hexdigest()
