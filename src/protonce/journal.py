"""What a run writes and says while it trains: checkpoints, metrics.jsonl, TensorBoard's curves, lines for people.

Rank 0 does so for all; the others agree with it when to keep a checkpoint and when to end.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from protonce import run
from protonce.board import Board
from protonce.checkpoints import Begun
from protonce.config import Resolved
from protonce.errors import UserError
from protonce.interruption import Interruption
from protonce.progress import Reporter
from protonce.ranks import Ranks
from protonce.run import Run

SHOW_EVERY = 10  # steps between two looks at the losses, each of which waits for the device
CURE = "start a new run with a smaller lr"


class Journal:
    """The rim of the training loop.

    Args:
        out: the run folder.
        settings: of the run.
        steps: of an epoch.
        start: epochs that are done.
        begun: the epoch that has begun, where a run goes on within one.
        save: keeps a checkpoint after so many epochs, and within the one that has begun.
        interruption: whether the run is asked to end.
        reporter: says it.
        ranks: all of the training.
    """

    def __init__(
        self,
        out: Path,
        settings: Resolved,
        steps: int,
        start: int,
        begun: Begun | None,
        save: Callable[[int, Begun | None], None],
        interruption: Interruption,
        reporter: Reporter,
        ranks: Ranks,
    ) -> None:
        self.out, self.settings, self.steps = out, settings, steps
        self.save, self.interruption, self.reporter, self.ranks = save, interruption, reporter, ranks
        self.board: Board | None = None
        self.began = self.kept = time.monotonic()  # the epoch, and the last checkpoint
        self.condition = "healthy"
        first_step = begun.step if begun else 0
        reporter.begin(settings.epochs, steps, start, first_step)
        if ranks.first:
            run.cut_metrics(out, start)
            if settings.tensorboard_every:
                self.board = Board(out / "tensorboard", settings.tensorboard_every, start * steps + first_step)

    def clustering(self, epoch: int) -> None:
        """The pass over the images and the E-step of an epoch begin."""
        self.reporter.clustering(epoch)

    def stepping(self, begun: Begun) -> None:
        """The E-step has been made, now or before an interruption; the M-steps begin."""
        self.began = time.monotonic() - begun.seconds
        self.reporter.clustered()

    def step(self, epoch: int, begun: Begun, logs: Mapping[str, Tensor], lr: float) -> None:
        """An M-step has ended.

        Raises:
            UserError: the loss is no finite number.
            KeyboardInterrupt, SystemExit: the run was asked to end, and has kept a checkpoint.
        """
        show = (begun.step - 1) % SHOW_EVERY == 0
        self.reporter.step(epoch, {name: float(value) for name, value in logs.items()} if show else None)
        if self.board is not None:
            self.board.step(epoch * self.steps + begun.step, {**logs, "lr": lr})
        # Several ranks must agree to end, which takes an exchange: now and then is soon enough.
        if show or begun.step == self.steps or (self.ranks.size == 1 and self._due()):
            self._check_finite(epoch, begun)
            self._keep_if_due(epoch, begun)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch has ended: a line of metrics.jsonl, and a checkpoint."""
        record = {**record, "seconds": time.monotonic() - self.began}
        run.append_metrics(self.out, record)
        if self.board is not None:
            self.board.epoch(record["epoch"] * self.steps, record)
        self._keep(record["epoch"], None)
        self.reporter.epoch(record)
        self._warn()

    def _warn(self) -> None:
        """Say so when a run begins to go wrong, not only at its end."""
        state, words = Run(self.out).health
        if state != self.condition and state in ("collapsed", "diverging"):
            self.reporter.say(f"note: {words}")
        self.condition = state

    def _due(self) -> int:
        """The signal by which the run was asked to end; 1: a checkpoint is due; 0: nothing is."""
        late = time.monotonic() - self.kept >= 60 * self.settings.checkpoint_minutes
        return self.interruption.asked or int(late)

    def _keep_if_due(self, epoch: int, begun: Begun) -> None:
        due = self.ranks.most(self._due(), begun.sums["loss"].device)
        if not due:
            return
        begun.seconds = time.monotonic() - self.began
        self._keep(epoch, begun)
        if due > 1:
            self.reporter.say(f"stopped after step {begun.step} of epoch {epoch + 1}; --resume goes on from there")
            self.ranks.wait()  # whoever ended before the checkpoint is kept would take the others along
            self.interruption.end(due)

    def _keep(self, epoch: int, begun: Begun | None) -> None:
        if self.board is not None:
            self.board.flush()
        if self.ranks.first:  # the state of all others is the same
            self.save(epoch, begun)
        self.kept = time.monotonic()

    def _check_finite(self, epoch: int, begun: Begun) -> None:
        """A sum is not finite from the first step on that was not: so a look now and then is enough."""
        if not begun.sums["loss"].isfinite():
            done = f"by step {begun.step} of {self.steps} of epoch {epoch + 1}"
            raise UserError(f"the loss is no finite number any more, {done}; {CURE}; the last good checkpoint is kept")
