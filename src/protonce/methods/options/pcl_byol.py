"""Options of PCL on BYOL."""

from dataclasses import dataclass

from protonce.errors import UserError
from protonce.methods.options import register
from protonce.methods.options.byol import BYOLOptions
from protonce.methods.options.pcl import PrototypeOptions


@register("pcl+byol", "PCL on BYOL", "BYOL and a prototype term", "protonce.methods.pcl_byol:PCLBYOL", head="mlp-bn")
@dataclass(frozen=True)
class PCLBYOLOptions(PrototypeOptions, BYOLOptions):
    """Options of PCL on BYOL: those of both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.terms == "prototypes":
            raise UserError("terms is prototypes, and pcl+byol always has BYOL's prediction; choose pcl or pcl+simclr")
