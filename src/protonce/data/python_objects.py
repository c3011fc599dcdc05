"""Images as Python programs have them: lists, tables of pandas and pyarrow, data sets of torch and Hugging Face.

Each becomes a listing of encoded images, or items by index; the libraries themselves are not imported.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from protonce.data.encoded import Spool, Values, content_of, list_encoded, open_path, path_of
from protonce.data.folders import of_paths
from protonce.data.listings import Listing
from protonce.data.tables import IMAGES, LABELS, PATHS, Columns, label_texts, list_columns
from protonce.errors import UserError


def describe(data: Any) -> str:
    """What the object is called in messages."""
    if isinstance(data, list | tuple):
        return f"a list of {len(data):,} {'paths' if isinstance(data[0], str | Path) else 'images'}"
    return f"{type(data).__module__.partition('.')[0]}.{type(data).__qualname__}"


def list_object(data: Any) -> Listing | None:
    """Listing of the encoded images of an object; None: it has none.

    Raises:
        UserError: it has no images where they are expected.
    """
    if isinstance(data, list | tuple) and data and all(isinstance(value, str | Path) for value in data):
        return _list_paths(data)
    columns = _columns(data)
    if columns is not None:
        return list_columns(describe(data), columns, Path(), in_order=True)
    if hasattr(data, "features") and hasattr(data, "cast_column"):
        return _list_hugging_face(data)
    return None


def _list_paths(data: Sequence[str | Path]) -> Listing:
    """Files in the order of the list, named as below the deepest folder that contains all."""
    strange = next((value for value in map(str, data) if not value or "\0" in value), None)
    if strange is not None:
        raise UserError(f"{describe(data)} has {strange!r}, which is not a path")
    paths = [Path(os.path.abspath(value)) for value in data]  # noqa: PTH100 - links stay as they are
    top = os.path.commonpath([path.parent for path in paths])
    names = [path.relative_to(top).as_posix() for path in paths]
    if len({*names}) < len(names):
        return list_encoded(describe(data), Values(paths), names, None, Path())
    return of_paths(f"in {describe(data)}", list(zip(names, paths, strict=True)))


def _columns(data: Any) -> Columns | None:
    """The columns of a table of pandas or pyarrow; None: it is none."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return [(str(name), data.iloc[:, i].tolist()) for i, name in enumerate(data.columns) if _is_known(name)]
    if hasattr(data, "column_names") and hasattr(data, "to_pylist"):
        return [(name, data.column(i).to_pylist()) for i, name in enumerate(data.column_names) if _is_known(name)]
    return None


def _is_known(name: Any) -> bool:
    return str(name).strip().lower() in (*PATHS, *IMAGES, *LABELS)


# Hugging Face


def _list_hugging_face(data: Any) -> Listing:
    """The column of images, decoded here as files are; of a stream the images are kept in a temporary file."""
    images = [name for name, kind in (data.features or {}).items() if type(kind).__name__ == "Image"]
    if len(images) != 1:
        known = ", ".join(data.features or {}) or "unknown"
        raise UserError(f"the data set has {len(images)} columns of type Image ({known}); it must have one")
    column, where = images[0], describe(data)
    kinds = {name: type(kind).__name__ for name, kind in data.features.items()}
    named = next((name for name, kind in kinds.items() if kind == "ClassLabel"), None) or next(
        (name for name in kinds if name.strip().lower() in LABELS), None
    )
    plain = data.with_format(None) if hasattr(data, "with_format") else data  # without the user's own transform
    raw = plain.cast_column(column, type(data.features[column])(decode=False))
    raw = raw.select_columns([column, *([] if named is None else [named])])
    names: list[str] = []
    codes: list[Any] = []

    def images_of(rows: Iterable[Any]) -> Iterable[Any]:
        for i, row in enumerate(rows):
            path = path_of(row[column])
            names.append(f"{i:08d}" if path is None else Path(path).name)
            codes.append(None if named is None else row[named])
            yield row[column]

    if hasattr(data, "__len__"):
        for _ in images_of(raw):
            pass
        values: Any = _HuggingFace(raw.select_columns([column]), column)
    else:
        values = Spool(map(_content, images_of(raw)), "keep the images of a stream")
    if named is None:
        labels = None
    elif kinds[named] == "ClassLabel":
        labels = ["" if code is None or code < 0 else str(data.features[named].int2str(int(code))) for code in codes]
    else:
        labels = label_texts(codes)
    return list_encoded(where, values, names, labels, Path())


def _content(value: Any) -> bytes:
    """The encoded image of a row; empty if it cannot be read, so that it is skipped with the others."""
    content, path = content_of(value), path_of(value)
    if content is not None or path is None:
        return content or b""
    try:
        with open_path(path, Path()) as file:
            return file.read()
    except (OSError, ValueError):
        return b""


@dataclass
class _HuggingFace:
    """A column of encoded images. A class, so that it can be pickled for worker processes."""

    rows: Any
    column: str

    def __call__(self, i: int) -> Any:
        return self.rows[i][self.column]


# Decoded images


class Indexed:
    """A list of images, or a map-style data set of torch, as items by index.

    Attributes:
        labels: what is in second place, by the data set's names of classes; None: there is nothing.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self.labels = self._labels()

    def __len__(self) -> int:
        return len(self.data)

    def load(self, i: int) -> Any:
        """Item i; of an image its pixels, (h, w, 3) uint8, or a Pillow image."""
        item = self.data[i]
        return _pixels(item[0] if isinstance(item, tuple | list) and len(item) else item)

    def _labels(self) -> list[str] | None:
        first = self.data[0]
        if not (isinstance(first, tuple | list) and len(first) > 1):
            return None
        known = getattr(self.data, "targets", None)
        targets = (
            known if known is not None and len(known) == len(self) else [self.data[i][1] for i in range(len(self))]
        )
        classes = getattr(self.data, "classes", None)
        codes = [target.item() if hasattr(target, "item") and target.ndim == 0 else target for target in targets]
        if isinstance(classes, list | tuple) and all(isinstance(c, int) and 0 <= c < len(classes) for c in codes):
            return [str(classes[code]) for code in codes]
        return label_texts(codes)


def _pixels(image: Any) -> Any:
    """A tensor (3, h, w) or (1, h, w), or a grey array, as an array (h, w, 3) of type uint8; anything else as it is."""
    if isinstance(image, Image.Image):
        return image
    is_tensor = hasattr(image, "permute") and hasattr(image, "detach")
    array = image.detach().cpu().numpy() if is_tensor else image
    if not isinstance(array, np.ndarray):
        return image
    if is_tensor and array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
        if array.dtype.kind == "f":  # as torchvision's ToTensor scales them
            if array.min() < 0 or array.max() > 1:
                raise UserError("images as tensors of floats must be in [0, 1]; leave normalisation to protonce")
            array = np.rint(255 * array).astype(np.uint8)
    if array.dtype == np.uint8 and array.ndim == 2:
        array = array[..., None]
    grey = array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 1
    return np.repeat(array, 3, axis=2) if grey else array


def is_indexed(data: Any) -> bool:
    """Whether an object is a list of images of several shapes or kinds, or a data set by index."""
    if isinstance(data, list | tuple):
        shapes = {getattr(value, "shape", None) for value in data}
        return bool(data) and (isinstance(data[0], Image.Image) or (None not in shapes and len(shapes) > 1))
    by_index = hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data) > 0
    return by_index and not isinstance(data, Mapping | bytes | bytearray) and not hasattr(data, "__array__")
