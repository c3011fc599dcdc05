"""What training changed since the weights that it started from, without labels; and when `adapt` is chosen."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F

import protonce
from conftest import SMALL
from protonce.changes import Changes, Look, changes, distance
from protonce.data.loader import Loader
from protonce.data.views import ImageViews
from protonce.encoder import build
from protonce.features import extract
from protonce.importing import import_encoder
from protonce.preparation import is_pretrained


def test_nothing_has_changed_before_training(trained):
    settings = protonce.load(trained.path).settings
    settings = type(settings)(**{**vars(settings), "init": str(trained.path)})
    found = changes(trained.encoders[0], trained.source(), settings)
    assert found.before == found.after
    assert found.distance == 0
    # Views of 48 images: one by one, against two means of the plain views' directions.
    source = trained.source()
    loader = Loader(source, ImageViews(settings), seed=settings.seed)
    encoder = trained.encoders[0]
    v = extract(encoder.features, loader)
    v = F.normalize(v - v.mean(dim=0), dim=1)
    share = (v.T @ v).double() / len(v)
    spectrum = torch.linalg.eigvalsh(share).clamp(min=1e-300)
    assert found.after.effective_rank == pytest.approx(float((-(spectrum * spectrum.log()).sum()).exp()), rel=1e-4)
    assert 0.5 <= found.after.same_cluster <= 1, "two clusters"


def test_an_encoder_that_ignores_its_views_keeps_them_together(trained):
    """All weights of the last layers at 0: every image has the same features."""
    settings = type(trained.settings)(**{**vars(trained.settings), "init": str(trained.path)})
    encoder = build(settings).eval()
    with torch.no_grad():
        for parameter in encoder.backbone.layer4.parameters():
            parameter.zero_()
    found = changes(encoder, trained.source(), settings)
    assert found.after == Look(1.0, 1.0)
    assert found.distance > 0


def test_the_distance_is_relative_to_the_start():
    start, end = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with torch.no_grad():
        start.weight.copy_(torch.tensor([[3.0, 4.0]]))
        end.weight.copy_(torch.tensor([[3.0, 4.5]]))
        start.bias.zero_()
        end.bias.zero_()
    assert distance(start, end) == pytest.approx(0.1)


def test_training_ends_with_what_has_changed(photos, tmp_path, trained, capsys):
    run = protonce.train(photos, tmp_path / "run", init=str(trained.path), **{**SMALL, "recipe": "adapt", "epochs": 2})
    said = capsys.readouterr().err
    kept = json.loads((run.path / "changes.json").read_text())
    found = Changes(Look(**kept["before"]), Look(**kept["after"]), kept["distance"])
    assert " ".join(found.words(str(trained.path), run.path).split()) in " ".join(said.split())
    assert 0 < found.distance < 0.5
    assert "recipe adapt (pretrained weights)" not in said, "it was named"


def test_weights_that_are_gone_are_no_obstacle(photos, tmp_path, trained, monkeypatch, capsys):
    """They are read when training starts; when it ends, they may have been removed."""
    from protonce import training

    base = shutil.copytree(trained.path, tmp_path / "base")
    monkeypatch.setattr(training.MomentumFeatures, "forget", lambda _: shutil.rmtree(base, ignore_errors=True))
    run = protonce.train(photos, tmp_path / "run", init=str(base), **{**SMALL, "epochs": 1})
    assert run.finished
    assert not (run.path / "changes.json").exists()
    assert "note: what training changed is not known: --init" in capsys.readouterr().err


def test_a_finished_run_stays_one_whatever_the_comparison_meets(photos, tmp_path, trained, monkeypatch, capsys):
    def fails(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr("protonce.journal.changes", fails)
    run = protonce.train(photos, tmp_path / "run", init=str(trained.path), **{**SMALL, "epochs": 1})
    assert run.finished
    assert "note: what training changed is not known: no memory" in capsys.readouterr().err


def test_other_parameters_than_the_start_s_do_not_count():
    start = torch.nn.Sequential(torch.nn.Linear(2, 2))
    end = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    end[0].load_state_dict(start[0].state_dict())
    assert distance(start, end) == 0
    torch.nn.init.zeros_(start[0].weight)
    torch.nn.init.zeros_(start[0].bias)
    assert distance(start, end) == 0, "of nothing there is no share"


def test_adapt_is_chosen_for_weights_from_elsewhere(photos, tmp_path, trained, capsys):
    """Not for those of a run from random weights, which is continued, nor for an untrained encoder."""
    weights = tmp_path / "weights.pth"
    state = trained.encoders[0].backbone.state_dict()
    torch.save(state, weights)
    shape = {name: getattr(trained.settings, name) for name in ("backbone", "width", "stem", "image_size")}
    import_encoder(str(weights), tmp_path / "imported", quiet=True, **shape)
    import_encoder("untrained", tmp_path / "untrained", like=trained, quiet=True)
    import_encoder(str(trained.path), tmp_path / "again", quiet=True)
    assert [is_pretrained(str(init)) for init in ("", trained.path, tmp_path / "untrained", tmp_path / "again")] == [
        False
    ] * 4
    assert is_pretrained(str(weights))
    assert is_pretrained("timm:resnet18")
    options = {**{k: v for k, v in SMALL.items() if k != "recipe"}, "epochs": 1}
    run = protonce.train(photos, tmp_path / "adapted", init=str(tmp_path / "imported"), **options)
    assert run.config["recipe"] == "adapt"
    assert "recipe adapt (pretrained weights)" in capsys.readouterr().err
    assert is_pretrained(str(run.path)), "what was adapted once knows what it started from"
    assert run.config["pretrained"]
    with_head = protonce.train(photos, tmp_path / "head", init=str(run.path), quiet=True, **options, head="mlp")
    assert (with_head.config["recipe"], with_head.settings.head_init) == ("adapt", "random"), "a head of one's own"
    after = protonce.train(photos, tmp_path / "after", init=str(with_head.path), quiet=True, **options)
    assert (after.settings.head, after.settings.head_init) == ("linear", "pca"), "not that of the weights"
    assert not is_pretrained(str(trained.path / "encoder.safetensors"))
    another = protonce.train(photos, tmp_path / "more", init=str(trained.path), quiet=True, **options)
    assert another.config["recipe"] == "laptop-v2"
