"""`protonce.train`: from data and settings to a finished run."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from protonce import randomness
from protonce.assembly import assemble
from protonce.callbacks import Callback, Callbacks
from protonce.data.sources import Data
from protonce.data.views import Views
from protonce.journal import Journal, Lost, tell_changes, writing
from protonce.loggers import Logger
from protonce.methods.base import System
from protonce.preparation import Request, prepare
from protonce.progress import Reporter
from protonce.ranks import Ranks, error_on_first_rank
from protonce.run import Run
from protonce.training import fit
from protonce.watching import Watch


def train(
    data: Data,
    out: str | Path,
    *,
    recipe: str | None = None,
    method: str | type[System] | None = None,
    encoder: nn.Module | None = None,
    views: Views | str | None = None,
    resume: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str] = (),
    watch: Data | None = None,
    watch_every: int = 10,
    **settings: object,
) -> Run:
    """Learn an encoder and a hierarchy of prototypes from images without labels.

    Args:
        data: a folder, an archive, a table of paths, `builtin`, a list or an array of images, a data set of torch or
            Hugging Face, or an object with `len` and `load(i)`; all forms are in docs/usage.md.
        out: the run folder; new or empty, or the run to resume.
        recipe: name of a recipe; None: chosen by the size of the data and the device.
        method: name of a system, or a subclass of `System`; None: the recipe's, or PCL.
        encoder: custom module from views (B, ...) to features (B, D), instead of a timm backbone.
        views: the setting of this name, or custom views, for data that are not images.
        resume: continue the run in `out` after its last checkpoint, or start it if there is none.
        quiet: print nothing.
        callbacks: called at the start and end of training, of every epoch and of every step.
        loggers: a name or several: "tensorboard", "csv", "wandb" or "mlflow".
        watch: labelled images that are not trained on, to record kNN and linear accuracy during training. They are for
            watching only: report scores on other images if you choose anything by them.
        watch_every: epochs between two evaluations of `watch`.
        settings: any of `Settings`, and options of the system; they override the recipe's.

    Raises:
        UserError: an argument, a setting or the data is invalid. Nothing has been written, unless training had started.
    """
    if isinstance(views, str):
        settings, views = {**settings, "views": views}, None
    own = {"own_encoder": encoder is not None, "own_views": views is not None}
    request = Request(data, Path(out), recipe, method, resume, settings, **own)
    ranks = Ranks()
    reporter = Reporter(quiet or not ranks.is_first)
    with error_on_first_rank():
        plan = prepare(request, reporter, ranks)
        watching = [] if watch is None else [Watch(watch, watch_every, plan.settings, views)]
        whole, _ = plan.source.subset_of or (plan.source, None)
        if any(one.source.fingerprint == whole.fingerprint for one in watching):
            reporter.say("note: --watch has the images that are trained on; watch others")
        names = [loggers] if isinstance(loggers, str) else loggers
        called = Callbacks([*callbacks, *watching, *(Logger(name, reporter.say) for name in names)])
    lost = Lost(plan.out, Reporter(quiet))
    training = assemble(plan, ranks, encoder, views, reporter, lost)
    with writing(plan, ranks, lost), randomness.preserved(plan.settings.device):
        if plan.previous is not None and plan.previous.finished:
            reporter.say(f"{plan.out} has already been trained for {plan.settings.epochs} epochs")
        else:
            with Journal(training, reporter, called) as journal:
                fit(training, journal)
            tell_changes(training, reporter)
    ranks.barrier()
    return Run(plan.out, encoder, views)
