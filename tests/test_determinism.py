"""The same seed gives the same bytes, whatever the number of workers."""

import protonce
from conftest import SMALL


def test_the_number_of_workers_changes_no_byte(large_photos, tmp_path):
    """Of images that workers read in each epoch: weights, prototypes, and the clusters of each epoch."""
    settings = {**SMALL, "clusters": [3], "batch_size": 8, "epochs": 1, "warmup_epochs": 0, "quiet": True}
    files = ("encoder.safetensors", "prototypes.npz", "assignments/0001.npz")
    runs = [protonce.train(large_photos, tmp_path / str(n), workers=n, **settings) for n in (0, 1, 2)]
    first, *others = ([(run.path / name).read_bytes() for name in files] for run in runs)
    assert others == [first, first]
