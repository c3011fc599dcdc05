"""M-steps of a system without a training around them, and its options at ImageNet's size."""

import torch

from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.context import Progress
from protonce.methods import registry
from protonce.methods.base import Batch

IMAGENET = DataSize(1_281_167, 400)
GPU = Machine("cuda", bfloat16=True, faiss=True, cores=8)


def batch_of(sizes=(16, 16), n=16, epoch=0, step=0, seed=0, steps=3, epochs=4):
    """Views of the same n images, one for each of the sizes: an image, and noise."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, max(sizes), max(sizes), generator=draw)
    views = (images[..., :s, :s] + 0.3 * torch.randn(n, 3, s, s, generator=draw) for s in sizes)
    return Batch(tuple(views), torch.arange(n), Progress(epoch, step, steps, epochs))


def fit(system, batches, lr=0.1):
    """The losses of M-steps by SGD, in the order of the training loop."""
    optimizer, losses = torch.optim.SGD(system.parameter_groups(), lr=lr), []
    for batch in batches:
        loss, _ = system.train().m_step(batch, None)
        optimizer.zero_grad()
        loss.backward()
        system.after_backward(batch.progress)
        optimizer.step()
        system.after_step(batch.progress)
        losses.append(loss.item())
    return losses


def options_at(data, method, **values):
    """Settings and options of a system for this many images, all else by `auto` unless given."""
    entry = registry.find(method)
    common, own = registry.part({**values, "method": method}, entry, "the test")
    settings = resolve(Settings(**common), data, GPU)
    return settings, entry.options(**own).resolve(settings, data.n)


def auto_of_recipe(name):
    """A recipe's own options, and what `auto` says in their place at ImageNet's size."""
    recipe = read_recipe(name)
    own = registry.find(recipe["method"]).options.names()
    _, options = options_at(IMAGENET, **{key: value for key, value in recipe.items() if key not in own})
    return {key: recipe[key] for key in own}, {key: getattr(options, key) for key in own}
