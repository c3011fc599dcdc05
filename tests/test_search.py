"""`protonce search`: photos, prototypes and labels, against plain loops."""

import csv
import json
import re
from types import SimpleNamespace
from urllib.parse import unquote

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from protonce.cli import main
from protonce.errors import UserError
from protonce.label import index as index_module
from protonce.label.index import flat_index, open_index, quantised_index
from protonce.label.search import Photos, open_search
from protonce.progress import Steps


def test_photos_by_their_features(trained, photos, tmp_path):
    """A photo of the run finds itself first; of another format too."""
    names = trained.images[0]
    other = tmp_path / "other.bmp"
    Image.open(photos / names[7]).save(other)
    hits = open_search(trained, quiet=True).like_photos(Photos([photos / names[3], other]), top=5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5] * 2
    (known,) = trained.features(str(photos), "backbone")
    x = F.normalize(known - known.mean(dim=0), dim=1)
    for query, found in ((3, hits[:5]), (7, hits[5:])):
        similarity = [float(x[query] @ v) for v in x]
        assert found[0].name == names[query]
        assert [hit.similarity for hit in found] == pytest.approx(sorted(similarity, reverse=True)[:5], abs=1e-3)
        for hit in found:
            assert hit.similarity == pytest.approx(similarity[names.index(hit.name)], abs=1e-3)
            assert hit.label == trained.images[1][names.index(hit.name)]
            assert (photos / hit.name).samefile(hit.file)


def test_a_prototype_by_its_embeddings(trained, photos):
    hits = open_search(trained, quiet=True).like_prototype(1, 2, top=48)
    (known,) = trained.features(str(photos), "momentum")
    similarity = known @ trained.prototypes[1].centroids[2]
    assert [hit.similarity for hit in hits] == pytest.approx(similarity.sort(descending=True).values.tolist(), abs=1e-4)


def test_others_like_those_of_a_label(trained, photos):
    labels = {3: ("mine",), 40: ("mine", "yours"), 9: ("yours",)}
    hits = open_search(trained, labels, quiet=True).like_label("mine", top=48)
    assert len(hits) == 46, "but those that have it"
    (known,) = trained.features(str(photos), "backbone")
    x = F.normalize(known - known.mean(dim=0), dim=1)
    centre = F.normalize(x[3] + x[40], dim=0)
    best = max((float(centre @ x[i]), trained.images[0][i]) for i in range(48) if i not in (3, 40))
    assert hits[0].similarity == pytest.approx(best[0], abs=1e-3)
    assert {hit.label for hit in hits} == {"", "yours"}


def test_the_command(trained, photos, tmp_path, capsys):
    photo = str(photos / trained.images[0][0])
    assert main(["search", str(trained.path), photo, "--top", "3", "--out", str(tmp_path / "hits.json")]) == 0
    assert trained.images[0][0] in capsys.readouterr().out
    found = json.loads((tmp_path / "hits.json").read_text())
    assert [hit["rank"] for hit in found] == [1, 2, 3]
    label = trained.images[1][0]
    command = ["search", str(trained.path), "--label", label, "--top", "2", "--out", str(tmp_path / "hits.csv")]
    assert main(command) == 0
    assert [row["query"] for row in csv.DictReader((tmp_path / "hits.csv").open())] == [label] * 2
    assert main(["search", str(trained.path), "--prototype", "0:0"]) == 0
    page = tmp_path / "hits.html"
    another = str(photos / trained.images[0][20])
    assert main(["search", str(trained.path), photo, another, "--top", "3", "--out", str(page)]) == 0
    text = page.read_text()
    assert text.count('<img class="found"') == 2 * (1 + 3)
    (name, *_) = trained.images[0]
    (address,) = {a for a in re.findall(r'href="([^"]*)"', text) if unquote(a).endswith(name)}
    assert (tmp_path / unquote(address)).samefile(photo)


def clumped(n=4000, dim=8):
    """Vectors in clumps, and noise."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, dim, generator=generator)
    return centres[torch.arange(n) % 40] + 0.4 * torch.randn(n, dim, generator=generator) + 3


def test_the_flat_index_is_a_plain_search():
    x = clumped(300)
    similarity, found = flat_index(x).search(x[:20], 7)
    unit = F.normalize((x - x.mean(dim=0)).double(), dim=1)
    exact = unit[:20] @ unit.T
    assert similarity.double().sub(exact.gather(1, found)).abs().max() < 1e-5
    assert similarity.double().sub(exact.topk(7, dim=1).values).abs().max() < 1e-5


def test_the_quantised_index_finds_nearly_the_same_and_states_how_often():
    pytest.importorskip("faiss")
    x = clumped()
    index, flat = quantised_index(x), flat_index(x)
    asked = x[::5]
    _, exact = flat.search(asked, 10)
    similarity, found = index.search(asked, 10)
    hits = [len({*a} & {*b}) / 10 for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert index.recall > 0.9
    assert sum(hits) / len(hits) == pytest.approx(index.recall, abs=0.05)
    unit = flat.x[::5]
    assert (similarity - (unit[:, None] * flat.x[found]).sum(dim=2)).abs().max() < 1e-5  # exact, of what it finds


def test_a_large_run_keeps_its_index(tmp_path, monkeypatch):
    """Made once, read again, and made anew where it is damaged or of other images."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_module, "FLAT", 10)
    made = []
    build = index_module.quantised_index
    monkeypatch.setattr(index_module, "quantised_index", lambda features: made.append(1) or build(features))
    x = clumped(1000)
    cache = SimpleNamespace(path=lambda *_: tmp_path / "digest-backbone.npy")
    run = SimpleNamespace(features=lambda *_, steps: [x], feature_cache=cache)
    first, second = (open_index(run, None, Steps(quiet=True)) for _ in range(2))
    assert len(made) == 1
    assert second.recall == first.recall
    assert torch.equal(first.search(x, 3)[1], second.search(x, 3)[1])
    (kept,) = tmp_path.iterdir()
    for damage in (kept.read_bytes()[:100], b"", b"x" * 1000):
        kept.write_bytes(damage)
        open_index(run, None, Steps(quiet=True))
    x = clumped(900)
    assert len(open_index(run, None, Steps(quiet=True)).x) == 900
    assert len(made) == 5


def test_the_command_states_the_recall_of_an_index(trained, photos, tmp_path, monkeypatch, capsys):
    """The one that was measured, rounded; without an index nothing is missed, and nothing is said of it."""
    pytest.importorskip("faiss")
    photo = str(sorted(photos.rglob("*.png"))[0])
    out = tmp_path / "hits.csv"
    assert main(["search", str(trained.path), photo, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "an index was searched" not in said
    assert f"{out} holds what was found" in said
    flat = index_module.flat_index
    monkeypatch.setattr(index_module, "FLAT", 10)
    monkeypatch.setattr(
        index_module,
        "quantised_index",
        lambda x: index_module.Index(flat(x).x, flat(x).mean, lists=AllImages(), recall=0.9374),
    )
    monkeypatch.setattr(index_module, "_keep", lambda *_: None)
    assert main(["search", str(trained.path), photo]) == 0
    assert "an index was searched: it finds 93.7 % of the ten nearest images" in capsys.readouterr().out


class AllImages:
    """Instead of faiss's lists: every image is a candidate."""

    def search(self, queries, k):
        return None, np.arange(k)[None].repeat(len(queries), axis=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either photos, --prototype M:ID or --label TEXT"),
        (["--label", "a", "--prototype", "0:1"], "give either photos"),
        (["--prototype", "first"], "'first' is not of the form M:ID"),
        (["--prototype", "9:0"], "granularities are 0 to 1"),
        (["--prototype", "0:99"], "prototypes of 0 are 0 to 3"),
        (["--label", "nothing"], "no image is labelled 'nothing'; labels: "),
        (["nowhere.jpg"], "nowhere.jpg cannot be read as an image: No such file"),
        (["--prototype", "0:0", "--top", "0"], "--top is 0"),
        (["--prototype", "0:0", "--out", "hits.txt"], "must end in .csv, .json or .html"),
    ],
)
def test_mistakes(trained, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(["search", str(trained.path), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_image(tmp_path):
    (tmp_path / "letter.jpg").write_text("mine")
    with pytest.raises(UserError, match=r"letter.jpg cannot be read as an image"):
        Photos([tmp_path / "letter.jpg"])


def test_photos_of_any_kind(trained, photos):
    """A file, the Pillow image and the array of its pixels find the same images."""
    file = sorted(photos.rglob("*.png"))[5]
    image = Image.open(file)
    kinds = [file, str(file), image, np.asarray(image.convert("RGB"))]
    hits = [[(hit.name, hit.similarity) for hit in trained.search([kind], top=3)] for kind in kinds]
    assert hits == [hits[0]] * 4
    assert trained.search([image, image], top=1)[1].query == "photo 2"
    with pytest.raises(UserError, match="photo 1 is ndarray; it must be a path, a Pillow image or a uint8 array"):
        trained.search([np.zeros((4, 4), dtype=np.float32)])
