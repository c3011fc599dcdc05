"""Read the config.yaml of run folders that were written before systems had options of their own."""

from typing import Any

# Settings that older versions did not have, with the values that their code used.
ADDED_SETTINGS = {
    "optimizer": "sgd",
    "lr_warmup_epochs": 0.0,
    "lr_final": 0.0,
    "clip_gradients": 0.0,
    "record_every": 1,
}
PCL_ONLY = ("terms", "negatives", "prototype_weight", "warmup_epochs", "ramp_epochs")


def migrated(config: dict[str, Any]) -> dict[str, Any]:
    """The content of a config.yaml, in the form that this version writes.

    Older versions wrote all options of PCL for MoCo as well, which ignored them, and called MoCo either by its name or
    PCL with `terms: instance`.
    """
    if "system" in config:
        return config
    chosen = config["settings"]
    moco = chosen["method"] == "moco" or chosen.get("terms") == "instance"
    unused = PCL_ONLY if moco else ()
    method = {"method": "moco"} if moco else {}
    parts = {
        part: ADDED_SETTINGS | {name: value for name, value in config[part].items() if name not in unused} | method
        for part in ("asked", "settings")
    }
    if config.get("imported"):
        system = {"title": "imported", "terms": []}
    else:
        system = {"title": "MoCo" if moco else "PCL", "terms": ["instance"] if moco else ["instance", "prototype"]}
    return {**config, **parts, "system": system}
