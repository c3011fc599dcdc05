"""The layout of PASCAL VOC: JPEGImages, Annotations and ImageSets/Main."""

from pathlib import Path
from xml.etree import ElementTree

from protonce.data.folders import open_regular
from protonce.data.named import Name
from protonce.errors import UserError

MOST_BYTES = 50_000_000  # of an annotation; usual ones have some thousand


def find_root(name: Name) -> Path:
    """The folder with JPEGImages, Annotations and ImageSets: ROOT, ROOT/VOC2007 or ROOT/VOCdevkit/VOC2007.

    Raises:
        UserError: none of them has ImageSets/Main.
    """
    places = [name.root / "VOCdevkit" / name.name, name.root / name.name, name.root]
    root = next((place for place in places if (place / "ImageSets" / "Main").is_dir()), None)
    if root is None:
        raise UserError(
            f"{name} does not have the layout of VOC: no ImageSets/Main in ROOT, {name.name} or VOCdevkit/{name.name}"
        )
    return root


def split_file(root: Path, split: str) -> Path:
    """The list of the images of a split; it may be missing."""
    return root / "ImageSets" / "Main" / f"{split}.txt"


def read_keys(root: Path, split: str) -> set[str]:
    """Names, without a suffix, of the images of a split.

    Raises:
        UserError: there is no such split.
        OSError, ValueError: its list cannot be read or is not text.
    """
    file = split_file(root, split)
    if not file.is_file():
        raise UserError(f"{root} has no split {split!r}: ImageSets/Main/{split}.txt does not exist")
    return {line.split()[0] for line in file.read_text().splitlines() if line.strip()}


def parse_annotation(content: bytes) -> ElementTree.Element:
    """The root element of an annotation.

    An annotation that declares entities is refused: a few lines of them can expand to gigabytes.

    Raises:
        ValueError: it is not XML, or declares entities.
    """
    if b"<!ENTITY" in content.replace(b"\0", b""):  # without the zeros that UTF-16 and UTF-32 put between
        raise ValueError("it declares XML entities")
    try:
        return ElementTree.fromstring(content)
    except (ElementTree.ParseError, LookupError) as error:  # an unknown encoding is a LookupError
        raise ValueError(f"it is not valid XML ({error})") from None


def read_annotation(file: Path) -> bytes:
    """The content of an annotation.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: it is too large to be one.
    """
    with open_regular(file) as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return content
