"""A disk that is full after some bytes: of the run folder, of the output, or of the temporary files."""

import shutil
from pathlib import Path

from benchmarks.attacks.process import Disk, own_mounts
from benchmarks.attacks.results import COMMANDS, Command, read_npz, train_arguments
from benchmarks.attacks.run_folder import same
from benchmarks.attacks.stage import Stage

PAGE = 4096


def attack(stage: Stage) -> None:
    """Run a command on a disk with little room, and once more when there is room again."""
    if not own_mounts():
        stage.did("nothing: this machine does not let a process have mounts of its own")
        return
    rng = stage.rng
    if rng.random() < 0.2:
        full_temporary(stage)
        return
    full(stage, rng.choice(["train", "embed parquet", "embed many", *(c for c in COMMANDS if c != "resume finished")]))


def full(stage: Stage, which: str) -> None:
    """The disk of everything that is read and written is full."""
    rng, material = stage.rng, stage.material
    disk = Disk(stage.here)  # over the scratch folder
    name = "interrupted" if which == "resume" else "trained"
    if which != "train":
        material.copy(name, stage.here / "run")
        if rng.random() < 0.8:
            shutil.rmtree(stage.here / "run" / "features", ignore_errors=True)
    Disk(stage.here / ".tmp")  # with room
    if which == "train":
        finished = _whole_training()
        expected = material.expected("interrupted", "resume")
    elif which == "embed parquet":
        finished = COMMANDS["embed"]
        expected = material.expected(name, "embed")
    else:
        finished = COMMANDS[which]
        expected = material.expected(name, which)
    arguments = finished.arguments(material)
    if which == "embed parquet":
        arguments = [a.replace(".npz", ".parquet") for a in arguments]
    most = {"train": 400, "resume": 200, "import": 60, "init": 150, "report": 400, "embed many": 30}.get(which, 12)
    room = rng.choice([0, 1, 2, 3, rng.randrange(most), rng.randrange(most)]) * PAGE
    if which in ("train", "init"):
        room += PAGE * rng.randrange(4)
    disk.leave(room)
    stage.did(f"a disk with room for {room} bytes")
    outcome = stage.attempt(*arguments, begun=which in ("train", "resume", "init"))
    if outcome.code == 0 and which == "embed parquet":
        _check_parquet(stage, expected)
    disk.leave(200 << 20)
    stage.did("a disk with room again")
    if which in ("train", "init") and (stage.here / ("run" if which == "train" else "new")).exists():
        arguments = [*arguments, "--resume"]
    if which in ("clusters", "import") and outcome.code == 0:
        return
    if which == "embed parquet":
        stage.attempt(*arguments, refuse=False)
        _check_parquet(stage, expected)
    else:
        stage.attempt(*arguments, refuse=False, right=lambda o: same(stage, finished, expected, o))


def full_temporary(stage: Stage) -> None:
    """The disk of temporary files is full: training and embedding go on, or say so."""
    rng, material = stage.rng, stage.material
    (stage.here / ".tmp").mkdir()
    disk = Disk(stage.here / ".tmp")
    room = rng.choice([0, 1, 2, 3, 4, 5, 8, 12]) * PAGE
    disk.leave(room)
    stage.did(f"room for {room} bytes in TMPDIR")
    if rng.random() < 0.6:
        training = _whole_training()
        expected = material.expected("interrupted", "resume")
        stage.attempt(*training.arguments(material), right=lambda o: same(stage, training, expected, o))
        return
    material.copy("trained", stage.here / "run")
    shutil.rmtree(stage.here / "run" / "features")
    data = rng.choice([material.others, *(material.archive(suffix) for suffix in (".zip", ".tar", ".tgz", ".txz"))])
    expected = material.expected("trained", "embed")
    stage.attempt(
        *("embed", "run", data, "--out", "x.npz"),
        right=lambda _: COMMANDS["embed"].differs(read_npz(stage.here / "x.npz"), expected),
    )


def _whole_training() -> Command:
    """The training that `interrupted` began, from its beginning."""
    resume = COMMANDS["resume"]
    return Command(
        "train",
        lambda m: train_arguments(m, "--out", "run", "--epochs", "3", "--checkpoint-minutes", "0"),
        resume.result,
    )


def _check_parquet(stage: Stage, expected: dict[str, object]) -> None:
    from pyarrow import parquet

    path = Path(stage.here / "x.parquet")
    try:
        names = parquet.read_table(path)["name"].to_pylist()
    except Exception as error:
        stage.fail("wrong", f"x.parquet cannot be read: {error}")
        return
    if names != list(expected["name"]):
        stage.fail("wrong", "x.parquet has other names")
