"""The notebooks of the documentation: executed at a small size, and stored with what they printed."""

import json
from pathlib import Path

import nbformat
import pytest
import timm
import torch
from nbclient import NotebookClient

from conftest import SMALL

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
TRAINING = {**SMALL, "epochs": 1}


def small_parameters(name, photos, folder):
    """Values for the names that the first cell of a notebook defines."""
    if name == "pretrained":
        torch.save(timm.create_model("resnet18").state_dict(), folder / "resnet18.pth")
        encoder = {"backbone": "resnet18", "image_size": 32}
        training = {"epochs": 1, "batch_size": 16, "clusters": [4, 8], "device": "cpu"}
        paths = {"WEIGHTS": str(folder / "resnet18.pth"), "PHOTOS": str(photos), "OUT": "runs"}
        return {**paths, "ENCODER": encoder, "TRAINING": training}
    common = {"PHOTOS": str(photos), "RUN": "runs/photos", "SETTINGS": TRAINING}
    return {**common, "BUDGETS": (4, 8)} if name == "few-labels" else common


def printed(cell):
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, photos, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    parameters = next(cell for cell in notebook.cells if cell.cell_type == "code")
    values = small_parameters(path.stem, photos, tmp_path)
    names: dict[str, object] = {}
    exec(parameters.source, names)
    assert {name for name in names if name.isupper()} == {*values}
    parameters.source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "\n".join(printed(cell) for cell in notebook.cells)
    expected = {"own-photos": "4 prototypes of", "few-labels": "of 44 images are right", "pretrained": " prototypes\n"}
    assert expected[path.stem] in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_results(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "executed once, in order"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= 3
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    assert path.stat().st_size < 400_000
