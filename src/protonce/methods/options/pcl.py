"""Options of PCL: those of the instance system it builds on, and of the prototype term."""

from dataclasses import dataclass
from typing import Any, Literal

from protonce import auto
from protonce.config import LONG, MANY, Resolved
from protonce.fields import setting
from protonce.methods.options import Options, register
from protonce.methods.options.moco import MoCoOptions


@dataclass(frozen=True)
class PrototypeOptions(Options):
    """Options of the prototype term, on whatever instance system."""

    terms: Literal["both", "prototypes"] = setting(
        "both",
        "terms of ProtoNCE (eq. 11) after warm-up: both, or prototypes alone (appendix A); instance is --method moco",
    )
    negatives: int = setting(
        "auto", "number of negative prototypes, r of eq. 11; auto is 16000", least=1, most=MANY, auto=True
    )
    negative_prototypes: Literal["others", "published", "published-parts"] = setting(
        "others",
        "others: r prototypes other than the query's own; published: the prototypes of the other images of the batch, "
        "even if they are the query's own, and r that no image of the batch has, as in the published code on one GPU; "
        "published-parts: the same within each of the bn_splits parts of the batch, as in that code on as many GPUs",
    )
    instance_weight: float = setting(
        1.0, "weight of the first term of eq. 11 after warm-up; 1, as in the paper", least=0, most=1_000_000
    )
    prototype_weight: float = setting(
        "auto", "weight of the prototype term of eq. 11; auto is 1, as in the paper", least=0, most=1_000_000, auto=True
    )
    warmup_epochs: int = setting("auto", "first epochs with InfoNCE only", least=0, most=LONG, auto=True)
    ramp_epochs: int = setting(
        0,
        "epochs after warm-up over which the prototype term is ramped up; 0, as in the paper, does not",
        least=0,
        most=LONG,
    )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """The paper's numbers; warm-up is longer in short training."""
        mine = {"negatives": 16000, "prototype_weight": 1.0, "warmup_epochs": auto.warmup_epochs(settings, n)}
        return {**super().choices(settings, n), **mine}

    def notes(self, settings: Resolved) -> list[str]:
        """Warm-up that lasts for the whole training."""
        if self.warmup_epochs < settings.epochs:
            return []
        return [f"warm-up takes {self.warmup_epochs} of {settings.epochs} epochs, so prototypes are never used"]

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:
        """Learning rate, temperature, number of prototypes, the weight of their term, and phi."""
        finer = [min(2 * k, n) for k in settings.clusters]
        return [
            {},
            {"lr": settings.lr / 2},
            {"tau": settings.tau / 2},
            {"clusters": finer},
            {"prototype_weight": 2 * self.prototype_weight},
            {"concentration": "fixed"},
        ]


@register(
    "pcl", "PCL", "MoCo and a prototype term (ProtoNCE, eq. 11)", "protonce.methods.pcl:PCL", paper=("PCL", "PCL v2")
)
@dataclass(frozen=True)
class PCLOptions(PrototypeOptions, MoCoOptions):
    """Options of PCL: those of MoCo, and of the prototype term."""

    e_step_features: Literal["pass", "bank"] = setting(
        "pass",
        "what the E-step clusters: pass, the plain views of all images by the momentum encoder, as in the paper; bank, "
        "an average of the keys that each image had in the M-steps, which costs no pass over the images",
    )
    gate: Literal["all", "agreeing", "random"] = setting(
        "all",
        "images that count in the prototype term: all, as in the paper; agreeing, those whose key is nearest to the "
        "prototype that the E-step gave them; random, as many as agree, drawn from the batch, to compare with",
    )
    cluster_keys: Literal["negatives", "masked"] = setting(
        "negatives",
        "keys of the queue that share the query's finest prototype: negatives, as in the paper, or masked",
    )
    bank_momentum: float = setting(0.5, "share of the old average in the bank when a key comes", least=0, most=0.999)
