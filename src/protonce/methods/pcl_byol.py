"""PCL on BYOL: its prediction loss in place of the instance term of ProtoNCE (eq. 11)."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from protonce.methods.base import Batch, Term
from protonce.methods.byol import BYOL
from protonce.methods.options.pcl_byol import PCLBYOLOptions
from protonce.methods.pcl import PrototypeTerm
from protonce.prototypes import Prototypes


class PCLBYOL(PrototypeTerm, BYOL):
    """BYOL, and the prototype term of both views."""

    Options = PCLBYOLOptions
    terms: ClassVar[tuple[str, ...]] = ("prediction", "prototype")

    def m_step(self, batch: Batch, state: list[Prototypes] | None) -> tuple[Tensor, dict[str, Term]]:
        """BYOL's loss, and the second term of eq. 11 once there are prototypes."""
        if state is None:
            return super().m_step(batch, state)
        projections = self.projections(batch)  # (b, d) each
        prediction = self.prediction_term(batch, projections)
        return self.proto_nce({"prediction": prediction}, [F.normalize(z, dim=1) for z in projections], state, batch)
