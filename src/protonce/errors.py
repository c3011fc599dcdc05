"""The one exception that means: the user can mend this. And how a message quotes what the user wrote."""

import errno
import reprlib

LONGEST_VALUE = 60
LONGEST_MESSAGE = 1000
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class UserError(Exception):
    """A mistake of the user's: one sentence that says what, where, and what to do. Exit code 2.

    Whatever the message quotes, it is one printable line of bounded length.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, LONGEST_MESSAGE))


class OtherImagesError(UserError):
    """Images that should be those of a run are others."""


class _Short(reprlib.Repr):
    """`repr` that looks no further into a value than it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = LONGEST_VALUE

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002
        """The digits; Python refuses to write those of very large numbers."""
        if x.bit_length() > 128:
            return f"a whole number of about {round(x.bit_length() * 0.30103):,} digits"
        return repr(x)


_SHORT = _Short()


def shown(value: object) -> str:
    """A user's value as a message quotes it: its `repr`, in at most `LONGEST_VALUE` characters."""
    return one_line(_SHORT.repr(value), LONGEST_VALUE)


def one_line(text: str, most: int) -> str:
    """The text without line breaks and control characters; of a long one the beginning and the end."""
    text = " ".join(_shortened(text, 4 * most).split())
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return " ".join(_shortened(text, most).split())


def _shortened(text: str, most: int) -> str:
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 5]} ... {text[-end:]}"
