"""The map of the images."""

import numpy as np
import torch

from protonce.report.scatter import tsne


def test_the_map_keeps_neighbours():
    groups = torch.arange(120) % 3
    centres = 5 * torch.eye(3, 20)
    points = centres[groups] + 0.3 * torch.randn(120, 20, generator=torch.Generator().manual_seed(0))
    places = torch.from_numpy(tsne(points))
    nearest = torch.cdist(places, places).fill_diagonal_(torch.inf).argmin(dim=1)
    assert (groups[nearest] == groups).float().mean() > 0.95


def test_the_map_of_few_or_identical_images():
    assert tsne(torch.randn(4, 3)) is None
    assert tsne(torch.ones(40, 3)) is None
    mostly = torch.ones(60, 3)
    mostly[:12] = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    for points in (mostly, mostly[:5]):
        places = tsne(points)
        assert places.shape == (len(points), 2)
        assert np.isfinite(places).all()
