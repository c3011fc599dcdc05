"""`protonce evaluate RUN PROTOCOL`: every protocol on a run, which classes and splits it takes, and what is refused."""

import json
import shutil

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from conftest import SMALL, stripes
from protonce.api import train
from protonce.cli import main
from protonce.data.folder_labels import match_folder_labels
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.evaluate import protocols
from protonce.evaluate.options import PROTOCOLS
from protonce.evaluate.protocols import evaluate
from protonce.importing import import_encoder
from protonce.run import load

QUICK = {
    "knn": {},
    "linear": {"epochs": 5},
    "lowshot": {"shots": [1, 4], "draws": 2},
    "semisup": {"shares": [0.1], "draws": 1, "epochs": 2},
    "clustering": {"starts": 2},
    "information": {},
}


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_every_protocol_saves_its_result(protocol, trained, others, capsys):
    test = {"test": str(others)}
    result = evaluate(trained, protocol, name="a", **test, **QUICK[protocol])
    kept = json.loads((trained.path / "evaluations" / f"{protocol}-a.json").read_text())
    assert kept == result
    assert kept.keys() - {"chance", "details", "key", "remarks", "untrained"} == {
        "protocol",
        "metrics",
        "settings",
        "features",
        "data",
    }
    assert kept["settings"]["seed"] == 0
    assert kept["data"]["train"]["images"] == (30 if protocol in protocols.ONE_SET else 48)
    printed = capsys.readouterr().out
    for metric, value in result["metrics"].items():
        number = value["mean"] if isinstance(value, dict) else value
        assert np.isfinite(number)
        assert f"{number:.3f}" in printed, metric
    assert not list((trained.path / "evaluations").glob(".*"))  # no draft is left
    assert evaluate(trained, protocol, name="a", quiet=True, **test, **QUICK[protocol]) == result
    assert capsys.readouterr().out == ""


def test_stripes_are_classified(trained, others):
    """The numbers mean something: stripes of three directions, from few images and by fine-tuning on all."""
    few = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[8], draws=3)["metrics"]["accuracy@8"]
    assert few["mean"] > 0.5
    assert few["std"] == pytest.approx(np.std(few["runs"], ddof=1))
    tuned = evaluate(trained, "semisup", test=str(others), quiet=True, shares=[1.0], draws=1, epochs=40, lr=0.05)
    assert tuned["metrics"]["top1@100%"]["mean"] > 0.8
    assert tuned["metrics"]["top5@100%"]["mean"] == 1  # there are but three
    assert tuned["remarks"]["top5@100%"] == "48 images, 100 % of the labels; always 1 with up to five classes"


def test_classes_do_not_depend_on_the_depth_of_folders(trained, photos, tmp_path):
    """The test images have one of two branches of folders, or one class alone."""
    places = {"slope0": "lines/flat", "slope1": "lines/steep", "slope2": "upright/all"}
    for slope, place in places.items():
        shutil.copytree(photos / slope, tmp_path / "train" / place)
    for name, kept in (("branch", ["lines/flat", "lines/steep"]), ("alone", ["lines/flat"])):
        for place in kept:
            shutil.copytree(photos / "slope0", tmp_path / name / place)
        result = evaluate(trained, "knn", train=tmp_path / "train", test=tmp_path / name, quiet=True)
        assert result["data"]["classes"] == 3
        assert result["data"]["test"]["images"] == 16 * len(kept)


def test_the_longest_matching_folder_is_the_class():
    names = ["animal/cat/1.png", "cat/2.png", "toy/cat/3.png"]
    assert match_folder_labels(names, {"cat", "animal/cat"}) == ["animal/cat", "cat", "cat"]
    assert match_folder_labels(names, {"animal/cat", "cat", "toy/cat"}) == ["animal/cat", "cat", "toy/cat"]
    assert match_folder_labels([*names, "dog/4.png"], {"cat", "animal/cat"}) is None


def test_new_items_without_names_count_as_unseen(tmp_path):
    """Sets of a user's own, of one length: the names that they are given are the same."""

    class Own:
        def __init__(self, seed):
            rng = np.random.default_rng(seed)
            slopes = [i % 3 if seed == 0 else i // 16 for i in range(48)]
            self.images = [stripes(rng, slope) for slope in slopes]
            self.labels = list(map(str, slopes))

        def __len__(self):
            return 48

        def load(self, i):
            return self.images[i]

    run = train(Own(0), tmp_path / "run", epochs=1, quiet=True, **SMALL)
    for seed, seen in ((0, True), (1, False)):
        result = evaluate(run, "knn", train=Own(5), test=Own(seed), quiet=True)
        assert ("seen in training" in result["data"]["split"]) == seen
        result = evaluate(run, "information", test=Own(seed), quiet=True)
        assignment = run.prototypes[0].assignment if seen else run.assign(Own(seed))[0][0]
        expected = mutual_info_score(Own(seed).labels, assignment)
        assert result["metrics"]["prototypes, k = 4; exact"] == pytest.approx(expected)


def test_results_state_whether_test_images_were_seen_in_training(trained, photos, others, tmp_path):
    bare, _ = import_encoder("untrained", tmp_path / "bare", data=str(photos), like=trained, quiet=True)
    seen = ", all seen in training without labels"
    for which, options, expected in (
        (trained, {}, seen),
        (trained, {"train": str(photos)}, seen),
        (trained, {"train": str(others), "test": str(photos)}, seen),
        (trained, {"train": str(others)}, ""),
        (bare, {}, ""),
    ):
        split = evaluate(which, "knn", quiet=True, **options)["data"]["split"]
        assert split.endswith(seen) == bool(expected), (options, split)


# What is refused: one sentence, exit code 2, nothing half-written


@pytest.mark.parametrize(
    ("make", "arguments", "sentence"),
    [
        (None, ["knn", "--train", "PHOTOS/slope0"], "has no labels"),
        ("one class", ["linear", "--train", "MADE"], "has only one class, only; at least two are needed"),
        (
            None,
            ["lowshot", "--shots", "1,64"],
            "fewer than two classes of .* have the 64 images .* use --shots 1$",
        ),
        (None, ["lowshot", "--shots", "64"], "that --shots asks for; use --shots 12$"),
        ("new class", ["semisup", "--test", "MADE"], "class slope9 of .* has no training images"),
        (None, ["knn", "--test", "PHOTOS"], "48 files are in both the training and the test images"),
        ("some labels", ["knn", "--train", "MADE/t.csv"], "1 images of .* have no label"),
        (None, ["knn", "--neighbours", "0"], "neighbours is 0; it must be at least 1"),
        (None, ["knn", "--neighbours", "500"], "--neighbours is 500, but there are only 38 training images"),
        (None, ["lowshot", "--shots", "[]"], "shots is empty"),
        ("ones", ["knn", "--train", "MADE"], "no class of .* has two images"),
        (None, ["linear", "--views", "upside-down"], "views is 'upside-down'; it takes auto or augmented or cached"),
        (None, ["quiz"], "invalid choice: 'quiz'"),
        (None, ["knn", "--shots", "1"], "unrecognized arguments: --shots"),
        (None, ["knn", "--train", "VOC2007:PHOTOS"], "does not have the layout of VOC"),
        (None, ["knn", "--train", "Places205:PHOTOS"], "train_places205.csv was not found in ROOT"),
        (None, ["knn", "--train", "ImageNet:PHOTOS"], "has no folder train"),
        (None, ["knn", "--name", "../x"], "is not allowed in a file name"),
        (None, ["knn", "--name", "x" * 300], "--name has 304 bytes; use at most 196$"),
    ],
)
def test_bad_input(make, arguments, sentence, trained, photos, tmp_path, capsys):
    import re

    made = tmp_path / "made"
    if make == "one class":
        shutil.copytree(photos / "slope0", made / "only")
        (made / "table.csv").write_text("path,label\n" + "".join(f"only/{i:02d}.png,only\n" for i in range(9)))
        arguments = [a.replace("MADE", "MADE/table.csv") for a in arguments]
    elif make == "ones":
        for slope in range(3):
            (made / f"slope{slope}").mkdir(parents=True)
            shutil.copy(photos / f"slope{slope}" / "00.png", made / f"slope{slope}")
    elif make == "new class":
        for slope in range(2):
            shutil.copytree(photos / f"slope{slope}", made / f"slope{slope}")
        shutil.copytree(photos / "slope2", made / "slope9")
    elif make == "some labels":
        made.mkdir()
        shutil.copytree(photos, made / "p")
        rows = [f"p/slope{s}/{i:02d}.png,slope{s}\n" for s in range(3) for i in range(8)]
        (made / "t.csv").write_text("path,label\n" + "".join(rows) + "p/slope0/09.png,\n")
    before = sorted(trained.path.rglob("*"))
    arguments = [a.replace("PHOTOS", str(photos)).replace("MADE", str(made)) for a in arguments]
    assert main(["evaluate", str(trained.path), *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said), said
    assert said.count("\n") == 1
    assert sorted(trained.path.rglob("*")) == before


def test_runs_without_labels_ask_for_labelled_images(trained, photos, others, tmp_path, capsys):
    (tmp_path / "flat").mkdir()
    for i, file in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(file, tmp_path / "flat" / f"{i}.png")
    rows = [f"flat/{i}.png,{'' if i < 2 else f'slope{i // 16}'}" for i in range(48)]
    (tmp_path / "some.csv").write_text("\n".join(["path,label", *rows, ""]))
    for data, which in (("flat", "the images"), ("some.csv", "2 of 48 images")):
        run, _ = import_encoder("untrained", tmp_path / f"run-{data}", data=tmp_path / data, like=trained, quiet=True)
        for protocol, option in (("knn", "--train LABELLED"), ("clustering", "--train or --test LABELLED")):
            given = ["--test", str(others)] if protocol == "knn" else []
            capsys.readouterr()
            assert main(["evaluate", str(run.path), protocol, *given]) == 2
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert f"protonce: {which} that {run.path} was trained on have no labels" in said
            assert said.endswith(f"give labelled images with {option}\n")
        assert evaluate(run, "knn", train=str(photos), test=str(others), quiet=True)["metrics"]


def test_an_unfinished_run_and_the_same_images_twice(trained):
    digits = np.random.default_rng(0).integers(0, 255, (30, 20, 20), dtype=np.uint8)
    one, two = open_source(digits), open_source(digits.copy())
    with pytest.raises(UserError, match="contain the same images"):
        protocols.check_apart(one, two)
    protocols.check_apart(one, open_source(255 - digits))
    (trained.path / "encoder.safetensors").unlink()
    with pytest.raises(UserError, match="is not finished; continue it with --resume"):
        evaluate(load(trained.path), "knn", quiet=True)
