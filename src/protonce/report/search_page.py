"""The page of `protonce search --out FILE.html`: each query with the pictures of what was found."""

import base64
import io
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from protonce.data.sources import Source
from protonce.files import write_whole
from protonce.label.search import Hit, Photos
from protonce.report.payload import relative_address

SIDE = 200  # pixels
QUALITY = 80


def write_search_page(run: str, hits: Sequence[Hit], source: Source, photos: Photos | None, out: Path) -> None:
    """Write a self-contained page of what was found.

    Args:
        run: its name.
        hits: query by query.
        source: the images that were searched among.
        photos: the queries, if they are photos.
        out: a .html.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    folder = resources.files("protonce.report") / "assets"
    loader = PackageLoader("protonce", "report/assets")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    asked = {} if photos is None else {name: photos.load(i) for i, name in enumerate(photos.names)}
    places = {name: i for i, name in enumerate(source.names)}
    searches = []
    for query, found in groupby(hits, key=lambda hit: hit.query):
        rows = [(hit, *_of_image(hit, source, places, out)) for hit in found]
        searches.append({"query": query, "picture": _picture(asked[query]) if query in asked else "", "hits": rows})
    page = environment.get_template("search.html").render(
        run=run, searches=searches, style=folder.joinpath("page.css").read_text(encoding="utf-8")
    )
    write_whole(out, page)


def _of_image(hit: Hit, source: Source, places: Mapping[str, int], out: Path) -> tuple[str, str]:
    """The picture of an image, and the address of its file; empty where there is none."""
    picture = _picture(source.load(places[hit.name])) if source.sizes is not None else ""
    is_file = hit.file and Path(hit.file).exists()
    return picture, relative_address(hit.file, out.resolve().parent) if is_file else ""


def _picture(pixels: Any) -> str:
    image = ImageOps.contain(Image.fromarray(pixels), (SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()
