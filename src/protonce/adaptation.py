"""Adapt a pretrained encoder gently: stages and batch norm that stay, a head from PCA, an average with the start."""

import copy
from typing import Any

import torch
from timm.models import group_parameters
from torch import Tensor, nn

from protonce import randomness
from protonce.data.loader import Loader
from protonce.encoder import Encoder, batch_norms
from protonce.errors import UserError
from protonce.features import extract
from protonce.ranks import Ranks

MOST = 10_000  # images whose principal components are computed
RANK = 1e-9  # of the largest variance; what is below it is rounding


def stages(backbone: Any) -> list[list[str]]:
    """Names of the parameters of each stage of a timm model, from the stem on; a block of a ViT is a stage.

    Raises:
        UserError: the backbone is no model of timm.
    """
    if not hasattr(backbone, "group_matcher"):
        raise UserError("trained_stages needs a backbone of timm, which says what its stages are; leave it at 0")
    shapes = {name: p.ndim for name, p in backbone.named_parameters()}
    found: list[list[str]] = []
    for names in group_parameters(backbone, backbone.group_matcher(coarse=True)).values():
        if found and all(shapes[name] < 2 for name in names):  # the norm after the last stage is part of it
            found[-1].extend(names)
        else:
            found.append([*names])
    return found


def freeze(encoder: Encoder, trained_stages: int, batch_norm: str) -> None:
    """Let only the last stages of the backbone be trained, and its batch norm keep its running statistics.

    Args:
        encoder: its head is trained in any case.
        trained_stages: 0 is all.
        batch_norm: "batch" or "frozen".

    Raises:
        UserError: the backbone has fewer stages.
    """
    encoder.frozen_norms = batch_norm == "frozen"
    if trained_stages == 0:
        return
    parts = stages(encoder.backbone)
    if trained_stages > len(parts):
        raise UserError(f"trained_stages is {trained_stages}, but the backbone has {len(parts)}; 0 trains all of it")
    kept = {name for names in parts[: len(parts) - trained_stages] for name in names}
    for name, parameter in encoder.backbone.named_parameters():
        if name in kept:
            parameter.requires_grad_(False)


def start_head(encoder: Encoder, loader: Loader, ranks: Ranks, seed: int) -> None:
    """Start a linear head from the principal components of the pooled features of plain views.

    So the embeddings v keep what most tells the images apart, and their mean is 0 before they are normalised.

    Raises:
        UserError: the head has more dimensions than the features.
    """
    assert isinstance(encoder.head, nn.Linear), "see `preparation`"
    if encoder.dim > encoder.feature_dim:
        raise UserError(f"head_init pca gives at most {encoder.feature_dim} dimensions here; set dim to that or less")
    index = torch.randperm(len(loader), generator=randomness.generator(seed, "head"))[:MOST]
    encoder.to(loader.device).eval()
    part = extract(encoder.features, loader, index=ranks.part(index))
    encoder.train()
    features = ranks.gather(part.to(loader.device), len(index)).cpu()  # (n, D)
    components, mean = principal_components(features, encoder.dim)
    with torch.no_grad():
        encoder.head.weight.copy_(components)
        encoder.head.bias.copy_(-components @ mean)


def principal_components(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The principal components of features (n, D) as rows, (count, D), largest variance first; and their mean, (D,).

    The largest coordinate of each is positive. Where the features do not vary in as many directions, rows are 0.
    """
    mean = features.double().mean(dim=0)
    centred = features.double() - mean
    variances, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    components, variances = vectors.T.flip(0)[:count], variances.flip(0)[:count]
    sign = components.gather(1, components.abs().argmax(dim=1, keepdim=True)).sign()
    varies = variances > RANK * variances[0]
    return (components * sign * varies[:, None]).float(), mean.float()


class Start(nn.Module):
    """The weights that an encoder starts with, to be averaged with those at the end (WiSE-FT; Wortsman et al., 2022).

    Args:
        encoder: is copied.
        share: of the weights at the start in the average.
    """

    def __init__(self, encoder: Encoder, share: float) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.share = share

    @torch.no_grad()
    def average_into(self, encoder: Encoder) -> None:
        """θ = (1 - a) θ + a θ_start, for weights and running statistics."""
        start = self.encoder.state_dict()
        for name, value in encoder.state_dict().items():
            if value.is_floating_point():
                value.lerp_(start[name].to(value.device), self.share)


def trained_norms(encoder: Encoder) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norm layers that see the statistics of a batch in training."""
    return batch_norms(encoder.head if encoder.frozen_norms else encoder)
