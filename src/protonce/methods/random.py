"""Random: the encoder with its initial weights, the lower bound of tables 1 and 2."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.methods.base import Batch, Setup, System, Term
from protonce.methods.options.random import RandomOptions


class Random(System):
    """An encoder that is not trained. One step of an epoch, with a loss of 0, stands for its training."""

    Options = RandomOptions
    trains: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.nothing = nn.Parameter(torch.zeros(()))  # for the optimizer, which needs a parameter

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view, at which nobody looks."""
        return (ViewSpec("view"),)

    @property
    def steps(self) -> int:
        """One."""
        return 1

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """No loss."""
        return 0 * self.nothing, {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Nothing of the encoder."""
        return [{"params": [self.nothing]}]
