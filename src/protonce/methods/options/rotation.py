"""Options of rotation prediction."""

from dataclasses import dataclass

from protonce.methods.options import Options, register


@register(
    "rotation",
    "Rotation",
    "classify rotations of 0, 90, 180, 270 degrees",
    "protonce.methods.rotation:Rotation",
    paper=("Rotation",),
)
@dataclass(frozen=True)
class RotationOptions(Options):
    """Rotation prediction has no options: its six trials are learning rates."""
