"""The built-in images."""

import numpy as np

from protonce.data import builtin


def test_builtin_images_depend_on_the_seed():
    images, labels = builtin.draw_images("test", 0)
    again, _ = builtin.draw_images("test", 0)
    other, _ = builtin.draw_images("test", 1)
    train, _ = builtin.draw_images("train", 0)
    assert images.shape == (1500, 32, 32, 3)
    assert np.array_equal(images, again)
    assert not np.array_equal(images, other)
    assert not np.array_equal(images, train[:1500])
    assert len(set(labels)) == 30
    assert len({label.split("/")[0] for label in labels}) == 10
    assert all(labels.count(label) == 50 for label in set(labels))
