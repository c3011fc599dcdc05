"""`protonce label --folders`: the images of each label in a folder of their own."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from protonce.data.placing import REFUSED, STEM, put_image
from protonce.data.sources import Source
from protonce.files import whole_folder, write_whole

UNSURE = "not sure"  # images without a label


def write_label_folders(
    source: Source, labels: Sequence[str], out: Path, copy: bool = False, files: Mapping[str, str] | None = None
) -> None:
    """Write OUT/LABEL/NUMBER-NAME for each image; nothing is moved.

    Args:
        source: the images.
        labels: one for each; empty ones go to the folder `UNSURE`.
        out: a folder that does not exist yet, or is empty.
        copy: copy files instead of linking to them.
        files: content of other files in the folder, by name.
    """
    folders = folder_names(sorted({*labels}), [*(files or {})])
    digits = len(str(len(source)))
    with whole_folder(out) as part:
        for name in folders.values():
            (part / name).mkdir(parents=True)
        for i, label in enumerate(labels):
            put_image(source, i, part / folders[label], str(i).zfill(digits), copy)
        for name, content in (files or {}).items():
            write_whole(part / name, content)


def folder_names(labels: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """A folder name for each label, valid on any file system, and different from the others and those taken."""
    found: dict[str, str] = {}
    for label in labels:
        text = REFUSED.sub("_", (label or UNSURE).replace("/", "_"))
        base = os.fsencode(text)[:STEM].decode(errors="ignore").strip(" .") or "_"
        name, number = base, 1
        while name.lower() in {other.lower() for other in (*found.values(), *taken)}:
            number += 1
            name = f"{base} {number}"
        found[label] = name
    return found
