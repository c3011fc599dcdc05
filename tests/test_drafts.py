"""Drafts: what an interrupted evaluation has finished is not computed again."""

import pytest

from protonce.evaluate import lowshot, semisup
from protonce.evaluate.protocols import evaluate


@pytest.mark.parametrize(("protocol", "module"), [("lowshot", lowshot), ("semisup", semisup)])
def test_finished_draws_are_not_lost(protocol, module, trained, others, monkeypatch):
    """Interrupted in the third draw: the first two are not made again, and the result is that of one go."""
    options = {"draws": 4, **({"shots": [2]} if protocol == "lowshot" else {"shares": [0.2], "epochs": 1})}
    whole = evaluate(trained, protocol, test=str(others), quiet=True, name="whole", **options)
    score, made = module._score, []

    def until_the_third(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return score(*arguments)

    monkeypatch.setattr(module, "_score", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, protocol, test=str(others), quiet=True, **options)
    assert not (trained.path / "evaluations" / f"{protocol}.json").exists()
    made.clear()
    monkeypatch.setattr(module, "_score", lambda *a: (made.append(1), score(*a))[1])
    assert evaluate(trained, protocol, test=str(others), quiet=True, **options)["metrics"] == whole["metrics"]
    assert len(made) == 2
    made.clear()
    evaluate(trained, protocol, test=str(others), quiet=True, **{**options, "seed": 1})  # nothing to go on
    assert len(made) == 4


def test_drafts_need_the_same_labels_and_are_not_evaluations(trained, photos, tmp_path, monkeypatch):
    """The same files with other labels are another task; what is not finished is not on the page."""
    table = tmp_path / "table.csv"

    def write(shift):
        rows = (f"{photos}/slope{s}/{i:02d}.png,{(s + shift * i) % 3}\n" for s in range(3) for i in range(16))
        table.write_text("path,label\n" + "".join(rows))

    score, made = lowshot._score, []

    def twice(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return score(*arguments)

    write(0)
    monkeypatch.setattr(lowshot, "_score", twice)
    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, "lowshot", train=str(table), quiet=True, shots=[2], draws=3)
    assert trained.evaluations == {}
    made.clear()
    write(1)
    monkeypatch.setattr(lowshot, "_score", lambda *a: (made.append(1), score(*a))[1])
    evaluate(trained, "lowshot", train=str(table), quiet=True, shots=[2], draws=3)
    assert len(made) == 3
    assert evaluate(trained, "lowshot", train=str(table), quiet=True, again=False, shots=[2], draws=3)
    assert len(made) == 3  # the result that is there
    evaluate(trained, "lowshot", train=str(table), quiet=True, again=False, shots=[2], draws=4)
    assert len(made) == 7
