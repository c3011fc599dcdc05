"""Run folders from before systems had options of their own, read as what their code did."""

from typing import Any

SINCE = {"optimizer": "sgd", "lr_warmup_epochs": 0.0, "lr_final": 0.0, "clip_gradients": 0.0, "record_every": 1}
PCL_ONLY = ("terms", "negatives", "prototype_weight", "warmup_epochs", "ramp_epochs")


def migrated(config: dict[str, Any]) -> dict[str, Any]:
    """The content of a config.yaml, as this version writes it.

    An older one has every setting of PCL for MoCo too, which did not use them, and lacks some that came SINCE; PCL with
    `terms: instance` was MoCo.
    """
    if "system" in config:
        return config
    chosen = config["settings"]
    moco = chosen["method"] == "moco" or chosen.get("terms") == "instance"
    unused = PCL_ONLY if moco else ()
    method = {"method": "moco"} if moco else {}
    parts = {
        part: SINCE | {name: value for name, value in config[part].items() if name not in unused} | method
        for part in ("asked", "settings")
    }
    if config.get("imported"):
        system = {"title": "imported", "terms": []}
    else:
        system = {"title": "MoCo" if moco else "PCL", "terms": ["instance"] if moco else ["instance", "prototype"]}
    return {**config, **parts, "system": system}
