"""Options and YAML files with values of every type, at every edge; what is refused leaves no run folder."""

# ruff: noqa: SIM905 - words are easier to read without quotes

import dataclasses
import random
from typing import Any

import yaml

from benchmarks.attacks.archives import finished
from benchmarks.attacks.material import SETTINGS
from benchmarks.attacks.stage import Stage

WORDS = [  # of YAML, and of the command line
    *"0 1 -1 2 3 7 8 16 64 1000 100000 1000000 9999999999 1e3 1.5 0.0001 1e308 -1e308 1e-320 1e400".split(),
    *"4294967296 9223372036854775807 9223372036854775808 inf -inf nan .nan .inf 0x_ 0x 0b2 0o9 1_000 _ 0. . +".split(),
    *"true null ~ '' \" [ ] { } [] {} [[]] [1 1, , ,, 1,,2 a,b *a % @ ` | > - -- : auto AUTO x é".split(),
    *"2001-99-99 2001-01-01 12:30:45 ../../x /dev/zero 1e39,1,1 1,2,3 1,2,3,4 0,0,0 -1,-1,-1 1,1 5,4,3,2,1".split(),
    *"0.5,1e38,2 1e38,1e38,1e38 1e-30,1e-30,1e-30 0.1,inf nan,nan".split(),
    *("", " ", "- -", "? ", "a: b", "&a [*a]", "2001-01-01 25:61:61", "!!python/none", "!!binary x", "!!timestamp x"),
    *("!!int x", "!!float x", "!!set {}", "\u202e", "\ud83d", "1" * 30, "9" * 400, "-" + "9" * 400, "x" * 100_000),
]
NAMES = {
    "backbone": [
        *"resnet18.foo resnet10t. . resnet18.a1_in1k vit_tiny_patch16_224 RESNET18 hf-hub:x/y hf_hub:a hf-hub:".split(),
        *"test_vit test_resnet convnext_atto mixer_b16_224 swin_tiny_patch4_window7_224 vgg11 efficientnet_b0".split(),
        *"local-dir:/tmp levit_128s timm/resnet18 resnet18@x file:///etc/passwd".split(),
        "resnet18 ",
    ],
    "init": [
        *"timm:resnet18.foo timm: timm:x timm:timm:x timm:hf-hub:x/y /dev/zero /dev/null nowhere . / data".split(),
        *"untrained data/kind0/0.png config.yaml".split(),
    ],
    "method": "pcl moco simclr swav byol PCL nothing deepcluster instdisc supcon".split(),
    "recipe": [*"small-v2 pcl-v1 nothing ../small-v2 SMALL-V2 demo adapt".split(), ""],
    "device": "cuda mps cpu xla cuda:0 meta".split(),
}
LARGE = (  # settings whose values decide how much memory or time is needed
    *("kmeans_starts", "kmeans_iterations", "kmeans_points", "clusters", "width", "dim", "image_size", "plain_resize"),
    *("batch_size", "queue", "negatives", "workers", "bn_splits", "limit", "seed", "lr", "mean", "std", "tau", "alpha"),
)
LARGE_WORDS = ["1000000", "9999999999", "9223372036854775807", "1e308", "1e38,1e38,1e38", "100000", "20000", "9" * 400]


def attack(stage: Stage) -> None:
    """Train for an epoch with a wrong value, given as an option or in a file, or evaluate or import with one."""
    rng = stage.rng
    (stage.here / "data").symlink_to(stage.material.photos)
    way = rng.random()
    if way < 0.5:
        name = rng.choice(fields())
        value = rng.choice(NAMES.get(name, WORDS)) if rng.random() < 0.7 else rng.choice(WORDS)
        if rng.random() < 0.3:
            name, value = rng.choice(LARGE), rng.choice(LARGE_WORDS)
        elif rng.random() < 0.1:
            name = rng.choice(sorted(NAMES))
            value = rng.choice(NAMES[name])
        name = "seed" if name == "epochs" and len(value) > 2 else name  # many epochs take long, and may
        _train(stage, f"--{name.replace('_', '-')}={value}")
    elif way < 0.85:
        stage.here.joinpath("config.yaml").write_bytes(_config(stage))
        _train(stage, "--config", "config.yaml")
    elif way < 0.95:
        _evaluate(stage)
    else:
        _import(stage)


def fields() -> list[str]:
    """Names of all settings, and of the options of all systems."""
    from protonce.config import Settings
    from protonce.methods.registry import SYSTEMS

    found = dict.fromkeys([*Settings.names(), "recipe"])
    for entry in SYSTEMS.values():
        found |= dict.fromkeys(entry.options.names())
    return list(found)


def _train(stage: Stage, *more: str) -> None:
    """Training with one more option; of the usual settings none that the option gives."""
    usual = list(SETTINGS)
    given = more[0].partition("=")[0]
    if given in usual:
        at = usual.index(given)
        del usual[at : at + 2]
    if given == "--method":  # not every system has the options of PCL
        at = usual.index("--warmup-epochs")
        del usual[at : at + 2]
    epochs = [] if given == "--epochs" else ["--epochs", "1"]
    stage.attempt("train", "data", "--out", "new", *usual, *epochs, *more, right=lambda _: finished(stage.here / "new"))


def _config(stage: Stage) -> bytes:
    """A YAML file with a wrong value or a wrong form."""
    rng = stage.rng
    way = rng.random()
    if way < 0.25:
        name, data = rng.choice(list(_bombs(rng).items()))
        stage.did(f"config.yaml: {name}")
        return data
    name = rng.choice(fields())
    if way < 0.6:
        value = rng.choice(WORDS)
        stage.did(f"config.yaml: {name}: {value[:60]}")
        return f"{name}: {value}\n".encode(errors="surrogatepass")
    value = _value(rng, 0)
    stage.did(f"config.yaml: {name}: {ascii(value)[:60]}")
    try:
        return yaml.dump({name: value}).encode(errors="surrogatepass")
    except Exception:
        return b"x"


def _value(rng: random.Random, depth: int) -> Any:
    from benchmarks.attacks.mutations import EDGES

    if depth > 3 or rng.random() < 0.6:
        return rng.choice(EDGES)
    if rng.random() < 0.5:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", "1"]): _value(rng, depth + 1) for _ in range(rng.randrange(3))}


def _bombs(rng: random.Random) -> dict[str, bytes]:
    name = rng.choice(fields()).encode()
    levels = rng.choice([4, 6, 9])
    laughs = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    for i in range(1, levels):
        laughs += b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9))
    return {
        f"{levels} levels of aliases, unknown names": laughs,
        f"{levels} levels of aliases in {name!r}": laughs.replace(b"a%d: " % (levels - 1), name + b": "),
        "aliases of a setting": b"clusters: &a [1,2]\n" + name + b": *a\n",
        "merge bomb": b"a: &a {x: 1}\n" + b"".join(b"b%d: {<<: [*a%s]}\n" % (i, b",*a" * 500) for i in range(20)),
        "recursion": name + b": &a [*a]\n",
        "recursion of a dict": b"&a {" + name + b": *a}\n",
        "deep lists": name + b": " + b"[" * 5000 + b"]" * 5000,
        "deep dicts": name + b": " + b"{a: " * 3000 + b"}" * 3000,
        "deep blocks": b"".join(b" " * i + b"a:\n" for i in range(1500)),
        "long key": b"x" * 100_000 + b": 1\n",
        "long text": name + b": '" + b"x" * 1_000_000 + b"'\n",
        "many keys": b"".join(b"k%d: 1\n" % i for i in range(20_000)),
        "key twice": name + b": 1\n" + name + b": 2\n",
        "key that is a list": b"? [1, 2]\n: 3\n",
        "key that is a dict": b"{a: 1}: 2\n",
        "numbers as keys": b"1: 2\n3.5: x\nnull: 1\ntrue: 2\n",
        "two documents": b"epochs: 1\n---\nepochs: 2\n",
        "code": b"epochs: !!python/object/apply:os.system ['id']\n",
        "NUL": name + b": \0\n",
        "no UTF-8": name + b": \xff\xfe\n",
        "UTF-16": (name + b": 1\n").decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbfepochs: 1\n",
        "tabs": b"\tepochs:\t1\n",
        "a list": b"- 1\n- 2\n",
        "a number": b"5",
        "nothing": b"",
        "long line": b"# " + b"x" * 3_000_000,
        "many lines": b"\n" * 1_000_000,
        "base 60": name + b": 190:20:30\n",
        "base 60, long": name + b": " + b"1" + b":59" * 1000 + b"\n",
    }


def _evaluate(stage: Stage) -> None:
    from protonce.evaluate.options import PROTOCOLS

    rng = stage.rng
    stage.material.copy("trained", stage.here / "run")
    protocol = rng.choice([p for p in PROTOCOLS if p != "semisup"])
    field = rng.choice(dataclasses.fields(PROTOCOLS[protocol])).name.replace("_", "-")
    field = "seed" if field == "epochs" else field  # as in training, many epochs take long, and may
    option = rng.choice(
        [f"--{field}={rng.choice(WORDS)}"] * 4 + [f"--name={rng.choice(WORDS)}", "--test=data", "--train=data"]
    )
    stage.attempt("evaluate", "run", protocol, option)


def _import(stage: Stage) -> None:
    rng = stage.rng
    stage.material.copy("trained", stage.here / "run")
    name = rng.choice(
        ["backbone", "width", "dim", "image-size", "plain-resize", "mean", "std", "clusters", "seed", "head"]
    )
    value = rng.choice(NAMES.get(name, WORDS))
    file = rng.choice(["run", "untrained", "run/encoder.safetensors"])
    stage.attempt("import", file, "--out", "new", *rng.choice([["--data", "data"], []]), f"--{name}={value}")
