"""Callbacks: code of your own that runs while a run trains, `protonce.train(..., callbacks=[MyCallback()])`."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from protonce.encoder import Encoder
from protonce.errors import UserError


class Callback:
    """Base class of callbacks; override the methods you need. They are called on rank 0 only.

    An exception stops the training. The last checkpoint is kept, so that `resume=True` continues from it.
    """

    def on_train_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """Called before the first step.

        Args:
            run: the run folder.
            config: settings and options of the system by name.
            step: steps that are done already, if the run is resumed.
        """

    def on_epoch_start(self, epoch: int) -> None:
        """Called after the E-step of an epoch; epochs count from 1."""

    def on_step_end(self, step: int, logs: Mapping[str, Tensor]) -> None:
        """Called after every M-step.

        Args:
            step: steps that are done.
            logs: loss, its terms and the learning rate by name; reading a value waits for the device.
        """

    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> Mapping[str, float] | None:
        """Called after the last step of an epoch.

        Args:
            epoch: counts from 1.
            encoder: the query encoder, in training mode; leave it in this mode.
            record: the line of metrics.jsonl.

        Returns:
            scores by name, kept as `scores` of the line and shown on the page and by the loggers; None: there are none
        """
        del epoch, encoder, record
        return None

    def on_evaluation(self, epoch: int, scores: Mapping[str, float]) -> None:
        """Called with the scores that `on_epoch_end` of all callbacks returned, if there are any."""

    def on_train_end(self, run: Path, completed: bool) -> None:
        """Called when training ends, if `on_train_start` was called.

        Args:
            run: the run folder.
            completed: whether all epochs are done and the encoder is written; otherwise training was interrupted.
        """


class Callbacks(Callback):
    """Calls several callbacks in order.

    Raises:
        UserError: one of them is no instance of `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for one in callbacks:
            if not isinstance(one, Callback):
                raise UserError(f"callback {one!r} is not an instance of a subclass of protonce.callbacks.Callback")
        self.callbacks = list(callbacks)
        self.started: list[Callback] = []

    def on_train_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.on_train_start(run, config, step)
            self.started.append(callback)

    def on_epoch_start(self, epoch: int) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.on_epoch_start(epoch)

    def on_step_end(self, step: int, logs: Mapping[str, Tensor]) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.on_step_end(step, logs)

    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> dict[str, float]:
        """Call all, then `on_evaluation` if there are scores.

        Raises:
            ValueError: two callbacks returned scores of the same name.
        """
        scores: dict[str, float] = {}
        for callback in self.callbacks:
            for name, score in (callback.on_epoch_end(epoch, encoder, record) or {}).items():
                if name in scores:
                    raise ValueError(f"{type(callback).__name__} returned a score {name}, as another callback did")
                scores[name] = float(score)
        if scores:
            self.on_evaluation(epoch, scores)
        return scores

    def on_evaluation(self, epoch: int, scores: Mapping[str, float]) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.on_evaluation(epoch, scores)

    def on_train_end(self, run: Path, completed: bool) -> None:
        """Call those that were started, even if one of them raises an exception."""
        with ExitStack() as stack:
            for callback in reversed(self.started):  # an ExitStack begins with what was added last
                stack.callback(callback.on_train_end, run, completed)
