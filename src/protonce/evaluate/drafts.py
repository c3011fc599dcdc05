"""What a long protocol has finished so far, so that the same command goes on where it was interrupted."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protonce.files import write_whole


class Drafts:
    """Finished pieces of one evaluation by name, kept in a file until its result is.

    Args:
        path: of the file.
        key: tells what is evaluated, how and on what; pieces of another key are forgotten.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.pieces: dict[str, Any] = {}
        try:
            kept = json.loads(path.read_text())
            if kept["key"] == key:
                self.pieces = kept["pieces"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing was kept, or nothing that can be used

    def piece(self, name: str, make: Callable[[], Any]) -> Any:
        """A finished piece, or the one that `make` makes now: something JSON can hold."""
        if name not in self.pieces:
            self.keep(name, make())
        return self.pieces[name]

    def keep(self, name: str, value: Any) -> None:
        """Keep a piece; one of the same name is replaced."""
        self.pieces[name] = value
        write_whole(self.path, json.dumps({"key": self.key, "pieces": self.pieces}) + "\n")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that were kept last; none: nothing was."""
        try:
            with safe_open(self._weights, "pt") as file:
                mine = (file.metadata() or {}).get("key") == self.key
                return {name: file.get_tensor(name) for name in file.keys()} if mine else {}  # noqa: SIM118
        except (OSError, SafetensorError):
            return {}

    def keep_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors instead of those that were kept before."""
        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        write_whole(self._weights, save(held, {"key": self.key}))

    @property
    def _weights(self) -> Path:
        return self.path.with_suffix(".safetensors")

    def remove(self) -> None:
        """Forget all, for the result is kept."""
        self.path.unlink(missing_ok=True)
        self._weights.unlink(missing_ok=True)
