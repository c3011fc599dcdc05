"""What the tests share: one small trained run, pictures made on the spot, and the real data where it is."""

import os
import shutil
import tarfile
import zipfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SMALL = {  # a training that takes seconds
    "recipe": "small-v2",
    "backbone": "resnet10t",
    "width": 4,
    "dim": 16,
    "image_size": 16,
    "clusters": [4, 8],
    "batch_size": 16,
    "device": "cpu",
}


def make_system(method="pcl", encoder=None, ranks=None, size=(48, 20), classes=0, **values):
    """A system as training builds it, with small settings, for n images of a side."""
    from protonce.assembly import build_context
    from protonce.auto import DataSize, Machine, resolve
    from protonce.config import Settings
    from protonce.encoder import build
    from protonce.methods import registry
    from protonce.methods.base import Setup
    from protonce.ranks import Ranks

    entry = registry.find(method)
    small = {name: value for name, value in SMALL.items() if name != "recipe"}
    common, options = registry.part({**small, **values, "method": entry.name}, entry, "the test")
    settings = resolve(Settings(**common), DataSize(*size), Machine("cpu", bfloat16=False, faiss=True, cores=1))
    encoder = encoder or build(settings)
    context = build_context(settings, encoder, ranks or Ranks())
    resolved = entry.options(**options).resolve(settings, size[0])
    return entry.system(Setup(encoder, settings, resolved, context, size[0], classes))


def train_until(stop, monkeypatch, photos, out, options):
    """Train, and stop when the checkpoint after these finished epochs and this step (None: no step) is saved."""
    import protonce
    from protonce import checkpoints

    save = checkpoints.save

    def save_and_stop(folder, done, parts, epoch=None):
        save(folder, done, parts, epoch)
        if (done, epoch and epoch.step) == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, out, checkpoint_minutes=0, **options)
    monkeypatch.undo()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    """Weights and numbers that a test draws without a generator are the same in every run, whatever ran before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data():
    """Real data sets; absent on most machines, present in CI."""
    if not SHARED.exists():
        assert not os.environ.get("CI"), f"CI lays the real data at {SHARED}, and it is not there"
        pytest.skip("the real data sets are not on this machine")
    return SHARED


def stripes(rng: np.random.Generator, slope: int, side: int = 20) -> np.ndarray:
    """A small picture of stripes: its class is their direction."""
    y, x = np.mgrid[:side, :side]
    wave = np.sin((x * slope + y * (3 - slope)) * 0.7 + rng.uniform(0, 6)) * 90 + 128
    picture = wave[..., None] + rng.normal(0, 20, (side, side, 3))
    return picture.clip(0, 255).astype(np.uint8)


def images(n=24, h=20, w=20, seed=0):
    """Noise in [0, 1]; (n, 3, h, w)."""
    import torch

    return torch.rand(n, 3, h, w, generator=torch.Generator().manual_seed(seed))


def picture(side=12, seed=0):
    """A square picture of noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def image_views(size=16, **values):
    """The views of images, with small settings."""
    from protonce.auto import DataSize, Machine, resolve
    from protonce.config import Settings
    from protonce.data.views import ImageViews

    machine = Machine("cpu", bfloat16=False, faiss=False, cores=1)
    return ImageViews(resolve(Settings(image_size=size, **values), DataSize(100, 20), machine))


def zip_of(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


def tar_of(folder, path):
    with tarfile.open(path, "w:" + path.suffix[1:].replace("tar", "").replace("tgz", "gz")) as archive:
        archive.add(folder, arcname=".")
    return path


def _write(path, data):
    path.write_bytes(data)
    return path


def stop_after_saving(save, stop_after):
    """`save`, interrupted after the checkpoint of an epoch."""

    def save_and_stop(folder, epoch, *rest):
        save(folder, epoch, *rest)
        if epoch == stop_after:
            raise KeyboardInterrupt

    return save_and_stop


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder of 48 small pictures in three class folders."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for slope in range(3):
        (folder / f"slope{slope}").mkdir()
        for i in range(16):
            Image.fromarray(stripes(rng, slope)).save(folder / f"slope{slope}" / f"{i:02d}.png")
    return folder


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    """Thirty test images in the classes of `photos`."""
    folder = tmp_path_factory.mktemp("others")
    rng = np.random.default_rng(1)
    for slope in range(3):
        (folder / f"slope{slope}").mkdir()
        for i in range(10):
            Image.fromarray(stripes(rng, slope)).save(folder / f"slope{slope}" / f"{i:02d}.png")
    return folder


@pytest.fixture
def large_photos(tmp_path):
    """24 pictures that are too large to be kept in memory: they are read anew in each epoch."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(24):
        pixels = rng.integers(0, 255, (140, 140, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i:02d}.jpg")
    return tmp_path / "photos"


@pytest.fixture(scope="session")
def trained_once(photos, tmp_path_factory):
    """The folder of a finished run of three epochs, the first a warm-up. No test writes to it: it takes `trained`."""
    import protonce

    out = tmp_path_factory.mktemp("runs") / "trained"
    return protonce.train(photos, out, epochs=3, warmup_epochs=1, quiet=True, **SMALL).path


@pytest.fixture
def trained(trained_once, tmp_path_factory):
    """The finished run, in a folder of the test's own: what one test leaves in it no other test finds."""
    import protonce

    return protonce.load(shutil.copytree(trained_once, tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture
def small_recipe(monkeypatch):
    """What `train` chooses by itself takes minutes; here it chooses what takes seconds."""
    from protonce import preparation

    values = {k: v for k, v in SMALL.items() if k != "recipe"}
    monkeypatch.setattr(preparation, "read_recipe", lambda name: values)


@pytest.fixture
def few_compared():
    """Look-alikes are found by few comparisons, for tests that look at other things: a page takes half of its time."""
    with pytest.MonkeyPatch.context() as patch:  # a test may undo its own changes
        patch.setattr("protonce.label.lookalikes.SAMPLE", 4)
        patch.setattr("protonce.label.lookalikes.NEAREST", 1)
        yield


@pytest.fixture
def quick_page(few_compared):
    """And charts are made but not drawn, for tests of other parts of the page: it takes a fifth of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protonce.report.drawing.svg", lambda figure: "<svg></svg>")
        yield


FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)


@pytest.fixture(scope="session")
def chromium():
    """A browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        assert not os.environ.get("CI"), "CI installs Chromium, and it is not there"
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens a page from the disk; a console error, a dialog or a request to anywhere fails the test."""
    context, troubles = chromium.new_context(viewport={"width": 1280, "height": 900}), []

    def opened(path, allowed="nothing"):
        page = context.new_page()
        page.on("console", lambda m: m.type == "error" and allowed not in m.text and troubles.append(m.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda r: r.url.startswith("http") and troubles.append(r.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield opened
    assert troubles == []
    context.close()
