"""Where a case is played: a scratch folder, the commands that are run in it, and the judgement of each outcome."""

import hashlib
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attacks import process
from benchmarks.attacks.material import Material
from benchmarks.attacks.process import Outcome

KINDS = {
    "traceback": "tracebacks",
    "hang": "hangs",
    "wrong": "silent wrong results",
    "left": "files left behind",
    "message": "bad messages",
}
LONGEST_MESSAGE = 1000  # characters
Files = dict[str, str]


@dataclass
class Stage:
    """One case: `rng` decides what is done, in the scratch folder `here`.

    Attributes:
        rng: seeded by class, seed and index, and the only source of randomness.
        material: images and runs to damage copies of.
        here: scratch folder, the working directory of the commands.
        seconds: after which a command counts as hanging.
        done: what was done, in words.
        outcomes: of the commands so far.
        failures: pairs of kind and text.
    """

    rng: random.Random
    material: Material
    here: Path
    seconds: float = process.SECONDS
    done: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def did(self, text: str) -> None:
        """Note what was done."""
        self.done.append(ascii(text)[1:-1][:300])

    def fail(self, kind: str, text: str) -> None:
        """Note a broken promise."""
        self.failures.append((kind, ascii(text)[1:-1][:500]))

    def run(self, *arguments: str | Path, **limits: Any) -> Outcome:
        """Run a command in the scratch folder."""
        limits = {"seconds": self.seconds, **limits}
        outcome = process.run([str(a) for a in arguments], self.here, **limits)
        self.outcomes.append(outcome)
        return outcome

    def attempt(
        self,
        *arguments: str | Path,
        right: Callable[[Outcome], str | None] = lambda _: None,
        refuse: bool = True,
        begun: bool = False,
        **limits: Any,
    ) -> Outcome:
        """Run a command and judge its outcome: it is refused in one line with nothing written, or done right.

        Args:
            arguments: of the command line.
            right: what is wrong with the result, None if nothing is, after exit code 0.
            refuse: whether exit code 2 is a right answer.
            begun: whether files may be there after exit code 2, because work had begun; never partial ones.
            limits: for `process.run`.
        """
        before = files_of(self.here)
        outcome = self.run(*arguments, **limits)
        if outcome.killed:
            return outcome
        if outcome.hung:
            self.fail("hang", f"no end after {self.seconds:g} s")
            return outcome
        if outcome.code not in (0, 2):
            died = f"killed by signal {-outcome.code}" if outcome.code < 0 else outcome.last or f"code {outcome.code}"
            self.fail("traceback", f"{died} {_place(outcome.err)}")
        elif outcome.code == 2:
            if not refuse:
                self.fail("wrong", f"refused, but there is nothing wrong: {outcome.last}")
            elif complaint := bad_message(outcome.err):
                self.fail("message", complaint)
        elif complaint := right(outcome):
            self.fail("wrong", complaint)
        self.check_files(before, outcome, begun)
        return outcome

    def check_files(self, before: Files, outcome: Outcome, begun: bool = False) -> None:
        """Partial and temporary files, and after a failure all others that were not there before."""
        after = files_of(self.here)
        new = [name for name in after if name not in before]
        partial = [name for name in new if name.startswith(".tmp/") or ".part" in Path(name).name]
        diverged = outcome.code == 2 and " became " in outcome.last  # a loss that is NaN shows when training has begun
        if outcome.code != 0 and not begun and not diverged:
            partial += [name for name in new if name not in partial and not _is_cache(name, before)]
            partial += [f"{name} (was there before)" for name in before if name not in after]
        if partial:
            self.fail("left", ", ".join(sorted(partial)[:5]))


def files_of(folder: Path) -> Files:
    """Every file and folder below a folder, with a hash of its content. Opens regular files only; follows no link."""
    found = {}
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            name = os.path.relpath(entry.path, folder)
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                waiting.append(Path(entry.path))
                if name != ".tmp":
                    found[name] = "folder"
            elif stat.S_ISREG(mode) and entry.stat(follow_symlinks=False).st_size < 50_000_000:
                found[name] = hashlib.sha1(Path(entry.path).read_bytes()).hexdigest()
            else:
                found[name] = str(mode)
    return found


def bad_message(err: str) -> str | None:
    """What is wrong with the message of a refusal; progress may have been printed before it."""
    lines = [line for line in err.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("protonce: ")]
    if not lines or not said:
        return f"no line says what is wrong: {err.strip()[-200:]!r}"
    if len(said) > 1 or lines[-1] != said[0]:
        return f"{len(said)} messages, or something after the message: {lines[-1][:200]!r}"
    odd = next((line for line in lines if "Traceback" in line or "Warning" in line or "Exception ignored" in line), "")
    if odd:
        return f"beside the message: {odd[:200]!r}"
    if len(said[0]) >= LONGEST_MESSAGE:
        return f"a message of {len(said[0]):,} characters: {said[0][:150]!r}"
    if said[0].startswith("protonce: None") or any(word in said[0] for word in ("[Errno", "File too large")):
        return f"says nothing to a user: {said[0][:200]!r}"
    return None


def _is_cache(name: str, before: Files) -> bool:
    """Whether a new file is a lock or a kept feature of a run that was there."""
    path = Path(name)
    run = path.parent.parent if path.parent.name == "features" else path.parent
    if path.name == ".lock":
        return str(run) in before
    features = path.parent.name == "features" and path.suffix == ".npy"
    return (features or path.name == "features") and str(run) in before


def _place(err: str) -> str:
    """The last line of protonce's own code in a traceback."""
    places = [line.strip() for line in err.splitlines() if "/protonce/" in line and line.strip().startswith("File ")]
    if not places:
        return ""
    file, _, rest = places[-1].partition('", line ')
    return f"[{file.rpartition('/protonce/')[2]}:{rest.replace(', in ', ' ')}]"
