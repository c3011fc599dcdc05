"""One short file a system.

`training` asks of a system: `sampler(epoch)`, the order of the images; `e_step(epoch, features)`, what the
M-steps of the epoch need, or None; `m_step(batch, state)`, the loss and numbers for the log; `after_step()`.
`features` is a function: a system that never calls it needs no pass over the data. (The loop makes one for the
record: every epoch's clusters are kept, whatever the system.)
"""

from protonce.config import Resolved
from protonce.encoder import Encoder
from protonce.methods.moco import MoCo
from protonce.methods.pcl import PCL


def make(settings: Resolved, encoder: Encoder, n: int) -> PCL:
    """The system that `settings.method` names, for n images."""
    return {"pcl": PCL, "moco": MoCo}[settings.method](settings, encoder, n)
