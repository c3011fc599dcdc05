"""The encoder f_θ: a backbone (timm's or the user's), a projection head, and L2 normalisation; and its twin f_θ'."""

import copy
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, cast

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved
from protonce.errors import UserError
from protonce.ranks import Ranks


class Encoder(nn.Module):
    """v = f_θ(x): backbone, head, L2 normalisation."""

    def __init__(self, backbone: nn.Module, feature_dim: int, head: str, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_dim = feature_dim
        self.dim = feature_dim if head == "none" else dim
        self.head: nn.Module = nn.Identity() if head == "none" else nn.Linear(feature_dim, dim)  # v1
        if head == "mlp":  # v2
            self.head = nn.Sequential(
                nn.Linear(feature_dim, feature_dim), nn.ReLU(inplace=True), nn.Linear(feature_dim, dim)
            )
        if all(p.ndim < 5 for p in backbone.parameters()):  # the fast layout of images; volumes have none
            self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor, splits: int = 1) -> Tensor:
        """Embeddings v of views x; (B, dim) float32, L2-normalised.

        Args:
            x: (B, ...).
            splits: the batch is encoded in this many parts, so that batch norm sees each by itself, as it
                does on as many GPUs.
        """
        parts = [self.features(part) for part in x.tensor_split(splits)]
        return self.embed(torch.cat(parts))

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings v of pooled features (B, feature_dim); (B, dim) float32, L2-normalised."""
        return F.normalize(self.head(features).float(), dim=1)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features of the backbone; (B, feature_dim)."""
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.backbone(x)
        return features


def build(settings: Resolved, backbone: nn.Module | None = None, example: Tensor | None = None) -> Encoder:
    """A new encoder, its weights drawn by the seed.

    Args:
        settings: backbone, width, stem, head, dim, image_size and seed.
        backbone: the user's own module, (B, ...) to (B, D); None: `settings.backbone` of timm.
        example: a batch of views, needed to learn D of the user's own module.

    Raises:
        UserError: there is no such backbone, or the user's module does not return (B, D).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.key(settings.seed, "weights"))
        if backbone is None:
            backbone = timm_backbone(settings)
            example = torch.zeros(2, 3, settings.image_size, settings.image_size)
        assert example is not None, "an own backbone comes with an example of its views"
        feature_dim = _feature_dim(backbone, example)
        return Encoder(backbone, feature_dim, settings.head, settings.dim)


def twin_of(query: Encoder) -> Encoder:
    """θ' = θ: a copy that receives no gradient."""
    twin = copy.deepcopy(query)
    twin.requires_grad_(False)
    return twin


@torch.no_grad()
def update_twin(query: nn.Module, twin: nn.Module, momentum: float) -> None:
    """θ' = m θ' + (1 - m) θ, for the parameters; the twin's batch norm keeps statistics of its own."""
    old: list[Tensor] = list(twin.parameters())
    new: list[Tensor] = list(query.parameters())
    torch._foreach_lerp_(old, new, 1 - momentum)


def encode_shuffled(
    encode: Callable[[Tensor, int], Tensor],
    x: Tensor,
    splits: int,
    generator: torch.Generator,
    ranks: Ranks,
    total: int,
) -> Tensor:
    """Embeddings of the views of all ranks, in their order, with batch norm over sub-batches of a random order.

    Query and key of an image then share no statistics from which one could tell that they belong together.

    Args:
        encode: from views and a number of sub-batches to embeddings (B, dim).
        x: the views of this rank.
        splits: sub-batches of the batch of all ranks; 1: nothing is shuffled.
        generator: draws the order; alike on all ranks.
        ranks: the processes that share the batch.
        total: views of all ranks.

    Returns:
        (total, dim)
    """
    if splits == 1:
        return ranks.gather(encode(x, 1), total)
    order = torch.randperm(total, generator=generator).to(x.device)
    shuffled = encode(ranks.gather(x, total)[ranks.part(order)], splits // ranks.size)
    embeddings = shuffled.new_empty(total, shuffled.shape[1])
    embeddings[order] = ranks.gather(shuffled, total)
    return embeddings


def batch_norms(encoder: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers that normalise by the batch."""
    return [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def fixed_size(backbone: str) -> int | None:
    """The one size of images that timm's weights of a backbone are for, as a ViT's are; None: any will do."""
    config = timm.get_pretrained_cfg(backbone)
    return None if config is None or not config.fixed_input_size else int(config.input_size[-1])


def timm_backbone(settings: Resolved) -> nn.Module:
    """A new backbone of timm, (B, 3, s, s) to (B, D).

    Raises:
        UserError: timm has none of this name, or not for such images.
    """
    name = settings.backbone
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; timm.list_models() lists them"
        raise UserError(f"timm has no backbone {name!r}{hint}")
    options: dict[str, Any] = {}
    is_resnet = timm.models.is_model_in_modules(name, ["resnet"])
    if settings.width != 64 and is_resnet:
        options["channels"] = tuple(settings.width * 2**stage for stage in range(4))
        # Only timm's deep stem (three 3x3 convolutions, ResNet-C) can be narrower than 64 channels.
        options |= {"stem_type": "deep", "stem_width": settings.width // 2}
    if fixed_size(name) not in (None, settings.image_size):
        options["img_size"] = settings.image_size
    try:
        backbone: Any = timm.create_model(name, num_classes=0, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(
            f"timm cannot build {name} for images of {settings.image_size} pixels: {' '.join(str(error).split())}"
        ) from None
    if settings.stem == "small":
        if not is_resnet:
            raise UserError(f"the small stem is for ResNets; backbone {name} is none: set stem to standard")
        channels = backbone.bn1.num_features
        backbone.conv1 = nn.Conv2d(3, channels, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
        backbone.maxpool = nn.Identity()
    return cast(nn.Module, backbone)


def _feature_dim(backbone: nn.Module, example: Tensor) -> int:
    training = backbone.training
    try:
        with torch.no_grad():
            features = backbone.eval()(example)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise UserError(f"the backbone cannot take views of shape {tuple(example.shape[1:])}: {why}") from None
    backbone.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(example):
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the encoder returned {got} for a batch of {len(example)}; it must return (B, D)")
    return int(features.shape[1])
