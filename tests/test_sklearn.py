"""The estimators, by scikit-learn's own checks and against `protonce.train`."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import protonce
from conftest import SMALL
from protonce.sklearn import PCL, Encoder, Rows, VectorViews, _perceptron, _Prototypes
from test_documentation import blocks

NOT_CHECKED = {"check_array_api_input"}  # for estimators that say they take arrays of other libraries


def digits(n):
    found = load_digits()
    return found.data[:n], found.target[:n]


@pytest.mark.slow
def test_scikit_learns_own_checks():
    found = check_estimator(PCL(epochs=3), on_fail=None)
    assert len(found) > 40
    assert {one["check_name"] for one in found if one["status"] != "passed"} <= NOT_CHECKED


def test_in_memory_equals_a_run_folder(tmp_path):
    x, _ = digits(60)
    x = x.astype(np.float32)
    options = {"dim": 8, "warmup_epochs": 1}
    model = PCL([4, 8], epochs=3, hidden=16, random_state=3, settings=options).fit(x)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    views = VectorViews(x.mean(axis=0), x.std(axis=0), 0.3, 0.1)
    network = _perceptron(64, 16, seed)
    settings = {**options, "epochs": 3, "clusters": [4, 8], "seed": seed, "workers": 0, "device": "cpu"}
    run = protonce.train(Rows(x), tmp_path / "run", encoder=network, views=views, quiet=True, **settings)
    for ours, theirs in zip(model.encoders_, run.encoders, strict=True):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value)
    for m, c in enumerate(run.prototypes):
        np.testing.assert_allclose(model.prototypes_[m], c.centroids.numpy(), atol=1e-6)
        assert (model.hierarchy_[m] == run.assign(Rows(x))[m][0]).all()


def test_views_mask_and_add_noise():
    from protonce.data.views import Samples

    x = np.random.default_rng(0).normal(5, 2, size=(400, 50)).astype(np.float32)
    x[:, 0] = 7  # a constant column
    views = VectorViews(x.mean(axis=0), x.std(axis=0), mask=0.25, noise=0.5)
    samples = Samples(torch.from_numpy(x), torch.arange(400), seed=0, epoch=0)
    plain = views.plain(samples)
    np.testing.assert_allclose(plain[:, 1:].numpy(), (x[:, 1:] - x[:, 1:].mean(0)) / x[:, 1:].std(0), atol=1e-4)
    assert (plain[:, 0].abs() < 1e-3).all()
    query, key = views.train(samples)
    assert not torch.equal(query, key)
    masked = query == 0
    assert masked.double().mean().item() == pytest.approx(0.25, abs=0.01)
    noise = (query - plain)[~masked]
    assert noise.std().item() == pytest.approx(0.5, abs=0.02)
    assert noise.mean().item() == pytest.approx(0, abs=0.02)


def test_pipelines_searches_copies_and_names():
    pytest.importorskip("pandas")
    x, y = digits(120)
    model = PCL(5, epochs=2, hidden=8, random_state=0)
    pipeline = make_pipeline(model, LogisticRegression(max_iter=200))
    search = GridSearchCV(pipeline, {"pcl__hidden": [8, 16], "pcl__n_clusters": [[4, 8]]}, cv=2).fit(x, y)
    assert search.best_params_["pcl__hidden"] in (8, 16)
    assert clone(model).get_params() == model.get_params()
    fitted = clone(model).set_output(transform="pandas").fit(x)
    table = fitted.transform(x)
    assert list(table.columns) == [f"pcl{i}" for i in range(8)] == list(fitted.get_feature_names_out())
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.labels_)
    np.testing.assert_array_equal(model.fit_predict(x), fitted.labels_)


@pytest.mark.slow
def test_digits_are_told_apart():
    x, y = load_digits(return_X_y=True)
    found = PCL(10, random_state=0).fit_predict(x)
    assert adjusted_mutual_info_score(y, found) > 0.4  # about 0.7, k-means of the pixels 0.6; random 0.0


def test_the_documentation_runs(monkeypatch):
    ((_, code),) = blocks("docs/sklearn.md")
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda return_X_y: digits(100))
    found = {}
    exec(code, found)
    assert found["model"].prototypes_[0].shape[0] == 10


def test_arrays_of_images():
    x = np.random.default_rng(0).integers(0, 256, (24, 20, 20, 3), dtype=np.uint8)
    small = {name: value for name, value in SMALL.items() if name not in ("recipe", "clusters")}
    model = PCL([2, 4], epochs=2, random_state=0, settings=small).fit(x)
    assert model.transform(x).shape == (24, 32)
    assert {len(np.unique(level)) for level in model.hierarchy_} <= {1, 2, 3, 4}
    assert pickle.loads(pickle.dumps(model)).predict(x[:5]).shape == (5,)
    with pytest.raises(ValueError, match="images must be a uint8 array"):
        PCL(epochs=1).fit(x.astype(np.float32))


def test_what_cannot_be_fitted_is_a_value_error():
    x, _ = digits(30)
    with pytest.raises(ValueError, match="minimum of 8"):
        PCL().fit(x[:3])
    with pytest.raises(ValueError, match="speed"):
        PCL(settings={"speed": 3}).fit(x)
    for wrong in ({"hidden": 0}, {"mask": 2.0}, {"settings": {"method": "moco"}}):
        with pytest.raises(ValueError, match=r"hidden must be|this estimator is PCL"):
            PCL(**wrong).fit(x)
    with pytest.raises(ValueError, match="loss became NaN or infinite; choose a smaller lr"):
        _Prototypes(None).step(None, None, torch.tensor(torch.nan), None)


def test_the_encoder_of_a_run(trained, photos):
    encoder = Encoder.from_run(trained.path)
    expected = trained.features(photos, "backbone")[0].numpy()
    np.testing.assert_array_equal(encoder.transform(photos), expected)
    source = trained.source()
    x = np.stack([source.load(i) for i in range(48)])
    pipeline = make_pipeline(encoder, LogisticRegression(max_iter=500)).fit(x, source.labels)
    assert pipeline.score(x, source.labels) > 0.5
    assert len(encoder.get_feature_names_out()) == expected.shape[1]
    assert clone(Encoder.from_run(trained.path, "momentum")).transform(x).shape == (48, 16)
    paths = [str(path) for path in sorted(photos.rglob("*.png"))]
    order = [7, 3, 40, 3]
    some = encoder.transform([paths[i] for i in order])
    np.testing.assert_allclose(some, expected[order], atol=1e-5)
    with pytest.raises(ValueError, match=r"1 images cannot be read, for example .*gone.png"):
        encoder.transform([*paths, str(photos / "gone.png")])
    with pytest.raises(ValueError, match="kind is 'nope'"):
        Encoder.from_run(trained.path, "nope").fit()
    with pytest.raises(protonce.UserError, match="not a run folder"):
        Encoder.from_run(photos).fit()
