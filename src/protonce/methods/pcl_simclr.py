"""PCL on SimCLR: NT-Xent as the instance term of ProtoNCE (eq. 11). Without a twin, V' = f_θ(X)."""

from typing import ClassVar

from torch import Tensor

from protonce.methods.base import Batch, Term
from protonce.methods.options.pcl_simclr import PCLSimCLROptions
from protonce.methods.pcl import PrototypeTerm
from protonce.methods.simclr import SimCLR
from protonce.prototypes import Prototypes


class PCLSimCLR(PrototypeTerm, SimCLR):
    """SimCLR, and the prototype term of both views."""

    Options = PCLSimCLROptions
    terms: ClassVar[tuple[str, ...]] = ("instance", "prototype")

    def m_step(self, batch: Batch, state: list[Prototypes] | None) -> tuple[Tensor, dict[str, Term]]:
        """NT-Xent, and the second term of eq. 11 once there are prototypes."""
        if state is None:
            return super().m_step(batch, state)
        z, z_ = self.embeddings(batch)  # (B, d) each
        proto_only = self.options.terms == "prototypes"
        instance = {} if proto_only else {"instance": self.instance_term(batch, z, z_)}
        return self.proto_nce(instance, [self.context.part(v) for v in (z, z_)], state, batch)
