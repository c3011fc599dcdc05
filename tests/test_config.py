"""Settings check themselves, recipes are the paper's, and `auto` is the paper's at the paper's size."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from protonce.auto import DataSize, Machine, choose_recipe, resolve
from protonce.config import Settings, read_config, read_recipe, recipes
from protonce.errors import UserError
from protonce.methods.registry import SYSTEMS, find, part, part_recipe

CPU = Machine("cpu", bfloat16=True, faiss=True, cores=4)
GPU = Machine("cuda", bfloat16=True, faiss=True, cores=16)
IMAGENET = DataSize(1_281_167, 400)
PUBLISHED = {
    "queue_push": "after",
    "queue_start": "random",
    "own_keys": "negatives",
    "queries": "one",
    "twin_update": "next",
    "block_init": "torchvision",
    "precision": "32",
}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epochs": 0}, "setting epochs is 0; it must be at least 1"),
        ({"epochs": 1.5}, "setting epochs is 1.5; it takes a whole number"),
        ({"epochs": True}, "takes a whole number"),
        ({"tau": 0}, "setting tau is 0.0; it must be above 0"),
        ({"weight_decay": "nan"}, "must be a finite number"),
        ({"tau": "warm"}, "setting tau is 'warm'; it takes a number"),
        ({"clusters": "many"}, "it takes a list of whole numbers or auto"),
        ({"clusters": []}, "clusters is empty"),
        ({"clusters": [10, 0]}, "setting clusters is 0; it must be at least 1"),
        ({"views": "v3"}, "it takes v1 or v2"),
        ({"jitter": [0.4, 0.4, 0.4]}, "setting jitter has 3 numbers; it takes 4"),
        ({"jitter": [0.4, 0.4, 0.4, 0.6]}, "hue is at most 0.5"),
        ({"crop_scale": [0.9, 0.2]}, "the smaller first"),
        ({"sgd_momentum": 1.5}, "must be at most 1"),
        ({"lr": 0.1, "lr_final": 0.2}, "lr_final is 0.2, above lr 0.1"),
    ],
)
def test_a_bad_setting_is_refused_in_one_sentence(values, words):
    with pytest.raises(UserError, match=words) as error:
        Settings(**values)
    assert "\n" not in str(error.value)


def test_an_unknown_setting_gets_a_hint():
    with pytest.raises(UserError, match=r"mine.yaml has no setting .epoch.; did you mean epochs\?"):
        Settings.from_mapping({"epoch": 3}, "mine.yaml")


def test_numbers_as_people_write_them():
    """YAML takes 1e-3 for a text, and one granularity is a list of one; granularities go from coarse to fine."""
    settings = Settings(lr="1e-3", clusters=30)
    assert (settings.lr, settings.clusters) == (0.001, [30])
    assert resolve(Settings(clusters=[80, 20, 40]), DataSize(1000, 32), CPU).clusters == [20, 40, 80]


def chosen(values, data, machine, method="pcl"):
    """Settings and options of a system in one, as `auto` resolves them."""
    entry = find(method)
    common, options = part(values, entry, "the test")
    settings = resolve(Settings(**common), data, machine)
    return SimpleNamespace(**{**vars(settings), **vars(entry.options(**options).resolve(settings, data.n))})


def test_every_setting_is_documented():
    for fields in (Settings, *(entry.options for entry in SYSTEMS.values())):
        for field in dataclasses.fields(fields):
            assert len(field.metadata["help"]) > 10, field.name


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_valid(name):
    recipe = read_recipe(name)
    chosen(recipe, DataSize(100_000, 64), CPU, str(recipe.get("method", "pcl")))
    for entry in SYSTEMS.values():  # and serves any other system as well
        chosen(part_recipe(recipe, entry), DataSize(100_000, 64), CPU, entry.name)


def test_the_papers_recipes():
    """Section 4.1, value by value."""
    common = {
        "backbone": "resnet50", "dim": 128, "image_size": 224, "plain_resize": 256, "batch_size": 256,
        "sgd_momentum": 0.9, "weight_decay": 1e-4, "lr": 0.03, "epochs": 200, "warmup_epochs": 20,
        "negatives": 16000, "queue": 16000, "clusters": [25000, 50000, 100000], "alpha": 10.0,
        "twin_momentum": 0.999, "crop_scale": [0.2, 1.0], "grey_p": 0.2, "terms": "both", "concentration": "estimated",
        "negative_prototypes": "published-parts", "bn_splits": 4, "kmeans_init": "published",
        "phi_clamp": "percentiles", "phi_of_identical": "smallest", **PUBLISHED,
    }  # fmt: skip
    v1 = {"tau": 0.1, "head": "linear", "schedule": "step", "views": "v1", "jitter": [0.4] * 4, "jitter_p": 1.0}
    v2 = {
        "tau": 0.2, "head": "mlp", "schedule": "cosine-epoch", "views": "v2", "jitter": [0.4, 0.4, 0.4, 0.1],
        "jitter_p": 0.8, "blur_p": 0.5, "blur_sigma": [0.1, 2.0],
    }  # fmt: skip
    for name, own in (("pcl-v1", v1), ("pcl-v2", v2)):
        recipe, resolved = read_recipe(name), chosen(read_recipe(name), IMAGENET, GPU)
        for key, value in {**common, **own}.items():
            assert recipe.get(key, value) == value, (name, key)
            assert getattr(resolved, key) == value, "nothing of the paper's is resolved away"
    drops = chosen(read_recipe("pcl-v1"), IMAGENET, GPU)
    assert [share * drops.epochs for share in drops.drops] == [120, 160]


def test_mocos_recipes():
    """He et al. (2020), section 4.1, and Chen et al. (2020), value by value; all else is as in PCL's."""
    moco = {"method": "moco", "queue": 65536, "bn_splits": 8, "blur_p": 0.0, "tau": 0.07}
    v2 = {"blur_p": 0.5, "tau": 0.2}
    for version, own in (("v1", moco), ("v2", {**moco, **v2})):
        recipe, pcl = read_recipe(f"moco-{version}"), read_recipe(f"pcl-{version}")
        resolved = chosen(recipe, IMAGENET, GPU, "moco")
        expected = {name: pcl.get(name, value) for name, value in recipe.items() if name not in own} | own
        assert recipe == expected
        assert {name for name in pcl if name not in recipe} == {
            *(
                "alpha",
                "clusters",
                "concentration",
                "phi_clamp",
                "phi_of_identical",
                "negatives",
                "negative_prototypes",
            ),
            *("prototype_weight", "terms", "warmup_epochs"),
            *("kmeans_init", "kmeans_iterations", "kmeans_points", "kmeans_starts"),
        }
        for name, value in {**own, **PUBLISHED}.items():
            assert getattr(resolved, name) == value, name


def test_auto_is_the_papers_at_imagenets_size():
    resolved = chosen({}, IMAGENET, GPU)
    assert resolved.clusters == [25000, 50000, 100000]
    assert (resolved.negatives, resolved.queue) == (16000, 16000)
    assert (resolved.warmup_epochs, resolved.twin_momentum, resolved.prototype_weight) == (20, 0.999, 1.0)
    assert (resolved.batch_size, resolved.image_size, resolved.plain_resize) == (256, 224, 256)
    assert (resolved.bn_splits, resolved.stem) == (4, "standard")
    assert (resolved.record_every, resolved.epochs) == (10, 200)


def test_the_table_in_the_docs_is_what_auto_chooses():
    text = (Path(__file__).parents[1] / "docs" / "auto.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    names = rows[0][1:]
    sizes = [int(row[0].replace(",", "")) for row in rows[2:]]
    assert sizes == [100, 1000, 10_000, 100_000, 1_280_000]
    for n, row in zip(sizes, rows[2:], strict=True):
        resolved = chosen({"epochs": 200}, DataSize(n, 500), GPU)
        found = [getattr(resolved, name) for name in names]
        assert row[1:] == [", ".join(map(str, c)) if isinstance(c, list) else str(c) for c in found], n


def test_short_training_warms_up_for_half_of_it_and_its_twin_follows_fast():
    short = chosen({"epochs": 40}, DataSize(3000, 32), CPU)  # 23 steps an epoch
    assert (short.warmup_epochs, short.twin_momentum, short.queue) == (20, 0.9, short.batch_size)
    assert chosen({"epochs": 1}, DataSize(3000, 32), CPU).warmup_epochs == 0


@pytest.mark.parametrize("n", [8, 9, 20, 60, 500, 3000, 50_000])
def test_auto_is_sensible_at_every_size(n):
    resolved = chosen({}, DataSize(n, 32), CPU)
    assert "auto" not in [v for v in vars(resolved).values() if isinstance(v, str)]
    assert resolved.clusters == sorted(resolved.clusters)
    assert 1 < resolved.clusters[0] <= resolved.clusters[-1] <= n
    assert resolved.queue <= max(n / 4, 1)
    assert 2 <= resolved.batch_size <= n
    assert resolved.batch_size // resolved.bn_splits >= 8
    assert 0.9 <= resolved.twin_momentum <= 0.999


def test_bfloat16_is_never_chosen_on_a_cpu():
    assert resolve(Settings(), IMAGENET, CPU).precision == "32"
    assert resolve(Settings(), IMAGENET, GPU).precision == "bf16"
    assert resolve(Settings(), IMAGENET, dataclasses.replace(GPU, bfloat16=False)).precision == "32"
    assert resolve(Settings(precision="bf16"), IMAGENET, CPU).precision == "bf16", "unless it is asked for"


@pytest.mark.parametrize(
    ("machine", "engine"),
    [
        (CPU, "faiss"),
        (dataclasses.replace(CPU, faiss=False), "torch"),
        (GPU, "torch"),
        (dataclasses.replace(GPU, faiss_gpu=True), "faiss"),
        (Machine("mps", bfloat16=False, faiss=True, cores=4), "torch"),
    ],
)
def test_k_means_is_by_faiss_on_a_cpu_and_on_a_gpu_that_faiss_can_use(machine, engine):
    for recipe in ("pcl-v1", "pcl-v2"):
        assert chosen(read_recipe(recipe), IMAGENET, machine).kmeans_engine == engine


def test_the_recipe_is_chosen_by_size_count_and_device():
    assert choose_recipe(DataSize(50_000, 32), "cuda")[0] == "small-v2"
    assert choose_recipe(IMAGENET, "cuda")[0] == "pcl-v2"
    assert choose_recipe(DataSize(500, 3000), "cuda")[0] == "photos-v2"
    assert choose_recipe(DataSize(500, 3000), "cpu")[0] == "laptop-v2"


def test_too_large_a_batch_is_refused():
    with pytest.raises(UserError, match="batch_size is 64, but there are 20 images"):
        resolve(Settings(batch_size=64), DataSize(20, 32), CPU)


@pytest.mark.parametrize(
    ("text", "words"),
    [("epochs: [", "is not YAML"), ("- 1", "not a list of settings"), (b"\xff\xfe\xff", "not a text")],
)
def test_a_bad_config_file_is_explained(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=words):
        read_config(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "absent.yaml")


def test_settings_survive_yaml():
    settings = resolve(Settings(), IMAGENET, GPU)
    again = type(settings)(**yaml.safe_load(yaml.safe_dump(dataclasses.asdict(settings))))
    assert again == settings
