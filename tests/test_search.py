"""`protonce search`: photos, prototypes and labels, against plain loops."""

import csv
import json

import pytest
import torch.nn.functional as F
from PIL import Image

from protonce.cli import main
from protonce.errors import UserError
from protonce.label.search import open_search


def test_photos_by_their_features(trained, photos, tmp_path):
    """A photo of the run finds itself first; of another format too."""
    names = trained.images[0]
    other = tmp_path / "other.bmp"
    Image.open(photos / names[7]).save(other)
    hits = open_search(trained, quiet=True).like_photos([photos / names[3], other], top=5)
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
        (["--prototype", "0:0", "--out", "hits.txt"], "must end in .csv or .json"),
    ],
)
def test_mistakes(trained, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(["search", str(trained.path), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_image(trained, tmp_path):
    (tmp_path / "letter.jpg").write_text("mine")
    with pytest.raises(UserError, match=r"letter.jpg cannot be read as an image"):
        open_search(trained, quiet=True).like_photos([tmp_path / "letter.jpg"], top=1)
