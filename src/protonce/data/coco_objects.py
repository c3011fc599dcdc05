"""Objects of images in the layout of COCO: `COCO[@SPLIT]:ROOT`, with annotations/instances_SPLIT.json in ROOT."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protonce.data.folders import open_regular
from protonce.data.identity import evenly_spaced, identity_of_annotated
from protonce.data.masks import fault as fault_of_mask
from protonce.data.masks import fault_of_polygon, is_number
from protonce.data.named import Name
from protonce.data.object_boxes import Kept, clip, measure, stack
from protonce.data.objects import ObjectImages
from protonce.errors import UserError, shown

SPLITS = {"train": ("train2017", "train"), "test": ("val2017", "val")}  # the labels of test2017 were never published
KEYS = ("images", "annotations", "categories")


class _Image(NamedTuple):
    name: str
    file: Path
    size: tuple[int, int]
    kept: list[Kept]


def read(name: Name, part: str, classes: list[str] | None = None) -> ObjectImages:
    """Read the images of one split, with their objects; images without objects stay, and so do crowds.

    Args:
        name: `COCO`; its split, such as `val2017` or `val`, overrides `part`.
        part: "train" or "test".
        classes: class names; None: those of the file, in the order of their ids.

    Raises:
        UserError: it is not in the layout of COCO, or has no usable images or objects.
        OSError, ValueError: a file or folder cannot be read.
    """
    split, file = _find(name, part)
    content, parsed = _parse(file)
    faults: list[str] = []
    named = _categories(file, parsed["categories"])
    classes = list(named.values()) if classes is None else list(classes)
    images = _images(name.root, split, file.name, parsed["images"], faults)
    masks = any(isinstance(a, dict) and a.get("segmentation") for a in parsed["annotations"])
    codes = {key: classes.index(c) if c in classes else -1 for key, c in named.items()}
    left_out = {found["id"] for found in parsed["images"] if _is_key(_get(found, "id"))} - images.keys()
    for number, annotation in enumerate(parsed["annotations"], 1):
        if not isinstance(annotation, dict):
            faults.append(f"{file.name}, annotation number {number}: it is not an object of JSON and was left out")
            continue
        key = annotation.get("image_id")
        if _is_key(key) and key in left_out:
            continue  # said once, for the image
        found = _annotation(annotation, images.get(key) if _is_key(key) else None, codes, masks)
        where = f"{file.name}, annotation {shown(annotation.get('id', f'number {number}'))}"
        faults += [f"{where}: {fault}" for fault in found[1:]]
        if isinstance(found[0], Kept):
            images[key].kept.append(found[0])
    if not any(image.kept for image in images.values()):
        first = f"the first fault: {faults[0]}" if faults else "it has no annotations"
        raise UserError(f"{file}: no usable object on {len(images)} images; {first}")
    return ObjectImages(
        spec=str(name),
        classes=classes,
        names=[image.name for image in images.values()],
        files=[image.file for image in images.values()],
        sizes=np.array([image.size for image in images.values()], dtype=np.int64),
        objects=[stack(image.kept, masks=masks) for image in images.values()],
        identity=identity_of_annotated([(i.name, i.file) for i in images.values()], [content], classes),
        faults=faults,
    )


def _find(name: Name, part: str) -> tuple[str, Path]:
    """The split and its annotations."""
    folder = name.root / "annotations"
    splits = (f"{name.split}2017", name.split) if name.split else SPLITS[part]
    for split in splits:
        if (folder / f"instances_{split}.json").is_file():
            return split, folder / f"instances_{split}.json"
    there = sorted(file.stem.removeprefix("instances_") for file in folder.glob("instances_*.json"))
    if not there:
        raise UserError(
            f"{name} does not have the layout of COCO: there is no annotations/instances_SPLIT.json in ROOT"
        )
    wanted = " or ".join(f"instances_{split}.json" for split in splits)
    raise UserError(f"{folder} has no {wanted}; choose with COCO@SPLIT:ROOT from {', '.join(there)}")


def _parse(file: Path) -> tuple[bytes, dict[str, list[Any]]]:
    with open_regular(file) as opened:
        content = opened.read()
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    missing = [key for key in KEYS if not isinstance(_get(parsed, key), list)]
    if missing:
        raise UserError(f"{file} is not an annotation file of COCO: it has no list of {' and of '.join(missing)}")
    if not parsed["images"]:
        raise UserError(f"{file} is empty: it lists no images")
    return content, parsed


def _categories(file: Path, categories: list[Any]) -> dict[int, str]:
    """Names of the categories by their ids, in the order of their ids."""
    named: dict[int, str] = {}
    for category in categories:
        key, text = _get(category, "id"), _get(category, "name")
        if not isinstance(key, int) or not isinstance(text, str):
            raise UserError(f"{file}: a category needs a number as id and a name, but there is {shown(category)}")
        if key in named or text in named.values():
            raise UserError(f"{file}: two categories have the id {key} or the name {shown(text)}; each must be unique")
        named[key] = text
    if not named:
        raise UserError(f"{file} has no categories; an object detector needs at least one class")
    return dict(sorted(named.items()))


def _images(root: Path, split: str, file: str, entries: list[Any], faults: list[str]) -> dict[Any, _Image]:
    """Images by their ids."""
    usable = [entry for entry in entries if _is_key(_get(entry, "id")) and isinstance(_get(entry, "file_name"), str)]
    if len(usable) < len(entries):
        count = len(entries) - len(usable)
        faults.append(f"{file}: {count} images have no id or no file_name and were left out")
    folder = _image_folder(root, split, [entry["file_name"] for entry in usable])
    if folder.name != split:
        place = "ROOT" if folder == root else folder.relative_to(root).as_posix()
        faults.append(f"{file}: there is no folder {split} with its images, which were read from {place}")
    images: dict[Any, _Image] = {}
    for entry in usable:
        place = folder / entry["file_name"]
        shown_place = place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)
        size = measure(place)
        if entry["id"] in images:
            faults.append(f"{file}: image {shown(entry['id'])} is listed twice; the second was left out")
        elif isinstance(size, str):
            faults.append(f"{shown_place} cannot be read and was left out: {size}")
        else:
            said = (entry.get("width", size[0]), entry.get("height", size[1]))
            if said != size:
                wrong, right = f"{shown(said[0])} x {shown(said[1])}", f"{size[0]} x {size[1]}"
                faults.append(f"{file} gives {wrong} pixels for {shown_place}, but it has {right}, which were used")
            images[entry["id"]] = _Image(shown_place, place, size, [])
    if not images:
        raise UserError(f"{root / 'annotations' / file}: none of {len(entries)} images can be used; {faults[-1]}")
    return images


def _image_folder(root: Path, split: str, files: list[str]) -> Path:
    """The folder of the split, or if it is missing the one that has its images."""
    named = [root / split, root / "images" / split]
    folder = next((folder for folder in named if folder.is_dir()), None)
    if folder is not None:
        return folder
    others = [root, root / "images", *sorted([*root.glob("*"), *root.glob("images/*")])]
    sample = [files[i] for i in evenly_spaced(len(files))]
    folders = [folder for folder in others if folder.is_dir()]
    counts = [sum((folder / file).is_file() for file in sample) for folder in folders]
    if not max(counts):
        raise UserError(f"{root} has no folder {split}, and no other folder there has the images of that split")
    return folders[counts.index(max(counts))]


def _annotation(
    annotation: dict[str, Any], image: _Image | None, codes: dict[Any, int], masks: bool
) -> tuple[Kept | None, *tuple[str, ...]]:
    """An object, or None, and what was wrong with it."""
    if image is None:
        return None, f"it is for image {shown(annotation.get('image_id'))}, which is not listed, and was left out"
    category = annotation.get("category_id")
    code = codes.get(category, -1) if _is_key(category) else -1
    if code < 0:
        return None, f"its category {shown(category)} is not one of the classes, and it was left out"
    bounds = annotation.get("bbox")
    if not isinstance(bounds, list) or len(bounds) != 4 or not all(map(is_number, bounds)):
        return None, "its bbox is not x, y, width and height, and it was left out"
    x, y, w, h = bounds
    box, fault = clip([x, y, x + w, y + h], *image.size, written=bounds)
    faults = [fault] if fault else []
    if box is None:
        return None, *faults
    mask, area = None, None
    if masks:
        mask, reasons = _mask(annotation.get("segmentation"), image.size)
        faults += reasons
        if mask is None:
            return None, *faults
    if is_number(annotation.get("area")) and annotation["area"] >= 0:
        area = float(annotation["area"])
    elif masks:
        faults.append("it has no area; that of its box was used")
    crowd = annotation.get("iscrowd", 0) in (1, True)
    return Kept(box, code, crowd=crowd, area=area, mask=mask), *faults


def _mask(mask: Any, size: tuple[int, int]) -> tuple[Any | None, list[str]]:
    """The usable part of a mask, or None, and what was wrong with it."""
    if not isinstance(mask, list):
        reason = fault_of_mask(mask, *size)
        return (None, [f"{reason}, and it was left out"]) if reason else (mask, [])
    reasons = [fault_of_polygon(polygon) for polygon in mask]
    usable = [polygon for polygon, reason in zip(mask, reasons, strict=True) if not reason]
    if usable:
        return usable, [f"{reason}, and was dropped" for reason in reasons if reason]
    return None, [f"{reasons[0] if reasons else 'it has no segmentation'}, and it was left out"]


def _get(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


def _is_key(value: Any) -> bool:
    return isinstance(value, int | str)
