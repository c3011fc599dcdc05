"""Cached activations of frozen stages, computed once for all trainings with the same views.

Views depend on seed, epoch and image alone, and frozen stages, with frozen batch norm, on nothing else. So trials that
differ in other settings, and other systems, see the same activations, and only the stages that are trained are left to
compute. Nothing but rounding differs from training on the images.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protonce import weights
from protonce.adaptation import stages
from protonce.config import Resolved
from protonce.data.loader import Loader
from protonce.data.sources import Source, open_source
from protonce.data.views import ImageViews, Samples, ViewSpec
from protonce.encoder import build
from protonce.features import BATCH_SIZE


class Places:
    """A data set whose items are their own places."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def load(self, i: int) -> NDArray[np.int64]:
        """The place."""
        return np.array(i)


@dataclass(frozen=True)
class CachedViews:
    """Views that are looked up."""

    random: NDArray[np.float32]  # (epochs, views, n, ...)
    fixed: NDArray[np.float32]  # of plain views, (n, ...)

    def train(self, samples: Samples) -> tuple[Tensor, ...]:
        """The views of the epoch."""
        rows = samples.index.numpy()
        return tuple(torch.from_numpy(np.asarray(views[rows])) for views in self.random[samples.epoch])

    def plain(self, samples: Samples) -> Tensor:
        """The plain views."""
        return torch.from_numpy(np.asarray(self.fixed[samples.index.numpy()]))


class _Reached(Exception):
    """The first stage that is trained, with what it is given."""


def _stop(_: nn.Module, given: tuple[Tensor, ...]) -> None:
    raise _Reached(given[0])


def cut(backbone: nn.Module, trained_stages: int, example: Tensor) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
    """The frozen stages of a backbone as a function, and the others as a module that takes its activations.

    Args:
        backbone: of timm, whose modules are called in the order in which they are registered.
        trained_stages: the last stages, which are not frozen.
        example: of views, (B, 3, s, s).

    Raises:
        ValueError: the two do not give the same as the backbone.
    """
    parts = stages(backbone)
    trained = {name for names in parts[len(parts) - trained_stages :] for name in names}
    whole, tail = copy.deepcopy(backbone).eval(), copy.deepcopy(backbone)
    outer, path = tail, ""
    while True:  # down to the first module that is trained as a whole; those before it do nothing
        for name, child in outer.named_children():
            names = {f"{path}{name}.{parameter}" for parameter, _ in child.named_parameters()}
            if names & trained:
                path = f"{path}{name}."
                break
            setattr(outer, name, nn.Identity())
        if names <= trained:
            break
        outer = child
    whole.get_submodule(path.removesuffix(".")).register_forward_pre_hook(_stop)

    @torch.no_grad()
    def head(x: Tensor) -> Tensor:
        try:
            whole(x.contiguous(memory_format=torch.channels_last))
        except _Reached as reached:
            activations: Tensor = reached.args[0]
            return activations
        raise ValueError(f"{type(backbone).__name__} does not call {path}")

    with torch.no_grad():
        expected = copy.deepcopy(backbone).eval()(example)
        found = copy.deepcopy(tail).eval()(head(example))
    if not torch.allclose(found, expected, atol=1e-4, rtol=1e-4):
        raise ValueError(f"{type(backbone).__name__} cannot be cut into stages")
    return head, tail


class Activations:
    """Activations of the frozen stages: of a training's random views, and of plain views of two sets.

    Args:
        settings: of the training; with frozen batch norm.
        specs: of its views.
        train: the training images.
        test: images whose plain views are encoded too.
        folder: for a file that must be there as long as the views are used.
    """

    def __init__(
        self, settings: Resolved, specs: Sequence[ViewSpec], train: Source, test: Source, folder: Path
    ) -> None:
        encoder = build(settings)
        weights.start_from(settings.init, encoder)
        example = torch.zeros(2, 3, settings.image_size, settings.image_size)
        head, self._tail = cut(encoder.backbone, settings.trained_stages, example)
        known, asked = (_plain(head, source, settings) for source in (train, test))
        self.views = CachedViews(_random(head, train, settings, specs, folder / "views"), known)
        self.places = Places(len(train))
        self.loaders = [
            Loader(open_source(Places(len(fixed))), CachedViews(self.views.random, fixed)) for fixed in (known, asked)
        ]

    def tail(self) -> nn.Module:
        """The other stages, with the weights that training starts from."""
        return copy.deepcopy(self._tail)


def _random(
    head: Callable[[Tensor], Tensor], source: Source, settings: Resolved, specs: Sequence[ViewSpec], path: Path
) -> NDArray[np.float32]:
    loader = Loader(source, ImageViews(settings, specs), seed=settings.seed)
    order, found = torch.arange(len(source)), None
    for epoch in range(settings.epochs):
        for views, index in loader.train(order, epoch, BATCH_SIZE, every=True):
            for which, view in enumerate(views):
                activations = head(view).numpy()
                if found is None:
                    shape = (settings.epochs, len(specs), len(source), *activations.shape[1:])
                    found = np.memmap(path, dtype=np.float32, mode="w+", shape=shape)
                found[epoch, which, index.numpy()] = activations
    assert found is not None
    return found


def _plain(head: Callable[[Tensor], Tensor], source: Source, settings: Resolved) -> NDArray[np.float32]:
    loader = Loader(source, ImageViews(settings), seed=settings.seed)
    return np.concatenate([head(loader.views.plain(samples)).numpy() for samples in loader.plain(BATCH_SIZE)])
