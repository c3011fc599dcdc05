"""suggestions.json of a run folder: the images that `protonce suggest` named last, which the page asks labels for."""

import json
from collections.abc import Sequence

from protonce import manifest
from protonce.manifest import explain_damage
from protonce.run import Run

FILE = "suggestions.json"


def keep_suggestions(run: Run, names: Sequence[str]) -> None:
    """Keep the names of suggested images in the run folder."""
    manifest.write(run.path, FILE, json.dumps(list(names)) + "\n")


def kept_suggestions(run: Run) -> list[int]:
    """Indices of the images that were suggested last; empty if none were.

    Raises:
        UserError: the file is damaged.
    """
    if not manifest.is_recorded(run.path, FILE):
        return []
    data = manifest.read(run.path, FILE)
    with explain_damage(run.path / FILE):
        names = json.loads(data)
    places = {name: i for i, name in enumerate(run.images[0])}
    return [places[name] for name in names if name in places]
