"""Progress of training and of long commands: a bar on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

SAY_EVERY = 60.0  # seconds between lines where there is no bar
KNOWN_AFTER = 20  # steps until the time left is worth saying


class Reporter:
    """Prints the progress of training; `quiet` prints nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, quiet=quiet, highlight=False, markup=False)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, text="")
        self.epochs = self.steps = self.first = 0
        self.terms: Sequence[str] = ()
        self.done = 0
        self.stepping = 0.0  # seconds inside M-steps
        self.between = 0.0  # seconds of the last E-step
        self._mark = 0.0
        self.said = False

    def __enter__(self) -> "Reporter":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True)

    def begin(self, terms: Sequence[str], epochs: int, steps: int, first_epoch: int = 0, first_step: int = 0) -> None:
        """Start: the number of epochs and of steps per epoch, the first of each, and the terms of the loss."""
        self.epochs, self.steps, self.first = epochs, steps, first_epoch * steps + first_step
        self.terms = terms
        self.bar.update(self.task, total=epochs * steps, completed=self.first)
        if first_step:
            self.say(f"resuming after step {first_step} of epoch {first_epoch + 1} of {epochs}")
        elif first_epoch:
            self.say(f"resuming after epoch {first_epoch} of {epochs}")

    def clustering(self, epoch: int) -> None:
        """The E-step of an epoch starts: features of all images, then k-means; once more after the last epoch."""
        self.bar.update(self.task, description=f"epoch {min(epoch + 1, self.epochs)}/{self.epochs}", text="clustering")
        self._mark = time.perf_counter()

    def clustered(self) -> None:
        """The E-step is done."""
        now = time.perf_counter()
        self.between = now - self._mark
        self._mark = now

    def step(self, epoch: int, logs: dict[str, float] | None) -> None:
        """An M-step is done; `logs` are given every few steps."""
        self.done += 1
        now = time.perf_counter()
        self.stepping += now - self._mark
        self._mark = now
        text = f"{describe(logs, self.terms)}  " if logs else None
        left = self.seconds_left(epoch)
        if left is not None:
            if not self.said:
                self.said = True
                if left > 60 and self.first == 0:
                    half = f"--epochs {self.epochs // 2}" if self.epochs > 1 else "half the images (--limit)"
                    self.say(f"about {duration(left)} to go; {half} would halve it")
            text = None if text is None else f"{text}{duration(left)} left"
        if text is None:
            self.bar.advance(self.task)
        else:
            self.bar.update(self.task, advance=1, text=text)

    def seconds_left(self, epoch: int) -> float | None:
        """Estimated time left, from the steps and E-steps so far; None until there are enough of them."""
        if self.done < KNOWN_AFTER:
            return None
        remaining = self.epochs * self.steps - self.first - self.done
        return remaining * self.stepping / self.done + (self.epochs - 1 - epoch) * self.between

    def epoch(self, record: Mapping[str, object]) -> None:
        """An epoch is done."""
        numbers = {k: v for k, v in record.items() if isinstance(v, float)}
        scores = record.get("scores", {})
        assert isinstance(scores, Mapping)
        shown = "".join(f"  {name} {score:.3f}" for name, score in scores.items())
        terms = describe(numbers, self.terms)
        self.say(f"epoch {record['epoch']}/{self.epochs}  {terms}{shown}  {duration(numbers['seconds'])}")


class Steps:
    """Prints what a long command is doing, with a bar on a terminal, and how long it took."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, quiet=quiet, highlight=False, markup=False)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True)

    @contextmanager
    def doing(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Context with a progress bar; it yields a function that advances the bar by a number of items."""
        began = time.perf_counter()
        columns = (
            *(TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn()),
            TextColumn("{task.fields[left]}"),
        )
        disable = self.console.quiet or not self.console.is_terminal
        done, said = 0, began

        def advance(count: int) -> None:
            nonlocal done, said
            done += count
            now = time.perf_counter()
            left = f"about {duration((now - began) * (total - done) / max(done, 1))} to go" if total else ""
            bar.update(task, advance=count, left=left)
            if disable and total and now - said > SAY_EVERY:  # a log has no bar
                said = now
                self.console.print(f"{text}  {100 * done // total} %, {left}", soft_wrap=True)

        with Progress(*columns, console=self.console, transient=True, disable=disable) as bar:
            task = bar.add_task(text, total=total, left="")
            yield advance
        self.console.print(f"{text}  {duration(time.perf_counter() - began)}", soft_wrap=True)


def describe(numbers: Mapping[str, float], terms: Sequence[str]) -> str:
    """Loss, and accuracy if there is one, of each of these terms."""
    parts = []
    for name in terms:
        if name in numbers:
            accuracy = numbers.get(f"{name}_accuracy")
            right = "" if accuracy is None else f", accuracy {100 * accuracy:.0f} %"
            parts.append(f"{name} loss {numbers[name]:.3f}{right}")
    return "  ".join(parts) or f"loss {numbers['loss']:.3f}"


def duration(seconds: float) -> str:
    """Seconds in words: 42 s, 7 min, 3 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
