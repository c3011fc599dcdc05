"""Explain what the machine refused: memory, disk space, access to a file."""

import errno

from protonce.errors import DISK_FULL

OUT_OF_MEMORY = (  # what torch says on a CPU, on a GPU, and of worker processes
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
    "can't start new thread",
    "killed by signal",
    "bus error",
)


def explain(error: OSError | MemoryError | RuntimeError) -> str | None:
    """What the machine refused, in one sentence; None for an error of the program."""
    text = " ".join(str(error).split())
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or no_memory or any(words in text for words in OUT_OF_MEMORY):
        return (
            "out of memory; choose a smaller batch_size, image_size or backbone, fewer workers, or fewer images (limit)"
        )
    if not isinstance(error, OSError):
        return None
    where = f": {error.filename}" if error.filename else ""
    if error.errno in DISK_FULL:
        return f"the disk is full{where}; free some space and run the same command again"
    return f"{error.strerror or text or type(error).__name__}{where}"
