"""Images as Python programs have them, with the real libraries: each is the source that the folder is."""

import io
import pickle

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
import torch
import torchvision
import webdataset
from PIL import Image
from pyarrow import parquet

import protonce
from conftest import SMALL, zip_of
from protonce.data.sources import open_source
from protonce.errors import UserError


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six pictures of two sizes in two class folders."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i in range(6):
        place = folder / ("cat" if i < 3 else "dog") / f"{i}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12 + i % 2, 10, 3), dtype=np.uint8)).save(place)
    return folder


def files(folder):
    return sorted(folder.rglob("*.png"))


def labels_of(folder):
    return [path.parent.name for path in files(folder)]


class Map(torch.utils.data.Dataset):
    """A map-style data set of torch."""

    def __init__(self, folder, transform):
        self.paths, self.transform = files(folder), transform
        self.classes = sorted({*labels_of(folder)})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        label = torch.tensor(self.classes.index(self.paths[i].parent.name))
        return self.transform(Image.open(self.paths[i])), label


def encoded_rows(folder):
    return [{"bytes": path.read_bytes(), "path": None} for path in files(folder)]


def shards(folder, place):
    """Two shards by webdataset's own writer."""
    for shard in range(2):
        with webdataset.TarWriter(str(place / f"part-{shard:04d}.tar")) as writer:
            for path in files(folder)[3 * shard : 3 * shard + 3]:
                writer.write({"__key__": path.stem, "png": path.read_bytes(), "cls": path.parent.name})
    return str(place / "part-{0000..0001}.tar")


def hugging_face(folder):
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=sorted({*labels_of(folder)}))}
    )
    rows = {"picture": [str(path) for path in files(folder)], "kind": labels_of(folder)}
    return datasets.Dataset.from_dict(rows, features=features)


def on_disk(folder, place):
    hugging_face(folder).save_to_disk(place / "saved")
    return datasets.load_from_disk(place / "saved")


def parquet_file(folder, place):
    """As the Hugging Face hub has them."""
    table = pyarrow.table({"image": encoded_rows(folder), "label": labels_of(folder)})
    parquet.write_table(table, place / "images.parquet")
    return place / "images.parquet"


KINDS = {
    "paths": lambda folder, _: files(folder),
    "texts": lambda folder, _: [str(path) for path in files(folder)],
    "Pillow images": lambda folder, _: [Image.open(path) for path in files(folder)],
    "arrays": lambda folder, _: [np.asarray(Image.open(path)) for path in files(folder)],
    "torch, Pillow": lambda folder, _: Map(folder, lambda image: image),
    "torch, floats": lambda folder, _: Map(folder, torchvision.transforms.ToTensor()),
    "torch, uint8": lambda folder, _: Map(folder, torchvision.transforms.PILToTensor()),
    "torchvision": lambda folder, _: torchvision.datasets.ImageFolder(folder),
    "pandas, paths": lambda folder, _: pandas.DataFrame(
        {"path": [str(path) for path in files(folder)], "label": labels_of(folder)}
    ),
    "pandas, bytes": lambda folder, _: pandas.DataFrame(
        {"bytes": [path.read_bytes() for path in files(folder)], "label": labels_of(folder)}
    ),
    "pyarrow": lambda folder, _: pyarrow.table({"image": encoded_rows(folder), "label": labels_of(folder)}),
    "parquet": parquet_file,
    "Hugging Face": lambda folder, _: hugging_face(folder),
    "Hugging Face, saved": on_disk,
    "Hugging Face, streamed": lambda folder, _: hugging_face(folder).to_iterable_dataset(),
    "shards": shards,
}
UNLABELLED = {"Pillow images", "arrays"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_images_of_the_folder_in_their_order(pictures, tmp_path, kind):
    expected = open_source(pictures)
    found = open_source(KINDS[kind](pictures, tmp_path))
    assert len(found) == 6
    assert found.labels == (None if kind in UNLABELLED else expected.labels)
    assert (found.sizes == expected.sizes).all()
    for i in range(6):
        assert np.array_equal(found.load(i), expected.load(i))
    if kind in ("paths", "texts"):
        assert (found.names, found.fingerprint) == (expected.names, expected.fingerprint)


@pytest.mark.parametrize("kind", ["paths", "torch, uint8", "pyarrow", "Hugging Face, streamed"])
def test_the_run_is_the_same(photos, trained, tmp_path, kind):
    run = protonce.train(
        KINDS[kind](photos, tmp_path), tmp_path / "run", epochs=3, warmup_epochs=1, quiet=True, **SMALL
    )
    assert run.encoder_hash == trained.encoder_hash


def test_what_is_kept_can_be_read_in_worker_processes(pictures, tmp_path):
    for kind in ("pyarrow", "Hugging Face", "Hugging Face, streamed", "shards"):
        source = open_source(KINDS[kind](pictures, tmp_path))
        again = pickle.loads(pickle.dumps(source.load))
        assert np.array_equal(again(4), source.load(4)), kind


def test_labels_of_torch_never_reach_training(photos, trained, tmp_path):
    """The same run with other labels."""

    class Other(Map):
        def __getitem__(self, i):
            return super().__getitem__(i)[0], i % 3

    data = Other(photos, torchvision.transforms.PILToTensor())
    run = protonce.train(data, tmp_path / "run", epochs=3, warmup_epochs=1, quiet=True, **SMALL)
    assert run.images[1] != trained.images[1]
    assert run.encoder_hash == trained.encoder_hash


@pytest.mark.parametrize("kind", ["paths", "pandas, paths", "pandas, bytes", "Hugging Face"])
def test_rows_keep_their_order_and_are_told_apart(pictures, tmp_path, kind):
    """Any order, a row twice; and two sets of one kind are not each other's."""
    order = [5, 0, 3, 0]
    (tmp_path / "chosen").mkdir()
    chosen = [files(pictures)[i] for i in order]
    table = {"label": [path.parent.name for path in chosen]}
    data = {
        "paths": lambda: chosen,
        "pandas, paths": lambda: pandas.DataFrame({"path": [str(path) for path in chosen], **table}),
        "pandas, bytes": lambda: pandas.DataFrame({"bytes": [path.read_bytes() for path in chosen], **table}),
        "Hugging Face": lambda: hugging_face(pictures).select(order),
    }[kind]()
    found, expected, whole = open_source(data), open_source(pictures), open_source(KINDS[kind](pictures, tmp_path))
    assert [np.array_equal(found.load(i), expected.load(j)) for i, j in enumerate(order)] == [True] * 4
    assert len({*found.names}) == 4
    if found.labels is not None:
        assert found.labels == [expected.labels[i] for i in order]
    other = tmp_path / "other" / "cat"
    other.mkdir(parents=True)
    for path in files(pictures)[:3]:
        Image.new("RGB", (10, 12), "red").save(other / path.name)
    first, second = (open_source(KINDS[kind](place, tmp_path)) for place in (pictures / "cat", other))
    assert first.identity != second.identity
    assert first.fingerprint != second.fingerprint or first.names == second.names
    assert not {*first.files} & {*second.files}
    assert first.identity != whole.identity


def test_missing_labels_are_no_class(pictures):
    paths = [str(path) for path in files(pictures)[:3]]
    for labels, expected in (
        (["cat", None, float("nan")], ["cat", "", ""]),
        ([1, None, 2], ["1", "", "2"]),
        (pandas.array([1, None, 2], dtype="Int64"), ["1", "", "2"]),
        ([0.5, 1.0, 2.0], ["0.5", "1.0", "2.0"]),
    ):
        assert open_source(pandas.DataFrame({"path": paths, "label": labels})).labels == expected
    data = [(Image.open(path), None) for path in paths]

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return data[i]

    assert open_source(Pairs()).labels == ["", "", ""]


def test_columns_of_many_kinds(pictures):
    paths = files(pictures)[:2]
    for column in (paths, [{"bytes": None, "path": str(path)} for path in paths]):
        assert len(open_source(pandas.DataFrame({"image": column, "note": [object(), object()]}))) == 2
    with pytest.raises(UserError, match="instead of a path in row 2"):
        open_source(pandas.DataFrame({"path": pandas.array([str(paths[0]), None], dtype="string")}))
    with pytest.raises(UserError, match="instead of a path in row 1"):
        open_source(pandas.DataFrame({"image": [np.zeros(3), np.zeros(3)]}))
    named = pyarrow.table([[str(p) for p in paths], ["a", "b"], ["c", "d"]], names=["path", "name", "name"])
    assert len(open_source(named)) == 2


def test_data_sets_of_hugging_face_as_they_are(pictures, tmp_path):
    """With a transform, with labels as text, from an archive, and with an image that is gone."""
    data = hugging_face(pictures)
    assert len(open_source(data.with_transform(lambda rows: 1 / 0))) == 6
    texts = datasets.Dataset.from_dict(
        {"image": [str(path) for path in files(pictures)], "label": labels_of(pictures)}
    ).cast_column("image", datasets.Image())
    assert open_source(texts).labels == labels_of(pictures)
    archive = zip_of(pictures, tmp_path / "pictures.zip")
    names = [path.relative_to(pictures).as_posix() for path in files(pictures)]
    inside = datasets.Dataset.from_dict({"image": [f"zip://{name}::{archive}" for name in names]})
    for one in (inside, inside.to_iterable_dataset()):
        assert len(open_source(one.cast_column("image", datasets.Image()))) == 6
    gone = datasets.Dataset.from_dict({"image": [str(files(pictures)[0]), str(tmp_path / "gone.png")]})
    for one in (gone, gone.to_iterable_dataset()):
        found = open_source(one.cast_column("image", datasets.Image()))
        assert (len(found), len(found.skipped)) == (1, 1)


def test_a_run_of_shards_finds_them_again(pictures, tmp_path):
    pattern = shards(pictures, tmp_path)
    options = {**SMALL, "clusters": [2], "batch_size": 4}
    folder = tmp_path / "more"
    folder.mkdir()
    with webdataset.TarWriter(str(folder / "part-0002.tar")) as writer:
        for i, path in enumerate(files(pictures) * 2):
            writer.write({"__key__": f"again{i}", "png": path.read_bytes(), "cls": "fox"})
    (folder / "part-0002.tar").rename(tmp_path / "part-0002.tar")
    run = protonce.train(str(tmp_path / "part-*.tar"), tmp_path / "run", epochs=1, quiet=True, **options)
    assert len(run.source()) == 18
    with pytest.raises(UserError, match=r"part-0003.tar of .* does not exist; 1 of 4 are missing"):
        open_source(pattern.replace("0001", "0003"))
    with pytest.raises(UserError, match="no archive is called"):
        open_source(str(tmp_path / "other-*.tar"))
    (tmp_path / "part-9999.tar").mkdir()
    assert len(open_source(str(tmp_path / "part-*.tar"))) == 18, "a folder is not an archive"
    with pytest.raises(UserError, match="count upwards"):
        open_source(str(tmp_path / "part-{0005..0002}.tar"))
    (tmp_path / "copy").mkdir()
    for name in ("part-0000.tar", "part-0009.tar"):
        (tmp_path / "copy" / name).write_bytes((tmp_path / "part-0000.tar").read_bytes())
    with pytest.raises(UserError, match=r"both have an image 0.png; rename one"):
        open_source(str(tmp_path / "copy" / "part-*.tar"))


def test_mistakes_are_explained(pictures, tmp_path):
    paths = files(pictures)
    with pytest.raises(UserError, match="which is not a path"):
        open_source([*paths, "a\0b.png"])
    with pytest.raises(UserError, match="has no column of image paths"):
        open_source(pandas.DataFrame({"label": ["cat"]}))
    with pytest.raises(UserError, match="is an empty list"):
        open_source([])
    with pytest.raises(UserError, match=r"type generator cannot be opened; .* a list of paths or of images,"):
        open_source(path for path in paths)
    with pytest.raises(UserError, match="0 columns of type Image"):
        open_source(datasets.Dataset.from_dict({"x": [1, 2]}))
    with pytest.raises(UserError, match=r"must be in \[0, 1\]"):
        open_source(Map(pictures, lambda image: 5 * torchvision.transforms.ToTensor()(image)))
    missing = open_source([*paths, tmp_path / "gone.png"])
    assert (len(missing), missing.skipped[0].name.endswith("gone.png")) == (6, True)
    broken = pandas.DataFrame({"bytes": [paths[0].read_bytes(), b"not an image"]})
    assert [one.name for one in open_source(broken).skipped] == ["00000001"]
    image = io.BytesIO()
    Image.new("L", (9, 9)).save(image, "PNG")
    named = pandas.DataFrame({"name": ["a", "b"], "bytes": [image.getvalue()] * 2})
    assert open_source(named).names == ["a", "b"]
