"""The page: what is on it is right, and nothing on it can run."""

import base64
import hashlib
import json
import re
import shlex
import shutil
import types
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

import protonce
from conftest import SMALL, zip_of
from pages import Text, level, make
from protonce import manifest
from protonce.cli import main
from protonce.errors import UserError
from protonce.report import page as page_module
from protonce.report.hierarchy import levels
from protonce.report.page import write_report
from protonce.run import Run


@pytest.fixture(scope="module")
def page(trained_once, tmp_path_factory):
    run = Run(shutil.copytree(trained_once, tmp_path_factory.mktemp("page") / "run"))
    result = {
        "protocol": "knn",
        "metrics": {"momentum_accuracy": 0.625, "accuracy@1": {"mean": 0.25, "std": 0.05, "runs": [0.2, 0.3]}},
        "settings": {"k": 20},
        "features": "pooled",
        "data": {"test": {"source": "<b>there</b>", "images": 10}},
    }
    manifest.write(run.path, "evaluations/knn.json", json.dumps(result))
    strange = {"metrics": {"what": ["<i>this</i>"]}, "data": None}
    manifest.write(run.path, "evaluations/strange.json", json.dumps(strange))
    return Text(write_report(run, quiet=True))


def test_the_page_summarises_the_run(page):
    for said in ("48 of", "3 classes", "PCL, recipe small-v2", "resnet10t, width 4", "4 / 8, coarse to fine"):
        assert said in page.text
    assert "0.625" in page.text
    assert "0.250 ± 0.050" in page.text
    assert "PCLResNet-50, 200 epochs0.545" in page.text  # the paper's, in a table of its own
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
    assert sorted(page.data["pictured"]) == list(range(48))
    assert page.data["map"]["images"] == list(range(48))


def trained_distance(run, m):
    (embeddings,) = run.features(run.source(), "momentum")
    return levels(run, embeddings)[m].distance


def test_the_page_needs_no_network_and_runs_only_its_own_scripts(page):
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.split("script-src")[1]
    run_at_once = [text for attributes, text in page.scripts if attributes.get("type") != "text/plain"]
    run_later = [text for attributes, text in page.scripts if attributes.get("id") == "bokeh"]
    assert {tuple(a) for a, _ in page.scripts} <= {("type",), ("type", "id"), ("type", "class")}
    assert (len(run_at_once), len(run_later)) == (1, 1)
    for script in run_at_once + run_later:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    for tag, attributes in page.tags:
        assert not {"onclick", "onerror", "onload"} & set(attributes)
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)


def test_the_health_and_the_cards_are_of_the_same_prototypes(page, trained):
    sizes = [found["size"] for found in page.data["levels"]]
    assert sizes == [trained.prototypes[m].assignment.bincount().tolist() for m in range(2)]
    assert trained.health.words in page.text


def test_the_first_screen_has_no_word_of_the_paper(page, trained):
    """Before a person opens a "What is this?"; what the script adds is tested in a browser."""
    (glance,) = re.findall(r'<section data-view="glance".*?</section>', page.page, re.DOTALL)
    seen = re.sub(r"<details.*?</details>", "", glance, flags=re.DOTALL)
    for word in ("φ", "phi", "NMI", "effective rank", "equation", "eq.", "prototype", "ImageNet"):
        assert word not in seen
    assert "Clusters" in seen


def test_originals_are_linked_relative_to_the_page(page, quick_page, trained, photos, tmp_path):
    """So that run and images can be moved together; of a table each has an address of its own."""
    folder = page.data["files"]
    assert (Path(trained.path) / unquote(folder)).resolve() == photos.resolve()
    table = tmp_path / "photos.csv"
    files = sorted(photos.rglob("*.png"))[:24]
    table.write_text("path\n" + "".join(f"{file}\n" for file in files))
    run = protonce.train(table, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    found = Text(write_report(run, quiet=True)).data
    assert [(run.path / unquote(address)).resolve() for address in found["files"]] == [file.resolve() for file in files]
    zipped = protonce.train(zip_of(photos, tmp_path / "photos.zip"), tmp_path / "zip", epochs=1, quiet=True, **SMALL)
    assert Text(write_report(zipped, quiet=True)).data["files"] is None


def test_a_page_without_evaluations_names_a_command_that_can_be_pasted(trained, tmp_path):
    moved = Run(shutil.copytree(trained.path, tmp_path / "a run"))
    content = types.SimpleNamespace(run=moved, labels=["a", "b"])
    assert shlex.split(page_module._evaluate_command(content)) == ["protonce", "evaluate", str(moved.path), "knn"]
    for labels in (None, ["a", ""]):
        content.labels = labels
        assert shlex.split(page_module._evaluate_command(content))[4:] == ["--train", "LABELLED"]


def test_the_command_on_the_page_trains_the_same_run(page, trained, tmp_path):
    (command,) = re.findall(r"protonce train .*--out RUN", page.text)
    words = shlex.split(command.replace("--out RUN", f"--out {tmp_path / 'again'}"))
    assert main([*words[1:], "--no-report"]) == 0
    ours, again = ((p / "encoder.safetensors").read_bytes() for p in (trained.path, tmp_path / "again"))
    assert ours == again


def test_the_command_quotes_paths_and_lists(quick_page, trained, tmp_path, monkeypatch):
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


def test_the_first_screen_has_clustering_in_plain_words(quick_page, trained):
    metrics = {"ami": 0.5, "nmi": 0.625, "ari": 0.375, "purity": 0.875, "ami of the run's k = 4": 0.25}
    result = {"protocol": "clustering", "metrics": metrics, "settings": {}, "data": {}}
    manifest.write(trained.path, "evaluations/clustering.json", json.dumps(result))
    page = Text(write_report(trained, quiet=True))
    (first,) = re.findall(r'<section data-view="glance".*?</section>', page.page, re.DOTALL)
    seen = re.sub(r"<[^>]*>", " ", re.sub(r"<details.*?</details>", "", first, flags=re.DOTALL))
    assert not re.search(r"\b([an]mi|ari)\b", seen, re.IGNORECASE)
    assert re.search(r"agreement of clusters with labels\s+0\.500", seen)
    assert re.search(r"agreement of clusters with labels, the run&#39;s 4 clusters\s+0\.250", seen)
    assert re.search(r"purity\s+0\.875", seen)
    assert "adjusted mutual information" in first  # where "What is this?" is opened
    for metric, value in metrics.items():  # under Evaluations by their names
        assert f"{metric}{value:.4f}" in page.text


def test_an_imported_run_says_where_its_encoder_is_from(photos, tmp_path):
    run = protonce.import_encoder(
        "untrained", tmp_path / "run", data=photos, quiet=True, backbone="resnet10t", width=4, image_size=16
    )
    text = Text(write_report(run, quiet=True)).text
    assert "not trained here but imported from untrained" in text
    assert "trained from Python" not in text


def test_two_runs_side_by_side_and_figures(quick_page, trained, photos, tmp_path):
    other = protonce.train(photos, tmp_path / "moco", epochs=1, quiet=True, **{**SMALL, "method": "moco"})
    for run, values in ((trained, {"accuracy": 0.75, "top1@1%": 0.5}), (other, {"accuracy": 0.25})):
        result = {"protocol": "knn", "metrics": values, "remarks": {"top1@1%": "45 images, 5.0 %"}}
        manifest.write(run.path, "evaluations/knn.json", json.dumps(result))
    command = ["report", str(trained.path), "--against", str(other.path), "--figures", str(tmp_path / "figures")]
    assert main(command) == 0
    page = Text(trained.path / "report.html")
    assert "evaluationmetricMoCo (moco)PCL (run)tested on" in page.text
    assert "knnaccuracy0.2500.750" in page.text
    assert "knntop1@1% 45 images, 5.0 %–0.500" in page.text
    assert "MoCo (moco)accuracy0.2500" in page.text
    titles = re.findall(
        r'"text":"((?:MoCo|PCL) \([^"]*\))"', json.dumps(page.data["map"]["plots"], separators=(",", ":"))
    )
    assert titles == ["MoCo (moco)", "PCL (run)"]
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    for name in ("loss", "bound", "ami", "information", "sizes-0", "map", "clusters"):
        assert {f"{name}.png", f"{name}.pdf"} <= names
        Image.open(tmp_path / "figures" / f"{name}.png").verify()
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    (other.path / "encoder.safetensors").unlink()
    with pytest.raises(UserError, match="moco is not finished"):
        write_report(trained, against=Run(other.path), quiet=True)


def test_clusters_with_fixed_and_estimated_concentration(few_compared, trained, photos, tmp_path):
    """Figure 3a: one chart for each k with both runs, named by how φ is set; and information, but only on one data."""
    fixed = protonce.train(photos, tmp_path / "fixed", epochs=1, quiet=True, **{**SMALL, "concentration": "fixed"})
    page = Text(write_report(trained, against=fixed, quiet=True))
    for k, m in ((4, 0), (8, 1)):
        spread = [np.bincount(r.prototypes[m].assignment.numpy()).std() for r in (fixed, trained)]
        stated = f"{spread[0]:.1f} for PCL (fixed), φ fixed, {spread[1]:.1f} for PCL (run), φ estimated."
        assert f"in each of {k} clusters (fig. 3a); standard deviation: {stated}" in page.text
        assert f"k = {k}, PCL (fixed)" in page.text
    elsewhere = protonce.train(make(tmp_path / "photos", 24), tmp_path / "elsewhere", epochs=1, quiet=True, **SMALL)
    assert list(page_module._on_same_images(trained, elsewhere)) == ["PCL (run)"]


def test_the_commands(quick_page, trained, tmp_path, capsys):
    path = trained.path
    assert main(["report", str(path)]) == 0
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


def test_the_page_has_a_maximum_size(quick_page, trained, monkeypatch):
    usual = write_report(trained, quiet=True).stat().st_size
    monkeypatch.setattr("protonce.report.page.BYTES", usual - 5_000)
    page = Text(write_report(trained, quiet=True))
    assert usual - 40_000 < len(page.page.encode()) < usual - 5_000
    assert len(page.data["pictured"]) == 48
