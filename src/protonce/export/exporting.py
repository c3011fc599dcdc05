"""Write an encoder in the format of another program, and beside it as JSON how images are prepared for it."""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from protonce import __version__
from protonce.errors import UserError
from protonce.export.shipment import Made, Shipment, Which, name_prototypes
from protonce.files import check_new_file, is_empty, whole_folder, write_whole
from protonce.run import Run

FORMATS = ("onnx", "torch-export", "timm", "torchvision", "safetensors", "detectron2", "huggingface", "pcl")
GRAPHS = ("onnx", "torch-export")  # may contain prototypes and preprocessing
ABOUT = "protonce.json"  # in a folder; beside a file it has the file's name


class Format(Protocol):
    """A module of this package."""

    SUFFIXES: Sequence[str]  # of its file; empty: it is a folder

    def make(self, shipment: Shipment, name: str) -> Made:
        """The files, by name, and how to load them."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    about: Path  # the JSON
    which: str  # of the encoders
    how: str  # Python or settings that load it


def export(
    run: Run,
    to: str,
    out: Path,
    *,
    encoder: Which | None = None,
    prototypes: bool = False,
    labels: Mapping[int, str] | None = None,
    prepare: bool = False,
    example: Tensor | None = None,
) -> Exported:
    """Write an encoder of a run for another program.

    Args:
        run: a finished run.
        to: one of `FORMATS`.
        out: a new file, or for huggingface a new folder.
        encoder: "query" or "momentum"; None: query, or momentum with prototypes, which are means of its embeddings.
        prototypes: return the nearest prototype of each granularity and its distance too; of `GRAPHS` only.
        labels: of some images of the run by their number, to name the prototypes; None: those of their folders.
        prepare: take pixels (B, H, W, 3) of type uint8, and resize, crop and normalise them; of `GRAPHS` only.
        example: a batch of two inputs, if the run was trained with the user's own views.

    Raises:
        UserError: the run or the format does not have what is asked for, or `out` exists. Nothing has been written.
    """
    if to not in FORMATS:
        raise UserError(f"--to {to} is none of {', '.join(FORMATS)}")
    format_ = cast(Format, importlib.import_module(f"protonce.export.to_{to.replace('-', '_')}"))
    _check_out(to, out, format_.SUFFIXES)
    if (prototypes or prepare) and to not in GRAPHS:
        what = "prototypes" if prototypes else "preprocessing"
        raise UserError(f"{to} is a file of weights and cannot contain {what}; export to {' or '.join(GRAPHS)}")
    if prepare and run.config["data"]["own_views"]:
        raise UserError(f"{run.path} was trained with custom views, which cannot be part of a graph; leave it out")
    if labels is not None and not prototypes:
        raise UserError("labels name prototypes; export these too, with --prototypes, or leave --labels out")
    if to == "pcl" and encoder is not None:
        raise UserError("the published layout has both encoders; leave --encoder out")
    if prototypes and encoder == "query":
        raise UserError("prototypes are means of the momentum encoder's embeddings; leave --encoder query out")
    run.check_encoders()
    names = _names(run, labels) if prototypes else None
    which: Which = encoder or ("momentum" if prototypes else "query")
    inputs = _example(run, prepare, example) if to in GRAPHS else torch.empty(0)
    shipment = Shipment(run, which, names, prepare, inputs)
    made = format_.make(shipment, out.name)
    known = _about(shipment, to, made.how)
    about = json.dumps(known, indent=2) + "\n"
    if format_.SUFFIXES:
        beside = _beside(out)
        for name, content in made.files.items():
            write_whole(out.with_name(name), content)
        write_whole(beside, about)
    else:
        beside = out / ABOUT
        with whole_folder(out) as part:
            part.mkdir(parents=True)
            for name, content in {**made.files, ABOUT: about.encode()}.items():
                write_whole(part / name, content)
    return Exported(out, beside, known["encoder"], made.how)


def _check_out(to: str, out: Path, suffixes: Sequence[str]) -> None:
    """Refuse a name that the format does not have, and to overwrite anything."""
    if not suffixes:
        if not is_empty(out):
            raise UserError(f"--out {out} is not an empty folder; choose a new one")
        return
    if out.suffix not in suffixes:
        raise UserError(f"--out {out} must end in {' or '.join(suffixes)} for {to}")
    for file in (out, _beside(out)):
        check_new_file(file)


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def _names(run: Run, labels: Mapping[int, str] | None) -> list[list[str]]:
    """The names of the prototypes of a run."""
    if labels is None:
        labels = {i: label for i, label in enumerate(run.images[1] or []) if label}
    return name_prototypes([c.assignment for c in run.prototypes], run.parents, labels)


def _example(run: Run, prepare: bool, example: Tensor | None) -> Tensor:
    """A batch of two inputs."""
    if example is not None:
        if len(example) < 2:
            raise UserError(f"example= has {len(example)} inputs; pass a batch of two")
        return example
    if run.config["data"]["own_views"]:
        raise UserError(f"{run.path} was trained with custom views; pass a batch of two of them as example=")
    size = run.settings.image_size
    return torch.zeros(2, size + 1, size + 2, 3, dtype=torch.uint8) if prepare else torch.zeros(2, 3, size, size)


def _about(shipment: Shipment, to: str, how: str) -> dict[str, Any]:
    """What a program has to know of the encoder."""
    run, s = shipment.run, shipment.run.settings
    found: dict[str, Any] = {
        "format": to,
        "written_by": f"protonce {__version__}",
        "encoder": "query and momentum" if to == "pcl" else shipment.which,
        "system": run.title,
        "backbone": "custom" if run.config["data"]["own_encoder"] else s.backbone,
        "feature_dim": shipment.encoder.feature_dim,
        "weights": run.encoder_hash,
        **({"input": shipment.input, "outputs": shipment.outputs} if to in GRAPHS else {}),
        "preprocessing": None
        if run.config["data"]["own_views"]
        else {
            "inside": shipment.prepare,
            "resize_shorter_side": s.plain_resize,
            "centre_crop": s.image_size,
            "interpolation": "bilinear, antialiased",
            "colour": "RGB in [0, 1]",
            "mean": list(s.mean),
            "std": list(s.std),
        },
        "how_to_load": how,
    }
    if shipment.names is not None:
        found |= {"prototype_names": shipment.names, "labels": shipment.labels}
    return found
