"""Labels from the folders that images are in."""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

SPLITS = {"train", "training", "trainval", "val", "valid", "validation", "dev", "test", "testing"}  # usual folder names


def folder_labels(names: Sequence[str]) -> list[str] | None:
    """Label of each image: its folder, relative to the folder that all images have in common, or to its split.

    None if there is a single folder, or if images are next to folders: then the folders are not classes.
    """
    start = 1 if split_folders(names) else 0
    labels = ["/".join(folders[start:]) for folders in _below_common(names)]
    return labels if len(set(labels)) > 1 and all(labels) else None


def split_folders(names: Sequence[str]) -> list[str]:
    """The folders that contain all images, if there are several with the usual names of splits; else none."""
    tops = {"/".join(folders[:1]) for folders in _below_common(names)}
    return sorted(tops) if len(tops) > 1 and {top.lower() for top in tops} <= SPLITS else []


def _below_common(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The folders of each image below those that all images have in common."""
    inside = [name.rpartition("/")[0] for name in names]
    folders = {folder: PurePosixPath(folder).parts for folder in set(inside)}
    common = 0
    while all(len(f) > common for f in folders.values()) and len({f[common] for f in folders.values()}) == 1:
        common += 1
    return [folders[folder][common:] for folder in inside]


def note_splits(splits: Sequence[str], labelled: bool) -> list[str]:
    """What to say of splits that are used together."""
    if not splits:
        return []
    meaning = "the folders inside them are the classes" if labelled else "they are not classes, so there are no labels"
    return [f"all images of the splits {', '.join(splits)} are used, and {meaning}; give one of them to use it alone"]


def match_folder_labels(names: Sequence[str], classes: Collection[str]) -> list[str] | None:
    """Label each image with the longest ending of its folder path that is one of the classes.

    None if the folder path of an image ends in none of the classes.
    """
    found = []
    for name in names:
        folders = PurePosixPath(name).parts[:-1]
        label = next((c for i in range(len(folders)) if (c := "/".join(folders[i:])) in classes), None)
        if label is None:
            return None
        found.append(label)
    return found
