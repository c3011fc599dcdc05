"""Clustering of a run: AMI over training and on its labelled images."""

import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from protonce import manifest
from protonce.errors import UserError
from protonce.evaluate.clustering import default_clusters
from protonce.evaluate.protocols import evaluate
from protonce.kmeans import k_means
from protonce.randomness import generator
from protonce.run import load, read_assignments


def test_clustering_over_training_and_on_one_data_set(trained, others):
    """AMI of kept assignments by scikit-learn; without --test the run's own images, which need no others."""
    result = evaluate(trained, "clustering", quiet=True, clusters=[2, 6], starts=2)
    _, labels = trained.images
    assert result["details"]["own_clusters"] == {"images": 48, "classes": 3}
    curves = result["details"]["ami_over_training"]
    assert curves["epochs"] == [1, 2, 3]
    for m in range(2):
        expected = [adjusted_mutual_info_score(labels, read_assignments(trained.path, e)[m]) for e in (1, 2, 3)]
        assert curves["ami"][m] == pytest.approx(expected)
        final = adjusted_mutual_info_score(labels, trained.prototypes[m].assignment)
        assert result["metrics"][f"ami of the run's k = {trained.settings.clusters[m]}"] == pytest.approx(final)
    points = torch.nn.functional.normalize(*trained.features(trained.source(), "backbone"), dim=1)
    found = result["metrics"]["ami (k = 6)"]["runs"]
    for start in range(2):
        clusters = k_means(points, 6, generator=generator(0, "ami", start), iterations=50, engine="faiss").assignment
        assert found[start] == pytest.approx(adjusted_mutual_info_score(labels, clusters))
    momentum = evaluate(trained, "clustering", test=str(others), quiet=True, features="momentum", starts=1)
    assert momentum["data"]["train"]["images"] == 30
    with pytest.raises(UserError, match="--clusters is 31, but there are only 30 images"):
        evaluate(trained, "clustering", test=str(others), quiet=True, clusters=[31])


def test_clustering_uses_only_labelled_images(trained, others):
    _, labels = trained.images
    assert labels is not None
    few = [label if i % 4 == 0 else "" for i, label in enumerate(labels)]
    text = (trained.path / "images.csv").read_text().splitlines()
    rows = [line.rpartition(",")[0] + "," + label for line, label in zip(text[1:], few, strict=True)]
    manifest.write(trained.path, "images.csv", "\n".join([text[0], *rows]) + "\n")
    result = evaluate(load(trained.path), "clustering", test=str(others), quiet=True, starts=1)
    expected = adjusted_mutual_info_score(labels[::4], trained.prototypes[0].assignment[::4])
    assert result["metrics"][f"ami of the run's k = {trained.settings.clusters[0]}"] == pytest.approx(expected)
    assert result["details"]["ami_over_training"]["ami"][0][-1] == pytest.approx(expected)


def test_the_papers_k_is_the_default_for_imagenets_training_images_alone():
    synsets = [f"n{i:08d}" for i in range(1000)]
    assert default_clusters("ImageNet", synsets * 1281) == 25_000
    assert default_clusters("ImageNet", [*synsets, "renamed"] * 1281) == 25_000
    assert default_clusters("ImageNet", synsets * 50) == 1000  # its validation images: two in a cluster
    assert default_clusters("", synsets * 1281) == 1000
    assert default_clusters("", synsets[:999] * 1281) == 999


def test_the_papers_ami_is_apart_from_that_of_other_images(trained, others, capsys):
    evaluate(trained, "clustering", test=str(others), starts=1)
    ours, heading, theirs = capsys.readouterr().out.partition("ImageNet, from the paper")
    assert heading
    assert "0.410" not in ours
    assert "0.410" in theirs
    assert "k = 3;" in theirs
