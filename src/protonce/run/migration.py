"""Read the config.yaml of run folders of earlier formats: each setting that they lack has the value their code used."""

from collections.abc import Sequence
from typing import Any

Added = Sequence[tuple[tuple[str, ...], dict[str, Any]]]  # options of systems that have all of certain others

# Format 1, before systems had options of their own, did not have these.
ADDED_TO_1 = {
    "optimizer": "sgd",
    "lr_warmup_epochs": 0.0,
    "lr_final": 0.0,
    "clip_gradients": 0.0,
    "record_every": 1,
}
PCL_ONLY = ("terms", "negatives", "prototype_weight", "warmup_epochs", "ramp_epochs")
# Format 2 did not have these; nor the options of systems that have all of certain others.
ADDED_TO_2: dict[str, Any] = {"phi_clamp": "percentiles", "phi_of_identical": "largest", "block_init": "timm"}
ADDED_TO_2_IF: Added = (
    (("queue", "twin_momentum", "queries"), {"queue_push": "before", "queue_start": "empty", "own_keys": "masked"}),
    (("negatives", "prototype_weight", "ramp_epochs"), {"negative_prototypes": "others"}),
)
# Format 3 did not have these, either.
ADDED_TO_3: dict[str, Any] = {"keep_features": 0, "snapshot_every": 0}
ADDED_TO_3_IF: Added = ((("queue", "twin_momentum", "queue_push"), {"twin_update": "after"}),)
# Nor format 4 these.
ADDED_TO_4_IF: Added = (
    (
        ("queue", "twin_momentum", "prototype_weight", "ramp_epochs"),
        {"e_step_features": "pass", "gate": "all", "cluster_keys": "negatives", "bank_momentum": 0.5},
    ),
)
# Nor format 6 these.
ADDED_TO_6: dict[str, Any] = {"trained_stages": 0, "batch_norm": "batch", "head_init": "random", "start_share": 0.0}
ADDED_TO_6_IF: Added = ((("negatives", "prototype_weight", "ramp_epochs"), {"instance_weight": 1.0}),)
# Up to format 5 there was this one.
REMOVED = ("tensorboard_every",)
STEPS: Sequence[tuple[int, dict[str, Any], Added]] = (
    (2, ADDED_TO_2, ADDED_TO_2_IF),
    (3, ADDED_TO_3, ADDED_TO_3_IF),
    (4, {}, ADDED_TO_4_IF),
    (6, ADDED_TO_6, ADDED_TO_6_IF),
)


def migrated(config: dict[str, Any]) -> dict[str, Any]:
    """The content of a config.yaml, in the form that this version writes."""
    if "system" not in config:
        config = _from_1(config)
    config = {**config, **{part: _without(config[part], REMOVED) for part in ("asked", "settings")}}
    for version, common, options in STEPS:
        # Of an older format that has some of them, the others were lost: they are missed, not guessed.
        new = {*common, *(name for _, added in options for name in added)}
        if config.get("format", 1) <= version and new.isdisjoint(config["settings"]):
            config = _with_added(config, common, options)
    return config


def _without(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _from_1(config: dict[str, Any]) -> dict[str, Any]:
    """MoCo had all options of PCL, which it ignored, and was also called PCL with `terms: instance`."""
    chosen = config["settings"]
    moco = chosen["method"] == "moco" or chosen.get("terms") == "instance"
    unused = PCL_ONLY if moco else ()
    method = {"method": "moco"} if moco else {}
    parts = {
        part: ADDED_TO_1 | {name: value for name, value in config[part].items() if name not in unused} | method
        for part in ("asked", "settings")
    }
    if config.get("imported"):
        system = {"title": "imported", "terms": []}
    else:
        system = {"title": "MoCo" if moco else "PCL", "terms": ["instance"] if moco else ["instance", "prototype"]}
    return {**config, **parts, "system": system}


def _with_added(config: dict[str, Any], common: dict[str, Any], options: Added) -> dict[str, Any]:
    parts = {part: {**common, **_added(config[part], options), **config[part]} for part in ("asked", "settings")}
    return {**config, **parts}


def _added(values: dict[str, Any], options: Added) -> dict[str, Any]:
    """Options that a system has by now, a user's own built on MoCo or PCL too."""
    return {
        name: value
        for others, added in options
        if all(other in values for other in others)
        for name, value in added.items()
    }
