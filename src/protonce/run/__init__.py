"""The run folder: everything that training hands on, and all that later commands need.

`reading` opens a run folder, `writing` creates and fills one. `encoder_file` and `prototype_files` define the files of
the encoders and of the prototypes, in both directions; `migration` reads the config.yaml of older versions.
"""

from protonce.run.kept_features import Kept, read_kept
from protonce.run.prototype_files import read_assignments
from protonce.run.reading import Embedding, Run, load

__all__ = ["Embedding", "Kept", "Run", "load", "read_assignments", "read_kept"]
