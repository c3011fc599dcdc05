"""`--logger NAME`: the numbers of a training in TensorBoard, a .csv file, W&B or MLflow, by Lightning's loggers."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from protonce.callbacks import Callback
from protonce.encoder import Encoder
from protonce.errors import UserError, one_line
from protonce.files import write_whole

EVERY = 10  # steps between two points of the losses
FOLDER = "logs"  # in the run folder
CONTINUED = ("wandb", "mlflow")  # in which a resumed run is the same run
PROJECT = "protonce"  # of W&B, and the experiment of MLflow
Arguments = Callable[[Path, str | None, int], dict[str, Any]]


def _tensorboard(run: Path, _: str | None, step: int) -> dict[str, Any]:
    # TensorBoard hides what an interrupted run has logged after its checkpoint.
    place = {"root_dir": run / FOLDER, "name": "tensorboard", "version": ""}
    return {**place, "purge_step": step + 1, "default_hp_metric": False}


def _csv(run: Path, *_: object) -> dict[str, Any]:
    return {"root_dir": run / FOLDER, "name": "csv"}


def _wandb(run: Path, version: str | None, _: int) -> dict[str, Any]:
    return {"save_dir": run / FOLDER, "name": run.name, "project": PROJECT, "version": version}


def _mlflow(run: Path, version: str | None, _: int) -> dict[str, Any]:
    from mlflow import get_tracking_uri

    store = {"tracking_uri": get_tracking_uri(), "experiment_name": PROJECT}  # where the user's other runs are
    return {**store, "run_name": run.name, "run_id": version}


# Package, class, and the arguments for a run folder, the version of a run that is resumed, and the steps it has done.
KINDS: Mapping[str, tuple[str, str, Arguments]] = {
    "tensorboard": ("tensorboard", "lightning_fabric.loggers.TensorBoardLogger", _tensorboard),
    "csv": ("lightning_fabric", "lightning_fabric.loggers.CSVLogger", _csv),
    "wandb": ("wandb", "lightning.pytorch.loggers.WandbLogger", _wandb),
    "mlflow": ("mlflow", "lightning.pytorch.loggers.MLFlowLogger", _mlflow),
}


class Logger(Callback):
    """Forwards what happens to a logger of Lightning.

    Losses are logged every 10 steps as `step/NAME`, the numbers of metrics.jsonl as `epoch/NAME`, scores of callbacks
    as `evaluation/NAME`; the x axis is the number of steps. If the logger fails later, training continues without it.

    Args:
        name: "tensorboard", "csv", "wandb" or "mlflow".
        say: reports that the logger has failed.

    Raises:
        UserError: there is no such logger, or its package is not installed.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        if name not in KINDS:
            raise UserError(f"there is no logger {name}; choose among {', '.join(KINDS)}")
        package, place, self._arguments = KINDS[name]
        module, _, kind = place.rpartition(".")
        try:
            importlib.import_module(package)
            self._kind = getattr(importlib.import_module(module), kind)
        except ImportError as error:
            raise UserError(f"--logger {name} needs {error.name}: pip install 'protonce[{name}]'") from None
        self.name, self.say = name, say
        self._logger: Any = None
        self._step, self._shared = 0, False

    def on_train_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """Open the logger, and log the settings of a new run.

        Raises:
            UserError: the logger does not start.
        """
        self._step = step
        self._shared = getattr(sys.modules.get("wandb"), "run", None) is not None  # the user has begun a run of W&B
        file = run / FOLDER / f"{self.name}.version"
        version = file.read_text(encoding="utf-8") if file.exists() else None
        try:
            logger = self._kind(**self._arguments(run, version, step))
            if version is None:
                with contextlib.suppress(NotImplementedError):  # a .csv has no place for settings
                    logger.log_hyperparams(dict(config))
            assert logger.experiment is not None  # starts it
            version = str(logger.version)
        except Exception as error:  # whatever the libraries raise: no account, no server, a store of another version
            reason = one_line(str(error), 300) or type(error).__name__
            cure = "mend it and add --resume, or leave it out"
            raise UserError(f"--logger {self.name} does not start: {reason}; {cure}") from error
        self._logger = logger
        if self.name in CONTINUED:
            file.parent.mkdir(exist_ok=True)
            write_whole(file, version)

    def on_step_end(self, step: int, logs: Mapping[str, Tensor]) -> None:
        """Log the losses, every few steps."""
        self._step = step
        if step % EVERY == 0:
            self._log("step", {name: float(value) for name, value in logs.items()})

    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> None:
        """Log the line of metrics.jsonl."""
        del epoch, encoder
        self._log("epoch", flat(record))
        self._forward(lambda logger: logger.save())

    def on_evaluation(self, epoch: int, scores: Mapping[str, float]) -> None:
        """Log the scores of an epoch."""
        del epoch
        self._log("evaluation", scores)

    def on_train_end(self, run: Path, completed: bool) -> None:
        """Close the logger."""
        del run

        def close(logger: Any) -> None:
            logger.finalize("success" if completed else "failed")
            if hasattr(logger.experiment, "finish") and not self._shared:
                # Otherwise the next training would log to the same run of W&B.
                logger.experiment.finish(exit_code=0 if completed else 1)

        self._forward(close)

    def _log(self, kind: str, numbers: Mapping[str, float]) -> None:
        named = {f"{kind}/{name}": value for name, value in numbers.items()}
        self._forward(lambda logger: logger.log_metrics(named, step=self._step))

    def _forward(self, call: Callable[[Any], None]) -> None:
        """Call the logger; if it fails, of a server that is gone for instance, training continues without it."""
        if self._logger is None:
            return
        try:
            call(self._logger)
        except Exception as error:
            self._logger = None
            reason = one_line(str(error), 300) or type(error).__name__
            self.say(f"note: --logger {self.name} has failed, and training continues without it: {reason}")


def flat(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by name; those of a list, one per granularity, as NAME/0, NAME/1 and so on."""
    pairs = [
        pair
        for name, value in record.items()
        for pair in (
            [(f"{name}/{m}", part) for m, part in enumerate(value)] if isinstance(value, list) else [(name, value)]
        )
    ]
    return {name: value for name, value in pairs if isinstance(value, int | float)}
