"""Intermediate results of an evaluation, so that the same command resumes it after an interruption."""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from protonce import manifest


class Drafts:
    """Finished pieces of one evaluation by name, saved to a run folder until the result is written.

    Args:
        run: the run folder.
        name: of the files in it, without suffix.
        key: identifies the run, the options and the data; pieces saved with another key are ignored.
    """

    def __init__(self, run: Path, name: str, key: str) -> None:
        self.run, self.key = run, key
        self.file, self.tensor_file = f"{name}.json", f"{name}.safetensors"
        self.pieces = self._read(self.file, self._parse)

    def piece(self, name: str, make: Callable[[], Any]) -> Any:
        """A finished piece, or the result of `make`, which is saved; it must be JSON-serialisable."""
        if name not in self.pieces:
            self.keep(name, make())
        return self.pieces[name]

    def keep(self, name: str, value: Any) -> None:
        """Save a piece, replacing one of the same name."""
        self.pieces[name] = value
        self._write(self.file, json.dumps({"key": self.key, "pieces": self.pieces}) + "\n")

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that were saved last; empty if there are none."""
        return self._read(self.tensor_file, self._parse_tensors)

    def keep_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Save tensors, replacing those saved before."""
        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        self._write(self.tensor_file, save(held, {"key": self.key}))

    def _write(self, name: str, data: bytes | str) -> None:
        with contextlib.suppress(OSError):  # such as a full disk: the evaluation goes on all the same
            manifest.write(self.run, name, data)

    def _read(self, name: str, parse: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
        """A file that was saved; empty if there is none, or it is damaged or another's: its pieces are made again."""
        try:
            return parse(manifest.read(self.run, name))
        except Exception:  # each format has its own kinds of errors
            return {}

    def _parse(self, data: bytes) -> dict[str, Any]:
        kept = json.loads(data)
        return dict(kept["pieces"]) if kept["key"] == self.key else {}

    def _parse_tensors(self, data: bytes) -> dict[str, Tensor]:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])  # as the format of safetensors has it
        return load(data) if header["__metadata__"]["key"] == self.key else {}

    def remove(self) -> None:
        """Delete the files, once the result has been saved."""
        with contextlib.suppress(OSError):  # on a full disk: the result is there all the same
            manifest.remove(self.run, self.file, self.tensor_file)
