"""The E-step: φ against a loop over eq. 12, and a hierarchy that is what it says."""

import math

import pytest
import torch
import torch.nn.functional as F

from protonce.prototypes import Prototypes, assign, cluster, concentration, e_step, parents


def features(n, d=8, seed=0):
    return F.normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)), dim=1)


def naive_phi(points, means, assignment, tau, alpha, clamp=True, identical="largest"):
    """Eq. 12 cluster by cluster, then the percentiles by sorting, then the mean."""
    phi, alike = [], []
    for c in range(len(means)):
        members = [points[i] for i in range(len(points)) if int(assignment[i]) == c]
        distances = [math.dist(v.tolist(), means[c].tolist()) for v in members]
        mean = sum(distances) / len(distances)
        phi.append(None if mean < 1e-6 else mean / math.log(len(members) + alpha))
        alike.append(mean < 1e-6 and len(members) > 1)
    least, largest = min(p for p in phi if p is not None), max(p for p in phi if p is not None)
    phi = [largest if p is None else p for p in phi]
    if identical == "smallest":
        phi = [0.0 if a else p for a, p in zip(alike, phi, strict=True)]

    def percentile(q):
        ordered = sorted(phi)
        place = q * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    low, high = percentile(0.1), percentile(0.9)
    if clamp:
        phi = [min(max(p, low), high) for p in phi]
    phi = [p or least for p in phi]
    return torch.tensor([p * tau * len(phi) / sum(phi) for p in phi])


@pytest.mark.parametrize("alpha", [1.0, 10.0])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("identical", ["largest", "smallest"])
def test_concentration_is_the_loop_over_equation_12(alpha, clamp, identical):
    points = features(120)
    assignment = torch.arange(120) % 12
    points[assignment == 3] = points[3].clone()  # ten members, all alike
    assignment[5] = 12  # one member
    means = torch.stack([points[assignment == k].mean(dim=0) for k in range(13)])
    phi = concentration(points, means, assignment, 0.2, alpha, clamp=clamp, identical=identical)
    expected = naive_phi(points, means, assignment, 0.2, alpha, clamp, identical)
    torch.testing.assert_close(phi, expected, rtol=1e-4, atol=1e-6)
    assert phi.mean().item() == pytest.approx(0.2, rel=1e-5)
    assert phi[12] == phi.max(), "of one image nothing is known"
    assert phi[3] == (phi.max() if identical == "largest" else phi.min())


@pytest.mark.parametrize("clamp", [True, False])
def test_phi_is_never_zero(clamp):
    """Nor where more than a tenth of the clusters are of identical images, so that the 10th percentile is 0."""
    points = features(40)
    assignment = torch.arange(40) // 5
    points[:15] = points[[0, 5, 10]].repeat_interleave(5, dim=0)  # three of eight clusters
    means = torch.stack([points[assignment == k].mean(dim=0) for k in range(8)])
    phi = concentration(points, means, assignment, 0.1, 10.0, clamp=clamp, identical="smallest")
    assert (phi[:3] == phi[3:].min()).all()
    assert phi.min() > 0
    torch.testing.assert_close(phi, naive_phi(points, means, assignment, 0.1, 10.0, clamp, "smallest"))


def test_settings_choose_how_phi_is_estimated():
    from conftest import make_system

    points = features(48, d=16)
    points[:9] = points[0].clone()
    for clamp in ("percentiles", "none"):
        for identical in ("largest", "smallest"):
            settings = make_system(phi_clamp=clamp, phi_of_identical=identical, clusters=[12]).settings
            (c,) = cluster(points, settings)
            options = {"clamp": clamp == "percentiles", "identical": identical}
            expected = naive_phi(points, c.means, c.assignment, settings.tau, settings.alpha, **options)
            torch.testing.assert_close(c.concentration, expected, rtol=1e-4, atol=1e-6)


def test_larger_and_tighter_clusters_have_smaller_phi():
    """What eq. 12 is for: φ falls with the mean distance and with the number of members."""
    centre = torch.eye(4)[:3]
    points, assignment = [], []
    for c, (members, spread) in enumerate([(4, 0.3), (40, 0.3), (40, 0.05)]):
        noise = torch.randn(members, 4, generator=torch.Generator().manual_seed(c))
        points.append(centre[c] + spread * F.normalize(noise, dim=1))
        assignment += [c] * members
    small, large, tight = concentration(torch.cat(points), centre, torch.tensor(assignment), 0.1, 10.0).tolist()
    assert small > large > tight


def test_a_cluster_without_images_has_the_phi_of_a_single_one_and_is_not_recorded():
    """As published: a negative with the largest φ before the clamp."""
    features = F.normalize(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    assignment = torch.arange(40) % 3
    assignment[assignment == 2] = 3  # nobody is in cluster 2
    single = torch.cat([assignment, torch.tensor([2])])
    means = torch.stack([features[assignment == j].mean(dim=0) if j != 2 else features[0] for j in range(4)])
    phi = concentration(features, means, assignment, tau=0.2, alpha=10.0, clamp=False)
    own = concentration(torch.cat([features, means[2:3]]), means, single, tau=0.2, alpha=10.0, clamp=False)
    torch.testing.assert_close(phi, own)
    assert phi[2] == phi.max()
    whole = Prototypes(F.normalize(means, dim=1), means, assignment, phi)
    used = whole.occupied
    assert len(used.centroids) == 3
    assert torch.equal(used.centroids[used.assignment], whole.centroids[assignment])
    assert torch.equal(used.concentration[used.assignment], phi[assignment])


def test_no_cluster_has_spread_so_phi_is_tau():
    points = torch.eye(5).repeat(3, 1)
    (c,) = e_step(points, [5], tau=0.3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(c.concentration, torch.full((5,), 0.3))


def test_fixed_concentration_is_tau():
    (c,) = e_step(features(60), [6], tau=0.1, estimate=False, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(c.concentration, torch.full((6,), 0.1))


def test_prototypes_are_the_normalised_means_of_their_members():
    points = features(90)
    for c in e_step(points, [3, 9, 27], tau=0.1, generator=torch.Generator().manual_seed(0)):
        for k in range(len(c.centroids)):
            members = points[c.assignment == k]
            assert len(members) > 0, "no prototype without members survives"
            torch.testing.assert_close(c.means[k], members.mean(dim=0), rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(c.centroids[k], F.normalize(members.mean(dim=0), dim=0))


def test_more_clusters_than_distinct_images():
    points = features(10).repeat(4, 1)
    (c,) = e_step(points, [25], tau=0.1, generator=torch.Generator().manual_seed(0))
    assert len(c.centroids) == 10
    assert torch.isfinite(c.concentration).all()


def test_warm_start_begins_at_the_last_means():
    points = features(200)
    generator = torch.Generator().manual_seed(0)
    (first,) = e_step(points, [8], tau=0.1, generator=generator, iterations=30)
    (second,) = e_step(points, [8], tau=0.1, generator=generator, iterations=1, init=[first.means])
    assert torch.equal(first.assignment, second.assignment)


def test_the_parent_contains_most_members():
    fine = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    coarse = torch.tensor([1, 1, 0, 0, 0, 0, 1, 0, 1])  # of fine 2's members two are in each: the smaller number
    assert parents(fine, coarse).tolist() == [1, 0, 0]


def test_assign_finds_the_nearest_prototype():
    points = features(50)
    (c,) = e_step(points, [5], tau=0.1, generator=torch.Generator().manual_seed(0))
    which, distance = assign(points, c)
    for i in range(50):
        cosine = [float(points[i] @ c.centroids[k]) for k in range(5)]
        assert which[i] == cosine.index(max(cosine))
        assert distance[i].item() == pytest.approx(1 - max(cosine), abs=1e-6)
