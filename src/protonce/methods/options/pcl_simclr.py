"""Options of PCL on SimCLR."""

from dataclasses import dataclass

from protonce.methods.options import register
from protonce.methods.options.pcl import PrototypeOptions
from protonce.methods.options.simclr import SimCLROptions


@register(
    "pcl+simclr", "PCL on SimCLR", "SimCLR and a prototype term", "protonce.methods.pcl_simclr:PCLSimCLR", head="mlp-bn"
)
@dataclass(frozen=True)
class PCLSimCLROptions(PrototypeOptions, SimCLROptions):
    """Options of PCL on SimCLR: those of both."""
