"""Curves for TensorBoard, beside metrics.jsonl; needs the extra `tensorboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protonce.errors import UserError


class Board:
    """RUN/tensorboard: the logs of every n-th M-step, and the numbers of metrics.jsonl for every epoch.

    The x axis is the number of steps done. When a run is resumed, points after its checkpoint are removed: those steps
    are repeated.
    """

    def __init__(self, folder: Path, every: int, done: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.every = every
        kept = _points(folder, done)
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self.writer = SummaryWriter(str(folder))
        for tag, value, step, moment in kept:
            self.writer.add_scalar(tag, value, step, walltime=moment)
        self.writer.flush()

    def step(self, done: int, numbers: Mapping[str, Any]) -> None:
        """Log an M-step, given the number of steps done."""
        if done % self.every == 0:
            self._add("step", done, numbers)

    def epoch(self, done: int, record: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl; lists have one entry per granularity."""
        for name, value in record.items():
            if isinstance(value, list):
                values = {f"{name}/{m}": v for m, v in enumerate(value) if isinstance(v, int | float)}
                self._add("epoch", done, values)
            else:
                self._add("epoch", done, {name: value})

    def _add(self, kind: str, done: int, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(f"{kind}/{name}", float(value), done)

    def flush(self) -> None:
        """Write all points to disk, before a checkpoint that counts on them."""
        self.writer.flush()


def check() -> None:
    """Check that TensorBoard is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise UserError("tensorboard is not installed; pip install 'protonce[tensorboard]', or leave it out") from None


def _points(folder: Path, done: int) -> list[tuple[str, float, int, float]]:
    """Tag, value, step and time of every point up to a step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not folder.exists():
        return []
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [
        (tag, event.value, event.step, event.wall_time)
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
        if event.step <= done
    ]
