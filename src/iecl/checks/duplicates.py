"""Images that are there twice: the same pixels, or nearly the same picture; in two parts, or under two labels."""

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from iecl.checks.findings import Finding, groups_of
from iecl.checks.near import Pairs, near_pairs, without_crowds
from iecl.checks.scan import Numbers, Scan
from iecl.checks.table import CheckSettings
from iecl.data.decoder import Unreadable, decode_whole

_CLOSE = 3.0
"""Mean difference of two small versions, in gray levels, up to which whole images are compared pixel by pixel."""


class Copies:
    """Groups of equal images, and pairs of nearly equal ones."""

    def __init__(self, scan: Scan, settings: CheckSettings, also: Numbers | None = None) -> None:
        """Compare all images; `also` are further pairs to look at."""
        self.scan = scan
        self._pixels: dict[int, bytes] = {}
        self._area = scan.records["height"].astype(np.int64) * scan.records["width"]
        self._splits = scan.splits()
        equal = self._equal(_same_digest(scan))
        twins = np.array([number for group in equal for number in group[1:]], np.int64)
        is_alone = scan.readable & (scan.records["span"] >= settings.blank)
        is_alone[twins] = False
        pairs = near_pairs(scan.thumbs, np.flatnonzero(is_alone), settings.radius, settings.likeness, also)
        pairs, self.crowded = without_crowds(pairs, len(scan))
        pairs, more = self._split(pairs)
        self.exact = sorted(groups_of(*_as_pairs([*equal, *more]))) if equal or more else []
        self.near = pairs
        """Between images of which no two are equal."""

    def _equal(self, groups: list[list[int]]) -> list[list[int]]:
        """Of images that seem equal those that are, by all pixels; the one to keep is the first of its group."""
        found = []
        for group in groups:
            same: dict[bytes, list[int]] = {}
            for number in group:
                same.setdefault(self._content(number), []).append(number)
            found += [self._ranked(each) for each in same.values() if len(each) > 1]
        return found

    def _ranked(self, group: list[int]) -> list[int]:
        """The one that is kept first: of the test part, else the largest, else of the shortest name."""
        return sorted(
            group,
            key=lambda number: (-self._splits[number], -self._area[number], len(self.scan.path(number)), number),
        )

    def _content(self, number: int) -> bytes:
        """A hash of all pixels; of what Pillow does not open, an array, that of the file."""
        if number not in self._pixels:
            try:
                pixels = decode_whole(self.scan.path(number), 2**62, is_upright=True)
                content = repr(pixels.shape).encode() + pixels.tobytes()
            except Unreadable:
                content = Path(os.fsdecode(self.scan.path(number))).read_bytes()
            self._pixels[number] = blake2b(content, digest_size=16).digest()
        return self._pixels[number]

    def _split(self, pairs: Pairs) -> tuple[Pairs, list[list[int]]]:
        """Pairs that are nearly equal, and groups of those that turn out to be equal: stored in another format."""
        sizes = self.scan.records[["height", "width"]]
        close = np.flatnonzero((sizes[pairs.one] == sizes[pairs.other]) & (pairs.likeness > 0.99))
        is_equal = np.zeros(len(pairs), bool)
        for row in close.tolist():
            one, other = int(pairs.one[row]), int(pairs.other[row])
            gap = np.abs(np.diff(self.scan.thumbs[np.array([one, other])].astype(np.int16), axis=0)).mean()
            is_equal[row] = gap <= _CLOSE and self._content(one) == self._content(other)
        equal = groups_of(pairs.one[is_equal], pairs.other[is_equal])
        return pairs.where(~is_equal), [self._ranked(group) for group in equal]

    @property
    def groups(self) -> list[list[int]]:
        """Images that are one picture, exactly or nearly."""
        ones, others = _as_pairs(self.exact)
        return groups_of(np.concatenate([ones, self.near.one]), np.concatenate([others, self.near.other]))

    def findings(self) -> Iterator[Finding]:
        """Every image that is a copy of one that is kept."""
        for number, group in enumerate(self.exact):
            kept = self._ranked(group)
            for each in kept[1:]:
                yield Finding("exact", each, other=kept[0], group=number)
        likeness = {
            pair: float(value)
            for *pair_, value in zip(self.near.one.tolist(), self.near.other.tolist(), self.near.likeness, strict=True)
            for pair in (tuple(pair_), tuple(reversed(pair_)))
        }
        partners: dict[int, list[int]] = {}
        for one, other in likeness:
            partners.setdefault(one, []).append(other)
        for number, group in enumerate(groups_of(self.near.one, self.near.other), len(self.exact)):
            for each in self._ranked(group)[1:]:
                nearest = max(partners[each], key=lambda other: likeness[each, other])
                yield Finding("near", each, round(likeness[each, nearest], 3), other=nearest, group=number)
        yield from self._across(likeness)

    def _across(self, likeness: dict[tuple[int, ...], float]) -> Iterator[Finding]:
        """Pairs that lie in both parts, or have two labels."""
        splits, labels = self._splits, self.scan.labels
        same = {(a, b): 1.0 for group in self.exact for a in group for b in group[:8] if a != b}
        members = {group[0]: group for group in map(self._ranked, self.exact)}
        leaks: dict[int, tuple[float, int]] = {}
        mixed: dict[int, tuple[float, int]] = {}
        for (one, other), value in (same | likeness).items():
            for a in members.get(one, [one]) if value < 1 else [one]:
                for b in members.get(other, [other])[:8] if value < 1 else [other]:
                    if splits[a] == 1 and splits[b] == 0:
                        leaks[a] = max(leaks.get(a, (0.0, 0)), (value, b))
                    if labels[a] >= 0 and labels[b] >= 0 and labels[a] != labels[b]:
                        mixed[a] = max(mixed.get(a, (0.0, 0)), (value, b))
        for check, found in (("leak", leaks), ("two-labels", mixed)):
            for number, (value, other) in sorted(found.items()):
                yield Finding(check, number, round(value, 3), "the same pixels" if value == 1 else "", other)


def _same_digest(scan: Scan) -> list[list[int]]:
    """Groups of images whose gray pixels, as far as they were looked at, are equal."""
    numbers = np.flatnonzero(scan.readable)
    digests = scan.records["digest"][numbers]
    order = np.argsort(digests, kind="stable")
    edges = np.flatnonzero(np.diff(digests[order])) + 1
    return [numbers[group].tolist() for group in np.split(order, edges) if len(group) > 1]


def _as_pairs(groups: list[list[int]]) -> tuple[Numbers, Numbers]:
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    ones, others = np.array(pairs, np.int64).reshape(-1, 2).T
    return ones, others
