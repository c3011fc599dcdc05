"""Before a release: build wheel and sdist, install the wheel into an empty environment, and run the quick demo there.

Also checks that the dependencies can be resolved for every Python that pyproject.toml names. `make release` runs it.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: object, **options: object) -> None:
    """Run a command, and stop if it fails."""
    words = [str(word) for word in command]
    print("+", " ".join(words), flush=True)
    subprocess.run(words, check=True, **options)  # type: ignore[call-overload]


def main() -> None:
    """Build, install, try, resolve."""
    dist = ROOT / "dist"
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src/protonce/__init__.py").read_text())
    assert version
    wheel, sdist = dist / f"protonce-{version[1]}-py3-none-any.whl", dist / f"protonce-{version[1]}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "venv", with_pip=True)
        binaries = Path(folder) / "venv" / "bin"
        if index := os.environ.get("TORCH_INDEX"):
            run(binaries / "pip", "install", "--quiet", "--index-url", index, "torch", "torchvision")
        run(binaries / "pip", "install", "--quiet", wheel)
        run(binaries / "protonce", "demo", "--quick", cwd=folder)
        run(binaries / "pip", "install", "--quiet", "--no-deps", "--force-reinstall", sdist)
        run(binaries / "protonce", "--version", cwd=folder)
        for python in pythons():
            nowhere = ["--dry-run", "--ignore-installed", "--target", Path(folder) / "none"]
            run(
                *(binaries / "pip", "install", "--quiet", *nowhere, "--only-binary", ":all:"),
                *("--python-version", python, wheel),
            )
    print(f"{wheel.name} and {sdist.name} are fine.")


def pythons() -> list[str]:
    """The versions of Python that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [found[1] for text in project["classifiers"] if (found := re.fullmatch(r".*:: (3\.\d+)", text))]


if __name__ == "__main__":
    main()
