"""`protonce evaluate RUN detection` and `segmentation`: train a detector on the backbone of a run, and score it."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protonce import manifest, randomness
from protonce.data.masks import import_coco
from protonce.data.object_sources import join, open_objects, shared_files
from protonce.data.objects import ObjectImages
from protonce.errors import UserError
from protonce.evaluate.drafts import Drafts
from protonce.evaluate.objects.body import Body, has_small_stem
from protonce.evaluate.objects.examples import Examples
from protonce.evaluate.objects.faster_rcnn import faster_rcnn
from protonce.evaluate.objects.inference import predict
from protonce.evaluate.objects.mask_rcnn import mask_rcnn
from protonce.evaluate.objects.scoring import Found, score
from protonce.evaluate.objects.training import Schedule, fit
from protonce.evaluate.options import OBJECT_PROTOCOLS
from protonce.evaluate.saving import file_stem, print_result, summary
from protonce.evaluate.task import Outcome, over_draws
from protonce.features import Unchanged
from protonce.progress import Steps
from protonce.ranks import Ranks, error_on_first_rank
from protonce.run import Run

WARMUP = {"detection": 500, "segmentation": 1000}  # steps, see `DetectorOptions.warmup_steps`
SHOWN_FAULTS = 5


@dataclass(frozen=True)
class ObjectTask:
    """A run, images with objects, and the options of a protocol."""

    run: Run
    protocol: str
    train: ObjectImages
    test: ObjectImages
    options: Any
    steps: Steps
    drafts: Drafts
    ranks: Ranks

    @property
    def device(self) -> torch.device:
        """That of this rank."""
        several = self.run.device == "cuda"
        return torch.device("cuda", self.ranks.local_rank) if several else torch.device(self.run.device)

    @property
    def coco(self) -> list[str]:
        """Of what COCO's average precision is asked for."""
        if self.protocol == "segmentation":
            return ["box", "mask"]
        return ["box"] if self.test.spec.startswith("COCO") else []

    def model(self) -> nn.Module:
        """A new detector on the query encoder's backbone; its own layers start from the global random state."""
        o, settings, encoder = self.options, self.run.settings, self.run.encoders[0]
        common = {"longest": o.longest, "regions": o.regions, "mean": settings.mean, "std": settings.std}
        classes = len(self.train.classes)
        if self.protocol == "segmentation":
            return mask_rcnn(encoder, classes, sizes=o.sizes, **common)
        return faster_rcnn(Body(encoder, frozen=o.layers == "frozen"), classes, size=o.size, **common)

    def schedule(self, examples: int) -> Schedule:
        """Steps and learning rate for so many training images."""
        o = self.options
        steps = o.steps if self.protocol == "segmentation" else o.epochs * max(examples // o.batch_size, 1)
        warmup = o.warmup_steps if o.warmup_steps != "auto" else min(WARMUP[self.protocol], steps // 10)
        drops = [round(drop * steps) for drop in o.drops]
        return Schedule(steps, o.batch_size, o.lr, o.weight_decay, drops, warmup)


def evaluate_objects(
    run: Run,
    protocol: str,
    train: object,
    test: object,
    *,
    name: str | None = None,
    quiet: bool = False,
    again: bool = True,
    **options: object,
) -> dict[str, Any]:
    """Train a detector with the backbone of a run, score it on test images, and save the result to `evaluations/`.

    An interrupted evaluation resumes if it is started again with the same arguments.

    Args:
        run: a finished run.
        protocol: one of OBJECT_PROTOCOLS.
        train: one or several data sets with boxes, see `open_objects`; None: the run's own data, if it has boxes.
        test: likewise; None: the test part of the first of `train`.
        name: suffix of the file name, to save several evaluations with the same protocol.
        quiet: print nothing.
        again: False: return a saved result of the same weights, options and images instead of evaluating again.
        options: of the protocol, see `protonce.evaluate.options`.

    Raises:
        UserError: an option or the data is invalid, or the backbone cannot be used.
    """
    ranks = Ranks()
    with error_on_first_rank():
        chosen = OBJECT_PROTOCOLS[protocol].from_mapping(options, protocol)
        stem = file_stem(protocol, name)
        manifest.check_writable(run.path)
        if run.own:
            raise UserError(f"{protocol} is not available for runs with a custom encoder or views")
        learnt, tested, how = _open(run, train, test, protocol)
        key = _key(run, protocol, chosen, learnt, tested)
        kept = run.evaluations.get(stem, {}) if not again else {}
        if kept.get("key") == key:
            return kept
        steps, drafts = Steps(quiet or not ranks.is_first), Drafts(run.path, f"evaluations/.{stem}.draft", key)
        task = ObjectTask(run, protocol, learnt, tested, chosen, steps, drafts, ranks)
        examples = Examples(learnt, 0, masks=protocol == "segmentation")
        _check(task, len(examples))
    ranks.init_process_group("nccl" if task.device.type == "cuda" else "gloo")
    with randomness.preserved(task.device.type):
        outcome = _outcome(task, len(examples))
    data = {
        "train": _about(learnt),
        "test": _about(tested),
        "classes": len(learnt.classes) - len(outcome.left_out),
        **({"left_out": outcome.left_out} if outcome.left_out else {}),
        "split": how,
    }
    result = {"protocol": protocol, **summary(outcome, chosen), "data": data, "key": key}
    if ranks.is_first:
        file = f"evaluations/{stem}.json"
        manifest.write(run.path, file, json.dumps(result, indent=2) + "\n")
        drafts.remove()
        if not quiet:
            notes = [*outcome.notes, how, f"features: {outcome.features}", f"saved to {run.path / file}"]
            print_result(result, [line for images in (learnt, tested) for line in _about_faults(images)], notes)
    ranks.barrier()
    return result


def _check(task: ObjectTask, examples: int) -> None:
    """What would be noticed after the ranks have met, or after the training.

    Raises:
        UserError: the backbone cannot be used, a package is missing, or a batch has fewer images than processes.
    """
    with randomness.preserved(task.device.type):
        task.model()
    if task.coco:
        import_coco()
    batch = min(task.options.batch_size, examples)
    if batch < task.ranks.world_size:
        raise UserError(
            f"a batch of {batch} images leaves none for some of {task.ranks.world_size} processes; "
            "start fewer processes or increase --batch-size"
        )


def _open(run: Run, train: object, test: object, protocol: str) -> tuple[ObjectImages, ObjectImages, str]:
    """Training and test images, and a description of the split."""
    given = [train] if isinstance(train, str) else train
    if given is None:
        given = [str(source)] if (source := run.config["data"]["source"]) else []
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, str) for one in (*given, test or "")):
        raise UserError(f"{protocol} takes images with boxes by name: give --train VOC2007:ROOT or COCO:ROOT")
    learnt = join([open_objects(spec, "train") for spec in given])
    tested = open_objects(_without_split(given[0]) if test is None else str(test), "test", learnt.classes)
    shared = shared_files(learnt, tested)
    if shared:
        raise UserError(
            f"{learnt.spec} and {tested.spec} share {len(shared)} images, for example {shared[0]}; "
            "give other test images with --test"
        )
    if protocol == "segmentation":
        for images in (learnt, tested):
            if not images.has_masks:
                raise UserError(
                    f"{images.spec} has objects without masks; segmentation needs masks, detection does not"
                )
    how = "the data set's own test split" if test is None else "test images given by the user"
    return learnt, tested, how


def _without_split(spec: str) -> str:
    """NAME:ROOT of NAME@SPLIT:ROOT, which has a test part."""
    name, _, root = spec.partition(":")
    return f"{name.partition('@')[0]}:{root}"


def _outcome(task: ObjectTask, images: int) -> Outcome:
    """Scores of each training of the detector; finished ones are not repeated."""
    options, schedule = task.options, task.schedule(images)
    found = [_piece(task, f"run {number}", number, schedule) for number in range(options.runs)]
    metrics = {metric: over_draws([one["metrics"][metric] for one in found]) for metric in found[0]["metrics"]}
    segmentation = task.protocol == "segmentation"
    frozen = not segmentation and options.layers == "frozen"
    what = "frozen; FPN, RPN and heads trained" if frozen else "all layers trained"
    notes = [f"{schedule.steps:,} steps, {schedule.warmup_steps} of them warm-up"]
    if has_small_stem(task.run.encoders[0]):
        notes.append("the stem for small images got its stride and its pooling back")
    left_out = len(task.train) - images
    if left_out:
        notes.append(f"{left_out} training images without an object to learn from were left out")
    return Outcome(
        metrics,
        f"feature maps of the query encoder's backbone, {what}",
        {"warmup_steps": schedule.warmup_steps, "steps": schedule.steps},
        details={name: found[0][name] for name in ("by_class", "curves", "shown")},
        left_out=dict.fromkeys(found[0]["left_out"], 0),
        notes=notes,
    )


def _piece(task: ObjectTask, name: str, number: int, schedule: Schedule) -> dict[str, Any]:
    """What one training found, from the draft if it is there; the same on all ranks."""
    ranks, drafts = task.ranks, task.drafts
    known: dict[str, Any] | None = ranks.broadcast_object(drafts.pieces.get(name) if ranks.is_first else None)
    if known is not None:
        return known
    found = dataclasses.asdict(_train_and_score(task, number, schedule))
    if ranks.is_first:
        drafts.keep(name, found)
    return found


def _train_and_score(task: ObjectTask, number: int, schedule: Schedule) -> Found:
    """Train one detector and score it on the test images."""
    ranks, options = task.ranks, task.options
    seed = randomness.key(options.seed, "detector", number) % 2**31
    torch.manual_seed(seed)
    model = task.model()
    state: dict[str, Tensor] = ranks.broadcast_object(task.drafts.tensors() if ranks.is_first else None)
    mine = int(state.pop("run", torch.tensor(-1))) == number
    left = schedule.steps - (int(state["done"]) if mine else 0)
    of_all = f"{number + 1} of {options.runs}"
    with ExitStack() as stack:
        for body in (m for m in model.modules() if isinstance(m, Body) and m.frozen):
            stack.enter_context(Unchanged(body))
        seen = stack.enter_context(task.steps.doing(f"detector {of_all} on {len(task.train):,} images", left))
        fit(
            model,
            Examples(task.train, seed, masks=task.protocol == "segmentation"),
            schedule,
            seed=seed,
            device=task.device,
            ranks=ranks,
            workers=task.run.settings.workers if task.device.type == "cuda" else 0,
            state=state if mine else None,
            keep=lambda tensors: task.drafts.keep_tensors({**tensors, "run": torch.tensor(number)}),
            seen=seen,
        )
    with task.steps.doing(f"detections {of_all} on {len(task.test):,} images", len(task.test)) as seen:
        found = predict(model, task.test, device=task.device, ranks=ranks, seen=seen)
    return score(found, task.test, options.seed, voc=task.protocol == "detection", coco=task.coco)


def _about(images: ObjectImages) -> dict[str, Any]:
    faults = {"faults": images.faults} if images.faults else {}
    return {"source": images.spec, "images": len(images), "fingerprint": images.identity, **faults}


def _about_faults(images: ObjectImages) -> list[str]:
    """The first faults of the annotations, and how many there are in all."""
    shown = [f"{images.spec}: {fault}" for fault in images.faults[:SHOWN_FAULTS]]
    more = len(images.faults) - len(shown)
    return [*shown, f"{images.spec}: {more} more faults, all in the saved result"] if more > 0 else shown


def _key(run: Run, protocol: str, options: Any, *sets: ObjectImages) -> str:
    """Hash that identifies an evaluation by weights, options, images and annotations."""
    parts = [run.encoder_hash, protocol, dataclasses.asdict(options), *(images.identity for images in sets)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
