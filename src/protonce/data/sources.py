"""Sources of images: a folder, an archive, a table, arrays, the built-in set, or anything with `len` and `load(i)`.

A source gives items by index, a name for each, and labels where the layout has them. Labels are read by
evaluation only; training never asks for them.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protonce import randomness
from protonce.data import builtin, named, paper_datasets, pictures
from protonce.data.identity import fingerprint_of, looked_into, spread
from protonce.data.listings import Listing, Marks, list_files, list_paths, only
from protonce.data.pictures import SUFFIXES, Pixels
from protonce.errors import UserError

SMALL_FILE = 16_000  # bytes


@runtime_checkable
class Items(Protocol):
    """What a user's own data set must offer: a length, and an item by its index."""

    def __len__(self) -> int: ...

    def load(self, i: int, /) -> Any:
        """The item at a position: for images an array (h, w, 3) of uint8."""
        ...


@dataclass(frozen=True)
class Skipped:
    """A file that was found but cannot be used, and why."""

    name: str
    reason: str


@dataclass
class Source:
    """Items by index, with names, labels (None: the layout has none), and what was skipped."""

    spec: str
    names: list[str]
    labels: list[str] | None
    load: Callable[[int], Any]
    fingerprint: str
    skipped: list[Skipped] = field(default_factory=list)
    sizes: NDArray[np.int64] | None = None  # (n, 2) height and width; None: the items are not images
    files: list[str] | None = None  # where each item lies on the disk; None: it does not
    stamps: list[int] | None = None  # of each file what changes with its content
    place: str = ""  # what opens it again, from any working directory; empty: `spec` does
    encoded: Callable[[int], BinaryIO] | None = None  # opens the encoded image, where there is one
    marks: Marks | None = None  # where an image may show several classes; then there are no `labels`
    lost: list[Skipped] = field(default_factory=list)  # items that were known before, and cannot be loaded any more
    own: bool = False  # a data set object of the user's own: `identity` looks at some of its items only
    subset_of: "tuple[Source, NDArray[np.int64]] | None" = None  # a source, and the positions of these in it

    def __len__(self) -> int:
        return len(self.names)

    @property
    def in_memory(self) -> bool:
        """Whether `load` only looks into an array, so that workers would gain nothing."""
        load = self.load
        while isinstance(load, _Chosen):
            load = load.load
        return isinstance(load, _Rows)

    @property
    def side(self) -> int:
        """Typical shorter side in pixels; 0 where the items are not images."""
        return 0 if self.sizes is None else int(np.median(self.sizes.min(axis=1)))

    @functools.cached_property
    def identity(self) -> str:
        """Tells these items in this order from any others, for what is computed of them and kept.

        Stricter than the fingerprint, which other files of the same names and sizes have, too: by the stamps of
        files, and where there are none by what some of the items are.
        """
        stamps = self.stamps
        content = looked_into(self.load, len(self)) if stamps is None else np.array(stamps, dtype=np.int64).tobytes()
        names = "\0".join([self.fingerprint, *self.names]).encode("utf-8", "surrogateescape")
        return hashlib.sha256(names + content).hexdigest()

    def subset(self, chosen: NDArray[np.int64]) -> "Source":
        """The items at these positions, in this order."""
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
            subset_of=(self, chosen),
        )


@dataclass
class _Chosen:
    """`load` of a subset. A class, like its likes below, because workers may have to be sent it."""

    load: Callable[[int], Any]
    chosen: NDArray[np.int64]

    def __call__(self, i: int) -> Any:
        return self.load(int(self.chosen[i]))


@dataclass
class _Rows:
    images: Pixels  # (n, h, w, 3)

    def __call__(self, i: int) -> Pixels:
        row: Pixels = self.images[i]
        return row


@dataclass
class _Decoded:
    open: Callable[[int], BinaryIO]

    def __call__(self, i: int) -> Pixels:
        with self.open(i) as file:
            return pictures.decode(file).pixels


Data = str | Path | NDArray[np.uint8] | Items | Source


def open_source(
    data: Data, part: str = "train", seed: int = 0, limit: int = 0, known: Sequence[str] | None = None
) -> Source:
    """Open whatever DATA may be.

    Args:
        data: a folder, a .zip or .tar, a .csv or .parquet of paths, a data set as `NAME[@SPLIT]:ROOT` (ImageNet,
            Places205, VOC2007, VOC2012, or one of torchvision's), `builtin`, an array of images (n, h, w) or
            (n, h, w, 3), or an object with `len` and `load(i)` (and, if it has them, `names` and `labels`).
        part: "train" or "test", for data sets that have both.
        seed: of the built-in images, and of the limit.
        limit: take this many items, drawn by the seed; 0: all. No more files are opened than that needs.
        known: of files those of these names, in their order, whatever else has come or gone since they were listed.

    Raises:
        UserError: there is nothing there, or no readable image in it.
    """
    if isinstance(data, str | Path) and data != "builtin":
        name = named.parse(str(data))
        if name is None:
            return _from_files(str(data), str(Path(data).resolve()), list_files(Path(data)), seed, limit, known)
        if name.name in paper_datasets.READERS:
            return _from_files(str(name), str(name), paper_datasets.read(name, part), seed, limit, known)
        dataset = named.open_named(name, part)
        files = named.files_of(dataset)
        if files is not None:
            return _from_files(str(name), str(name), list_paths(name.root, files, str(name)), seed, limit, known)
        images = named.Images(dataset, named.dataset_labels(dataset))
        source = _from_items(images, str(name), f"{name.name} {name.split or part}")  # wherever it lies
        return _limited(source, seed, limit)
    if isinstance(data, Source):
        source = data
    elif isinstance(data, str):
        source = _from_builtin(part, seed)
    elif hasattr(data, "load"):
        source = _from_items(data, f"{type(data).__module__}.{type(data).__qualname__}")
    else:
        source = _from_array(np.asarray(data))
    return _limited(source, seed, limit)


def _limited(source: Source, seed: int, limit: int) -> Source:
    if 0 < limit < len(source):
        return source.subset(np.sort(random_order(len(source), "limit", seed)[:limit]))
    return source


def random_order(n: int, purpose: str, seed: int) -> NDArray[np.int64]:
    """A random order of n items by the seed."""
    return np.argsort(randomness.uniform(seed, purpose, 0, np.arange(n), 1)[:, 0], kind="stable")


def _from_builtin(part: str, seed: int) -> Source:
    images, labels = builtin.draw_images(part, seed)
    names = [f"{part}/{label}/{i:05d}" for i, label in enumerate(labels)]
    spec = "builtin" if part == "train" else f"builtin ({part} part)"
    return _of_images(spec, images, names, labels, f"builtin {builtin.VERSION} {part} {seed}")


def _from_array(array: NDArray[Any]) -> Source:
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise UserError(
            f"the array has shape {array.shape} and type {array.dtype}; images are (n, h, w) or (n, h, w, 3), uint8"
        )
    if len(array) == 0:
        raise UserError("the array holds no image")
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
            raise UserError(f"the data set has {len(items)} items and {len(values)} {what}")
    first = items.load(0)
    images = isinstance(first, np.ndarray) and first.dtype == np.uint8 and first.ndim == 3 and first.shape[2] == 3
    return Source(
        spec=spec,
        names=names,
        labels=None if labels is None else [str(label) for label in labels],
        load=items.load,
        fingerprint=fingerprint_of((content + name, 0) for name in names),
        sizes=np.array([items.load(i).shape[:2] for i in range(len(items))], dtype=np.int64) if images else None,
        own=not content,
    )


def _from_files(spec: str, place: str, listing: Listing, seed: int, limit: int, known: Sequence[str] | None) -> Source:
    """A source of encoded images. Each is decoded once: what cannot be is skipped, with the reason.

    Of known images none is skipped, for each has its place in the run: those that cannot be decoded are `lost`.
    """
    if known is not None:
        listing, limit = only(listing, known), 0
    names, where = listing.names, listing.where
    if not names:
        raise UserError(f"no image was found {where}; looked for {', '.join(SUFFIXES)}")
    order = random_order(len(names), "limit", seed) if 0 < limit < len(names) else np.arange(len(names))
    wanted = limit or len(names)
    shapes: dict[int, tuple[int, int]] = {}
    reasons: dict[int, str] = {}
    while len(shapes) < wanted and len(order):
        now, order = np.split(order, [wanted - len(shapes)])
        for i, found in zip(now.tolist(), _look_at(listing, now.tolist()), strict=True):
            if isinstance(found, str):
                reasons[i] = found
            else:
                shapes[i] = found
    keep = sorted(shapes)
    skipped = [Skipped(names[i], reasons[i]) for i in sorted(reasons)]
    if not keep:
        raise UserError(
            f"none of the {len(names)} image files {where} can be read; {skipped[0].name} is {skipped[0].reason}"
        )
    lost = skipped if known is not None else []
    if lost:
        typical = np.median(list(shapes.values()), axis=0).astype(int).tolist()
        shapes |= dict.fromkeys(reasons, (typical[0], typical[1]))
        keep, skipped = sorted(shapes), []
    labels = None if listing.marks else listing.labels or folder_labels(names)
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
    )


def _look_at(listing: Listing, chosen: list[int]) -> list[tuple[int, int] | str]:
    """`_look` at each: large files side by side; small ones in turn, for threads would wait for each other."""
    if np.median(listing.sizes) < SMALL_FILE:
        return [_look(listing.open, i) for i in chosen]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda i: _look(listing.open, i), chosen))


def _look(open_file: Callable[[int], BinaryIO], i: int) -> tuple[int, int] | str:
    try:
        with open_file(i) as file:
            return pictures.look(file)
    except Exception as error:  # a file that is gone, a member that is encrypted: many kinds
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def folder_labels(names: Sequence[str]) -> list[str] | None:
    """The folder of each image below the folder that all have in common: its finest label.

    None where there is a single folder, or where images lie beside the folders: then they name no classes.
    """
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    common = 0
    while all(len(f) > common for f in folders) and len({f[common] for f in folders}) == 1:
        common += 1
    rest = ["/".join(f[common:]) for f in folders]
    return rest if len(set(rest)) > 1 and all(rest) else None


def labels_like(names: Sequence[str], classes: Collection[str]) -> list[str] | None:
    """The folder of each image, as it is called among these classes: with as many folders above it as they have.

    None where the folders of an image are none of the classes.
    """
    found = []
    for name in names:
        folders = PurePosixPath(name).parts[:-1]
        label = next((c for i in range(len(folders)) if (c := "/".join(folders[i:])) in classes), None)
        if label is None:
            return None
        found.append(label)
    return found


def has_test_part(data: Data) -> bool:
    """Whether DATA is a data set with a test part of its own, of which no other part is named."""
    if not isinstance(data, str | Path):
        return False
    name = named.parse(str(data))
    if name is None:
        return data == "builtin"
    return not name.split and (name.name in paper_datasets.READERS or named.has_parts(name))


def lies_among(path: Path, data: Data) -> bool:
    """Whether a path is in the folder of images that DATA is."""
    if not isinstance(data, str | Path) or str(data) in ("", "builtin") or not Path(data).is_dir():
        return False
    return path.resolve().is_relative_to(Path(data).resolve())


def split(source: Source, seed: int, share: float = 0.2) -> tuple[Source, Source]:
    """A training and a test part of one source, drawn by the seed.

    Each label has an image in the training part; a file that is listed twice, by links, has both places there.
    """
    order = random_order(len(source), "split", seed)
    n_test = max(round(share * len(source)), 1)
    tested, trained = order[:n_test], order[n_test:]
    apart = np.ones(len(tested), dtype=bool)
    if source.labels is not None:
        labels = np.array(source.labels)
        apart &= np.isin(labels[tested], labels[trained])
    if source.files is not None:
        files = np.array(source.files)
        apart &= ~np.isin(files[tested], files[trained])
    tested, trained = tested[apart], np.concatenate([trained, tested[~apart]])
    return source.subset(np.sort(trained)), source.subset(np.sort(tested))


def check_apart(labelled: Source, tested: Source) -> None:
    """Files shared by train and test are an error: a test on known answers tests nothing.

    Raises:
        UserError: there are such files; or of images without files all look the same on both sides.
    """
    shared = set(labelled.files or []) & set(tested.files or [])
    if shared:
        raise UserError(
            f"{len(shared)} files are among the training and the test images, one of them {min(shared)}; part them"
        )
    without_files = not labelled.files and not tested.files and len(labelled) == len(tested)
    if without_files and all(np.array_equal(labelled.load(i), tested.load(i)) for i in spread(len(labelled))):
        raise UserError(f"{labelled.spec} and {tested.spec} are the same images; test on others")
