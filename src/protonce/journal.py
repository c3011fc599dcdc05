"""What a run writes and prints while it trains: checkpoints, metrics.jsonl, progress; and callbacks.

Rank 0 writes for all ranks; all agree on when to save a checkpoint and when to stop.
"""

import functools
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce import health, manifest, randomness
from protonce.assembly import MomentumFeatures, Training
from protonce.callbacks import Callbacks
from protonce.changes import changes
from protonce.checkpoints import Epoch
from protonce.context import Progress
from protonce.errors import UserError, one_line
from protonce.files import explain_full_disk
from protonce.interruption import Interruption
from protonce.methods.base import Batch, System, Term
from protonce.momentum import twin_of
from protonce.optimizers import learning_rate
from protonce.preparation import Plan
from protonce.progress import Reporter
from protonce.prototypes import Prototypes, cluster
from protonce.ranks import Ranks
from protonce.run import Run, read_assignments
from protonce.run.encoder_file import write_encoders, write_snapshot
from protonce.run.kept_features import write_kept
from protonce.run.prototype_files import write_assignments, write_prototypes
from protonce.run.writing import append_metrics, append_skipped, create_folder, cut_metrics, locked

SHOW_EVERY = 10  # steps between two looks at the losses, each of which waits for the device
CURE = "start a new run with a smaller lr"


class Lost:
    """Reports images that could be read when the data was opened, but no longer can, and lists them in skipped.csv."""

    def __init__(self, out: Path, reporter: Reporter) -> None:
        self.out, self.reporter = out, reporter
        self.waiting: list[tuple[str, str]] = []

    def __call__(self, name: str, reason: str) -> None:
        """Report an image, and why it cannot be read."""
        self.reporter.say(f"note: {name} can no longer be read ({reason}); another image replaces it")
        self.waiting.append((name, reason))
        self.keep()

    def keep(self) -> None:
        """List them in skipped.csv, once the run folder exists."""
        while self.waiting and (self.out / "skipped.csv").exists():
            name, reason = self.waiting.pop(0)
            append_skipped(self.out, name, f"{reason}, since training began")


def final_prototypes(training: Training, features: MomentumFeatures) -> list[Prototypes]:
    """The prototypes of a run: those of one more E-step after the last epoch."""
    system, epochs = training.system, training.settings.epochs
    found = None
    if type(system).prototypes is not System.prototypes:
        torch.manual_seed(randomness.key(training.settings.seed, "e-step", epochs))
        found = system.prototypes(system.e_step(epochs, features))
    return found or cluster_features(training, epochs, features())


def cluster_features(training: Training, number: int, features: Tensor) -> list[Prototypes]:
    """Clusters of V' at the beginning of an epoch, for a system that makes none."""
    found = training.system.context.on_first(lambda: cluster(features, training.settings, number))
    return [c.occupied.to(training.device) for c in found]


@contextmanager
def writing(plan: Plan, ranks: Ranks, lost: Lost) -> Iterator[None]:
    """Context in which this training alone writes to the run folder, which is created if it is new."""
    with ExitStack() as stack:
        if ranks.is_first:
            stack.enter_context(locked(plan.out))
            stack.enter_context(explain_full_disk(plan.out))
            if plan.previous is None:
                create_folder(plan.out, plan.source, plan.own, plan.config)
                lost.keep()
        yield


def tell_changes(training: Training, reporter: Reporter) -> None:
    """Say and keep what a finished training changed in the weights that it started from; only rank 0 does.

    Whatever goes wrong, the run is finished: then this is not known, and says why.
    """
    plan, settings = training.plan, training.settings
    if not (settings.init and training.system.trains and training.ranks.is_first) or plan.own["own_encoder"]:
        return
    reporter.say(f"comparing with {settings.init}")
    try:
        with training.ranks.all_local_threads():
            found = changes(training.system.query, plan.source, settings)
        manifest.write(plan.out, "changes.json", json.dumps(found.as_dict(), indent=2) + "\n")
        reporter.say(found.words(settings.init, plan.out))
    except Exception as error:  # weights or images that are gone, memory, a disk that is full
        reporter.say(f"note: what training changed is not known: {one_line(str(error), 200) or type(error).__name__}")


class Journal:
    """Writes and reports what happens in the training loop.

    Args:
        training: the parts of the training.
        reporter: prints its progress.
        callbacks: are called on rank 0.
    """

    def __init__(self, training: Training, reporter: Reporter, callbacks: Callbacks | None = None) -> None:
        self.training, self.reporter = training, reporter
        self.callbacks = (callbacks if training.ranks.is_first else None) or Callbacks([])
        self.out, self.settings, self.ranks = training.plan.out, training.settings, training.ranks
        self.system, self.steps = training.system, training.system.steps
        self.interruption = Interruption(patient=self.ranks.world_size > 1)
        self.began = self.kept = time.monotonic()  # the epoch, and the last checkpoint
        self.cpu_began = time.process_time()
        self.condition = "healthy"

    @functools.cached_property
    def run(self) -> Run:
        """The run that is written; its config.yaml stays as it is."""
        return Run(self.out)

    def __enter__(self) -> "Journal":
        start, begun = self.training.start, self.training.begun
        first_step = begun.step if begun else 0
        with ExitStack() as stack:
            stack.enter_context(self.reporter)
            stack.enter_context(self.interruption)
            self._begin(start, first_step)
            stack.push(self._tell_end)
            self.callbacks.on_train_start(
                self.out, self.training.plan.config["settings"], start * self.steps + first_step
            )
            self._stack = stack.pop_all()
        self.began, self.cpu_began = time.monotonic(), time.process_time()
        if begun is not None:  # its E-step was made before the interruption
            self.began -= begun.seconds
            self.cpu_began -= begun.cpu_seconds
            self.reporter.clustered()
        return self

    def _begin(self, start: int, first_step: int) -> None:
        self.reporter.begin(self.system.terms, self.settings.epochs, self.steps, start, first_step)
        self.reporter.clustering(start)
        if self.ranks.is_first:
            cut_metrics(self.out, start)

    def _tell_end(self, kind: type[BaseException] | None, *_: object) -> None:
        self.callbacks.on_train_end(self.out, completed=kind is None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def e_step(self, epoch: Epoch, features: MomentumFeatures) -> None:
        """Record the clusters of an E-step; if it found none, make some for the record when they are due."""
        found = self.system.prototypes(epoch.state)
        if found is None and self._recorded(epoch.number):
            found = epoch.recorded = cluster_features(self.training, epoch.number, self.system.clustered(features))
        if found is not None:
            self._check_granularities(found)
            v_ = self.system.clustered(features)  # on every rank, for all compute it together
            seconds = time.monotonic() - self.began - features.take_seconds()
            if self.ranks.is_first:
                signals = health.after_e_step(v_, found, self._assignments_before())
                phi = [c.percentiles for c in found] if epoch.recorded is None else []
                epoch.signals = {**signals, "phi": phi, "cluster_seconds": seconds}
                write_assignments(self.out, epoch.number + 1, found)
                if self.settings.keep_features:
                    write_kept(self.out, epoch.number + 1, v_, self.settings.keep_features, self.settings.seed)
                if epoch.number == self.training.start:
                    self._say_reduced(found)
        self.callbacks.on_epoch_start(epoch.number + 1)
        self.reporter.clustered()

    def step(self, epoch: Epoch, batch: Batch, loss: Tensor, terms: Mapping[str, Term]) -> None:
        """Log an M-step, and save a checkpoint when one is due.

        Raises:
            UserError: the loss is NaN or infinite.
            KeyboardInterrupt, SystemExit: the process was asked to stop, and a checkpoint has been saved.
        """
        logs = self._logs(loss, terms)
        self.ranks.average(logs.values(), self.training.weight(len(batch.index)))
        for name, value in logs.items():
            epoch.sums[name] = epoch.sums[name] + value if name in epoch.sums else value
            epoch.counts[name] = epoch.counts.get(name, 0) + 1
        epoch.step = batch.progress.step + 1
        show = (epoch.step - 1) % SHOW_EVERY == 0
        self.reporter.step(epoch.number, {name: float(value) for name, value in logs.items()} if show else None)
        lr = torch.tensor(learning_rate(self.settings, batch.progress))
        self.callbacks.on_step_end(epoch.number * self.steps + epoch.step, {**logs, "lr": lr})
        # Ranks must agree to stop, which takes a collective: every few steps is often enough.
        if show or epoch.step == self.steps or (self.ranks.world_size == 1 and self._due()):
            self._check_finite(epoch)
            self._keep_if_due(epoch)

    def epoch(self, epoch: Epoch, features: MomentumFeatures) -> None:
        """End an epoch: write a line of metrics.jsonl and a checkpoint."""
        features.take_seconds()
        self.reporter.clustering(epoch.number + 1)
        found = self.system.prototypes(epoch.state) or epoch.recorded
        means = {name: float(value) / epoch.counts[name] for name, value in epoch.sums.items()}
        record: dict[str, Any] = {"epoch": epoch.number + 1, "lr": self._rate_at_begin(epoch), **means, **epoch.signals}
        if found is not None:
            v_ = self.system.clustered(features)  # V' at the end of this epoch, and for the next E-step
            if not v_.isfinite().all():
                raise UserError(f"the encoder's weights became NaN in epoch {epoch.number + 1}; {CURE}")
            if self.ranks.is_first:
                record |= health.after_m_step(v_, found) | health.information(means, self.system.terms)
        record |= self.system.signals(epoch.number, features)
        if self.ranks.is_first:
            seconds = {
                "features_seconds": features.take_seconds(),
                "seconds": time.monotonic() - self.began,
                "cpu_seconds": time.process_time() - self.cpu_began,
            }
            if self._is_snapshot(epoch.number + 1):
                write_snapshot(self.out, epoch.number + 1, self.system.query)
            record |= seconds
            scores = self.callbacks.on_epoch_end(epoch.number + 1, self.system.query, record)
            self._write({**record, "scores": scores} if scores else record)
        self.began, self.cpu_began = time.monotonic(), time.process_time()

    def end(self, features: MomentumFeatures) -> None:
        """End the training: one more E-step gives the run's prototypes, and the encoder is written."""
        final = final_prototypes(self.training, features)
        if self.ranks.is_first:
            query, own_backbone = self.system.query, self.training.plan.own["own_encoder"]
            write_prototypes(self.out, final)
            write_encoders(self.out, query, self.system.momentum or twin_of(query), own_backbone, self.settings)
            self.reporter.say(self.run.health.words)

    def _recorded(self, number: int) -> bool:
        """Whether an epoch is clustered for the record."""
        return number % self.settings.record_every == 0 or number == self.settings.epochs - 1

    def _is_snapshot(self, done: int) -> bool:
        """Whether the encoder is kept after so many epochs."""
        every = self.settings.snapshot_every
        return every > 0 and done % every == 0

    def _check_granularities(self, found: list[Prototypes]) -> None:
        if len(found) != len(self.settings.clusters):
            name, asked = type(self.system).__name__, self.settings.clusters
            raise ValueError(f"{name}.prototypes returned {len(found)} sets; it must return one for each of {asked}")

    def _assignments_before(self) -> list[NDArray[np.int32]]:
        """Assignments of the last clustered epoch; empty if there is none."""
        return read_assignments(self.out, max(self.run.recorded_epochs, default=0))

    def _logs(self, loss: Tensor, terms: Mapping[str, Term]) -> dict[str, Tensor]:
        """The numbers a step logs, by their names in metrics.jsonl."""
        unknown = set(terms) - set(self.system.terms)
        if unknown:
            raise ValueError(f"{type(self.system).__name__}.m_step returned {unknown}, which its `terms` do not name")
        logs: dict[str, Any] = {"loss": loss}
        for name, term in terms.items():
            others = {f"{name}_{part}": value for part, value in term._asdict().items() if part != "loss"}
            found = {name: term.loss, **others}
            logs |= {key: value for key, value in found.items() if value is not None}
        device = self.training.device
        return {name: torch.as_tensor(value, dtype=torch.float, device=device).detach() for name, value in logs.items()}

    def _rate_at_begin(self, epoch: Epoch) -> float:
        return learning_rate(self.settings, Progress(epoch.number, 0, self.steps, self.settings.epochs))

    def _write(self, record: Mapping[str, Any]) -> None:
        append_metrics(self.out, record)
        self._keep(record["epoch"], None)
        self.reporter.epoch(record)
        state, words = self.run.health
        if state != self.condition and state in ("collapsed", "diverging"):  # said when it begins, not only at the end
            self.reporter.say(f"note: {words}")
        self.condition = state

    def _say_reduced(self, clusters: list[Prototypes]) -> None:
        for asked, found in zip(self.settings.clusters, clusters, strict=True):
            if len(found.centroids) < asked:
                self.reporter.say(
                    f"note: requested {asked} clusters but found only {len(found.centroids)} distinct features"
                )

    def _due(self) -> int:
        """The signal that asked the process to stop; 1: a checkpoint is due; 0: neither."""
        late = time.monotonic() - self.kept >= 60 * self.settings.checkpoint_minutes
        return self.interruption.asked or int(late)

    def _keep_if_due(self, epoch: Epoch) -> None:
        due = self.ranks.max(self._due(), self.training.device)
        if not due:
            return
        epoch.seconds, epoch.cpu_seconds = time.monotonic() - self.began, time.process_time() - self.cpu_began
        self._keep(epoch.number, epoch)
        if due > 1:
            self.reporter.say(f"stopped after step {epoch.step} of epoch {epoch.number + 1}; continue with --resume")
            self.ranks.barrier()  # a rank that exits before the checkpoint is written would abort the others
            self.interruption.end(due)

    def _keep(self, done: int, epoch: Epoch | None) -> None:
        if self.ranks.is_first:  # the state of all others is the same
            self.training.save(done, epoch)
        self.kept = time.monotonic()

    def _check_finite(self, epoch: Epoch) -> None:
        """Once a loss is not finite, neither is the sum, so checking it every few steps is enough."""
        if not epoch.sums["loss"].isfinite():
            done = f"by step {epoch.step} of {self.steps} of epoch {epoch.number + 1}"
            raise UserError(f"the loss became NaN or infinite {done}; {CURE}; the last good checkpoint is unchanged")
