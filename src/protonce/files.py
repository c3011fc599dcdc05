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
    try:
        with part.open("wb") as file:
            # File names need not be UTF-8: their bytes come back as they were.
            file.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays as a compressed .npz, whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(path, buffer.getvalue())
