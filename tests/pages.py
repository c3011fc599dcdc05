"""What the tests of the page share: a page as it is read, levels, and folders of pictures."""

import base64
import gzip
import json
from html.parser import HTMLParser

import numpy as np
from PIL import Image

from conftest import stripes
from protonce.report.hierarchy import Level


def level(assignment, distance=None, parent=None):
    assignment = np.asarray(assignment)
    return Level(assignment, np.bincount(assignment), parent, None, None if distance is None else np.asarray(distance))


class Text(HTMLParser):
    """The elements of a page, its text without scripts, and what the script knows."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.scripts, self.inside = [], "", [], None
        self.page = path.read_text(errors="surrogateescape")
        self.feed(self.page)
        self.data = json.loads(
            gzip.decompress(base64.b64decode(next(t for a, t in self.scripts if a.get("id") == "data")))
        )

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1][1] += data
        elif self.inside != "style":
            self.text += data


def make(folder, n, classes=1):
    rng = np.random.default_rng(3)
    for i in range(n):
        place = folder if classes == 1 else folder / f"class{i % classes}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(stripes(rng, i % 3)).save(place / f"{i:03d}.png")
    return folder
