"""Options of each system, apart from the settings that all share. Loads no torch, so that `--help` can show them."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self

from protonce import auto
from protonce.config import LONG, MANY, Resolved
from protonce.errors import UserError
from protonce.fields import Checked, setting


@dataclass(frozen=True)
class Options(Checked):
    """Base of a system's options; a system without any has just this."""

    def resolve(self, settings: Resolved, n: int) -> Self:
        """The same options for n images, with a number for every `auto`."""
        chosen = {name: value for name, value in self.choices(settings, n).items() if getattr(self, name) == "auto"}
        resolved = dataclasses.replace(self, **chosen)
        for name in self.names():
            if getattr(resolved, name) == "auto":
                raise ValueError(f"{type(self).__name__}.choices has no value for {name}, which is auto")
        return resolved

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:  # noqa: ARG002
        """What `auto` means for each option that may be `auto`."""
        return {}

    def notes(self, settings: Resolved) -> list[str]:  # noqa: ARG002
        """Notes to print before training starts."""
        return []


@dataclass(frozen=True)
class MoCoOptions(Options):
    """Options of MoCo."""

    queue: int = setting("auto", "length of the queue of negative keys, r of eq. 1", least=1, most=MANY, auto=True)
    twin_momentum: float = setting("auto", "m of theta' = m theta' + (1 - m) theta", least=0, most=1, auto=True)
    queries: Literal["one", "both"] = setting(
        "one", "one: the first view is the query, as in the paper; both: symmetric loss, at twice the cost"
    )
    queue_push: Literal["before", "after"] = setting(
        "before", "when the keys of a batch join the queue: before its loss, or after it, as in the published code"
    )
    queue_start: Literal["empty", "random"] = setting(
        "empty", "queue at the start: empty, or random unit vectors, which are negatives, as in the published code"
    )
    own_keys: Literal["masked", "negatives"] = setting(
        "masked", "older keys of the query's own image: masked, or negatives, as in the published code"
    )
    twin_update: Literal["after", "next"] = setting(
        "after",
        "when theta' follows theta: after the step, as in algorithm 1; or at the beginning of the next one, as in the "
        "published code, so that an E-step sees one update less",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_keys == "negatives" and self.queue_push == "before":
            raise UserError(
                "own_keys is negatives, but with queue_push before the queue has the query's positive key; "
                "choose queue_push after, or own_keys masked"
            )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """The twin's momentum follows from the number of steps, and the queue from it."""
        given: object = self.twin_momentum
        momentum = given if isinstance(given, float) else auto.twin_momentum(settings, n)
        return {"twin_momentum": momentum, "queue": auto.queue_length(settings, n, momentum)}


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


@dataclass(frozen=True)
class PCLOptions(PrototypeOptions, MoCoOptions):
    """Options of PCL: those of MoCo, and of the prototype term."""
