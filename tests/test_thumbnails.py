"""Thumbnails: which images get one, where it is, and how large."""

import io

import numpy as np
from PIL import Image

from pages import level
from protonce.data.sources import open_source
from protonce.report import thumbnails


def test_all_images_or_the_closest_get_a_thumbnail():
    rng = np.random.default_rng(0)
    coarse = level(rng.permutation(np.arange(300) % 4), rng.random(300))
    fine = level(rng.permutation(np.arange(300) % 30), rng.random(300))
    assert thumbnails.choose(300, [coarse, fine], np.array([5]), most=300).tolist() == list(range(300))
    first = np.arange(100, 120)
    chosen = thumbnails.choose(300, [coarse, fine], first, most=80)
    assert len(chosen) == 80
    assert set(first) <= set(chosen)
    assert chosen.tolist() == sorted(set(chosen))
    for one in (coarse, fine):  # the closest image of every prototype is among them
        order, start = one.members()
        assert set(order[start[:-1]]) <= set(chosen)


def test_images_of_a_cluster_lie_side_by_side_and_those_of_large_clusters_first():
    coarse = level([0, 1, 1, 0, 2, 1, 1, 2, 1], np.zeros(9))
    fine = level([3, 0, 1, 3, 2, 0, 1, 2, 0], np.zeros(9))
    images = np.array([0, 1, 2, 3, 4, 5, 6, 8])  # image 7 has no thumbnail
    assert thumbnails.by_cluster(images, [coarse, fine]).tolist() == [1, 5, 8, 2, 6, 0, 3, 4]


def test_sheets_show_each_image_at_its_position(photos, monkeypatch):
    source = open_source(photos)
    images = np.arange(0, 48, 2)
    monkeypatch.setattr(thumbnails, "COLUMNS", 5)
    monkeypatch.setattr(thumbnails, "ROWS", 2)  # three sheets
    packed = thumbnails.pack(source, images, 10**6)
    assert (packed.side, len(packed.sheets)) == (32, 3)  # the images have 20 pixels
    for position, i in enumerate(images):
        sheet, within = divmod(position, 10)
        row, column = divmod(within, 5)
        place = (column * 32, row * 32, column * 32 + 32, row * 32 + 32)
        shown = Image.open(io.BytesIO(packed.sheets[sheet])).convert("L").crop(place).resize((20, 20))
        assert np.corrcoef(np.asarray(shown).ravel(), source.load(int(i)).mean(axis=2).ravel())[0, 1] > 0.9


def test_thumbnails_are_as_large_as_fits():
    rng = np.random.default_rng(0)
    noise = open_source(rng.integers(0, 255, (40, 200, 200), dtype=np.uint8))  # the worst there is
    sides = []
    for room in (10**7, 10**5, 3 * 10**4):
        packed = thumbnails.pack(noise, np.arange(40), room)
        assert sum(map(len, packed.sheets)) <= room
        sides.append(packed.side)
    assert sides[0] == 160
    assert sides == sorted(sides, reverse=True)
    assert len(set(sides)) == 3
