"""VOC's average precision: against a plain loop written from the rules of the devkit, and by hand."""

import numpy as np
import pytest

from annotated import detections, object_images, objects
from protonce.evaluate.objects.voc_ap import IGNORED, RIGHT, WRONG, average_precision, intersection_over_union


def inclusive_overlap(a, b):
    """Of boxes whose first and last pixels, counted from 1, are both inside."""
    w = min(a[2], b[2]) - max(a[0], b[0]) + 1
    h = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if w <= 0 or h <= 0:
        return 0.0
    size = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    return w * h / (sum(size) - w * h)


def loop(found, truth, code, least=0.5):
    """AP at eleven levels and over the whole curve, and the curve, of one class.

    Args:
        found: triples of image, score and inclusive box, of this class.
        truth: for each image triples of class, inclusive box and difficult.
        code: the class.
        least: overlap of a detection that is right.
    """
    total = sum(c == code and not difficult for image in truth for c, _, difficult in image)
    taken = [[False] * len(image) for image in truth]
    right, wrong, points = 0, 0, []
    for image, _, box in sorted(found, key=lambda one: -one[1]):
        best, which = -1.0, None
        for j, (c, other, _) in enumerate(truth[image]):
            overlap = inclusive_overlap(box, other)
            if c == code and overlap > best:
                best, which = overlap, j
        if best >= least:
            if truth[image][which][2]:
                continue
            if taken[image][which]:
                wrong += 1
            else:
                taken[image][which] = True
                right += 1
        else:
            wrong += 1
        points.append((right / total, right / (right + wrong)))
    eleven = 0.0
    for level in range(11):
        eleven += max([p for r, p in points if r * 10 >= level - 1e-6], default=0.0) / 11
    area, last = 0.0, 0.0
    for i, (recall, _) in enumerate(points):
        area += (recall - last) * max(p for _, p in points[i:])
        last = recall
    return eleven, area, points


def random_case(seed, n=25, classes=4):
    """Whole pixels, objects that overlap, several detections of each at many overlaps, some of the wrong class."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for i in range(n):
        there = []
        for _ in range(rng.integers(0, 5)):
            x, y = rng.integers(1, 60, 2)
            w, h = rng.integers(8, 30, 2)
            there.append((int(rng.integers(classes)), (x, y, x + w, y + h), bool(rng.random() < 0.25)))
        truth.append(there)
        for c, box, _ in there:
            for _ in range(rng.integers(0, 4)):
                moved = np.array(box) + rng.integers(-2, 3, 4)
                moved[2:] = np.maximum(moved[2:], moved[:2])
                found.append((i, c if rng.random() < 0.85 else int(rng.integers(classes)), tuple(moved.tolist())))
    scores = rng.permutation(len(found)) / 1000  # all different
    return truth, [(i, c, score, box) for (i, c, box), score in zip(found, scores.tolist(), strict=True)]


def continuous(box):
    return [box[0] - 1, box[1] - 1, box[2], box[3]]


def as_images(truth, found, classes):
    images = [
        objects([continuous(b) for _, b, _ in there], [c for c, _, _ in there], [d for _, _, d in there])
        for there in truth
    ]
    per_image = []
    for i in range(len(truth)):
        mine = [one for one in found if one[0] == i]
        boxes = [continuous(one[3]) for one in mine]
        per_image.append(detections(boxes, [one[1] for one in mine], [one[2] for one in mine]))
    return per_image, object_images(images, [f"class {c}" for c in range(classes)])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("least", [0.5, 0.7])
def test_the_rules_of_the_devkit_in_a_loop(seed, least):
    truth, found = random_case(seed)
    result = average_precision(*as_images(truth, found, 4), least)
    assert [c.name for c in result.classes] == [f"class {c}" for c in range(4)]
    means = []
    for code, ours in enumerate(result.classes):
        of_class = [(i, score, box) for i, c, score, box in found if c == code]
        eleven, area, points = loop(of_class, truth, code, least)
        assert ours.eleven_points == pytest.approx(eleven, abs=1e-12)
        assert ours.all_points == pytest.approx(area, abs=1e-12)
        np.testing.assert_allclose(np.stack([ours.recall, ours.precision], axis=1), points)
        assert ours.objects == sum(c == code and not d for there in truth for c, _, d in there)
        means.append((eleven, area))
    assert result.mean(eleven_points=True) == pytest.approx(np.mean(means, axis=0)[0])
    assert result.mean(eleven_points=False) == pytest.approx(np.mean(means, axis=0)[1])
    assert 0.05 < result.mean(eleven_points=False) < 0.95


def by_hand():
    """Two images; on the first two objects and a difficult one, on the second one object."""
    first = objects([[0, 0, 10, 10], [20, 0, 30, 10], [50, 50, 60, 60]], [0, 0, 0], difficult=[0, 0, 1])
    second = objects([[0, 0, 10, 10]], [0])
    found = [
        detections(
            [[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60], [50, 50, 60, 59], [20, 0, 30, 5]],
            [0] * 5,
            [0.9, 0.8, 0.95, 0.2, 0.5],
        ),
        detections([[4, 0, 14, 10]], [0], [0.7]),
    ]
    return found, object_images([first, second], ["cat"])


def test_a_case_by_hand():
    """By rank: difficult, right, duplicate (wrong), overlap 60/140 (wrong), overlap 50/100 (right), difficult.

    Precision 1, 1/2, 1/3, 2/4 at recall 1/3, 1/3, 1/3, 2/3. Interpolated: 1 up to 1/3 and 1/2 up to 2/3. Of the eleven
    levels 0 to 0.3 have 1, 0.4 to 0.6 have 1/2, 0.7 to 1 have 0.
    """
    result = average_precision(*by_hand())
    (ours,) = result.classes
    assert ours.objects == 3
    np.testing.assert_allclose(ours.precision, [1, 1 / 2, 1 / 3, 1 / 2])
    np.testing.assert_allclose(ours.recall, [1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert ours.all_points == pytest.approx(1 / 3 + 1 / 6)
    assert ours.eleven_points == pytest.approx((4 * 1 + 3 * 0.5) / 11)
    first, second = result.matches
    assert first.outcome.tolist() == [RIGHT, WRONG, IGNORED, IGNORED, RIGHT]
    assert first.best.tolist() == [0, 0, 2, 2, 1]
    assert second.outcome.tolist() == [WRONG]
    assert second.best.tolist() == [-1]


@pytest.mark.parametrize("there", [10, 20, 30])
def test_levels_of_recall_are_reached_in_spite_of_rounding(there):
    """3 of 10 objects are a recall of 0.3, which is less than 3 * 0.1 in floating point."""
    for hits in range(there + 1):
        truth = object_images([objects([[20 * j, 0, 20 * j + 9, 9] for j in range(there)], [0] * there)], ["a"])
        boxes = [[20 * j, 0, 20 * j + 9, 9] for j in range(hits)]
        result = average_precision([detections(boxes, [0] * hits, np.linspace(1, 0.5, hits))], truth)
        reached = 0 if hits == 0 else 1 + hits * 10 // there
        assert result.mean(eleven_points=True) == pytest.approx(reached / 11)
        assert result.mean(eleven_points=False) == pytest.approx(hits / there)


def test_equal_confidences_rank_by_image_whatever_the_rounding():
    truth = object_images([objects([[0, 0, 9, 9]], [0]), objects([[0, 0, 9, 9]], [0])], ["a"])
    for noise in ([0, 0], [3e-8, 0], [0, 3e-8]):
        found = [
            detections([[0, 0, 9, 9]], [0], [0.5 + noise[0]]),
            detections([[50, 50, 59, 59]], [0], [0.5 + noise[1]]),
        ]
        assert average_precision(found, truth).classes[0].precision.tolist() == [1, 0.5]
        assert average_precision(found[::-1], truth).classes[0].precision.tolist() == [0, 0.5]
    sure = detections([[50, 50, 59, 59], [0, 0, 9, 9]], [0, 0], [0.5, 0.51])
    assert average_precision([sure, found[1]], truth).classes[0].precision[0] == 1


def test_classes_without_objects_are_left_out_of_the_mean():
    there = objects([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]], [0, 1, 3], [0, 1, 0], [0, 0, 1])
    found = detections([[0, 0, 9, 9], [20, 0, 29, 9], [0, 0, 9, 9], [40, 0, 49, 9]], [0, 1, 2, 3], [0.5] * 4)
    result = average_precision([found], object_images([there], ["cat", "dog", "cow", "crowd"]))
    assert [c.name for c in result.classes] == ["cat"]
    assert result.left_out == ["dog", "cow", "crowd"]  # only difficult, none, and a crowd
    assert result.mean(eleven_points=False) == 1
    assert result.matches[0].outcome.tolist() == [RIGHT, IGNORED, WRONG, IGNORED]


def test_nothing_found_and_nothing_there():
    empty = detections([], [], [])
    truth = object_images([objects([[0, 0, 9, 9]], [0]), objects([], [])], ["a"])
    result = average_precision([empty, empty], truth)
    assert result.mean(eleven_points=True) == result.mean(eleven_points=False) == 0
    none = average_precision([detections([[0, 0, 9, 9]], [0], [0.5])], object_images([objects([], [])], ["a"]))
    assert np.isnan(none.mean(eleven_points=True))
    assert none.left_out == ["a"]
    assert none.matches[0].outcome.tolist() == [WRONG]


def test_the_objects_themselves_are_right():
    truth, _ = random_case(3)
    _, images = as_images(truth, [], 4)
    rng = np.random.default_rng(0)
    found = [detections(there.boxes, there.classes, rng.random(len(there.boxes))) for there in images.objects]
    result = average_precision(found, images)
    assert result.mean(eleven_points=True) == result.mean(eleven_points=False) == 1


def test_intersection_over_union_of_inclusive_pixels():
    rng = np.random.default_rng(0)
    corners = rng.integers(1, 20, (30, 2))
    boxes = np.concatenate([corners, corners + rng.integers(0, 15, (30, 2))], axis=1)
    shifted = boxes - np.array([1, 1, 0, 0])
    expected = [[inclusive_overlap(a, b) for b in boxes[:7].tolist()] for a in boxes.tolist()]
    np.testing.assert_allclose(intersection_over_union(shifted, shifted[:7]), expected)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (([[0, 0, 1, 1]], [0, 0], [0.5]), "have the shapes"),
        (([[0, 0, 1, 1]], [0], [0.5], []), "0 masks for 1 boxes"),
        (([[0, 0, 1, 1]], [0], [np.nan]), "must be finite"),
        (([[0, 0, np.inf, 1]], [0], [0.5]), "must be finite"),
    ],
)
def test_detections_are_checked(values, error):
    with pytest.raises(ValueError, match=error):
        detections(*values)
