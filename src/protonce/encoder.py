"""The encoder f_θ: a backbone (timm's or the user's), a projection head, and L2 normalisation."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import Any, cast

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved
from protonce.errors import UserError, one_line, shown


class Encoder(nn.Module):
    """v = f_θ(x): backbone, head, L2 normalisation.

    In training it may compute in lower precision (`autocast`), apply batch norm to `splits` parts of the batch
    separately, as on several GPUs, and keep the running statistics of the backbone's (`frozen_norms`). Outputs are
    float32.
    """

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
        if head in ("mlp-bn", "mlp-big"):  # SimCLR and SwAV, BYOL
            hidden = feature_dim if head == "mlp-bn" else 2 * feature_dim
            layers = [nn.Linear(feature_dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
            self.head = nn.Sequential(*layers, nn.Linear(hidden, dim))
        self.memory_format = _memory_format(backbone)
        self.to(memory_format=self.memory_format)
        self.splits = 1
        self.frozen_norms = False
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext

    def train(self, mode: bool = True) -> "Encoder":
        """Training mode, except for frozen batch norm."""
        super().train(mode)
        if self.frozen_norms:
            for norm in batch_norms(self.backbone):
                norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings v of views x (B, ...); (B, dim), L2-normalised."""
        return self.embed(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Pooled features of the backbone; (B, feature_dim)."""
        if x.ndim == 4:
            x = x.contiguous(memory_format=self.memory_format)
        with self.autocast():
            return self.backbone(x).float() if self.frozen_norms else self._in_parts(self.backbone, x)

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings v of pooled features (B, feature_dim); (B, dim), L2-normalised."""
        return F.normalize(self.project(features), dim=1)

    def project(self, features: Tensor) -> Tensor:
        """Outputs of the head for pooled features (B, feature_dim), not normalised; (B, dim)."""
        with self.autocast():
            return self._in_parts(self.head, features) if batch_norms(self.head) else self.head(features).float()

    def _in_parts(self, module: nn.Module, x: Tensor) -> Tensor:
        """The output for (B, ...), as float32; in training batch norm sees one sub-batch at a time."""
        return torch.cat([module(part) for part in x.tensor_split(self.splits if self.training else 1)]).float()


def build(settings: Resolved, backbone: nn.Module | None = None, example: Tensor | None = None) -> Encoder:
    """Build a new encoder with random weights.

    Args:
        settings: backbone, width, stem, block_init, head, dim, image_size and seed.
        backbone: a custom module, (B, ...) to (B, D); None: `settings.backbone` from timm.
        example: a batch of views, needed to infer D of a custom module.

    Raises:
        UserError: the backbone does not exist, or the custom module does not return (B, D).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.key(settings.seed, "weights"))
        if backbone is None:
            backbone = timm_backbone(settings)
            example = torch.zeros(2, 3, settings.image_size, settings.image_size)
        assert example is not None, "a custom backbone needs an example of its views"
        feature_dim = _feature_dim(backbone, example)
        return Encoder(backbone, feature_dim, settings.head, settings.dim)


def batch_norms(encoder: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norm layers of an encoder."""
    return [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def pretrained_config(name: str) -> Any:
    """What timm knows of a model's pretrained weights and their images; None: nothing.

    Raises:
        UserError: timm has the model, but no weights with this tag (the part after the dot).
    """
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError:
        model, _, tag = name.partition(".")
        tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{model}.*")]
        some = f"available tags: {', '.join(tags[:5])}{', ...' if len(tags) > 5 else ''}" if tags else "it has none"
        raise UserError(f"timm has no weights {shown(tag)} for {model}; {some}") from None


def fixed_size(backbone: str) -> int | None:
    """Fixed image size of a timm backbone, such as a ViT; None: any size."""
    config = pretrained_config(backbone)
    return None if config is None or not config.fixed_input_size else int(config.input_size[-1])


def timm_options(settings: Resolved) -> dict[str, Any]:
    """Arguments of `timm.create_model` beside the name, for width, initial weights and image size."""
    name = settings.backbone
    options: dict[str, Any] = {}
    if settings.width != 64 and _is_resnet(name):
        options["channels"] = tuple(settings.width * 2**stage for stage in range(4))
        # Only timm's deep stem (three 3x3 convolutions, ResNet-C) can be narrower than 64 channels.
        options |= {"stem_type": "deep", "stem_width": settings.width // 2}
    if _is_resnet(name) and settings.block_init == "torchvision":
        # All else is drawn alike by both: He's normal with fan_out for convolutions, 1 and 0 for batch norm.
        options["zero_init_last"] = False
    if fixed_size(name) not in (None, settings.image_size):
        options["img_size"] = settings.image_size
    return options


def _is_resnet(name: str) -> bool:
    return bool(timm.models.is_model_in_modules(name, ["resnet"]))


def timm_backbone(settings: Resolved) -> nn.Module:
    """Create a timm backbone, (B, 3, s, s) to (B, D).

    Raises:
        UserError: timm has no such backbone, or it does not support the image size.
    """
    name = settings.backbone
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; see timm.list_models()"
        raise UserError(f"timm has no backbone {shown(name)}{hint}")
    options = timm_options(settings)
    try:
        backbone: Any = timm.create_model(name, num_classes=0, **options)
    except Exception as error:  # each model has its own kinds of errors for sizes that it does not support
        why = one_line(str(error), 200) or type(error).__name__
        raise UserError(f"timm cannot build {name} for images of {settings.image_size} pixels: {why}") from None
    if settings.stem == "small":
        if not _is_resnet(name):
            raise UserError(f"stem small is only available for ResNets, not for {name}; set stem to standard")
        channels = backbone.bn1.num_features
        backbone.conv1 = nn.Conv2d(3, channels, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
        backbone.maxpool = nn.Identity()
    return cast(nn.Module, backbone)


def _memory_format(backbone: nn.Module) -> torch.memory_format:
    """Channels last, which is faster for images, where it is available and safe."""
    has_volumes = any(p.ndim == 5 for p in backbone.parameters())
    # oneDNN (torch 2.15, CPUs with AVX2 but without AVX-512) writes beyond the gradient of a strided 1x1 convolution of
    # fewer than 8 channels, which ends in a crash or in wrong numbers.
    overflows = any(
        isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1) and max(m.stride) > 1 and m.in_channels < 8
        for m in backbone.modules()
    )
    return torch.contiguous_format if has_volumes or overflows else torch.channels_last


def _feature_dim(backbone: nn.Module, example: Tensor) -> int:
    training = backbone.training
    try:
        with torch.no_grad():
            features = backbone.eval()(example)
    except (RuntimeError, ValueError, AssertionError, ArithmeticError) as error:
        why = one_line(str(error), 200) or type(error).__name__
        raise UserError(f"the backbone does not accept views of shape {tuple(example.shape[1:])}: {why}") from None
    backbone.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(example):
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the encoder returned {got} for a batch of {len(example)}; it must return (B, D)")
    return int(features.shape[1])
