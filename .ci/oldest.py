"""Print the oldest version that pyproject.toml allows of each dependency, as a constraints file for pip."""

import tomllib
from pathlib import Path


def main() -> None:
    """Turn every lower bound, also of the optional dependencies but `peers`, into an exact version."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = [asked for name, asked in project["optional-dependencies"].items() if name != "peers"]
    for requirement in sum(extras, start=project["dependencies"]):
        if requirement.startswith(f"{project['name']}["):  # an extra that names the others
            continue
        assert requirement.count(">=") == 1, f"{requirement} needs a lower bound, and nothing else"
        print(requirement.replace(">=", "=="))


if __name__ == "__main__":
    main()
