"""`protonce evaluate RUN PROTOCOL`: evaluate a run on labelled images, print a table and write a JSON file."""

import dataclasses
import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from protonce import manifest
from protonce.data.folder_labels import folder_labels, match_folder_labels
from protonce.data.sources import Data, Source, has_test_part, open_source
from protonce.data.splitting import check_apart, split
from protonce.errors import UserError
from protonce.evaluate import clustering, information, knn, linear, lowshot, semisup
from protonce.evaluate.drafts import Drafts
from protonce.evaluate.objects.evaluation import evaluate_objects
from protonce.evaluate.options import OBJECT_PROTOCOLS, PROTOCOLS, Options
from protonce.evaluate.saving import file_stem, print_result, summary
from protonce.evaluate.task import Outcome, Task, single_labels
from protonce.progress import Steps
from protonce.reported import is_same
from protonce.run import Run

ONE_SET = ("clustering", "information")
FIFTH = "test images are a random fifth"
ALWAYS_ONE = "always 1 with up to five classes"
CHEAP = ("knn", "clustering")  # protocols whose scores of random weights are worth their time,
FEW = 20_000  # up to so many images
RUNNERS: dict[str, Callable[[Task], Outcome]] = {
    "knn": knn.protocol,
    "linear": linear.protocol,
    "lowshot": lowshot.protocol,
    "semisup": semisup.protocol,
    "clustering": clustering.protocol,
    "information": information.protocol,
}


def evaluate(
    run: Run,
    protocol: str,
    *,
    train: Data | Sequence[str] | None = None,
    test: Data | None = None,
    name: str | None = None,
    quiet: bool = False,
    again: bool = True,
    untrained: Callable[[], Run] | None = None,
    **options: object,
) -> dict[str, Any]:
    """Evaluate a run, print the result, and save it to the run's `evaluations/`.

    An interrupted evaluation resumes if it is started again with the same arguments.

    Args:
        run: a finished run.
        protocol: one of PROTOCOLS or OBJECT_PROTOCOLS.
        train: labelled images to train on; None: the run's own data. For detection and segmentation one or several
            data sets with boxes.
        test: labelled images to test on; None: the test split of the data, or a fifth of the training images.
            Clustering and information use one data set: `test`, else `train`, else the run's own data.
        name: suffix of the file name, to save several evaluations with the same protocol.
        quiet: print nothing.
        again: False: return a saved result of the same weights, options and images instead of evaluating again.
        untrained: returns the same encoder with random weights, whose scores are to stand beside; None: they are not.
        options: of the protocol, see `protonce.evaluate.options`.

    Raises:
        UserError: the protocol, an option or the images are invalid.
    """
    if protocol in OBJECT_PROTOCOLS:
        return evaluate_objects(run, protocol, train, test, name=name, quiet=quiet, again=again, **options)
    if protocol not in PROTOCOLS:
        known = ", ".join([*PROTOCOLS, *OBJECT_PROTOCOLS])
        raise UserError(f"unknown protocol {protocol!r}; available protocols: {known}")
    chosen = PROTOCOLS[protocol].from_mapping(options, protocol)
    stem = file_stem(protocol, name)
    manifest.check_writable(run.path)
    labelled, tested, how = (_one_set if protocol in ONE_SET else _parts)(run, train, test)
    file, key = f"evaluations/{stem}.json", _key(run, protocol, chosen, labelled, tested)
    kept = run.evaluations.get(stem, {}) if not again else {}
    if kept.get("key") == key:
        return kept
    drafts = Drafts(run.path, f"evaluations/.{stem}.draft", key)
    outcome = RUNNERS[protocol](Task(run, labelled, tested, chosen, Steps(quiet), drafts))
    about = _about_split(labelled, tested, how, outcome)
    _remark_on_top5(outcome, about["classes"])
    chance = _chance(outcome, tested)
    result = {"protocol": protocol, **summary(outcome, chosen), **chance, "data": about, "key": key}
    _remark_on_deviations(result)
    manifest.write(run.path, file, json.dumps(result, indent=2) + "\n")
    drafts.remove()
    if untrained is not None and protocol in CHEAP and len(labelled) + len(tested) <= FEW:
        other = untrained()
        drafts = Drafts(other.path, "draft", key)
        same = RUNNERS[protocol](Task(other, labelled, tested, chosen, Steps(quiet=True), drafts))
        result["untrained"] = {metric: _mean(value) for metric, value in same.metrics.items()}
        manifest.write(run.path, file, json.dumps(result, indent=2) + "\n")
    if not quiet:
        about_data = dict.fromkeys([*labelled.notes, *tested.notes])
        notes = [*outcome.notes, *about_data, how, f"features: {outcome.features}", f"saved to {run.path / file}"]
        skipped = {source.spec: _skipped(source) for source in (labelled, tested) if source.skipped}
        print_result(result, list(skipped.values()), notes)
    return result


def _mean(value: Any) -> float:
    return float(value["mean"] if isinstance(value, dict) else value)


def _chance(outcome: Outcome, tested: Source) -> dict[str, dict[str, float]]:
    """The score of guessing for each metric of which it is known: always the most frequent class; AMI 0."""
    if tested.marks is not None or tested.labels is None:
        return {}
    labels = [label for label in tested.labels if label not in outcome.left_out]
    most = max(Counter(labels).values()) / len(labels)
    known = {"accuracy": most, "momentum_accuracy": most, "top1": most, "ami": 0.0}
    found = {m: known[m.partition("@")[0]] for m in outcome.metrics if m.partition("@")[0] in known}
    return {"chance": found} if found else {}


def _remark_on_top5(outcome: Outcome, classes: int) -> None:
    """Say that top-5 accuracy means nothing if there are no more than five classes."""
    if classes <= 5:
        for metric in outcome.metrics:
            if metric.partition("@")[0] == "top5":
                before = outcome.remarks.get(metric)
                outcome.remarks[metric] = f"{before}; {ALWAYS_ONE}" if before else ALWAYS_ONE


def _remark_on_deviations(result: dict[str, Any]) -> None:
    """Beside the paper's table 1, also give the deviation that the published code computes, with n instead of n - 1."""
    if result["protocol"] == "lowshot":
        for metric, score in result["metrics"].items():
            if is_same(result, metric):
                deviation = statistics.pstdev(score["runs"])
                result.setdefault("remarks", {})[metric] = f"± {deviation:.3f} with n, as in the paper"


def _about_split(labelled: Source, tested: Source, how: str, outcome: Outcome) -> dict[str, Any]:
    """The data of an evaluation: training and test images, classes, those left out, and how images were split."""
    classes = len(labelled.marks.classes if labelled.marks else set(single_labels(labelled)))
    test = _about(tested)
    if outcome.tested not in (None, len(tested)):
        test["used"] = outcome.tested
    return {
        "train": _about(labelled),
        **({} if tested is labelled else {"test": test}),
        "classes": classes - len(outcome.left_out),
        **({"left_out": outcome.left_out} if outcome.left_out else {}),
        "split": how,
    }


def _about(source: Source) -> dict[str, Any]:
    return {"source": source.spec, "images": len(source), "fingerprint": source.fingerprint}


def _key(run: Run, protocol: str, options: Options, *sources: Source) -> str:
    """Hash that identifies an evaluation by weights, options, images and labels."""
    digest = hashlib.sha256(json.dumps([run.encoder_hash, protocol, dataclasses.asdict(options)]).encode())
    for source in sources:
        digest.update("\0".join([source.identity, *(source.labels or [])]).encode(errors="replace"))
        digest.update(source.marks.values.tobytes() if source.marks else b"")
    return digest.hexdigest()[:16]


def _skipped(source: Source) -> str:
    return f"{len(source.skipped)} files of {source.spec} could not be read and were skipped"


def _one_set(run: Run, train: Data | None, test: Data | None) -> tuple[Source, Source, str]:
    """The labelled images of a protocol that uses one data set, for training and for test, and a description."""
    source = (
        _labelled(run, train, "--train or --test") if test is None else open_source(test, "test", run.settings.seed)
    )
    _check_classes(source, source)
    return source, source, f"the images of {source.spec}"


def _labelled(run: Run, train: Data | None, option: str = "--train") -> Source:
    """The labelled images: those given, or the run's own.

    Raises:
        UserError: the run's own images are not labelled, or not all of them.
    """
    if train is not None:
        return open_source(train, "train", run.settings.seed)
    source = run.source()
    if source.marks is None and (source.labels is None or "" in source.labels):
        which = "the images" if source.labels is None else f"{source.labels.count(''):,} of {len(source):,} images"
        raise UserError(
            f"{which} that {run.path} was trained on have no labels; give labelled images with {option} LABELLED"
        )
    return source


def _parts(run: Run, train: Data | None, test: Data | None) -> tuple[Source, Source, str]:
    """Labelled training and test images, and a description of the split."""
    data = run.config["data"]["source"] if train is None else train
    source = _labelled(run, train)
    labelled, tested, how = train_and_test(source, data, test, run.settings.seed)
    whole = source if how.startswith(FIFTH) else tested  # the source of the test images
    before = run.config["data"]
    seen = whole.fingerprint == before["fingerprint"]
    if whole.stamps is None:  # data in memory is not identified by its names
        seen = whole.identity == before.get("identity")
    if seen and not run.imported:
        how += ", all seen in training without labels"
    return labelled, tested, how


def train_and_test(labelled: Source, data: Data, test: Data | None, seed: int) -> tuple[Source, Source, str]:
    """Labelled training and test images of DATA, and a description of the split.

    Raises:
        UserError: there are no test images, or they share files with the training images or have other classes.
    """
    if test is not None:
        tested, how = _match_labels(open_source(test, "test", seed), labelled), "test images given by the user"
    elif has_test_part(data):
        tested, how = open_source(data, "test", seed), "the data set's own test split"
    else:
        labelled, tested = split(labelled, seed)
        how = f"{FIFTH} of {labelled.spec}"
        if not len(tested):
            raise UserError(f"no class of {labelled.spec} has two images, so none can be used for testing; give --test")
    check_apart(labelled, tested)
    _check_classes(labelled, tested)
    return labelled, tested, how


def _match_labels(tested: Source, labelled: Source) -> Source:
    """Test images with folder labels renamed to match the training labels, at any depth of the folders."""
    known = set(labelled.labels or [])
    by_folders = tested.files is not None and tested.labels in (None, folder_labels(tested.names))
    if not by_folders or (tested.labels is not None and known.issuperset(tested.labels)):
        return tested
    labels = match_folder_labels(tested.names, known)
    return tested if labels is None else dataclasses.replace(tested, labels=labels)


def _check_classes(labelled: Source, tested: Source) -> None:
    """Check that there are two classes, and that test images have the same kind of labels and no new class."""
    if (labelled.marks is None) != (tested.marks is None):
        kinds = ("may have several classes", "have one class each")
        words = [f"images of {s.spec} {kinds[s.marks is None]}" for s in (labelled, tested)]
        raise UserError(f"{' and '.join(words)}; training and test images must be of the same kind")
    if labelled.marks is not None and tested.marks is not None:
        if labelled.marks.classes != tested.marks.classes:
            raise UserError(f"{labelled.spec} and {tested.spec} do not have the same classes")
        return
    known, asked = set(single_labels(labelled)), set(single_labels(tested))
    if len(known) < 2:
        raise UserError(f"{labelled.spec} has only one class, {min(known)}; at least two are needed")
    unknown = asked - known
    if unknown == asked:
        raise UserError(
            f"{tested.spec} ({min(unknown)}, ...) and {labelled.spec} ({min(known)}, ...) have no label in common; "
            "use the same folder names for both"
        )
    if unknown:
        raise UserError(
            f"class {min(unknown)} of {tested.spec} has no training images in {labelled.spec}"
            + (f" (nor do {len(unknown) - 1} other classes)" if len(unknown) > 1 else "")
            + "; remove these test images, or add training images"
        )
