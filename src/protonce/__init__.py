"""Prototypical Contrastive Learning: image representations and a hierarchy of prototypes, without labels.

import protonce
run = protonce.train("photos/", "runs/first", epochs=100)
run.prototypes, run.assign("more-photos/"), run.embed("more-photos/")
run.tidy(), run.suggest(20), run.label("labels.csv"), run.search(["photo.jpg"]), run.evaluate("knn"), run.report()
run.export("onnx", "encoder.onnx")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protonce.callbacks import Callback as Callback
    from protonce.config import Settings as Settings
    from protonce.errors import UserError as UserError
    from protonce.front import Run as Run
    from protonce.front import import_encoder as import_encoder
    from protonce.front import load as load
    from protonce.front import train as train

__version__ = "0.1.0"

_WHERE = {
    "Callback": "protonce.callbacks",
    "train": "protonce.front",
    "load": "protonce.front",
    "import_encoder": "protonce.front",
    "Run": "protonce.front",
    "Settings": "protonce.config",
    "UserError": "protonce.errors",
}
_MODULES = ("losses", "prototypes", "kmeans", "encoder", "features", "memory", "data", "methods", "evaluate", "sklearn")

__all__ = ["Callback", "Run", "Settings", "UserError", "import_encoder", "load", "train"]


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: `import protonce` alone loads no torch."""
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"protonce.{name}")
    raise AttributeError(f"module 'protonce' has no attribute {name!r}")
