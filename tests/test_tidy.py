"""`protonce tidy`: copies, look-alikes, outliers and leaks."""

import csv
import io
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance

import protonce
from conftest import SMALL
from protonce.cli import main
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.label.findings import find_outliers
from protonce.label.likeness import coarse, coarse_correlation, likeness, perceptual_hash, read_small, thumbnail
from protonce.label.lookalikes import Pair, Pictures, Thresholds, find_pairs, group
from protonce.label.tidy import tidy


def scene(seed, side=96):
    """A picture with structure at several sizes, unlike that of any other seed."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((side, side, 3))
    for size in (3, 6, 12, 24):
        noise = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
        pixels += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), dtype=float) / 4
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def recompressed(image):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer).convert("RGB")


EDITS = {
    "smaller": lambda image: image.resize((50, 50)),
    "recompressed": recompressed,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.25),
    "cropped": lambda image: image.crop((4, 7, 4 + 86, 7 + 86)),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Thirty pictures; an edited copy of each of the first five, and an exact copy of the next."""
    made = tmp_path_factory.mktemp("scenes")
    for i in range(30):
        scene(i).save(made / f"{i:02d}.png")
    for i, (name, edit) in enumerate(EDITS.items()):
        edit(scene(i)).save(made / f"{i:02d} {name}.png")
    (made / "05 copied.png").write_bytes((made / "05.png").read_bytes())
    return made


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return protonce.train(folder, tmp_path_factory.mktemp("tidy") / "run", epochs=1, quiet=True, **SMALL)


def alike(a, b):
    """The likeness of each image of one tensor with the same of another."""
    return likeness(a, b, torch.arange(len(a)), torch.arange(len(b)))


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_copy_correlates_with_its_original_and_not_with_others(edit):
    original, other = thumbnail(scene(0)), thumbnail(scene(1))
    copy = thumbnail(EDITS[edit](scene(0)))
    correlation, mirrored = alike(torch.stack([original, copy, original]), torch.stack([copy, original, other]))
    assert correlation[:2].min() > 0.93
    assert torch.allclose(correlation[0], correlation[1], atol=1e-5)  # either way round
    assert correlation[2] < 0.7
    assert mirrored[:2].tolist() == [edit == "mirrored"] * 2


def cells(thumb, rows, columns):
    """Means over the 16 x 16 cells of a window, by interpolated cumulative sums; (256,) less their mean, of norm 1."""
    values = thumb.numpy().astype(float)
    for axis, (start, size) in ((0, rows), (1, columns)):
        edges = 64 * (start + size * np.arange(17) / 16)
        total = np.insert(np.cumsum(values, axis=axis), 0, 0.0, axis=axis)
        at = np.apply_along_axis(lambda sums, edges=edges: np.interp(edges, np.arange(65), sums), axis, total)
        values = np.diff(at, axis=axis)
    values = values - values.mean()
    return (values / np.linalg.norm(values)).ravel()


def test_it_is_the_best_correlation_of_all_windows():
    """By a loop over the windows, in either direction and mirrored."""
    a, b = thumbnail(scene(2)), thumbnail(EDITS["cropped"](scene(2)))
    whole, best = (0.0, 1.0), -1.0
    parts = [[(place * (1 - scale), scale) for place in (0, 0.25, 0.5, 0.75, 1)] for scale in (0.95, 0.9, 0.85, 0.8)]
    windows = [(whole, whole)]
    for own in parts:
        windows += [(r, c) for r in own for c in own] + [(r, whole) for r in own] + [(whole, c) for c in own]
    for x, y in ((a, b), (b, a), (a.flip(1), b), (b.flip(1), a)):
        best = max([best, *(cells(x, whole, whole) @ cells(y, r, c) for r, c in windows)])
    assert alike(a[None], b[None]).correlation[0] == pytest.approx(best, abs=1e-5)
    assert alike(a[None], a[None]).correlation[0] == pytest.approx(1.0, abs=1e-5)


def test_copies_have_similar_coarse_grids_and_others_do_not():
    original, other = thumbnail(scene(0)), thumbnail(scene(1))
    grids = coarse(torch.stack([original, *(thumbnail(edit(scene(0))) for edit in EDITS.values()), other]))
    blocks = original.double().reshape(8, 8, 8, 8).mean(dim=(1, 3))
    expected = (blocks - blocks.mean()) / (blocks - blocks.mean()).norm()
    torch.testing.assert_close(grids[0].double(), expected, atol=1e-5, rtol=0)
    found = coarse_correlation(grids[:1].expand_as(grids), grids)
    assert found[:-1].min() > 0.8
    assert found[-1] < 0.6


def test_flat_images_correlate_with_none():
    flat = torch.full((1, 64, 64), 200, dtype=torch.uint8)
    assert alike(flat, flat).correlation.tolist() == [0.0]


def test_the_hash_is_that_of_a_cosine_transform():
    """By scipy's, and unchanged by brightness."""
    fft = pytest.importorskip("scipy.fft")
    thumb = thumbnail(scene(4)) // 2
    low = fft.dctn(thumb.numpy().astype(float), type=2)[1:9, 1:9].ravel()
    expected = np.where(low > np.sort(low)[31], 1.0, -1.0)
    assert perceptual_hash(thumb[None])[0].tolist() == expected.tolist()
    assert torch.equal(perceptual_hash(thumb[None]), perceptual_hash(thumb[None] + 40))


def test_thumbnails_are_read_at_a_reduced_size(tmp_path):
    """A large JPEG, which is decoded at an eighth, and arrays, which are not files."""
    large = scene(0, 1024)
    large.save(tmp_path / "large.jpg", quality=95)
    (from_file,) = read_small(open_source(str(tmp_path), "train", 0)).thumbs
    found = read_small(open_source(np.asarray(large)[None], "train", 0))
    assert (from_file.float() - found.thumbs[0].float()).abs().max() < 12
    assert found.length == [1024 * 1024 * 3]


def test_planted_copies_are_found_in_groups_and_nothing_else(run, folder, tmp_path, capsys):
    out = tmp_path / "tidy.csv"
    assert main(["tidy", str(run.path), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "look-alikes: 6 groups of 12 images" in shown
    assert "nothing was changed or removed" in shown
    rows = list(csv.DictReader(out.open()))
    copies = {row["name"]: row for row in rows if row["keep"] == "no"}
    expected = {f"{i:02d} {name}.png" for i, name in enumerate(EDITS)} | {"05 copied.png"}
    assert {*copies} | {row["like"] for row in copies.values()} == expected | {f"{i:02d}.png" for i in range(6)}
    for row in copies.values():
        assert row["name"][:2] == row["like"][:2]
    kinds = {row["name"][:2]: row["finding"] for row in copies.values()}
    assert kinds == dict(zip(("00", "01", "02", "03", "04", "05"), [*["look-alike"] * 4, "mirrored", "exact copy"]))  # noqa: B905
    kept = {row["name"] for row in rows if row["keep"] == "yes"}
    assert {"00.png", "03.png"} <= kept  # they have more pixels than their copies
    assert all((folder / row["name"]).exists() for row in rows)


def test_a_leak_is_an_image_that_another_set_shares(run, tmp_path, capsys):
    other = tmp_path / "test"
    other.mkdir()
    recompressed(scene(7)).save(other / "seven.png")
    scene(77).save(other / "new.png")
    found = tidy(run, against=str(other), quiet=True)
    assert [(p.first, found.against.names[p.second]) for p in found.leaks] == [
        (found.source.names.index("07.png"), "seven.png")
    ]
    assert main(["tidy", str(run.path), "--out", str(tmp_path / "x.csv"), "--against", str(other)]) == 0
    assert "leaks: 1 images shared with" in capsys.readouterr().out


def test_the_threshold_decides(run):
    strict, usual = tidy(run, threshold=1.0, quiet=True), tidy(run, quiet=True)
    assert len(strict.pairs) < len(usual.pairs)
    assert 0.9 < usual.thresholds.copies <= 1.0
    for value in (0.0, 1.5, math.nan):
        with pytest.raises(UserError, match="--threshold"):
            tidy(run, threshold=value, quiet=True)


def test_many_copies_are_one_group():
    """A hundred copies of a file and an edited one: a chain of pairs, not thousands."""
    thumbs = torch.stack([thumbnail(scene(0))] * 100 + [thumbnail(EDITS["cropped"](scene(0))), thumbnail(scene(1))])
    features = F.normalize(torch.tensor([[1.0, 0.0]] * 100 + [[1.0, 0.1], [0.0, 1.0]]), dim=1)
    content = [b"a"] * 100 + [b"b", b"c"]
    small = read_small(open_source(np.zeros((1, 8, 8, 3), dtype=np.uint8), "train", 0))._replace(
        thumbs=thumbs, content=content, length=[1] * 102
    )
    pairs = find_pairs(Pictures.of(small, features), Thresholds(0.9, 0.05, 0.5, 1.0, 0.0))
    assert len(pairs) == 100
    assert group(102, pairs) == [list(range(101))]


def test_groups_connect_pairs():
    pairs = [Pair(i, j, "look-alike", 1.0, 0.0) for i, j in ((5, 2), (2, 9), (0, 1))]
    assert group(10, pairs) == [[2, 5, 9], [0, 1]]
    assert group(10, []) == []


def test_outliers_are_far_from_their_fifth_neighbour():
    """By hand: a cluster of 50 and two images elsewhere, which are not hidden by being two."""
    rng = np.random.default_rng(0)
    cluster = np.array([1.0, 0, 0, 0]) + 0.05 * rng.normal(size=(50, 4))
    features = F.normalize(torch.tensor(np.vstack([cluster, [[0, 1, 0, 0], [0, 1, 0, 0.01]]])).float(), dim=1)
    found = find_outliers(features)
    distance = np.sort(1 - (features @ features.T).numpy(), axis=1)[:, 5]
    first, third = np.quantile(distance, [0.25, 0.75])
    assert found.threshold == pytest.approx(third + 1.5 * (third - first), abs=1e-5)
    assert {50, 51} <= {*found.images.tolist()}
    assert found.images.tolist()[:2] == sorted([50, 51], key=lambda i: (-round(distance[i], 5), i))
    assert find_outliers(features[:1]).images.tolist() == []


def test_mistakes(run, tmp_path, capsys):
    (tmp_path / "there.csv").write_text("")
    for arguments, said in (
        (["--out", str(tmp_path / "there.csv")], "is there already"),
        (["--out", str(tmp_path / "no" / "x.csv")], "does not exist"),
        (["--out", str(tmp_path / "x.csv"), "--against", str(tmp_path / "nowhere")], "does not exist"),
        (["--out", str(tmp_path / "x.csv"), "--threshold", "2"], "--threshold"),
    ):
        assert main(["tidy", str(run.path), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
