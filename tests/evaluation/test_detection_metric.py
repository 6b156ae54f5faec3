"""Average precision: cases worked out by hand, a slow second derivation, and pycocotools itself."""

import contextlib
import io
from fractions import Fraction

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from iecl.evaluation.voc.average_precision import (
    Found,
    Ranking,
    Truth,
    area,
    coco_precision,
    eleven_points,
    mean,
    overlaps,
    ranking,
    voc_precision,
)

Box = tuple[float, float, float, float]
FIRST, SECOND = (0.0, 0.0, 10.0, 10.0), (20.0, 20.0, 30.0, 30.0)


def found(*rows: tuple[Box, float, int]) -> Found:
    return Found(
        torch.tensor([row[0] for row in rows]).reshape(-1, 4),
        torch.tensor([row[1] for row in rows]),
        torch.tensor([row[2] for row in rows], dtype=torch.int64),
    )


def truth(*rows: tuple[Box, int], difficult: tuple[int, ...] = ()) -> Truth:
    return Truth(
        torch.tensor([row[0] for row in rows]).reshape(-1, 4),
        torch.tensor([row[1] for row in rows], dtype=torch.int64),
        torch.tensor([number in difficult for number in range(len(rows))], dtype=torch.bool),
    )


# --- by hand


def test_both_forms_of_two_hits_with_a_miss_between() -> None:
    said = [found((FIRST, 0.9, 1)), found((SECOND, 0.8, 1), (FIRST, 0.7, 1))]
    there = [truth((FIRST, 1)), truth((FIRST, 1))]
    result = voc_precision(said, there, classes=1, threshold=0.5)
    # Precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1. Six of eleven recalls are at most 1/2.
    assert result.area == {1: pytest.approx(1 / 2 + 1 / 2 * 2 / 3)}
    assert result.eleven_points == {1: pytest.approx((6 * 1 + 5 * 2 / 3) / 11)}


def test_a_second_detection_of_an_object_is_a_miss() -> None:
    said = [found((FIRST, 0.9, 1), (FIRST, 0.8, 1))]
    assert ranking(said, [truth((FIRST, 1))], 1, 0.5) == Ranking([True, False], objects=1)


def test_a_detection_of_a_taken_object_does_not_fall_back_on_the_next_best() -> None:
    near = (0.0, 0.0, 10.0, 14.0)
    # The second detection overlaps the first object most, by 1, and the other one by 10/14.
    said = [found((FIRST, 0.9, 1), (FIRST, 0.8, 1))]
    assert ranking(said, [truth((FIRST, 1), (near, 1))], 1, 0.5).hits == [True, False]


def test_a_difficult_object_is_neither_asked_for_nor_held_against_a_detector() -> None:
    said = [found((FIRST, 0.9, 1), (FIRST, 0.8, 1), (SECOND, 0.7, 1))]
    ranked = ranking(said, [truth((FIRST, 1), (SECOND, 1), difficult=(0,))], 1, 0.5)
    assert ranked == Ranking([True], objects=1)  # both detections of the difficult one do not count
    assert (area(ranked), eleven_points(ranked)) == (1.0, 1.0)


def test_a_miss_beside_a_difficult_object_is_still_a_miss() -> None:
    beside = (4.0, 0.0, 14.0, 10.0)  # overlap 6/14
    assert ranking([found((beside, 0.9, 1))], [truth((FIRST, 1), difficult=(0,))], 1, 0.5) == Ranking([False], 0)


@pytest.mark.parametrize(("right", "is_hit"), [(20.0, True), (20.01, False)])
def test_an_overlap_of_exactly_one_half_is_a_hit(right: float, is_hit: bool) -> None:
    assert ranking([found(((0, 0, right, 10), 0.9, 1))], [truth((FIRST, 1))], 1, 0.5).hits == [is_hit]


def test_a_detection_of_another_class_or_in_another_image_is_a_miss() -> None:
    said, there = [found((FIRST, 0.9, 2)), found((FIRST, 0.8, 1))], [truth((FIRST, 1)), truth((FIRST, 2))]
    assert ranking(said, there, 1, 0.5) == Ranking([False], objects=1)
    assert ranking(said, there, 2, 0.5) == Ranking([False], objects=1)


def test_scores_are_ranked_over_all_images() -> None:
    said = [found((SECOND, 0.2, 1), (FIRST, 0.4, 1)), found((FIRST, 0.3, 1))]
    assert ranking(said, [truth((FIRST, 1)), truth((FIRST, 1))], 1, 0.5).hits == [True, True, False]


def test_three_of_ten_objects_reach_the_recall_of_three_tenths() -> None:
    # 0.1 * 3 is more than 3 / 10 in floating point: 4 of the 11 recalls, 0 among them, are reached.
    assert eleven_points(Ranking([True] * 3, objects=10)) == pytest.approx(4 / 11)
    assert area(Ranking([True] * 3, objects=10)) == pytest.approx(3 / 10)


def test_finding_nothing_is_worth_nothing() -> None:
    result = voc_precision([found()], [truth((FIRST, 1))], classes=1, threshold=0.5)
    assert (result.area, result.eleven_points) == ({1: 0.0}, {1: 0.0})


def test_classes_without_an_object_to_find_are_left_out_of_the_mean() -> None:
    said = [found((FIRST, 0.9, 1), (SECOND, 0.9, 2), (SECOND, 0.9, 3))]
    result = voc_precision(said, [truth((FIRST, 1), (SECOND, 2), difficult=(1,))], classes=3, threshold=0.5)
    assert result.area == {1: 1.0}
    assert mean(result.area) == 1.0


# --- a second derivation


def random_images(seed: int, count: int = 6, classes: int = 3) -> tuple[list[Found], list[Truth]]:
    """Images with up to six objects; half of the detections are near one of them."""
    made = np.random.default_rng(seed)

    def boxes(number: int) -> np.ndarray:
        corner, size = made.uniform(0, 60, (number, 2)), made.uniform(8, 40, (number, 2))
        return np.concatenate([corner, corner + size], axis=1).astype(np.float32)

    said, there = [], []
    for _ in range(count):
        objects, detections = int(made.integers(0, 7)), int(made.integers(0, 12))
        real, guessed = boxes(objects), boxes(detections)
        labels, guessed_labels = made.integers(1, classes + 1, objects), made.integers(1, classes + 1, detections)
        for number in range(detections):
            if objects and number % 2:
                near = int(made.integers(objects))
                guessed[number] = real[near] + made.normal(0, 2.5, 4).astype(np.float32)
                guessed_labels[number] = labels[near]
        scores = made.permutation(detections * 7)[:detections].astype(np.float32) / 100 + made.integers(0, 3) / 1000
        difficult = torch.from_numpy(made.random(objects) < 0.25)
        there.append(Truth(torch.from_numpy(real), torch.from_numpy(labels), difficult))
        said.append(Found(torch.from_numpy(guessed), torch.from_numpy(scores), torch.from_numpy(guessed_labels)))
    return said, there


def slow_overlap(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    whole = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / whole


def slow_points(
    said: list[Found], there: list[Truth], label: int, threshold: float
) -> tuple[list[tuple[int, int]], int]:
    """Hits and detections that count after each detection, one list over all images as the development kit has it."""
    queue = [
        (float(one.scores[i]), image, one.boxes[i].tolist())
        for image, one in enumerate(said)
        for i in range(len(one.labels))
        if int(one.labels[i]) == label
    ]
    queue.sort(key=lambda row: row[0], reverse=True)
    objects = sum(int(((one.labels == label) & ~one.difficult).sum()) for one in there)
    used: set[tuple[int, int]] = set()
    points, hits, counted = [], 0, 0
    for _, image, box in queue:
        best, which = -1.0, -1
        for i in range(len(there[image].labels)):
            share = slow_overlap(box, there[image].boxes[i].tolist())
            if int(there[image].labels[i]) == label and share > best:
                best, which = share, i
        if best >= threshold and bool(there[image].difficult[which]):
            continue
        counted += 1
        if best >= threshold and (image, which) not in used:
            used.add((image, which))
            hits += 1
        points.append((hits, counted))
    return points, objects


def slow_precision(points: list[tuple[int, int]], objects: int) -> tuple[float, float]:
    """Area and eleven points as sums over recalls, each with the best precision at that recall or beyond."""

    def best(recall: Fraction) -> Fraction:
        reached = [Fraction(hits, n) for hits, n in points if Fraction(hits, objects) >= recall]
        return max(reached, default=Fraction(0))

    rising = sum((best(Fraction(number, objects)) for number in range(1, objects + 1)), Fraction(0)) / objects
    tenths = sum((best(Fraction(number, 10)) for number in range(11)), Fraction(0)) / 11
    return float(rising), float(tenths)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [0.5, 0.75])
def test_random_images_have_the_precision_of_a_slow_derivation(seed: int, threshold: float) -> None:
    said, there = random_images(seed)
    result = voc_precision(said, there, classes=3, threshold=threshold)
    slow = {label: slow_points(said, there, label, threshold) for label in (1, 2, 3)}
    expected = {label: slow_precision(*pair) for label, pair in slow.items() if pair[1]}
    assert result.area == pytest.approx({label: pair[0] for label, pair in expected.items()})
    assert result.eleven_points == pytest.approx({label: pair[1] for label, pair in expected.items()})


def test_random_images_hold_every_case() -> None:
    """The comparison above would mean little if nothing were found, or nothing difficult."""
    ranked = [ranking(*random_images(seed), label, 0.5) for seed in range(6) for label in (1, 2, 3)]
    assert sum(sum(one.hits) for one in ranked) > 30
    assert sum(len(one.hits) - sum(one.hits) for one in ranked) > 30
    assert sum(int(one.difficult.sum()) for seed in range(6) for one in random_images(seed)[1]) > 10


def test_overlaps_are_those_of_the_slow_formula() -> None:
    said, there = random_images(1)
    boxes, others = said[0].boxes, torch.cat([one.boxes for one in there])
    expected = [[slow_overlap(a, b) for b in others.tolist()] for a in boxes.tolist()]
    torch.testing.assert_close(overlaps(boxes, others), torch.tensor(expected), atol=1e-5, rtol=0)


# --- COCO


def by_pycocotools(said: list[Found], there: list[Truth]) -> list[float]:
    """AP, AP50 and AP75 from pycocotools, by its own way of reading data."""
    objects = [
        {
            "id": 0,
            "image_id": image,
            "category_id": int(one.labels[i]),
            "bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()],
            "area": float((box[2:] - box[:2]).prod()),
            "iscrowd": int(one.difficult[i]),
        }
        for image, one in enumerate(there)
        for i, box in enumerate(one.boxes)
    ]
    for number, row in enumerate(objects, start=1):
        row["id"] = number
    answers = [
        {
            "image_id": image,
            "category_id": int(one.labels[i]),
            "bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()],
            "score": float(one.scores[i]),
        }
        for image, one in enumerate(said)
        for i, box in enumerate(one.boxes)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = {
            "images": [{"id": image} for image in range(len(there))],
            "categories": [{"id": label} for label in (1, 2, 3)],
            "annotations": objects,
        }
        data.createIndex()
        judge = COCOeval(data, data.loadRes(answers), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return [float(value) for value in judge.stats[:3]]


@pytest.mark.parametrize("seed", range(3))
def test_coco_precision_is_that_of_pycocotools(seed: int) -> None:
    said, there = random_images(seed, count=10)
    expected = dict(zip(("ap", "ap50", "ap75"), by_pycocotools(said, there), strict=True))
    assert 0.01 < expected["ap"] < expected["ap50"] < 1
    assert coco_precision(said, there) == pytest.approx(expected, abs=1e-6)


def test_a_difficult_object_does_not_count_for_coco_either() -> None:
    said = [found((FIRST, 0.9, 1), (SECOND, 0.8, 1))]
    with_difficult = coco_precision(said, [truth((FIRST, 1), (SECOND, 1), difficult=(0,))])
    assert with_difficult == pytest.approx({"ap": 1.0, "ap50": 1.0, "ap75": 1.0}, abs=1e-6)
    assert coco_precision(said, [truth((SECOND, 1))])["ap50"] == pytest.approx(0.5, abs=1e-6)
