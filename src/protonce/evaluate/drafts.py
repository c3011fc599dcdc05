"""Intermediate results of an evaluation, so that the same command resumes it after an interruption."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protonce.files import write_whole


class Drafts:
    """Finished pieces of one evaluation by name, saved to a file until the result is written.

    Args:
        path: of the file.
        key: identifies the run, the options and the data; pieces saved with another key are ignored.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.pieces: dict[str, Any] = {}
        try:
            kept = json.loads(path.read_text())
            if kept["key"] == key:
                self.pieces = kept["pieces"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing usable was saved

    def piece(self, name: str, make: Callable[[], Any]) -> Any:
        """A finished piece, or the result of `make`, which is saved; it must be JSON-serialisable."""
        if name not in self.pieces:
            self.keep(name, make())
        return self.pieces[name]

    def keep(self, name: str, value: Any) -> None:
        """Save a piece, replacing one of the same name."""
        self.pieces[name] = value
        write_whole(self.path, json.dumps({"key": self.key, "pieces": self.pieces}) + "\n")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that were saved last; empty if there are none."""
        try:
            with safe_open(self._weights, "pt") as file:
                mine = (file.metadata() or {}).get("key") == self.key
                return {name: file.get_tensor(name) for name in file.keys()} if mine else {}  # noqa: SIM118
        except (OSError, SafetensorError):
            return {}

    def keep_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Save tensors, replacing those saved before."""
        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        write_whole(self._weights, save(held, {"key": self.key}))

    @property
    def _weights(self) -> Path:
        return self.path.with_suffix(".safetensors")

    def remove(self) -> None:
        """Delete the files, once the result has been saved."""
        self.path.unlink(missing_ok=True)
        self._weights.unlink(missing_ok=True)
