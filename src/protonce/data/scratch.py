"""Temporary files, with one sentence if there is no space for them."""

import errno
import os
import tempfile
from typing import IO

from protonce.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)  # by the file system
ZEROS = bytes(1 << 20)


def create(purpose: str, size: int = 0, named: bool = False) -> IO[bytes]:
    """A temporary file in TMPDIR that is deleted when it is closed.

    Args:
        purpose: for the error message, such as "unpack photos.tgz".
        size: bytes to reserve. Without that, writing to a memory map on a full disk would end the process by SIGBUS.
        named: whether other processes have to open it.

    Raises:
        UserError: there is no space.
    """
    try:
        make = tempfile.NamedTemporaryFile if named else tempfile.TemporaryFile
        file: IO[bytes] = make(prefix="protonce-")
    except OSError as error:
        raise no_space(purpose, size, error) from None
    try:
        _reserve(file, size)
    except OSError as error:
        file.close()
        raise no_space(purpose, size, error) from None
    return file


def _reserve(file: IO[bytes], size: int) -> None:
    try:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
        return
    except AttributeError:  # macOS, Windows
        pass
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    for start in range(0, size, len(ZEROS)):
        file.write(ZEROS[: size - start])
    file.flush()
    file.seek(0)


def no_space(purpose: str, size: int, error: OSError) -> UserError:
    """What to say if a temporary file could not be written."""
    needed = f" ({size / 1e9:.1f} GB needed)" if size >= 1e8 else f" ({size / 1e6:.1f} MB needed)" if size else ""
    try:
        folder = tempfile.gettempdir()
    except OSError:  # no folder for temporary files is writable
        folder = os.environ.get("TMPDIR", "the folder for temporary files")
    reason = "no space left" if error.errno in FULL else error.strerror or str(error)
    return UserError(f"cannot {purpose} in {folder}{needed}: {reason}; set TMPDIR to a folder on a larger disk")
