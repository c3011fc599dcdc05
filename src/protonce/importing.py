"""`protonce import FILE --out RUN`: make a run folder from other weights, for use with every command."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protonce import capacity, manifest, weights
from protonce.auto import FEWEST_IMAGES, DataSize, resolve
from protonce.config import ARCHITECTURE, Resolved, Settings
from protonce.data.loader import Loader
from protonce.data.sources import Data, Source, open_source
from protonce.data.views import ImageViews
from protonce.devices import find_device, look_at_machine
from protonce.encoder import Encoder, build, timm_backbone
from protonce.errors import UserError
from protonce.features import extract
from protonce.files import is_empty, whole_folder
from protonce.momentum import twin_of
from protonce.preparation import is_pretrained
from protonce.progress import Steps
from protonce.prototypes import Prototypes, cluster
from protonce.ranks import Ranks
from protonce.run import Run
from protonce.run.encoder_file import write_encoders
from protonce.run.prototype_files import write_prototypes
from protonce.run.writing import create_folder

USUAL = {"image_size": 224, "plain_resize": 256, "stem": "standard"}  # how most other encoders were trained
CANDIDATES = (  # architectures to try if none is named
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d"),
    *("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "convnext_tiny", "convnext_small"),
    *("efficientnet_b0", "mobilenetv3_large_100", "regnety_016", "densenet121"),
)
QUERY_AND_TWIN = {  # prefixes of query head, twin backbone and twin head by that of the query backbone
    "module.encoder_q.": ("module.encoder_q.fc.", "module.encoder_k.", "module.encoder_k.fc."),
    "encoder_q.": ("encoder_q.fc.", "encoder_k.", "encoder_k.fc."),
    "query.backbone.": ("query.head.", "momentum.backbone.", "momentum.head."),
}


@dataclass(frozen=True)
class Imported:
    """Names of the tensors of a file that were used, that are missing from it, and that were not used."""

    used: list[str]
    missing: list[str]
    left_over: list[str]


def import_encoder(
    file: str,
    out: Path,
    *,
    data: Data | None = None,
    like: Run | None = None,
    quiet: bool = False,
    **settings: object,
) -> tuple[Run, Imported]:
    """Make a run folder from other weights, or from an untrained encoder.

    Args:
        file: a checkpoint of the published PCL or MoCo, a state dict of timm or of torchvision's ResNets,
            `timm:NAME`, another run, or `untrained`.
        out: a new or empty folder.
        data: images to cluster into prototypes, as in an E-step; None: the run has no prototypes.
        like: a run from which an untrained encoder takes its architecture and preprocessing.
        quiet: print nothing.
        settings: any of `Settings`; `auto` is what is known of the encoder.

    Raises:
        UserError: the file cannot be loaded safely, or has another architecture. Nothing has been written.
    """
    if not is_empty(out):
        raise UserError(f"{out} is not empty; choose a new folder")
    checked = Settings.from_mapping(settings, "import")  # mistakes are reported before anything is read
    settings = {name: value for name in settings if (value := getattr(checked, name)) != "auto"}
    given = _given(file, like, settings)
    early = Settings.from_mapping(given, "import")
    state = {} if file == weights.UNTRAINED else weights.read(file, file)
    source = None if data is None else open_source(data, "train", early.seed, early.limit)
    prefix = ""
    if state:
        given["backbone"], prefix = _recognise(file, state, given)
        given |= _checked_head(file, _head(state, prefix), settings)
    asked = Settings.from_mapping(given, "import")
    size = DataSize(FEWEST_IMAGES, 0) if source is None else DataSize(len(source), source.side)
    resolved = resolve(asked, size, look_at_machine(find_device(asked.device), Ranks()))
    capacity.check_encoders(resolved)
    query = build(resolved)
    resolved = dataclasses.replace(resolved, dim=query.dim)  # without a head the features are the embedding
    twin = twin_of(query)
    imported = _fill(state, prefix, query, twin) if state else Imported([], [], [])
    steps = Steps(quiet)
    for line in [] if source is None else [source.summary, *(f"note: {note}" for note in source.notes)]:
        steps.say(line)
    prototypes = None if source is None else _cluster(source, twin, resolved, steps)

    with whole_folder(out) as part:
        create_folder(part, source, {"own_encoder": False, "own_views": False}, _config(file, asked, resolved))
        manifest.write(part, "import.json", json.dumps(dataclasses.asdict(imported), indent=2) + "\n")
        if prototypes is not None:
            write_prototypes(part, prototypes)
        write_encoders(part, query, twin, False, resolved)
    return Run(out), imported


def _config(file: str, asked: Settings, resolved: Resolved) -> dict[str, Any]:
    """What config.yaml says of the import."""
    return {
        "recipe": None,
        "imported": file,
        "pretrained": is_pretrained(file),
        "system": {"title": "imported", "terms": []},
        "asked": dataclasses.asdict(asked),
        "settings": dataclasses.asdict(resolved),
    }


def _given(file: str, like: Run | None, settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings of the encoder: the usual ones, what is known of the file or of `like`, and what the caller named."""
    known: dict[str, Any] = {**USUAL, **(_architecture_of(like) if like is not None else weights.architecture(file))}
    Settings.from_mapping(known, file)
    given = {**known, **settings}
    if "plain_resize" not in settings:  # the centre crop keeps the same share of the image
        given["plain_resize"] = round(given["image_size"] * known["plain_resize"] / known["image_size"])
    return given


def _checked_head(file: str, head: dict[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """The head of the file, which the caller's settings must not contradict."""
    if any(settings[name] != head.get(name) for name in ("head", "dim") if name in settings):
        words = "no head" if head["head"] == "none" else f"a head {head['head']} of {head['dim']} dimensions"
        raise UserError(f"{file} has {words}; do not pass another --head or --dim")
    return head


def _architecture_of(like: Run) -> dict[str, object]:
    if like.own:
        raise UserError(f"{like.path} was trained with a custom encoder or custom views; name the architecture instead")
    return {name: getattr(like.settings, name) for name in ARCHITECTURE}


def _recognise(file: str, state: Mapping[str, Tensor], given: Mapping[str, object]) -> tuple[str, str]:
    """The backbone that matches all tensors of a file, and the prefix of their names.

    Raises:
        UserError: the tensors do not match the named backbone, or any known one.
    """
    named = str(given.get("backbone", ""))
    nearest = None
    for backbone in [named, *CANDIDATES] if named else CANDIDATES:
        try:
            own = _tensors(backbone, given)
        except UserError:
            if backbone == named:
                raise
            continue  # not available with this stem or image size
        prefix = weights.best_prefix(own, state)
        wrong = [name for name in own if not weights.fits(own, state, prefix, name)]
        if not wrong and not nearest:
            return backbone, prefix
        if not wrong:
            raise UserError(f"{nearest}; use --backbone {backbone}")
        if backbone == named:
            nearest = (
                f"{file} is not a {named}: {len(wrong)} of {len(own)} tensors are missing or have another shape, for "
                f"example {wrong[0]}"
            )
    none = f"{file} does not match any of {', '.join(CANDIDATES)}; name its timm architecture with --backbone"
    raise UserError(nearest or none)


def _tensors(backbone: str, given: Mapping[str, object]) -> dict[str, Tensor]:
    """Tensors of a backbone, without counters of batches."""
    chosen = {name: given[name] for name in ("width", "stem", "image_size") if name in given}
    settings = Resolved(**{**chosen, "backbone": backbone})  # type: ignore[arg-type]
    try:
        with torch.device("meta"):
            module = timm_backbone(settings)
    except RuntimeError:  # older versions of timm need numbers to build some architectures
        with torch.random.fork_rng(devices=[]):
            module = timm_backbone(settings)
    return {name: value for name, value in module.state_dict().items() if not name.endswith("num_batches_tracked")}


def _head(state: Mapping[str, Tensor], prefix: str) -> dict[str, object]:
    """Type and dimension of the projection head in a file; `none` if there is none, as in a classifier."""
    head, _, _ = QUERY_AND_TWIN.get(prefix, ("", "", ""))
    for kind, last in (("linear", f"{head}weight"), ("mlp", f"{head}2.weight")):
        if head and last in state and state[last].ndim == 2:
            return {"head": kind, "dim": len(state[last])}
    first, last = f"{head}0.weight", f"{head}3.weight"  # with batch norm between them
    if head and f"{head}1.running_mean" in state and first in state and last in state:
        hidden, features = state[first].shape
        widths = {features: "mlp-bn", 2 * features: "mlp-big"}
        if hidden in widths:
            return {"head": widths[hidden], "dim": len(state[last])}
    return {"head": "none"}


def _fill(state: Mapping[str, Tensor], prefix: str, query: Encoder, twin: Encoder) -> Imported:
    """Copy the tensors into both encoders; if the file has no twin, θ' = θ."""
    query_head, twin_backbone, twin_head = QUERY_AND_TWIN.get(prefix, ("", "", ""))
    parts: list[tuple[str, str, nn.Module]] = [("backbone.", prefix, query.backbone), ("head.", query_head, query.head)]
    has_twin = bool(twin_backbone) and any(name.startswith(twin_backbone) for name in state)
    if has_twin:
        parts += [("momentum backbone.", twin_backbone, twin.backbone), ("momentum head.", twin_head, twin.head)]
    used: list[str] = []
    missing: list[str] = []
    for called, place, module in parts:
        own = module.state_dict()
        found = {name: state[place + name] for name in own if weights.fits(own, state, place, name)}
        module.load_state_dict(found, strict=False)
        used += [place + name for name in found]
        missing += [called + name for name in own if name not in found and not name.endswith("num_batches_tracked")]
    if not has_twin:
        twin.load_state_dict(query.state_dict())
    return Imported(used, missing, sorted(set(state) - set(used)))


def _cluster(source: Source, twin: Encoder, settings: Resolved, steps: Steps) -> list[Prototypes]:
    """E-step: cluster the twin's embeddings into prototypes."""
    if source.sizes is None:
        raise UserError(f"the items of {source.spec} are not images, which imported encoders need")
    s = settings
    loader = Loader(source, ImageViews(s), seed=s.seed, workers=s.workers, device=s.device)
    with steps.doing(f"embeddings of {len(source):,} images", len(source)) as seen:
        embeddings = extract(twin.eval().to(s.device), loader, seen=seen)
    twin.to("cpu")
    with steps.doing(f"k-means into {' / '.join(f'{k:,}' for k in s.clusters)} prototypes"):
        return [c.occupied for c in cluster(embeddings, s)]
