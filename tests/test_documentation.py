"""The documentation: commands and Python run as written, at a small size, and the site builds without a warning."""

import contextlib
import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import protonce
from conftest import SMALL, picture, zip_of
from pages import make
from protonce.cli import build_parser, main
from protonce.data.paper_datasets import VOC_CLASSES as VOC

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
ELSEWHERE = ("demo", "ablation", "tune", "compare")  # train several times, and have tests of their own
LONG = ("--figures", "--over-training")  # likewise
SMALLER = {"--epochs": "1", "--shots": "1,2"}
DOWNLOADED = {"timm:resnet18": "resnet18.pth"}  # by the file that would be downloaded
NOT_RUN = ("make", "pip", "torchrun", "git")  # by the tests of installation and of several ranks


def blocks(page):
    """Language and text of the code blocks of a page."""
    return re.findall(r"^```(bash|python)\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(text):
    """Arguments of the protonce commands in a piece of shell, as bash finds them."""
    others = "".join(f"{name}() {{ :; }}\n" for name in NOT_RUN)
    shell = f'set -e\n{others}protonce() {{ printf "%q " "$@"; echo; }}\n{text}'
    found = subprocess.run(["bash", "-c", shell], check=True, capture_output=True, text=True).stdout
    return [shlex.split(line) for line in found.splitlines()]


WITH_CODE = [page for page in PAGES if blocks(page)]


def test_pages_with_code_are_found():
    assert {"README.md", "docs/start.md", "docs/usage.md", "docs/labels.md", "docs/new-system.md"} <= {*WITH_CODE}
    assert commands("for x in a 'b c'; do protonce train \"$x\"; done\nmake demo") == [["train", "a"], ["train", "b c"]]


@pytest.mark.parametrize("page", WITH_CODE)
def test_every_command_is_understood(page):
    for language, text in blocks(page):
        if language == "bash":
            for command in commands(text):
                build_parser(command).parse_args(command)


@pytest.fixture
def place(photos, tmp_path, monkeypatch):
    """A working folder with all that the pages refer to."""
    import timm
    import torch

    folder = tmp_path / "place"
    folder.mkdir()
    for name in ("photos", "imagenet/train"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(photos)
    for name in ("labelled-photos", "new-photos"):
        shutil.copytree(photos, folder / name)
    (folder / "imagenette128").mkdir()
    for name in ("cifar10.zip", "imagenette128/train.zip", "imagenette128/val.zip"):
        zip_of(make(tmp_path / "many", 120, classes=3), folder / name)
    write_voc(folder / "voc" / "VOCdevkit" / "VOC2007")
    shutil.copy(sorted(photos.rglob("*.png"))[0], folder / "photo.jpg")
    torch.save(timm.create_model("resnet18").state_dict(), folder / "resnet18.pth")
    untrained = protonce.import_encoder("untrained", tmp_path / "untrained", backbone="resnet18", quiet=True)
    untrained.export("pcl", folder / "PCL_v2_epoch200.pth.tar")
    monkeypatch.chdir(folder)
    return folder


def write_voc(root):
    """VOC's layout: its twenty classes, one to an image."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    for split, n in (("trainval", 60), ("test", 20)):
        keys = [f"{split}{i:03d}" for i in range(n)]
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{key}\n" for key in keys))
        for i, key in enumerate(keys):
            picture(seed=i).save(root / "JPEGImages" / f"{key}.jpg")
            text = f"<object><name>{VOC[i % 20]}</name><difficult>0</difficult></object>"
            (root / "Annotations" / f"{key}.xml").write_text(f"<annotation>{text}</annotation>")


def run(command):
    """A command at a small size."""
    command = [DOWNLOADED.get(word, word) for word in command]
    for option, value in SMALLER.items():
        if option in command:
            command[command.index(option) + 1] = value
    if command[0] == "train":
        command += ["--limit", "48"] + ([] if "--epochs" in command else ["--epochs", "1"])
    out = Path(command[command.index("--out") + 1]) if command[0] == "train" else None
    if out is not None and out.exists():  # prepared for pages that do not train it
        shutil.rmtree(out)
    if command[0] not in ELSEWHERE and not {*LONG} & {*command}:
        assert main(command) == 0, shlex.join(command)
    if command[0] == "suggest":
        fill_in(Path(command[command.index("--out") + 1] if "--out" in command else "suggest.csv"))


def fill_in(path):
    """What a person does with the table: the label of an image is its folder."""
    rows = list(csv.DictReader(path.open()))
    path.write_text("name,label\n" + "".join(f"{row['name']},{Path(row['name']).parent}\n" for row in rows))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_page", "small_recipe")
@pytest.mark.parametrize("page", WITH_CODE)
def test_every_block_runs(page, place, trained):
    shutil.copytree(trained.path, place / "runs" / "first")
    if page == "docs/export.md":  # a run on photos, and labels as `suggest` and a person make them
        shutil.rmtree(place / "runs" / "first")
        protonce.train("photos", "runs/first", quiet=True, **{**SMALL, "stem": "standard", "epochs": 1})
        names, labels = trained.images
        rows = "".join(f"{name},{label}\n" for name, label in zip(names, labels, strict=True))
        (place / "labels.csv").write_text(f"name,label\n{rows}")
    names = {"__name__": "__main__"}
    for language, text in blocks(page):
        if language == "bash":
            for command in commands(text):
                run(command)
        else:
            code = re.sub(r"epochs=\d+", "epochs=1", text)
            with contextlib.chdir(place):
                exec(compile(code, page, "exec"), names)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """Links between pages, to their headings and to files of the project are checked."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-b", "html"]
    subprocess.run([*command, str(ROOT / "docs"), str(tmp_path)], check=True, cwd=ROOT)
    for page in ("index", "api", "start", "notebooks/own-photos"):
        assert (tmp_path / f"{page}.html").exists()
    api = (tmp_path / "api.html").read_text()
    for name in ("protonce.train", "protonce.losses.proto_nce", "protonce.prototypes.e_step", "protonce.sklearn.PCL"):
        assert f'id="{name}"' in api
