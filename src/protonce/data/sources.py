"""Sources of images: a folder, an archive, a table, arrays, the built-in set, or anything with `len` and `load(i)`.

A source provides items by index, their names, and labels if the layout has them. Labels are for evaluation; training
uses them only if the system needs labels.
"""

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protonce import randomness
from protonce.data import builtin, camera, named, paper_datasets, pictures
from protonce.data.containers import list_files
from protonce.data.folder_labels import folder_labels, note_splits, split_folders
from protonce.data.folders import list_paths
from protonce.data.identity import fingerprint_of, sample_bytes
from protonce.data.listings import Listing, Marks, only
from protonce.data.pictures import SUFFIXES, Pixels
from protonce.data.python_objects import Indexed, describe, is_indexed, list_object
from protonce.errors import UserError

SMALL_FILE = 16_000  # bytes
MAX_TEXT = 1000  # characters of a name or label


@runtime_checkable
class Items(Protocol):
    """Interface of a user-defined data set: a length, and items by index."""

    def __len__(self) -> int: ...

    def load(self, i: int, /) -> Any:
        """Item i; for images a uint8 array (h, w, 3) or a Pillow image."""
        ...


class ByIndex(Protocol):
    """A map-style data set, as torch has them: images, or pairs of image and label."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Any: ...


@dataclass(frozen=True)
class Skipped:
    """A file that cannot be used, and the reason."""

    name: str
    reason: str


@dataclass
class Source:
    """Items by index, with their names, their labels (None: there are none) and the files that were skipped."""

    spec: str
    names: list[str]
    labels: list[str] | None
    load: Callable[[int], Any]
    fingerprint: str
    skipped: list[Skipped] = field(default_factory=list)
    sizes: NDArray[np.int64] | None = None  # (n, 2) height and width; None: the items are not images
    files: list[str] | None = None  # path of each item; None: the items are not files
    stamps: list[int] | None = None  # modification time or checksum of each file
    place: str = ""  # like `spec`, but valid in any working directory; empty: `spec` is
    encoded: Callable[[int], BinaryIO] | None = None  # opens the encoded image; None: there is no file
    marks: Marks | None = None  # if images may have several classes; `labels` is then None
    lost: list[Skipped] = field(default_factory=list)  # items that can no longer be read
    own: bool = False  # a user-defined data set, of which `identity` sees only a sample
    notes: list[str] = field(default_factory=list)  # what the user should know
    subset_of: "tuple[Source, NDArray[np.int64]] | None" = None  # the parent source, and the indices in it

    def __len__(self) -> int:
        return len(self.names)

    @property
    def summary(self) -> str:
        """How many images there are and where, and how many files were skipped."""
        skipped = f", {len(self.skipped):,} skipped (skipped.csv says why)" if self.skipped else ""
        return f"{len(self):,} images of {self.spec}{skipped}"

    @property
    def in_memory(self) -> bool:
        """Whether `load` only indexes an array, so that worker processes would not help."""
        load = self.load
        while isinstance(load, _Chosen):
            load = load.load
        return isinstance(load, _Rows)

    @property
    def side(self) -> int:
        """Typical shorter side in pixels; 0 if the items are not images."""
        return 0 if self.sizes is None else int(np.median(self.sizes.min(axis=1)))

    @functools.cached_property
    def identity(self) -> str:
        """Hash that identifies these items in this order, for results that are computed from them and cached.

        It is stricter than the fingerprint, which covers only names and sizes: it includes the stamps of files, or else
        the content of a sample of the items.
        """
        stamps = self.stamps
        content = sample_bytes(self.load, len(self)) if stamps is None else np.array(stamps, dtype=np.int64).tobytes()
        names = "\0".join([self.fingerprint, *self.names]).encode("utf-8", "surrogateescape")
        return hashlib.sha256(names + content).hexdigest()

    def subset(self, chosen: NDArray[np.int64]) -> "Source":
        """The items at these indices, in this order."""
        names = [self.names[i] for i in chosen]
        return Source(
            spec=self.spec,
            names=names,
            labels=None if self.labels is None else [self.labels[i] for i in chosen],
            load=_Chosen(self.load, chosen),
            fingerprint=fingerprint_of((self.fingerprint + name, 0) for name in names),
            skipped=self.skipped,
            sizes=None if self.sizes is None else self.sizes[chosen],
            files=None if self.files is None else [self.files[i] for i in chosen],
            stamps=None if self.stamps is None else [self.stamps[i] for i in chosen],
            place=self.place,
            encoded=None if self.encoded is None else _Chosen(self.encoded, chosen),
            marks=None if self.marks is None else self.marks.of(chosen),
            own=self.own,
            notes=self.notes,
            subset_of=(self, chosen),
        )


@dataclass
class _Chosen:
    """`load` of a subset. A class, like those below, so that it can be pickled for worker processes."""

    load: Callable[[int], Any]
    chosen: NDArray[np.int64]

    def __call__(self, i: int) -> Any:
        return self.load(int(self.chosen[i]))


@dataclass
class _Rows:
    images: Pixels  # (n, h, w, 3)

    def __call__(self, i: int) -> Pixels:
        return np.require(self.images[i], requirements=["C", "W"])  # torch warns of read-only arrays


@dataclass
class _OwnImages:
    """Images of a user-defined data set, as arrays."""

    load: Callable[[int], Any]
    spec: str

    def __call__(self, i: int) -> Pixels:
        item = self.load(i)
        pixels = pictures.as_pixels(item)
        if pixels is None:
            raise UserError(
                f"item {i} of {self.spec} is {_describe(item)}, but the first item is an image; "
                "return a uint8 array (h, w, 3) or a Pillow image for each"
            )
        return pixels


def _describe(item: Any) -> str:
    if hasattr(item, "dtype") and hasattr(item, "shape"):
        return f"an array of shape {tuple(item.shape)} and dtype {item.dtype}"
    return f"of type {type(item).__name__}"


@dataclass
class _Decoded:
    open: Callable[[int], BinaryIO]

    def __call__(self, i: int) -> Pixels:
        with self.open(i) as file:
            return pictures.decode(file).pixels


# Lists, tables of pandas and pyarrow, and data sets of torch and Hugging Face are `Iterable`, or `Items` by index.
Data = str | Path | NDArray[np.uint8] | Items | Source | Iterable[Any] | ByIndex


def open_source(
    data: Data, part: str = "train", seed: int = 0, limit: int = 0, known: Sequence[str] | None = None
) -> Source:
    """Open a data source.

    Args:
        data: a folder, a .zip or .tar, a .csv or .parquet of paths, a data set as `NAME[@SPLIT]:ROOT` (ImageNet,
            Places205, VOC2007, VOC2012, or one of torchvision's), `builtin`, an array of images (n, h, w) or
            (n, h, w, 3), or an object with `len` and `load(i)` (and optionally `names` and `labels`). Or a list of
            paths or images, a table of pandas or pyarrow with a column of paths or of encoded images, a map-style data
            set of torch, or one of Hugging Face with a column of type Image.
        part: "train" or "test", for data sets that have both splits.
        seed: of the built-in images and of `limit`.
        limit: number of items to draw at random; 0: all. Only as many files are opened as needed.
        known: names of the files to open, in this order, even if files were added or removed since they were listed.

    Raises:
        UserError: the data does not exist or has no readable image, or a name or label is too long or not text.
    """
    source = _open(data, part, seed, limit, known)
    _check_texts("name", source.names, source.spec)
    _check_texts("label", source.labels or [], source.spec)
    return source


def _check_texts(what: str, texts: Sequence[str], spec: str) -> None:
    longest = max(texts, key=len, default="")
    if len(longest) > MAX_TEXT:
        raise UserError(
            f"a {what} of {spec} has {len(longest):,} characters, but at most {MAX_TEXT:,} are allowed: "
            f"{longest[:60]!r}..."
        )
    for text in texts:
        if "\0" in text or _is_not_text(text):
            raise UserError(f"the {what} {text!r:.80} of {spec} contains characters that are not text; change it")


def _is_not_text(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True
    return False


def _open(data: Data, part: str, seed: int, limit: int, known: Sequence[str] | None) -> Source:
    if isinstance(data, str | Path) and data != "builtin":
        name = named.parse(str(data))
        if name is None:
            listing = list_files(Path(data))
            return _from_files(str(data), str(Path(data).resolve()), listing, seed, limit, known)
        return _from_named(name, part, seed, limit, known)
    if isinstance(data, Source):
        source = data
    elif isinstance(data, str):
        source = _from_builtin(part, seed)
    elif isinstance(data, Items):
        source = _from_items(data, f"{type(data).__module__}.{type(data).__qualname__}")
    else:
        found = list_object(data)
        if found is not None:
            return _from_files(describe(data), describe(data), found, seed, limit, known)
        source = _from_items(Indexed(data), describe(data)) if is_indexed(data) else _from_array(_array_of(data))
    return _limited(source, seed, limit)


def _from_named(name: named.Name, part: str, seed: int, limit: int, known: Sequence[str] | None) -> Source:
    if name.name in paper_datasets.READERS:
        return _from_files(str(name), str(name), paper_datasets.read(name, part), seed, limit, known)
    dataset = named.open_named(name, part)
    files = named.files_of(dataset)
    if files is not None:
        return _from_files(str(name), str(name), list_paths(name.root, files, str(name)), seed, limit, known)
    images = named.Images(dataset, named.dataset_labels(dataset))
    source = _from_items(images, str(name), f"{name.name} {name.split or part}")  # independent of ROOT
    if source.sizes is None:
        raise UserError(f"torchvision's {name.name} is not a data set of single images")
    return _limited(source, seed, limit)


def _array_of(data: Any) -> NDArray[Any]:
    """An array, a tensor, or a list of images of the same shape, as an array.

    Raises:
        UserError: it is something else.
    """
    if isinstance(data, list | tuple) and not data:
        raise UserError("the data is an empty list; pass a list of paths or of images")
    try:
        if isinstance(data, list | tuple) or hasattr(data, "__array__"):
            array = np.asarray(data)
            if array.dtype.kind in "biuf":
                return array
    except Exception:  # images of several shapes, a tensor on a GPU: many kinds of errors
        pass
    raise UserError(
        f"data of type {type(data).__name__} cannot be opened; pass a folder, an archive or a table of paths, "
        "a list of paths or of images, a uint8 array (n, h, w, 3), a table of pandas or pyarrow, a map-style data set "
        "of torch, a data set of Hugging Face, or an object with __len__() and load(i) that returns image i"
    )


def _limited(source: Source, seed: int, limit: int) -> Source:
    if 0 < limit < len(source):
        return source.subset(np.sort(random_order(len(source), "limit", seed)[:limit]))
    return source


def random_order(n: int, purpose: str, seed: int) -> NDArray[np.int64]:
    """Random permutation of n items, determined by the purpose and the seed; (n,)."""
    return np.argsort(randomness.uniform(seed, purpose, 0, np.arange(n), 1)[:, 0], kind="stable")


def _from_builtin(part: str, seed: int) -> Source:
    images, labels = builtin.draw_images(part, seed)
    names = [f"{part}/{label}/{i:05d}" for i, label in enumerate(labels)]
    spec = "builtin" if part == "train" else f"builtin ({part} part)"
    return _of_images(spec, images, names, labels, f"builtin {builtin.VERSION} {part} {seed}")


def _from_array(array: NDArray[Any]) -> Source:
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise UserError(
            f"images must be a uint8 array (n, h, w) or (n, h, w, 3), got shape {array.shape} and dtype {array.dtype}"
        )
    if len(array) == 0:
        raise UserError("the array contains no images")
    images = array[..., None] if array.ndim == 3 else array
    images = np.broadcast_to(images, (*images.shape[:3], 3))
    names = [f"{i:08d}" for i in range(len(images))]
    return _of_images("array", images, names, None, hashlib.sha256(array.tobytes()).hexdigest())


def _of_images(spec: str, images: Pixels, names: list[str], labels: list[str] | None, content: str) -> Source:
    return Source(
        spec=spec,
        names=names,
        labels=labels,
        load=_Rows(images),
        fingerprint=fingerprint_of([(content, 0)]),
        sizes=np.tile(np.array(images.shape[1:3], dtype=np.int64), (len(images), 1)),
    )


def _from_items(items: Any, spec: str, content: str = "") -> Source:
    if len(items) == 0:
        raise UserError("the data set is empty")
    own = getattr(items, "names", None)
    names = [f"{i:08d}" for i in range(len(items))] if own is None else [str(name) for name in own]
    labels = getattr(items, "labels", None)
    for what, values in (("names", names), ("labels", labels)):
        if values is not None and len(values) != len(items):
            raise UserError(f"the data set has {len(items)} items but {len(values)} {what}")
    images = pictures.as_pixels(items.load(0)) is not None
    load = _OwnImages(items.load, spec) if images else items.load
    return Source(
        spec=spec,
        names=names,
        labels=None if labels is None else [str(label) for label in labels],
        load=load,
        fingerprint=fingerprint_of((content + name, 0) for name in names),
        sizes=np.array([load(i).shape[:2] for i in range(len(items))], dtype=np.int64) if images else None,
        own=not content,
    )


def _from_files(spec: str, place: str, listing: Listing, seed: int, limit: int, known: Sequence[str] | None) -> Source:
    """Source of encoded images. Each is decoded once; those that cannot be decoded are skipped, with the reason.

    Known images are never skipped, because a run refers to them by index: those that cannot be decoded are `lost`.
    """
    if known is not None:
        listing, limit = only(listing, known), 0
    names, where = listing.names, listing.where
    if not names:
        raise UserError(f"no images found {where}; supported formats: {', '.join(SUFFIXES)}")
    order = random_order(len(names), "limit", seed) if 0 < limit < len(names) else np.arange(len(names))
    wanted = limit or len(names)
    shapes: dict[int, tuple[int, int]] = {}
    reasons: dict[int, str] = {}
    while len(shapes) < wanted and len(order):
        now, order = np.split(order, [wanted - len(shapes)])
        for i, found in zip(now.tolist(), _probe_all(listing, now.tolist()), strict=True):
            if isinstance(found, str):
                reasons[i] = found
            else:
                shapes[i] = found
    keep = sorted(shapes)
    skipped = [Skipped(names[i], reasons[i]) for i in sorted(reasons)]
    if not keep:
        raise UserError(
            f"none of the {len(names)} image files {where} can be read, e.g. {skipped[0].name}: {skipped[0].reason}"
        )
    lost = skipped if known is not None else []
    if lost:
        typical = np.median(list(shapes.values()), axis=0).astype(int).tolist()
        shapes |= dict.fromkeys(reasons, (typical[0], typical[1]))
        keep, skipped = sorted(shapes), []
    labels, notes = listing.labels, listing.notes
    if labels is None and listing.marks is None:
        labels, splits = folder_labels(names), split_folders(names)
        notes = notes + note_splits(splits, labels is not None)
    notes = notes + _missing_packages(reasons.values())
    kept = [names[i] for i in keep]
    encoded = _Chosen(listing.open, np.array(keep, dtype=np.int64))
    return Source(
        spec=spec,
        names=kept,
        labels=None if labels is None else [labels[i] for i in keep],
        load=_Decoded(encoded),
        fingerprint=fingerprint_of(zip(kept, (listing.sizes[i] for i in keep), strict=True)),
        skipped=skipped,
        sizes=np.array([shapes[i] for i in keep], dtype=np.int64),
        files=[listing.files[i] for i in keep],
        stamps=[listing.stamps[i] for i in keep],
        place=place,
        encoded=encoded,
        marks=None if listing.marks is None else listing.marks.of(np.array(keep, dtype=np.int64)),
        lost=lost,
        notes=notes,
    )


def _missing_packages(reasons: Iterable[str]) -> list[str]:
    """What to install to read the files that were skipped for these reasons."""
    counts = Counter(reason for reason in reasons if reason.endswith(camera.INSTALL))
    return [f"{count:,} {'file' if count == 1 else 'files'} skipped: {reason}" for reason, count in counts.items()]


def _probe_all(listing: Listing, chosen: list[int]) -> list[tuple[int, int] | str]:
    """`_probe` each: large files in threads, small ones one by one, because threads would wait for each other."""
    if np.median(listing.sizes) < SMALL_FILE:
        return [_probe(listing.open, i) for i in chosen]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda i: _probe(listing.open, i), chosen))


def _probe(open_file: Callable[[int], BinaryIO], i: int) -> tuple[int, int] | str:
    try:
        with open_file(i) as file:
            return pictures.probe(file)
    except Exception as error:  # a missing file, an encrypted member: many kinds of errors
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def has_test_part(data: Data) -> bool:
    """Whether DATA is a data set with its own test split, and gives no other split."""
    if not isinstance(data, str | Path):
        return False
    name = named.parse(str(data))
    if name is None:
        return data == "builtin"
    return not name.split and (name.name in paper_datasets.READERS or named.has_parts(name))


def is_inside(path: Path, data: Data) -> bool:
    """Whether DATA is a folder of images that contains the path."""
    if not isinstance(data, str | Path) or str(data) in ("", "builtin") or not os.path.isdir(data):  # noqa: PTH112
        return False
    return path.resolve().is_relative_to(Path(data).resolve())
