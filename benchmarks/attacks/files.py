"""Folders and tables with what is no image: FIFOs, devices, sockets, loops of links, names of every kind."""

# ruff: noqa: SIM905 - words are easier to read without quotes

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.attacks.archives import finished
from benchmarks.attacks.results import read_npz, train_arguments
from benchmarks.attacks.stage import Stage

NAMES = [
    *"-dash.png --out.png =1+1.png @x.png +x.png \".png '.png ,.png %s.png {0}.png <b>.png $HOME.png `id`.png".split(),
    *"a\\b.png ~.png [x].png 0.png.PNG .png ..png CON.png |id.png *.png #.png ?.png \u202egnp.png \ufeff.png".split(),
    *("line\nfeed.png", "carriage\rreturn.png", "tab\t.png", " .png", "\x01\x1b[31m.png", "\udcff\udcfe.png"),
    *("\u2028.png", "x" * 250 + ".png", "é" * 125 + ".png"),
]


def attack(stage: Stage) -> None:
    """Put something odd among ten images, and embed the folder or train on it."""
    rng = stage.rng
    data = stage.here / "data"
    shutil.copytree(stage.material.others, data)
    put = rng.choice(ODD)
    for _ in range(rng.choice([1, 1, 3])):
        place = rng.choice([data, data / "kind0"])
        stage.did(put(stage, place, f"odd{rng.randrange(1000)}{rng.choice(['.png', '.jpg', '.ppm', '.tif'])}"))
    given: Path = Path("data")
    if rng.random() < 0.35:
        given = _table(stage, data)
    material = stage.material
    if rng.random() < 0.75:
        material.copy("trained", stage.here / "run")
        stage.attempt("embed", "run", given, "--out", "x.npz", right=lambda _: _all_there(stage))
        return
    arguments = ["train", str(given), *train_arguments(material, "--out", "new", "--epochs", "1")[2:]]
    outcome = stage.attempt(*arguments, right=lambda _: finished(stage.here / "new"))
    if outcome.code == 0:
        stage.attempt("clusters", "new", "--out", "clusters")


def _all_there(stage: Stage) -> str | None:
    """The ten images have their features, whatever lies beside them; a table lists its own."""
    found = read_npz(stage.here / "x.npz")
    expected = stage.material.expected("trained", "embed")
    rows = dict(zip(found["name"].tolist(), found["features"], strict=True))
    for name, row in zip(expected["name"].tolist(), expected["features"], strict=True):
        got = rows.get(name, rows.get(f"data/{name}"))
        if got is None:
            return f"{name} is missing"
        if not np.allclose(got, row, atol=1e-4):
            return f"{name} has other features"
    return None


def _table(stage: Stage, data: Path) -> Path:
    """A .csv of everything in the folder."""
    lines = [b"path"]
    for place, folders, names in os.walk(os.fsencode(data)):
        for name in sorted([*names, *folders]):
            relative = os.path.relpath(os.path.join(place, name), os.fsencode(stage.here))  # noqa: PTH118
            lines.append(b'"' + relative.replace(b'"', b'""') + b'"')
    (stage.here / "table.csv").write_bytes(b"\n".join(lines) + b"\n")
    stage.did("given as a table")
    return Path("table.csv")


def _fifo(_stage: Stage, place: Path, name: str) -> str:
    os.mkfifo(place / name)
    return f"a FIFO {name}"


def _link_to_fifo(stage: Stage, place: Path, name: str) -> str:
    fifo = stage.here / f"fifo{stage.rng.randrange(10**6)}"
    os.mkfifo(fifo)
    (place / name).symlink_to(fifo)
    return f"{name}, a link to a FIFO"


def _device(stage: Stage, place: Path, name: str) -> str:
    target = stage.rng.choice(["/dev/zero", "/dev/urandom", "/dev/null", "/dev/full", "/proc/self/mem", "/dev/tty"])
    (place / name).symlink_to(target)
    return f"{name}, a link to {target}"


def _socket(_stage: Stage, place: Path, name: str) -> str:
    here = Path.cwd()
    os.chdir(place)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(name)
    finally:
        os.chdir(here)
    return f"a socket {name}"


def _loop(stage: Stage, place: Path, name: str) -> str:
    (place / name).symlink_to(stage.rng.choice([name, ".", "..", "nowhere"]))
    return f"{name}, a link to {(place / name).readlink()}"


def _bush(stage: Stage, place: Path, _name: str) -> str:
    """Each folder has two links to the next: 2^depth ways lead to the last."""
    depth = stage.rng.choice([5, 12, 22])
    root = place / f"bush{stage.rng.randrange(10**6)}"
    for i in range(depth):
        (root / f"{i:02d}").mkdir(parents=True)
    for i in range(depth - 1):
        for side in "ab":
            (root / f"{i:02d}" / side).symlink_to(root / f"{i + 1:02d}", target_is_directory=True)
    return f"links in two ways to the next of {depth} folders"


def _deep(stage: Stage, place: Path, _name: str) -> str:
    depth = stage.rng.choice([50, 300, 700])
    here = Path.cwd()
    os.chdir(place)
    try:
        for _ in range(depth):
            Path("d").mkdir(exist_ok=True)
            os.chdir("d")
    finally:
        os.chdir(here)
    return f"{depth} folders inside each other"


def _folder(_stage: Stage, place: Path, name: str) -> str:
    (place / name).mkdir(exist_ok=True)
    return f"a folder {name}"


def _unreadable(_stage: Stage, place: Path, name: str) -> str:
    (place / name).write_bytes(b"x")
    (place / name).chmod(0)
    return f"{name} without permissions"


def _spaces(stage: Stage, place: Path, name: str) -> str:
    size = stage.rng.choice([1, 10, 50])
    name = Path(name).stem + ".ppm"
    fill = stage.rng.choice([b" ", b"\n", b"0", b"#", b"# \n", b"\t"])
    (place / name).write_bytes(stage.rng.choice([b"P6", b"P5 ", b"P3\n", b"P1 "]) + fill * ((size << 20) // len(fill)))
    return f"{name}: a head of {size} MB of {fill!r}"


def _sparse(stage: Stage, place: Path, name: str) -> str:
    size = stage.rng.choice([1 << 30, 1 << 36, 1 << 40])
    head = stage.rng.choice([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"GIF89a", b"II*\0", b"P6 9 9 255 "])
    with (place / name).open("wb") as file:
        file.write(head)
        file.truncate(size)
    return f"{name}: {head!r} and a hole of {size >> 20} MB"


def _name(stage: Stage, place: Path, _name: str) -> str:
    new = stage.rng.choice(NAMES)
    source = stage.material.others / "kind0" / "0.png"
    shutil.copy(source, os.path.join(place, new))  # noqa: PTH118
    return f"an image called {new!r}"


def _shared_image(_stage: Stage, place: Path, name: str) -> str:
    """The same image by a link and by a hard link."""
    source = place / "0.png" if (place / "0.png").exists() else place / "kind0" / "0.png"
    if not (place / name).exists():
        os.link(source, place / name)
    return f"{name} is the same file as {source.name}"


ODD: list[Callable[[Stage, Path, str], str]] = [
    *(_fifo, _link_to_fifo, _device, _socket, _loop, _bush, _deep, _folder, _unreadable, _spaces, _sparse),
    *(_name, _name, _name, _shared_image),
]
