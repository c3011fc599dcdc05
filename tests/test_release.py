"""The package as users get it: built, installed without the checkout, and typed."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import protonce
from conftest import SMALL

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def run(*command, **options):
    found = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, built from the sdist, and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_every_file_of_the_package(built):
    with zipfile.ZipFile(built[0]) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("protonce/")}
    listed = run("git", "ls-files", "src/protonce", cwd=ROOT).splitlines()
    assert inside == {name.removeprefix("src/") for name in listed}


def test_the_sdist_has_what_the_wheel_is_built_from(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/protonce/py.typed"}
    assert needed <= names
    assert not [name for name in names if name.startswith("tests")], "half of the tests, which do not run from there"


def test_it_works_without_the_checkout(built, tmp_path):
    """Installed into an empty environment, which finds the dependencies, but not the package, in this one."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", built[0])
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = run(python, "-c", "import protonce; print(protonce.__file__)", cwd=tmp_path, env=outside)
    assert found.startswith(str(tmp_path))
    command = tmp_path / "venv" / "bin" / "protonce"
    assert run(command, "--version", cwd=tmp_path, env=outside) == f"protonce {protonce.__version__}\n"
    options = [w for k, v in SMALL.items() for w in (f"--{k.replace('_', '-')}", str(v).strip("[]").replace(" ", ""))]
    train = ("train", "builtin", "--out", "run", "--limit", 48, "--epochs", 1, *options)
    assert "Look at what it found" in run(command, *train, cwd=tmp_path, env=outside)
    assert (tmp_path / "run" / "report.html").exists()


def test_the_public_interface_is_typed():
    script = ROOT / "tests" / "typed_script.py"
    run(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", script, cwd=ROOT)


def test_the_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == protonce.__version__
