"""The model card of an exported encoder: what it is, what it has seen, what it scores, and what it cannot do."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from protonce.data import named
from protonce.errors import shown
from protonce.export.plain_weights import library_name
from protonce.export.shipment import Shipment
from protonce.results import images_tested, scores
from protonce.run import Run

FRONT = """---
library_name: timm
pipeline_tag: image-feature-extraction
tags:
- image-feature-extraction
- timm
- protonce
---
"""
SHOWN = ("recipe", "epochs", "batch_size", "lr", "tau", "clusters", "queue", "seed")  # settings, if the run has them


def model_card(shipment: Shipment, how: str) -> str:
    """The card as Markdown.

    Args:
        shipment: what is exported.
        how: Python that loads it.
    """
    run, s = shipment.run, shipment.run.settings
    learnt = (
        f"imported from {shown(PurePath(run.imported).name)}"
        if run.imported
        else f"trained with {run.title} by [protonce](https://pypi.org/project/protonce/)"
    )
    labels = "" if run.imported else "\nLabels were used in training." if run.uses_labels else "\nNo labels were used."
    name = library_name(s)
    return f"""{FRONT}
# {name}, {run.title}

The {shipment.which} encoder of a {name}, {learnt}: pooled features of
{shipment.encoder.feature_dim} dimensions, without a classifier.{labels}

```python
{how}
transform = timm.data.create_transform(**timm.data.resolve_data_config({{}}, model=model))
features = model.eval()(transform(image)[None])  # (1, {shipment.encoder.feature_dim})
```

## Data

{_data(run)}

Images are resized to {s.plain_resize} pixels on the shorter side, cropped to {s.image_size} in the centre, and
normalised with mean {s.mean} and standard deviation {s.std} of RGB in [0, 1].

## Settings

{_settings(run)}

## Evaluations

{_evaluations(run)}

## Limits

- The features are those of the training images: how well they tell other kinds of images apart is not known.
- They follow what the images have in common, be it class, background, camera or colour, and whatever bias the
  collection has.
- Nothing here says who may use the training images or this encoder, and for what: its owner adds the licence.
"""


def _data(run: Run) -> str:
    about = run.config["data"]
    if not about["source"]:
        return "Not known: the encoder was imported."
    clustered = " (clustered, not trained on)" if run.imported else ""
    return f"{about['images']:,} images of {_name(about['source'])}{clustered}, fingerprint `{about['fingerprint']}`."


def _name(source: str) -> str:
    """What data are called; not where on a disk they are."""
    return shown(source.partition(":")[0] if named.parse(source) else PurePath(source).name)


def _settings(run: Run) -> str:
    values = {"recipe": run.config["recipe"], **vars(run.settings), **run.options}
    rows = [(f"`{name}`", str(values[name])) for name in SHOWN if values.get(name) not in (None, "")]
    return "None: the encoder was not trained here." if run.imported else _table(("setting", "value"), rows)


def _evaluations(run: Run) -> str:
    rows = [
        (name, score.metric, score.text, score.untrained or "not known", _tested_on(result))
        for name, result in run.evaluations.items()
        for score in scores(result)
    ]
    header = ("protocol", "metric", "score", "same encoder, random weights", "tested on")
    return _table(header, rows) if rows else "None: `protonce evaluate` has not been run."


def _tested_on(result: Mapping[str, Any]) -> str:
    parts = {part: result["data"].get(part) for part in ("train", "test")}
    called = {part: {**about, "source": _name(about["source"])} for part, about in parts.items() if about}
    return images_tested({**result, "data": {**result["data"], **called}})


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
