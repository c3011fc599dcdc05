"""MoCo: instance discrimination with a momentum encoder and a queue. It is PCL whose E-step returns None."""

from collections.abc import Callable

from torch import Tensor

from protonce.methods.pcl import PCL


class MoCo(PCL):
    """InfoNCE (eq. 1) alone, in every epoch."""

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> None:  # noqa: ARG002
        """No prototypes; the loop still clusters for the record."""
        return
