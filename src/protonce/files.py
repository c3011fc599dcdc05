"""Files that are whole or absent, never half."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file so that whoever looks finds the old one or the new one, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays as a compressed .npz, whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(path, buffer.getvalue())
