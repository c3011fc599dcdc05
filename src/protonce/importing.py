"""`protonce import FILE --out RUN`: an encoder from elsewhere as a run folder, on which every command works."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protonce import weights
from protonce.auto import FEWEST_IMAGES, DataSize, resolve
from protonce.config import ARCHITECTURE, Resolved, Settings
from protonce.data.loader import Loader
from protonce.data.sources import Data, Source, open_source
from protonce.data.views import ImageViews
from protonce.devices import find_device, look_at_machine
from protonce.encoder import Encoder, build, timm_backbone
from protonce.errors import UserError
from protonce.features import extract
from protonce.files import write_whole
from protonce.momentum import twin_of
from protonce.progress import Steps
from protonce.prototypes import Prototypes, cluster
from protonce.ranks import Ranks
from protonce.run import Run
from protonce.run.encoder_file import write_encoders
from protonce.run.prototype_files import write_prototypes
from protonce.run.writing import create_folder

UNTRAINED = "untrained"
USUAL = {"image_size": 224, "plain_resize": 256, "stem": "standard"}  # how encoders from elsewhere were trained
CANDIDATES = (  # architectures that are tried where none is named
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d"),
    *("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "convnext_tiny", "convnext_small"),
    *("efficientnet_b0", "mobilenetv3_large_100", "regnety_016", "densenet121"),
)
QUERY_AND_TWIN = {  # where both encoders stand, backbone and head: the published PCL and MoCo, and protonce
    "module.encoder_q.": ("module.encoder_q.fc.", "module.encoder_k.", "module.encoder_k.fc."),
    "encoder_q.": ("encoder_q.fc.", "encoder_k.", "encoder_k.fc."),
    "query.backbone.": ("query.head.", "momentum.backbone.", "momentum.head."),
}


@dataclass(frozen=True)
class Imported:
    """Which tensors of a file were used, which parts of the encoders it does not have, and what is left of it."""

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
    """Make a run folder of weights from elsewhere, or of an encoder before training.

    Args:
        file: a checkpoint of the published PCL or MoCo, a state dict of timm or of torchvision's ResNets,
            `timm:NAME`, another run, or `untrained`.
        out: the folder, new or empty.
        data: images from which the run gets its prototypes, by k-means as in an E-step; None: it has none.
        like: a run whose architecture, and whose way to prepare images, an untrained encoder takes.
        quiet: say nothing.
        settings: of `Settings`, where they are not the usual ones; `auto` is what is known of the encoder.

    Raises:
        UserError: the file cannot be read safely, or is of another architecture. Nothing has been written.
    """
    if out.is_file() or (out.exists() and any(out.iterdir())):
        raise UserError(f"{out} is not empty; choose a new folder")
    settings = {name: value for name, value in settings.items() if value != "auto"}
    given = _given(file, like, settings)
    early = Settings.from_mapping(given, "import")  # mistakes are reported before anything is read
    state = {} if file == UNTRAINED else weights.read(file, file)
    source = None if data is None else open_source(data, "train", early.seed, early.limit)
    prefix = ""
    if state:
        given["backbone"], prefix = _recognise(file, state, given)
        given |= _checked_head(file, _head(state, prefix), settings)
    asked = Settings.from_mapping(given, "import")
    size = DataSize(FEWEST_IMAGES, 0) if source is None else DataSize(len(source), source.side)
    resolved = resolve(asked, size, look_at_machine(find_device(asked.device), Ranks()))
    query = build(resolved)
    resolved = dataclasses.replace(resolved, dim=query.dim)  # without a head the features are the embedding
    twin = twin_of(query)
    imported = _fill(state, prefix, query, twin) if state else Imported([], [], [])
    prototypes = None if source is None else _cluster(source, twin, resolved, Steps(quiet))

    config = {
        "recipe": None,
        "imported": file,
        "system": {"title": "imported", "terms": []},
        "asked": dataclasses.asdict(asked),
        "settings": dataclasses.asdict(resolved),
    }
    create_folder(out, source, {"own_encoder": False, "own_views": False}, config)
    write_whole(out / "import.json", json.dumps(dataclasses.asdict(imported), indent=2) + "\n")
    if prototypes is not None:
        write_prototypes(out, prototypes)
    write_encoders(out, query, twin, False, resolved)
    return Run(out), imported


def _given(file: str, like: Run | None, settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings of the encoder: the usual ones, what is known of the file or of `like`, and what the caller named."""
    known: dict[str, Any] = {**USUAL, **(_architecture_of(like) if like is not None else weights.architecture(file))}
    given = {**known, **settings}
    size = given["image_size"]
    if "plain_resize" not in settings and isinstance(size, int):  # the centre crop keeps the same share of the image
        given["plain_resize"] = round(size * known["plain_resize"] / known["image_size"])
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
    """The backbone that the tensors of a file fit, every one of them, and what stands before their names.

    Raises:
        UserError: they do not fit the one that was named, or none that is known.
    """
    named = str(given.get("backbone", ""))
    nearest = None
    for backbone in [named, *CANDIDATES] if named else CANDIDATES:
        try:
            own = _tensors(backbone, given)
        except UserError:
            if backbone == named:
                raise
            continue  # a stem, or images, that are not for this one
        prefix = weights.best_prefix(own, state)
        wrong = [name for name in own if not weights.fits(own, state, prefix, name)]
        if not wrong and not nearest:
            return backbone, prefix
        if not wrong:
            raise UserError(f"{nearest}; it fits --backbone {backbone}")
        if backbone == named:
            nearest = (
                f"{file} is of another architecture than {named}: {len(wrong)} of {len(own)} tensors are missing or of "
                f"another shape, {wrong[0]} among them"
            )
    none = f"{file} fits none of {', '.join(CANDIDATES)}; name its architecture, one of timm's, with --backbone"
    raise UserError(nearest or none)


def _tensors(backbone: str, given: Mapping[str, object]) -> dict[str, Tensor]:
    """Names and shapes of a backbone's tensors; those that only count batches are not asked for."""
    chosen = {name: given[name] for name in ("width", "stem", "image_size") if name in given}
    with torch.device("meta"):
        module = timm_backbone(Resolved(**{**chosen, "backbone": backbone}))  # type: ignore[arg-type]
    return {name: value for name, value in module.state_dict().items() if not name.endswith("num_batches_tracked")}


def _head(state: Mapping[str, Tensor], prefix: str) -> dict[str, object]:
    """The projection head of a file and its dimension; `none` where there is none, as in a classifier."""
    head, _, _ = QUERY_AND_TWIN.get(prefix, ("", "", ""))
    for kind, last in (("linear", f"{head}weight"), ("mlp", f"{head}2.weight")):
        if head and last in state and state[last].ndim == 2:
            return {"head": kind, "dim": len(state[last])}
    return {"head": "none"}


def _fill(state: Mapping[str, Tensor], prefix: str, query: Encoder, twin: Encoder) -> Imported:
    """Copy the tensors into both encoders; where the file has no twin, it is the query's copy, θ' = θ."""
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
    """An E-step: prototypes of the images in the twin's embeddings."""
    if source.sizes is None:
        raise UserError(f"{source.spec} holds no images; an encoder from elsewhere knows nothing else")
    s = settings
    loader = Loader(source, ImageViews(s), seed=s.seed, workers=s.workers, device=s.device)
    with steps.doing(f"embeddings of {len(source):,} images", len(source)) as seen:
        embeddings = extract(twin.eval().to(s.device), loader, seen=seen)
    twin.to("cpu")
    with steps.doing(f"k-means into {' / '.join(f'{k:,}' for k in s.clusters)} prototypes"):
        return cluster(embeddings, s)
