"""Commands that are killed, run folders that are changed between or during commands, and little memory."""

import io
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.attacks import run_folder
from benchmarks.attacks.results import COMMANDS, Command, train_arguments
from benchmarks.attacks.stage import Stage, files_of

LENGTH = {
    "train": 1.5,
    "resume": 0.6,
    "embed": 0.2,
    "knn": 0.4,
    "clustering": 0.4,
    "report": 3.0,
    "clusters": 0.3,
    "import": 0.4,
}


def attack(stage: Stage) -> None:
    """One of the moments, at random."""
    rng = stage.rng
    rng.choices([kill, folder_removed, checkpoint_of_another, metrics_lost, low_memory], [5, 1, 3, 1, 2])[0](stage)


def kill(stage: Stage) -> None:
    """Kill a command once or twice, and run it again: the result is the right one, and nothing partial stays."""
    rng, material = stage.rng, stage.material
    which = rng.choice([*LENGTH, "train", "resume", "train"])
    command, expected = _prepare(stage, which)
    arguments = command.arguments(material)
    for _ in range(rng.choice([1, 1, 2])):
        after = rng.uniform(0.02, LENGTH[which])
        outcome = stage.run(*arguments, kill_after=after)
        stage.did(f"{'killed' if outcome.killed else 'ended'} within {after:.2f} s")
        if outcome.killed and outcome.code != -signal.SIGKILL:
            stage.fail("traceback", f"code {outcome.code}")
        if which == "train" and (stage.here / "run").exists():
            arguments = [*command.arguments(material), "--resume"]
    if (which == "import" and (stage.here / "new" / "config.yaml").exists()) or (
        which == "clusters" and (stage.here / "clusters").exists()
    ):
        complaint = run_folder.same(stage, command, expected, stage.outcomes[-1])
        if complaint:  # it says it is not empty; what is there must be whole
            stage.fail("wrong", f"left by a killed command: {complaint}")
        return
    stage.attempt(*arguments, refuse=False, right=lambda o: run_folder.same(stage, command, expected, o))
    partial = [n for n in files_of(stage.here) if ".part" in Path(n).name and not n.startswith(".tmp")]
    if partial:
        stage.fail("left", f"after the command was repeated: {', '.join(partial[:3])}")


def _training() -> Command:
    return Command(
        "train",
        lambda m: train_arguments(m, "--out", "run", "--epochs", "3", "--checkpoint-minutes", "0"),
        COMMANDS["resume"].result,
    )


def folder_removed(stage: Stage) -> None:
    """The run folder disappears while it trains."""
    rng, run = stage.rng, stage.here / "run"
    wait = rng.uniform(0, 0.3)
    moved = rng.random() < 0.5

    def remove() -> None:
        until = time.monotonic() + 20
        while not (run / "config.yaml").exists() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(wait)
        if moved and run.exists():
            run.rename(stage.here / "moved")
        else:
            shutil.rmtree(run, ignore_errors=True)

    stage.did(f"the run folder was {'moved' if moved else 'removed'} {wait:.2f} s after it was made")
    arguments = train_arguments(stage.material, "--out", "run", "--epochs", "12", "--checkpoint-minutes", "0")

    def begin() -> None:
        threading.Thread(target=remove, daemon=True).start()

    outcome = stage.attempt(*arguments, begun=True, before=begin)
    there = sorted(p.name for p in run.iterdir()) if run.is_dir() else []
    if outcome.code == 2 and there and there != [".lock"] and "config.yaml" not in there:
        stage.fail("left", f"a part of the run came back: {', '.join(there)}")
    if outcome.code == 0 and "encoder.safetensors" in there and "config.yaml" not in there:
        stage.fail("wrong", f"exit code 0 with half a run: {', '.join(there)}")


def metrics_lost(stage: Stage) -> None:
    """A log or the like is gone when the run is resumed: the result is whole, or it is said."""
    rng, material = stage.rng, stage.material
    run = material.copy("interrupted", stage.here / "run")
    gone = rng.choice(["metrics.jsonl", "metrics.jsonl", "assignments", "images.csv", "skipped.csv", "config.yaml"])
    if (run / gone).is_dir():
        shutil.rmtree(run / gone)
    else:
        (run / gone).unlink()
    stage.did(f"{gone} is gone")
    command, expected = COMMANDS["resume"], material.expected("interrupted", "resume")
    outcome = stage.attempt(
        *command.arguments(material), right=lambda o: run_folder.same(stage, command, expected, o, Path(gone))
    )
    if outcome.code == 0 and not stage.failures and rng.random() < 0.3:
        stage.attempt("report", "run", refuse=False)


def checkpoint_of_another(stage: Stage) -> None:
    """The checkpoint is one of another architecture or system, or has other entries."""
    import torch

    rng, material = stage.rng, stage.material
    run = material.copy("interrupted", stage.here / "run")
    path = run / "checkpoints" / "last.pt"
    if rng.random() < 0.1:
        shutil.copy(material.run("second") / "checkpoints" / "last.pt", path)
        stage.did("the checkpoint of another seed, which had ended")
    else:
        tree: Any = torch.load(path, weights_only=True)
        for _ in range(rng.choice([1, 1, 4])):
            tree, text = run_folder.edit_state(stage, tree)
            stage.did(f"checkpoint {text}")
        buffer = io.BytesIO()
        torch.save(tree, buffer)
        path.write_bytes(buffer.getvalue())
    command, expected = COMMANDS["resume"], material.expected("interrupted", "resume")
    stage.attempt(
        *command.arguments(material), begun=True, right=lambda o: run_folder.same(stage, command, expected, o)
    )


def _prepare(stage: Stage, which: str) -> tuple[Command, Any]:
    """A command on a run without kept features, or one that trains a new run, and its right result."""
    name = "interrupted" if which in ("train", "resume") else "trained"
    expected = stage.material.expected(name, "resume" if which == "train" else which)
    if which == "train":
        return _training(), expected
    stage.material.copy(name, stage.here / "run")
    shutil.rmtree(stage.here / "run" / "features", ignore_errors=True)
    return COMMANDS[which], expected


def low_memory(stage: Stage) -> None:
    """Little memory: the command ends well or in a sentence."""
    rng, material = stage.rng, stage.material
    which = rng.choice(["train", "resume", "embed", "knn", "report", "clusters", "import"])
    command, expected = _prepare(stage, which)
    room = int(2 ** rng.uniform(26, 29.5))
    stage.did(f"{room >> 10} kB of memory")
    stage.attempt(
        *command.arguments(material),
        room=room,
        begun=which in ("train", "resume"),
        right=lambda o: run_folder.same(stage, command, expected, o),
    )
