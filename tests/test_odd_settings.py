"""Whatever is written where a setting belongs either resolves, or is refused in one short sentence.

Seeded draws of names, values and the three ways in which they come: a config file, the command line, Python.
"""

import dataclasses
import datetime
import decimal
import fractions
import math
import os
import random
import typing
from pathlib import Path

import numpy as np
import pytest
import yaml

from protonce import plain_yaml
from protonce.auto import DataSize, Machine, resolve
from protonce.cli import build_parser
from protonce.cli.options import chosen_settings
from protonce.config import Resolved, Settings, parse_yaml, read_config
from protonce.errors import UserError
from protonce.evaluate.options import PROTOCOLS
from protonce.methods.registry import SYSTEMS, check_names, find, part

CPU = Machine("cpu", bfloat16=False, faiss=True, cores=4)
CHECKED = [Settings, Resolved, *(entry.options for entry in SYSTEMS.values()), *PROTOCOLS.values()]
NAMES = [*Settings.names(), *find("pcl").options.names()]
WRITTEN = [  # values as people, and others, write them
    *("nan", ".nan", ".inf", "-.inf", "inf", "1e308", "-1e308", "1e400", "1e-400", "1e38", "5e-324", "-0.0"),
    *("0", "1", "2", "3", "-1", "16", "0.5", "1.5", "1e3", "1e-3", "1_000", "+3", "007", "0o7", "0x10", "0b11"),
    *("0x_", "0b_", "0x", "9" * 400, "9" * 5000, "0x" + "f" * 5000, "-" + "9" * 400, "9223372036854775808", "1e15"),
    *("999999999999", "1:30", "190:20:30", "1:30.5", "2001-12-14", "2001-99-99", "2001-12-14t21:59:43.10-05:00"),
    *("null", "~", "", " ", "true", "no", "on", "auto", "AUTO", "none", "v1", "mlp", "32", "16", "bf16", "adamw"),
    *("[]", "[1]", "1,2", "1,2,3", "0.5,0.5,0.5", "1e38,1,1", "1,1,1,1", "0,0,0,0", "[[1, 2], [3]]", "[null]", "{}"),
    *("[nan]", "[auto]", "{a: 1}", "[" * 50 + "]" * 50, "[" * 5000, "{" * 5000, str(list(range(1, 300))), "1," * 30),
    *("x" * 10_000, "resnet18.foo", "../..", "a\tb", '"\\0"', '"\\u2028"', '"\\ud800"', "é", "%s %n", "`ls`", "'"),
    *("&a 1", "*a", "&a [*a]", "!!int x", "!!float x", "!!binary x", "!!set {a}", "!!python/name:os.system", "!x 1"),
    *("=", "<<", "? a", "- - - 1", "- " * 5000, "|", ">", "@", "%", "#", "a: b: c", "a: 1\na: 2", "\x00", "\x1b[2J"),
]
OBJECTS = [  # what Python may pass
    *(
        np.int64(3),
        np.int8(-1),
        np.uint64(2**64 - 1),
        np.float32(0.5),
        np.float64("nan"),
        np.bool_(True),
        np.str_("v1"),
    ),
    *(
        np.array([4, 8]),
        np.array(3),
        np.array([[1.0]]),
        np.zeros(0),
        [np.int64(4), np.int64(8)],
        (np.float32(0.5),) * 3,
    ),
    *(10**400, -(10**400), 10**5000, math.inf, -math.inf, math.nan, True, None, b"v1", 1j, object(), len, int, [None]),
    *(datetime.date(2001, 1, 1), decimal.Decimal("0.5"), fractions.Fraction(1, 2), Path("x"), {1, 2}, {"a": 1}, ...),
    *(range(1, 5), [1] * 10**6, (1,) * 10**6, [[1, 2], 3], "auto", "", "x" * 10**6, iter([1]), [4, 8.0], [True]),
]


def settle(values):
    """What `prepare` makes of settings before it looks at the data, and what is then written to config.yaml."""
    check_names(values, "mine.yaml")
    entry = find(values.get("method", "pcl"))
    common, options = part(values, entry, "mine.yaml")
    settings = resolve(Settings(**common), DataSize(1000, 32), CPU)
    for found in (settings, entry.options(**options).resolve(settings, 1000)):
        written = dataclasses.asdict(found)
        assert type(found)(**parse_yaml(yaml.safe_dump(written), "config.yaml")) == found
        numbers = [x for v in written.values() for x in (v if isinstance(v, list) else [v]) if not isinstance(x, str)]
        assert all(type(x) in (int, float) and math.isfinite(x) for x in numbers)


def from_file(draw):
    chosen = draw.sample(NAMES, draw.choice((1, 1, 2)))
    settle(parse_yaml("\n".join(f"{name}: {draw.choice(WRITTEN)}" for name in chosen), "mine.yaml"))


def from_command_line(draw, parser=build_parser(["train"])):  # noqa: B008
    option = f"--{draw.choice(NAMES).replace('_', '-')}"
    settle(chosen_settings(parser.parse_args(["train", "photos", option, draw.choice(WRITTEN)])))


def from_python(draw):
    settle({draw.choice(NAMES): draw.choice(OBJECTS)})


def of_an_evaluation(draw, parser=build_parser(["evaluate"])):  # noqa: B008
    protocol = draw.choice(sorted(PROTOCOLS))
    fields = PROTOCOLS[protocol]
    name = draw.choice(fields.names())
    value = draw.choice(OBJECTS)
    if draw.random() < 0.5:
        line = ["evaluate", "run", protocol, f"--{name.replace('_', '-')}", draw.choice(WRITTEN)]
        value = getattr(parser.parse_args(line), name)
    fields.from_mapping({name: value}, protocol)


@pytest.mark.parametrize("way", [from_file, from_command_line, from_python, of_an_evaluation])
def test_odd_settings_resolve_or_are_refused_in_a_sentence(way):
    draw, resolved, refused = random.Random(0), 0, []
    for _ in range(200):
        try:
            way(draw)
            resolved += 1
        except UserError as error:
            refused.append(str(error))
    assert min(resolved, len(refused)) > 4, "the draws show both ends"
    assert all(10 < len(words) < 500 and words.isprintable() for words in refused)


def test_numbers_of_numpy_become_pythons():
    settings = Settings(epochs=np.int64(3), lr=np.float32(0.5), clusters=[np.int8(4), 8], precision=np.int64(32))
    assert (settings.epochs, settings.lr, settings.clusters, settings.precision) == (3, 0.5, [4, 8], "32")
    assert {type(settings.epochs), type(settings.clusters[0])} == {int}
    assert type(settings.lr) is float


@pytest.mark.parametrize("fields", CHECKED, ids=lambda fields: fields.__name__)
def test_every_number_has_bounds(fields):
    def has_numbers(hint):
        return hint in (int, float) or any(has_numbers(inner) for inner in typing.get_args(hint))

    hints = typing.get_type_hints(fields)
    for field in dataclasses.fields(fields):
        if has_numbers(hints[field.name]):
            rules = field.metadata
            assert rules["most"] is not None, field.name
            assert rules["least"] is not None or rules["above"] is not None, field.name


def bomb(levels, width):
    """The billion laughs: each level repeats the one below it."""
    lines = [f"a0: &a0 [{', '.join(['lol'] * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join([*lines, f"clusters: *a{levels - 1}"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(9, 9), "anchors and aliases are not supported (line 1, column 5)"),
        (bomb(6, 6), "anchors and aliases are not supported"),
        ("a: &a\n  b: *a", "anchors and aliases are not supported"),
        ("<<: *a", "anchors and aliases are not supported"),
        ("epochs: 1\nlr: 0.1\nepochs: 2", "the name 'epochs' is there twice (line 3, column 1)"),
        ("data: {a: 1, a: 2}", "the name 'a' is there twice"),
        ("seed: 2001-99-99", "'2001-99-99' is not a valid date (line 1, column 7)"),
        ("seed: 0x_", "'0x_' is not a valid whole number"),
        ("seed: " + "9" * 5000, "is not a valid whole number"),
        ("a: " + "[" * 20_000, "more than 10 levels of nesting"),
        ("- " * 20_000, "more than 10 levels of nesting"),
        ("? " * 20_000, "more than 10 levels of nesting"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("#" * (plain_yaml.LONGEST + 1), "longer than 100,000 characters"),
        ("1: 2", "has 1 where the name of a setting should be"),
        ("? [a]\n: 1", "unhashable key"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: \x07", "special characters are not allowed"),
    ],
)
def test_yaml_that_settings_do_not_need_is_refused(text, words):
    with pytest.raises(UserError) as error:
        parse_yaml(text, "mine.yaml")
    assert str(error.value).startswith("mine.yaml ")
    assert words in str(error.value)
    assert len(str(error.value)) < 500


def test_yaml_of_a_run_folder_is_read_as_yaml_reads_it():
    content = {
        "recipe": None,
        "system": {"terms": ["instance"], "labels": False},
        "settings": {"lr": 0.03, "k": [1, 2]},
    }
    text = yaml.safe_dump(content, sort_keys=False)
    assert parse_yaml(text, "config.yaml") == yaml.safe_load(text) == content
    assert parse_yaml("", "config.yaml") == {}


def test_a_config_that_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UserError, match="is a folder or a pipe"):
            read_config(path)
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        read_config(tmp_path / ("x" * 3000))


def test_a_change_of_what_was_read_does_not_change_what_is_read_next():
    text = "clusters: [1, 2]\ndata: {a: 1}\n"
    first = plain_yaml.parse(text)
    first["clusters"].append(3)
    first["data"]["b"] = 2
    assert plain_yaml.parse(text) == {"clusters": [1, 2], "data": {"a": 1}}
