"""Options of MoCo."""

from dataclasses import dataclass
from typing import Any, Literal

from protonce import auto
from protonce.config import MANY, Resolved
from protonce.errors import UserError
from protonce.fields import setting
from protonce.methods.options import Options, register


@register(
    "moco",
    "MoCo",
    "instance discrimination with a queue of keys",
    "protonce.methods.moco:MoCo",
    paper=("MoCo", "MoCo v2"),
)
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

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate, temperature and twin."""
        m = self.twin_momentum
        twins = [{"twin_momentum": round(1 - (1 - m) * factor, 6)} for factor in (3, 1 / 3) if (1 - m) * factor <= 1]
        return [{}, {"lr": settings.lr / 2}, {"lr": settings.lr * 2}, {"tau": settings.tau / 2}, *twins]
