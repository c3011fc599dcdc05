"""The page: what is on it is right, whatever a run has or lacks, and nothing on it can run."""

import base64
import csv
import gzip
import hashlib
import io
import json
import re
import shlex
import shutil
import zipfile
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import adjusted_mutual_info_score

import protonce
from conftest import SMALL, stripes
from protonce.cli import main
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.report import charts, drawing, thumbnails
from protonce.report.folders import write_folders
from protonce.report.hierarchy import NO_LABEL, Level, classes_of, cluster_purity, levels, near_duplicates, outliers
from protonce.report.page import write_report
from protonce.report.scatter import tsne
from protonce.results import images_tested, scores
from protonce.run import Run, read_assignments


def level(assignment, distance=None, parent=None):
    assignment = np.asarray(assignment)
    return Level(assignment, np.bincount(assignment), parent, None, None if distance is None else np.asarray(distance))


class Text(HTMLParser):
    """The elements of a page, its text without scripts, and what the script knows."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.scripts, self.inside = [], "", [], None
        self.page = path.read_text(errors="surrogateescape")
        self.feed(self.page)
        self.data = json.loads(
            gzip.decompress(base64.b64decode(next(t for a, t in self.scripts if a.get("id") == "data")))
        )

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1][1] += data
        elif self.inside != "style":
            self.text += data


# The hierarchy


def test_members_are_sorted_by_prototype_and_distance():
    rng = np.random.default_rng(0)
    assignment, distance = rng.permutation(np.arange(60) % 7), rng.random(60)
    order, start = level(assignment, distance).members()
    for c in range(7):
        expected = sorted(np.flatnonzero(assignment == c), key=lambda i: distance[i])
        assert order[start[c] : start[c + 1]].tolist() == expected


def test_cluster_purity_matches_a_loop():
    rng = np.random.default_rng(1)
    assignment, classes = rng.permutation(np.arange(200) % 9), rng.integers(0, 5, 200)
    known = (rng.random(200) < 0.5) & (assignment != 3)  # of cluster 3 no image has a label
    for labelled in (known, np.ones(200, dtype=bool)):
        share, label, number = cluster_purity(assignment, classes, labelled)
        for c in range(9):
            counts = np.bincount(classes[(assignment == c) & labelled], minlength=5)
            assert number[c] == counts.sum()
            if counts.sum():
                assert share[c] == pytest.approx(counts.max() / counts.sum())
                assert label[c] == counts.argmax()
            else:
                assert c == 3
                assert np.isnan(share[c])
                assert label[c] == -1


def test_unlabelled_images_form_the_last_class():
    assert classes_of(None) == ([], None)
    names, codes = classes_of(["cat", "", "ant", "cat"])
    assert names == ["ant", "cat", NO_LABEL]
    assert codes is not None
    assert codes.tolist() == [1, 2, 0, 1]
    assert classes_of(["b", "a"])[0] == ["a", "b"]


def test_outliers_are_judged_only_by_shared_prototypes():
    coarse = level([0, 0, 0, 1], [0.1, 0.5, 0.2, 0.0])
    fine = level([0, 1, 0, 2], [0.05, 0.0, 0.3, 0.0])  # 1 and 3 are alone in their fine clusters, 3 in both
    order, distance = outliers([coarse, fine])
    assert order.tolist() == [3, 1, 2, 0]
    assert distance.tolist() == pytest.approx([np.inf, 0.5, 0.2, 0.05])


def test_near_duplicates_match_brute_force(monkeypatch):
    v = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    v[33] = v[7]  # a duplicate
    assignment = np.arange(50) % 2
    similarity = (v @ v.T).numpy()
    np.fill_diagonal(similarity, -2)
    similarity[assignment[:, None] != assignment[None]] = -2
    expected = {(min(i, int(j)), max(i, int(j))) for i, j in enumerate(similarity.argmax(axis=1))}
    monkeypatch.setattr("protonce.report.hierarchy.BLOCK", 100)  # several blocks a cluster
    found = near_duplicates(v, level(assignment), most=1000)
    assert {(i, j) for i, j, _ in found} == expected
    assert found[0][:2] == (7, 33)
    assert [d for _, _, d in found] == sorted(d for _, _, d in found)
    for i, j, distance in found:
        assert distance == pytest.approx(max(1 - similarity[i, j], 0), abs=1e-6)
    assert near_duplicates(v, level(np.arange(50)), most=10) == []  # nobody has company


def test_images_equal_up_to_rounding_keep_their_order():
    """Whole distances with noise: members and outliers come in the order of the whole ones."""
    rng = np.random.default_rng(2)
    assignment, whole = rng.permutation(np.arange(120) % 4), rng.integers(0, 5, 120)
    noisy = level(assignment, (whole / 5 + rng.uniform(-1e-7, 1e-7, 120)).astype(np.float32))
    order, start = noisy.members()
    for c in range(4):
        expected = sorted(np.flatnonzero(assignment == c), key=lambda i: (whole[i], i))
        assert order[start[c] : start[c + 1]].tolist() == expected
    assert outliers([noisy])[0].tolist() == sorted(range(120), key=lambda i: (-whole[i], i))


def test_copies_are_paired_with_the_first():
    """Copies that rounding parts, in two clusters: each is paired with the first other one, at distance 0."""
    rng = np.random.default_rng(3)
    which = rng.permutation(np.arange(60) % 12)
    base = rng.normal(size=(12, 33))
    v = F.normalize(torch.from_numpy(base[which] * rng.uniform(0.5, 2, (60, 1))).float(), dim=1)
    # Each copy in bits of its own; closest to the prototype is not first in order.
    v *= torch.from_numpy(1 + rng.uniform(-1e-7, 1e-7, (60, 1))).float()
    found = near_duplicates(v, level(which % 2, rng.random(60).astype(np.float32)), most=1000)
    expected = []
    for i in range(60):
        first = next(j for j in range(60) if which[j] == which[i] and j != i)
        expected.append((min(i, first), max(i, first), 0.0))
    assert found == sorted(set(expected))


def test_the_hierarchy_of_a_run_is_its_prototypes(trained):
    source = trained.source()
    (embeddings,) = trained.features(source, "momentum")
    found = levels(trained, embeddings)
    assert len(found) == 2
    assert found[0].parent is None
    for m, c in enumerate(trained.prototypes):
        for i in range(len(source)):
            expected = 1 - float(embeddings[i] @ c.centroids[c.assignment[i]])
            assert found[m].distance[i] == pytest.approx(max(expected, 0), abs=1e-5)
    assert np.array_equal(found[1].parent, trained.parents[0].numpy())


# Thumbnails


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


# The map


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


# The charts


def test_charts_show_the_metrics_and_the_ami_of_saved_assignments(trained):
    _, labels = trained.images
    found = {chart.name: chart for chart in charts.training(trained, labels)}
    records = trained.metrics
    loss = {line.name: line for line in found["loss"].lines}
    assert list(loss["instance"].y) == [r["instance"] for r in records]
    assert list(loss["prototype"].x) == [2, 3]  # the first epoch is a warm-up
    assert list(loss["prototype, chance level"].y) == [r["prototype_chance"] for r in records[1:]]
    assert [line.name for line in found["concentration"].lines] == ["k = 4", "k = 8"]
    for m, line in enumerate(found["ami"].lines):
        expected = [adjusted_mutual_info_score(labels, read_assignments(trained.path, e)[m]) for e in (1, 2, 3)]
        assert line.y == pytest.approx(expected)
    assert "ami" not in {chart.name for chart in charts.training(trained, None)}


def test_a_histogram_counts_every_cluster():
    rng = np.random.default_rng(0)
    one, other = (level(np.r_[np.arange(40), rng.integers(0, 40, 3000)]) for _ in range(2))
    (chart,) = charts.sizes({"fixed": [one], "estimated": [other]})
    for line, size in zip(chart.lines, (one.size, other.size), strict=True):
        assert sum(line.y) == 40
        for left, right, count in zip(line.x, line.x[1:], line.y, strict=False):
            assert count == ((size > left) & (size < right)).sum()


def test_runs_with_equal_numbers_of_clusters_are_compared():
    rng = np.random.default_rng(0)
    few, many, more = (level(np.r_[np.arange(k), rng.integers(0, k, 200)]) for k in (5, 10, 20))
    found = charts.sizes({"other": [many], "mine": [few, many, more]})
    assert [[line.name for line in chart.lines] for chart in found] == [["mine"], ["other", "mine"], ["mine"]]


def test_low_shot_results_become_a_curve_over_k():
    metrics = {f"accuracy@{k}": {"mean": k / 20, "std": 0.01, "runs": [k / 20] * 5} for k in (1, 16, 2)}
    results = {"lowshot": {"metrics": metrics}, "knn": {"metrics": {"accuracy": 0.5, "accuracy@²": 1}}}
    (chart,) = charts.evaluations({name: scores(result) for name, result in results.items()})
    (line,) = chart.lines
    assert (line.x, line.y) == ([1, 2, 16], [0.05, 0.1, 0.8])
    assert line.low == pytest.approx([0.04, 0.09, 0.79])


@pytest.mark.parametrize("value", [None, "good", [1, 2], {"a": {"b": 1}}, True, float("nan"), {"mean": None}])
def test_a_metric_that_is_not_a_number_is_shown_as_text(value):
    (found,) = scores({"protocol": "knn", "metrics": {"accuracy": value}})
    assert found.mean is None
    assert found.text == json.dumps(value)
    assert scores({"metrics": None}) == scores({}) == []
    assert images_tested({"data": None}) == images_tested({}) == ""


def test_each_line_has_a_distinct_colour():
    """Names that begin alike are two lines all the same; a dashed line shares the colour of its own."""
    lines = [charts.Line(f"k = {k}", [1, 2], [k, k]) for k in (10, 100, 1000)]
    lines.append(charts.Line("by guessing", [1, 2], [5, 5], of="k = 100"))
    drawn = drawing.draw_chart(charts.Chart("a", "b", "c", "epoch", "y", lines)).axes[0].lines
    colours = [line.get_color() for line in drawn]
    assert len(set(colours)) == 3
    assert colours[3] == colours[1]


def test_a_figure_uses_the_page_colour_and_contains_no_script():
    line = charts.Line("<script>alert(1)</script>", [1, 2], [3, 4])
    other = charts.Line("$x", [1, 2], [3, 5])
    text = drawing.svg(drawing.draw_chart(charts.Chart("a", "</svg><b>", "", "epoch", "y", [line, other])))
    assert "<script" not in text
    assert text.count("</svg>") == 1
    assert "currentColor" in text
    assert "$x" in text
    assert text == drawing.svg(drawing.draw_chart(charts.Chart("a", "</svg><b>", "", "epoch", "y", [line, other])))


# The page


@pytest.fixture(scope="module")
def page(trained_once, tmp_path_factory):
    run = Run(shutil.copytree(trained_once, tmp_path_factory.mktemp("page") / "run"))
    (run.path / "evaluations").mkdir(exist_ok=True)
    result = {
        "protocol": "knn",
        "metrics": {"momentum_accuracy": 0.625, "accuracy@1": {"mean": 0.25, "std": 0.05, "runs": [0.2, 0.3]}},
        "settings": {"k": 20},
        "features": "pooled",
        "data": {"test": {"source": "<b>there</b>", "images": 10}},
    }
    (run.path / "evaluations" / "knn.json").write_text(json.dumps(result))
    (run.path / "evaluations" / "strange.json").write_text('{"metrics": {"what": ["<i>this</i>"]}, "data": null}')
    return Text(write_report(run, quiet=True))


def test_the_page_summarises_the_run(page):
    for said in ("48 of", "3 classes", "PCL, recipe small-v2", "resnet10t, width 4", "4 / 8, coarse to fine"):
        assert said in page.text
    assert "0.625" in page.text
    assert "0.250 ± 0.050" in page.text
    assert "PCL 0.545" in page.text  # the paper's
    assert "<b>there</b>" in page.text  # as text
    assert '["<i>this</i>"]' in page.text
    assert "protonce train" in page.text
    assert "--clusters 4,8" in page.text
    assert "fingerprint" in page.text


def test_the_page_lists_every_image_and_its_prototypes(page, trained):
    names, labels = trained.images
    assert page.data["names"] == names
    assert [page.data["classes"][i] for i in page.data["labels"]] == labels
    for m, found in enumerate(page.data["levels"]):
        assert found["assignment"] == trained.prototypes[m].assignment.tolist()
        assert sum(found["size"]) == 48
        order, start = level(found["assignment"], trained_distance(trained, m)).members()
        for which in range(len(found["size"])):
            ranks = [found["rank"][i] for i in order[start[which] : start[which + 1]]]
            assert ranks == list(range(len(ranks)))
    assert page.data["pictured"] == list(range(48))
    assert page.data["map"]["images"] == list(range(48))


def trained_distance(run, m):
    (embeddings,) = run.features(run.source(), "momentum")
    return levels(run, embeddings)[m].distance


def test_the_page_needs_no_network_and_runs_only_its_own_scripts(page):
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.split("script-src")[1]
    ran = [text for attributes, text in page.scripts if attributes.get("type") != "text/plain"]
    assert {tuple(a) for a, _ in page.scripts} <= {(), ("type", "id"), ("type", "class")}
    assert len(ran) == 2
    for script in ran:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    for tag, attributes in page.tags:
        assert not {"onclick", "onerror", "onload"} & set(attributes)
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)


def test_the_command_on_the_page_trains_the_same_run(page, trained, tmp_path):
    (command,) = re.findall(r"protonce train .*--out RUN", page.text)
    words = shlex.split(command.replace("--out RUN", f"--out {tmp_path / 'again'}"))
    assert main([*words[1:], "--no-report"]) == 0
    ours, again = ((p / "encoder.safetensors").read_bytes() for p in (trained.path, tmp_path / "again"))
    assert ours == again


def test_the_command_quotes_paths_and_lists(trained, tmp_path, monkeypatch):
    """A place with spaces and a comma, relative when it was named; and a list with nothing in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained.path, "my run, the first")
    photos = make(tmp_path / "photos", 24)
    settings = {**SMALL, "init": "my run, the first", "schedule": "step", "drops": [], "crop_scale": [0.5, 1.0]}
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **settings)
    monkeypatch.chdir("/")
    (command,) = re.findall(r"protonce train .*--out RUN", Text(write_report(run, quiet=True)).text)
    words = shlex.split(command.replace("--out RUN", f"--out {tmp_path / 'again'}"))
    assert main([*words[1:], "--no-report"]) == 0
    ours, again = ((p / "encoder.safetensors").read_bytes() for p in (run.path, tmp_path / "again"))
    assert ours == again


def make(folder, n, classes=1):
    rng = np.random.default_rng(3)
    for i in range(n):
        place = folder if classes == 1 else folder / f"class{i % classes}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(stripes(rng, i % 3)).save(place / f"{i:03d}.png")
    return folder


def test_a_run_of_60_images_without_labels_and_with_one_granularity(tmp_path):
    settings = {**SMALL, "clusters": [5]}
    run = protonce.train(make(tmp_path / "photos", 60), tmp_path / "run", epochs=1, quiet=True, **settings)
    page = Text(write_report(run, quiet=True))
    assert "no labels" in page.text
    assert "No evaluations yet" in page.text
    assert page.data["labels"] is None
    assert page.data["levels"][0]["purity"] is None
    assert page.data["levels"][0]["parent"] is None
    assert len(page.data["map"]["images"]) == 60


def test_a_run_with_one_labelled_image(trained):
    path = trained.path
    header, first, *others = (path / "images.csv").read_text().splitlines()
    others = [line.rpartition(",")[0] + "," for line in others]
    (path / "images.csv").write_text("\n".join([header, first, *others]) + "\n")
    page = Text(write_report(Run(path), quiet=True))
    label = first.rpartition(",")[2]
    assert "1 of them labelled, 1 classes" in page.text
    assert page.data["classes"] == [label, NO_LABEL]
    assert page.data["labels"] == [0] + [1] * 47
    level = page.data["levels"][0]
    own = level["assignment"][0]
    assert [p for c, p in enumerate(level["purity"]) if c != own] == [None] * (len(level["size"]) - 1)
    assert (level["purity"][own], level["label"][own]) == (1.0, 0)
    assert level["labelled"] == [int(c == own) for c in range(len(level["size"]))]


def test_a_run_that_was_interrupted_after_an_epoch(trained):
    path = trained.path
    for name in (
        "encoder.safetensors",
        "encoder.json",
        "prototypes.npz",
        "assignments/0003.npz",
        "assignments/0002.npz",
    ):
        (path / name).unlink()
    (path / "metrics.jsonl").write_text(json.dumps(trained.metrics[0]) + "\n{")
    page = Text(write_report(Run(path), quiet=True))
    assert "1 of 3: the run is not finished" in page.text
    assert "There is no map: the run is not finished" in page.text
    assert page.data["levels"][0]["assignment"] == read_assignments(path, 1)[0].tolist()
    assert page.data["levels"][1]["phi"] is None
    assert len(page.data["pictured"]) == 48
    assert page.data["outliers"] == []
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has no finished epoch yet"):
        write_report(Run(path), quiet=True)


def test_missing_or_moved_images(tmp_path):
    photos = make(tmp_path / "photos", 48, classes=3)
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    photos.rename(tmp_path / "moved")
    page = Text(write_report(run, quiet=True))
    assert "are not available" in page.text
    assert page.data["pictured"] == []
    assert len(page.data["levels"]) == 2
    page = Text(write_report(run, data=tmp_path / "moved", quiet=True))
    assert len(page.data["pictured"]) == 48
    with pytest.raises(UserError, match=r"the 24 images of .* are not the 48 images that"):
        write_report(run, data=make(tmp_path / "others", 24), quiet=True)


def test_more_images_than_the_page_lists(trained, monkeypatch):
    monkeypatch.setattr("protonce.report.payload.LISTED", 30)
    monkeypatch.setattr("protonce.report.thumbnails.MAX_THUMBNAILS", 20)
    monkeypatch.setattr("protonce.report.scatter.POINTS", 10)
    monkeypatch.setattr("protonce.report.content.ODD", 2)
    page = Text(write_report(trained, quiet=True))
    assert "Thumbnails of 20 of 48 images" in page.text
    assert "The map shows 10 of 48 images" in page.text
    assert 20 <= len(page.data["names"]) <= 30
    names = trained.images[0]
    for found, c in zip(page.data["levels"], trained.prototypes, strict=True):
        assert sum(found["size"]) == 48  # of all, not of the listed
        for name, which in zip(page.data["names"], found["assignment"], strict=True):
            assert which == c.assignment[names.index(name)]
    assert len({page.data["names"][i] for i in page.data["pictured"]}) == 20


def test_two_runs_side_by_side_and_figures(trained, photos, tmp_path):
    other = protonce.train(photos, tmp_path / "moco", epochs=1, quiet=True, **{**SMALL, "method": "moco"})
    page = Text(write_report(trained, against=other, figures=tmp_path / "figures", quiet=True))
    titles = re.findall(
        r'"text":"((?:MoCo|PCL) \([^"]*\))"', json.dumps(page.data["map"]["plots"], separators=(",", ":"))
    )
    assert titles == ["MoCo (moco)", "PCL (run)"]
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    for name in ("loss", "ami", "sizes-0", "map", "clusters"):
        assert {f"{name}.png", f"{name}.pdf"} <= names
        Image.open(tmp_path / "figures" / f"{name}.png").verify()
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    (other.path / "encoder.safetensors").unlink()
    with pytest.raises(UserError, match="moco is not finished"):
        write_report(trained, against=Run(other.path), quiet=True)


def test_vectors_have_a_map_but_no_thumbnails(tmp_path):
    class Items:
        labels = tuple(str(i % 2) for i in range(40))

        def __len__(self):
            return 40

        def load(self, i):
            return torch.full((6,), float(i % 2)) + torch.arange(6) * 0.01 * i

    class Noise:
        def train(self, samples):
            u = [torch.from_numpy(samples.uniform(which, 6)).float() for which in ("query", "key")]
            return samples.data + u[0], samples.data + u[1]

        def plain(self, samples):
            return samples.data

    settings = {"clusters": [2], "dim": 4, "epochs": 1, "batch_size": 8, "recipe": "small-v2", "device": "cpu"}
    run = protonce.train(
        Items(), tmp_path / "run", encoder=torch.nn.Linear(6, 8), views=Noise(), quiet=True, **settings
    )
    page = Text(write_report(run, data=Items(), quiet=True))
    assert page.data["pictured"] == []
    assert len(page.data["map"]["images"]) == 40
    assert "custom" in page.text
    assert "This run was trained from Python" in page.text
    page = Text(write_report(Run(run.path), quiet=True))  # as the command line sees it
    assert "Parts of this page are missing" in page.text
    with pytest.raises(UserError, match="are not images"):
        write_folders(run, tmp_path / "folders", data=Items(), quiet=True)


def test_without_the_encoder_thumbnails_remain(photos, tmp_path):
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Linear(3, 8)

        def forward(self, x):
            return self.scale(x.mean(dim=(2, 3)))

    run = protonce.train(photos, tmp_path / "run", encoder=Mean(), epochs=1, quiet=True, **SMALL)
    page = Text(write_report(Run(run.path), quiet=True))
    assert "trained with a custom encoder" in page.text
    assert page.data["map"] is None
    assert len(page.data["pictured"]) == 48


# Clusters as folders


def test_clusters_become_folders_of_links(trained, photos, tmp_path):
    assert write_folders(trained, tmp_path / "out", quiet=True) == 48
    rows = list(csv.DictReader((tmp_path / "out" / "clusters.csv").open()))
    assert [row["name"] for row in rows] == trained.images[0]
    assert [row["label"] for row in rows] == trained.images[1]
    for m, (name, c) in enumerate(zip(("0-k4", "1-k8"), trained.prototypes, strict=True)):
        assert [int(row[f"prototype_{m}"]) for row in rows] == c.assignment.tolist()
        for which in range(len(c.centroids)):
            files = sorted((tmp_path / "out" / name / str(which)).iterdir())
            assert all(file.is_symlink() for file in files)
            linked = [file.resolve().relative_to(photos.resolve()).as_posix() for file in files]
            mine = [row for row in rows if int(row[f"prototype_{m}"]) == which]
            assert sorted(linked) == sorted(row["name"] for row in mine)
            distance = {row["name"]: float(row[f"distance_{m}"]) for row in mine}
            assert [distance[name] for name in linked] == sorted(distance.values())  # the closest first
    with pytest.raises(UserError, match="is not empty"):
        write_folders(trained, tmp_path / "out", quiet=True)


def test_images_of_a_zip_are_written_out(photos, tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos).as_posix())
    run = protonce.train(tmp_path / "photos.zip", tmp_path / "run", epochs=1, quiet=True, **SMALL)
    write_folders(run, tmp_path / "out", quiet=True)
    source = run.source()
    files = sorted((tmp_path / "out" / "0-k4").rglob("*.png"))
    assert len(files) == 48
    rows = list(csv.DictReader((tmp_path / "out" / "clusters.csv").open()))
    first = next(
        i
        for i, row in enumerate(rows)
        if row["prototype_0"] == files[0].parent.name
        and row["distance_0"] == min(r["distance_0"] for r in rows if r["prototype_0"] == row["prototype_0"])
    )
    assert np.array_equal(np.asarray(Image.open(files[0])), source.load(first))


def test_the_commands(trained, tmp_path, capsys):
    path = trained.path
    assert main(["report", str(path), "--figures", str(tmp_path / "figures")]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == str(path / "report.html")
    assert "features of 48 images" in shown.err
    assert main(["clusters", str(path), "--out", str(tmp_path / "out"), "--copy"]) == 0
    assert "48 images in the folders of their clusters" in capsys.readouterr().out
    copied = next((tmp_path / "out" / "0-k4").rglob("*.png"))
    assert not copied.is_symlink()
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["clusters", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["report", str(path), "--data", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_awkward_names_survive(tmp_path):
    photos = make(tmp_path / "photos", 24)
    names = ["line\nfeed.png", "carriage\rreturn.png", 'quote".png', "comma, .png", "x" * 240 + ".png", "b\udcff.png"]
    for old, name in zip(sorted(photos.iterdir()), names, strict=False):
        old.rename(photos / name)
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    assert sorted(run.images[0]) == sorted(p.name for p in photos.iterdir())
    page = Text(write_report(run, quiet=True))
    assert page.data["names"] == run.images[0]
    write_folders(run, tmp_path / "out", quiet=True)
    linked = {file.resolve().name for file in (tmp_path / "out" / "0-k4").rglob("*.png")}
    assert linked == {p.name for p in photos.iterdir()}
    for out in (photos / "groups", photos):
        with pytest.raises(UserError, match=r"is inside the image folder|is not empty"):
            write_folders(run, out, quiet=True)


def test_identical_images_have_no_map(tmp_path):
    images = np.full((40, 16, 16), 90, dtype=np.uint8)
    run = protonce.train(images, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    page = Text(write_report(run, data=images, quiet=True))
    assert "There is no map: the encoder maps all images to the same features" in page.text
    assert page.data["alike"][0][2] == 0


def test_the_page_has_a_maximum_size(trained, monkeypatch):
    usual = write_report(trained, quiet=True).stat().st_size
    monkeypatch.setattr("protonce.report.page.BYTES", usual - 5_000)
    page = Text(write_report(trained, quiet=True))
    assert usual - 40_000 < len(page.page.encode()) < usual - 5_000
    assert len(page.data["pictured"]) == 48
