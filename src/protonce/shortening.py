"""Shorten text from the user's files, such as names and labels, where it is shown; files keep it whole."""

MOST = 120  # characters of a name or label


def shorten(text: str, most: int = MOST) -> str:
    """The text, or its beginning and its end with an ellipsis between them, `most` characters in all."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def enumerate_names(names: list[str], most: int = 5) -> str:
    """The first few of several names, and the number of others."""
    shown = ", ".join(shorten(name) for name in names[:most])
    return shown + (f" and {len(names) - most:,} others" if len(names) > most else "")
