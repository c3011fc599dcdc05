"""The pass of an encoder over images, and the cache of features in RUN/features."""

import dataclasses
import errno
import hashlib
import json
import shutil
import threading

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import protonce
from conftest import SMALL, stripes
from protonce import features, manifest
from protonce.cli import main
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.views import ImageViews
from protonce.encoder import Encoder, build
from protonce.evaluate.protocols import evaluate
from protonce.features import Unchanged, extract
from protonce.report import scatter
from protonce.report.page import write_report
from protonce.run import load

pytestmark = pytest.mark.usefixtures("quick_page")
KINDS = ("backbone", "query", "momentum")


@pytest.fixture
def passes(monkeypatch):
    """Counts of images: encoded by the query or momentum encoder, and loaded for that."""
    counts = {"encoded": 0, "loaded": 0}
    encode, plain = Encoder.features, Loader.plain

    def counted_encode(self, x):
        counts["encoded"] += len(x)
        return encode(self, x)

    def counted_plain(self, *arguments):
        for samples in plain(self, *arguments):
            counts["loaded"] += len(samples.index)
            yield samples

    monkeypatch.setattr(Encoder, "features", counted_encode)
    monkeypatch.setattr(Loader, "plain", counted_plain)
    return counts


EDITED = 3 * 4  # copies of images, by which the first page chooses the threshold of look-alikes; see `few_compared`


def kept(run):
    """The names of the kept files, and how many rows each has."""
    return {file.name: len(np.load(file)) for file in (run.path / "features").glob("*.npy")}


def test_extract_is_a_loop_over_the_images(trained, photos):
    loader, encoder = trained.loader(photos), trained.encoders[0]
    expected = []
    with torch.no_grad():
        for samples in loader.plain(1):
            expected.append(encoder.features(loader.views.plain(samples))[0])
    index, seen = torch.tensor([5, 0, 47, 5]), []
    found = extract(encoder.features, loader, batch_size=3, index=index, seen=seen.append)
    torch.testing.assert_close(found, torch.stack([expected[i] for i in index]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(extract(encoder.features, loader), torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert seen == [3, 1]


def test_features_are_the_querys_and_embeddings_the_twins(trained, photos):
    """Which encoder: evaluation reads the query's backbone, prototypes live with the twin; both in eval mode."""
    loader = trained.loader(photos)
    state = load_file(trained.path / "encoder.safetensors")
    (samples,) = loader.plain(48)
    views = loader.views.plain(samples)
    expected = {}
    for name in ("query", "momentum"):
        encoder = build(trained.settings).eval()
        encoder.load_state_dict({k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")})
        with torch.no_grad():
            expected[name] = encoder.features(views), encoder(views)
    backbone, momentum = trained.features(photos, "backbone", "momentum")
    torch.testing.assert_close(backbone, expected["query"][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(momentum, expected["momentum"][1], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(expected["query"][0], expected["momentum"][0], atol=1e-4)
    which, distance = trained.assign(photos)[1]
    similarity = expected["momentum"][1] @ trained.prototypes[1].centroids.T
    np.testing.assert_array_equal(which, similarity.argmax(dim=1).numpy())
    np.testing.assert_allclose(distance, 1 - similarity.max(dim=1).values.numpy(), atol=1e-5)
    embedding = trained.embed(photos)
    np.testing.assert_allclose(embedding.features, expected["query"][0].numpy(), atol=1e-5)
    np.testing.assert_array_equal(embedding.prototypes[1], which)
    np.testing.assert_allclose(embedding.distances[1], distance, atol=1e-6)


def test_an_image_is_loaded_once_for_all_kinds(trained, photos, passes):
    loader = trained.loader(photos)
    query, momentum = trained.encoders
    expected = [extract(query.features, loader), extract(query, loader), extract(momentum, loader)]
    passes.update(encoded=0, loaded=0)
    found = trained.features(photos, *KINDS)
    assert passes == {"encoded": 2 * 48, "loaded": 48}
    again = load(trained.path).features(photos, *reversed(KINDS))
    assert passes == {"encoded": 2 * 48, "loaded": 48}
    for ours, theirs, read in zip(found, expected, reversed(again), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours, read)


def test_files_are_named_after_encoder_images_and_preparation(trained, photos, others):
    source, s = open_source(photos), trained.settings
    weights = hashlib.sha256((trained.path / "encoder.safetensors").read_bytes()).hexdigest()
    prepared = json.dumps([s.image_size, s.plain_resize, s.mean, s.std])
    digest = hashlib.sha256("\0".join([weights, source.identity, prepared]).encode()).hexdigest()
    trained.features(source, "momentum", "backbone")
    assert kept(trained) == {f"{digest[:16]}-momentum.npy": 48, f"{digest[:16]}-backbone.npy": 48}
    paths = {trained.feature_cache.path(source, "backbone")}
    for change in ({"image_size": 24}, {"plain_resize": 40}, {"mean": [0.5] * 3}, {"std": [0.5] * 3}):
        other = load(trained.path)
        other.settings = dataclasses.replace(s, **change)
        paths.add(other.feature_cache.path(source, "backbone"))
    paths |= {trained.feature_cache.path(open_source(others), "backbone")}
    state = (trained.path / "encoder.safetensors").read_bytes()
    manifest.write(trained.path, "encoder.safetensors", state[:-4] + b"\0\0\0\0")
    paths |= {load(trained.path).feature_cache.path(source, "backbone")}
    assert len(paths) == 7


def test_an_evaluation_leaves_nothing_to_encode(trained, photos, others, passes, tmp_path):
    """After kNN, which needs every kind of feature, no command encodes the training images again."""
    first = evaluate(trained, "knn", test=str(others), quiet=True)
    assert passes == {"encoded": 2 * 48 + 30, "loaded": 48 + 30}
    assert sorted(kept(trained).values()) == [30, 30, 48, 48, 48]
    passes.update(encoded=0, loaded=0)
    assert main(["report", str(trained.path)]) == 0
    assert passes == {"encoded": EDITED, "loaded": EDITED}
    assert main(["report", str(trained.path)]) == 0
    assert main(["tidy", str(trained.path), "--out", str(tmp_path / "tidy.csv")]) == 0
    assert main(["clusters", str(trained.path), "--out", str(tmp_path / "clusters")]) == 0
    assert main(["embed", str(trained.path), str(photos), "--out", str(tmp_path / "e.npz")]) == 0
    trained.assign(photos)
    assert evaluate(load(trained.path), "knn", test=str(others), quiet=True) == first
    evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[1, 4], draws=2)
    assert passes == {"encoded": EDITED, "loaded": EDITED}


def test_the_page_loads_each_image_once_and_keeps_it_for_the_rest(trained, photos, passes):
    write_report(trained, quiet=True)
    assert passes == {"encoded": 2 * 48 + EDITED, "loaded": 48 + EDITED}
    expected = trained.embed(photos)
    write_report(load(trained.path), quiet=True)
    evaluate(trained, "knn", quiet=True)  # on four fifths of the images and the others, which are rows of all
    assert passes == {"encoded": 2 * 48 + EDITED, "loaded": 48 + EDITED}
    np.testing.assert_array_equal(expected.features, extract(trained.encoders[0].features, trained.loader(photos)))


def test_the_page_of_many_images_needs_backbone_features_of_its_map_only(trained, passes, monkeypatch):
    monkeypatch.setattr(scatter, "POINTS", 20)
    write_report(trained, quiet=True)
    assert {name.split("-")[1]: n for name, n in kept(trained).items()} == {"momentum.npy": 48, "backbone.npy": 20}
    write_report(trained, quiet=True)
    assert passes["encoded"] == 48 + 20 + EDITED


def test_damaged_findings_are_found_anew(trained, tmp_path):
    expected = trained.tidy()
    (kept_findings,) = (trained.path / "features").glob("*-findings.json")
    text = kept_findings.read_text()
    for damage in ("", text[:100], "[]", text.replace('"version": 1', '"version": 0'), '{"version": 1}'):
        kept_findings.write_text(damage)
        found = trained.tidy()
        assert found.groups == expected.groups
        assert found.outliers.images.tolist() == expected.outliers.images.tolist()
    assert json.loads(kept_findings.read_text())["groups"] == expected.groups


def test_a_subset_takes_its_rows(trained, photos, passes):
    source = open_source(photos)
    backbone, query, momentum = trained.features(source, *KINDS)
    chosen = np.array([40, 3, 17, 3])
    part = source.subset(chosen)
    nested = part.subset(np.array([3, 0])[::-1])  # 40 and 3, by a view of an array
    passes.update(encoded=0, loaded=0)
    for ours, whole in zip(trained.features(part, *KINDS), (backbone, query, momentum), strict=True):
        assert torch.equal(ours, whole[[40, 3, 17, 3]])
    assert torch.equal(trained.features(nested, "query")[0], query[[40, 3]])
    assert passes["encoded"] == 0
    shutil.rmtree(trained.path / "features")
    torch.testing.assert_close(trained.features(part, "query")[0], query[[40, 3, 17, 3]])
    assert list(kept(trained).values()) == [4]  # of the subset alone


def test_query_embeddings_need_no_pass_where_backbone_features_are_kept(trained, photos, passes):
    expected = extract(trained.encoders[0], trained.loader(photos))
    trained.features(photos, "backbone")
    passes.update(encoded=0, loaded=0)
    assert torch.equal(trained.features(photos, "query")[0], expected)
    assert passes["encoded"] == 0
    assert len(kept(trained)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-4],
        lambda data: data[:-99] + bytes([data[-99] ^ 1]) + data[-98:],
        lambda data: data[:100],
        lambda data: b"",
        lambda data: b"not an array" * 50,
        lambda data: data.replace(b"(48, ", b"(24, "),
        lambda data: data.replace(b"<f4", b"<i4"),
        lambda data: data.replace(b"{'descr'", b"{{{{{{{{"),
    ],
)
def test_a_damaged_file_is_computed_again(damage, trained, photos, passes, tmp_path):
    expected = trained.features(photos, "backbone")[0].clone()
    path = trained.feature_cache.path(open_source(photos), "backbone")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    passes.update(encoded=0, loaded=0)
    assert main(["embed", str(trained.path), str(photos), "--out", str(tmp_path / "e.npz")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "e.npz")["features"], expected)
    assert path.read_bytes() == whole
    assert passes["loaded"] == 48


def test_on_a_full_disk_features_are_not_kept(trained, photos):
    expected = extract(trained.encoders[0].features, trained.loader(photos))
    path = trained.feature_cache.path(open_source(photos), "backbone")
    path.parent.mkdir()
    path.with_name(f".{path.name}.part").symlink_to("/dev/full")
    backbone, momentum = trained.features(photos, "backbone", "momentum")
    assert torch.equal(backbone, expected)
    assert backbone.is_contiguous()
    assert momentum.is_contiguous()
    assert [file.name for file in path.parent.glob("*.npy")] == [path.name.replace("backbone", "momentum")]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("where", ["lock", "file"])
def test_in_a_read_only_folder_features_are_not_kept(where, number, trained, photos, monkeypatch):
    def fail(*_, **__):
        raise OSError(number, "no")

    expected = extract(trained.encoders[1], trained.loader(photos))
    monkeypatch.setattr(features, "write_whole", fail)
    if where == "lock":
        monkeypatch.setattr(FileLock, "acquire", fail)
    assert torch.equal(trained.features(photos, "momentum")[0], expected)
    assert not kept(trained)


def test_features_in_a_read_only_folder_are_read(trained, photos, monkeypatch):
    trained.features(photos, "momentum")
    monkeypatch.setattr(FileLock, "acquire", None)  # a lock would have to be written
    trained.features(photos, "momentum")


def test_what_another_process_computes_is_waited_for(trained, photos, passes):
    expected = trained.features(photos, "momentum")[0].clone()
    path = trained.feature_cache.path(open_source(photos), "momentum")
    path.rename(path.with_suffix(".away"))
    passes.update(encoded=0, loaded=0)
    found = []
    thread = threading.Thread(target=lambda: found.extend(load(trained.path).features(photos, "momentum")))
    with FileLock(path.parent / ".lock"):
        thread.start()
        thread.join(timeout=1)
        assert thread.is_alive()
        path.with_suffix(".away").rename(path)
    thread.join(timeout=60)
    assert torch.equal(found[0], expected)
    assert passes["encoded"] == 0


def test_nothing_is_kept_of_a_data_set_object(trained):
    """Of which only some items are looked at: a change to another one would go unnoticed."""

    class Own:
        images = [stripes(np.random.default_rng(0), i % 3) for i in range(48)]  # noqa: RUF012

        def __len__(self):
            return 48

        def load(self, i):
            return self.images[i]

    before = trained.embed(Own()).features
    identity = open_source(Own()).identity
    Own.images[1] = 255 - Own.images[1]
    assert open_source(Own()).identity == identity
    changed = (trained.embed(Own()).features != before).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [1]
    trained.features(open_source(Own()).subset(np.arange(5)), "momentum")
    assert not (trained.path / "features").exists()


def test_nothing_is_kept_of_views_given_to_load(trained, photos):
    class Dark(ImageViews):
        def plain(self, samples):
            return super().plain(samples) - 1

    bright = trained.embed(photos).features
    before = kept(trained)
    dark = load(trained.path, views=Dark(trained.settings)).embed(photos).features
    assert np.abs(dark - bright).max() > 1e-3
    assert kept(trained) == before


def test_nothing_is_kept_of_an_encoder_of_the_users_own(photos, tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    settings = {name: value for name, value in SMALL.items() if name not in ("backbone", "width")}
    run = protonce.train(photos, tmp_path / "run", encoder=network, epochs=1, quiet=True, **settings)
    assert run.embed(photos).features.shape == (48, 8)
    assert not (run.path / "features").exists()


def test_features_of_other_images_are_not_taken_for_theirs(trained, tmp_path):
    """Other images of the same names and sizes, here noise in place of stripes, are encoded anew."""
    rng = np.random.default_rng(3)
    for name in ("stripes", "noise"):
        for slope in range(3):
            (tmp_path / name / f"slope{slope}").mkdir(parents=True)
            for i in range(8):
                image = stripes(rng, slope) if name == "stripes" else rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(image).save(tmp_path / name / f"slope{slope}" / f"{i}.bmp")
    (tmp_path / "test").symlink_to(tmp_path / "stripes")
    first = evaluate(trained, "knn", test=str(tmp_path / "test"), quiet=True)
    (tmp_path / "test").unlink()
    (tmp_path / "test").symlink_to(tmp_path / "noise")
    second = evaluate(trained, "knn", test=str(tmp_path / "test"), quiet=True, again=False)
    assert first["data"] == second["data"]
    assert first["metrics"]["accuracy"] > second["metrics"]["accuracy"] + 0.3


def test_a_backbone_that_learns_is_noticed():
    layer = nn.BatchNorm1d(3)
    with Unchanged(layer.eval()):
        layer(torch.randn(8, 3))
    with pytest.raises(AssertionError, match="have changed"), Unchanged(layer.train()):
        layer(torch.randn(8, 3))
