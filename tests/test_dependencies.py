"""The lock file and the oldest dependencies follow pyproject.toml."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def asked(without=()):
    """What pyproject.toml asks for, with all extras but some, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [texts for extra, texts in project["optional-dependencies"].items() if extra not in without]
    lists = [project["dependencies"], *extras]
    found = [Requirement(text) for texts in lists for text in texts]
    return {canonicalize_name(r.name): r for r in found if r.name != project["name"]}


def pinned(text):
    """Version of each package in a constraints file, by name."""
    found = [Requirement(line) for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(r.specifier)) and r.url is None for r in found), text
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in found}


def test_the_lock_file_has_all_dependencies_within_their_bounds():
    locked = pinned((ROOT / "requirements-dev.lock").read_text())
    for name, requirement in asked().items():
        assert locked[name] in requirement.specifier, requirement


def test_the_oldest_dependencies_are_the_lower_bounds():
    done = subprocess.run([sys.executable, ROOT / ".ci" / "oldest.py"], capture_output=True, text=True, check=True)
    bounds = {
        name: str(requirement.specifier).removeprefix(">=") for name, requirement in asked(without=["peers"]).items()
    }
    assert pinned(done.stdout) == bounds
