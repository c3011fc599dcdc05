"""Train a detector by SGD: the schedule, the loop, and the state from which it goes on after an interruption."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from protonce import randomness
from protonce.errors import UserError
from protonce.evaluate.objects.examples import Examples, collate
from protonce.evaluate.regression import order
from protonce.ranks import Ranks

SAVE_EVERY = 300.0  # seconds between two states that are kept
WARMUP_START = 0.001  # share of the learning rate with which a warm-up begins, as in MMDetection and detectron2
MOMENTUM = 0.9
Keep = Callable[[Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Schedule:
    """Steps, batch size and learning rate of a detector."""

    steps: int
    batch_size: int
    lr: float
    weight_decay: float
    drops: list[int]  # steps after which the learning rate is divided by 10
    warmup_steps: int  # over which it grows

    def rate(self, step: int) -> float:
        """Learning rate of a step, from 0."""
        rate = self.lr * 0.1 ** sum(step >= drop for drop in self.drops)
        if step < self.warmup_steps:
            share = step / self.warmup_steps
            rate *= WARMUP_START * (1 - share) + share
        return rate


def fit(
    model: nn.Module,
    examples: Examples,
    schedule: Schedule,
    *,
    seed: int,
    device: torch.device,
    ranks: Ranks,
    workers: int = 0,
    state: Mapping[str, Tensor] | None = None,
    keep: Keep = lambda _: None,
    seen: Callable[[int], None] = lambda _: None,
) -> nn.Module:
    """Train the parameters of a detector that need gradients.

    Args:
        model: one of torchvision's detectors, which returns its losses in training.
        examples: to learn from.
        schedule: how.
        seed: of the order of the images and of the regions that are sampled.
        device: to train on.
        ranks: each sees its part of a batch; gradients are averaged.
        workers: processes that read images.
        state: what `keep` was given; the training goes on from there, and ends with the same weights.
        keep: called with the state every few minutes.
        seen: called after each step with 1.

    Raises:
        UserError: the loss is not finite.
    """
    model.to(device).train()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(trained.values(), lr=0, momentum=MOMENTUM, weight_decay=schedule.weight_decay)
    done = _restore(model, trained, optimizer, state) if state else 0
    statistics = _statistics(model)
    saved = time.monotonic()
    for step, (images, targets) in enumerate(_batches(examples, schedule, seed, done, ranks, workers), start=done):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        # torchvision samples regions, and draws the size of an image, from the global state.
        torch.manual_seed(randomness.key(seed, f"detection {ranks.rank}", 0, step))
        losses = model(_to(images, device), [dict(zip(t, _to(t.values(), device), strict=True)) for t in targets])
        loss = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad()
        loss.backward()
        ranks.average(p.grad for p in trained.values() if p.grad is not None)
        _check_finite(ranks.sum(loss), step, schedule)
        optimizer.step()
        ranks.average(statistics)
        seen(1)
        if ranks.is_first and time.monotonic() - saved > SAVE_EVERY:
            keep(_state(model, trained, optimizer, step + 1))
            saved = time.monotonic()
    return model.eval()


def _statistics(model: nn.Module) -> list[Tensor]:
    """Running statistics of the batch norms in training; a mean over ranks would round those of a frozen body."""
    norms = [m for m in model.modules() if m.training]
    return [buffer for m in norms for buffer in m.buffers(recurse=False) if buffer.is_floating_point()]


def _batches(
    examples: Examples, schedule: Schedule, seed: int, done: int, ranks: Ranks, workers: int
) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
    """The batches of the steps that are left; of each this rank's part.

    An epoch shows every image once, in a new order; the last incomplete batch of an epoch is left out.
    """
    size = min(schedule.batch_size, len(examples))
    steps = len(examples) // size  # of an epoch

    def rows() -> Iterator[list[tuple[int, int]]]:  # one batch at a time: 180,000 of 16 would take a third of a GB
        for epoch in range(done // steps, -(-schedule.steps // steps)):
            parts = order(len(examples), seed, epoch, "detection")[: steps * size].view(steps, size)
            for step, part in enumerate(parts, start=epoch * steps):
                if done <= step < schedule.steps:
                    yield [(epoch, number) for number in ranks.part(part).tolist()]

    yield from DataLoader(
        examples,
        batch_sampler=rows(),
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator(),  # so that the global generator is not advanced
    )


def _to(tensors: object, device: torch.device) -> list[Tensor]:
    return [tensor.to(device, non_blocking=True) for tensor in tensors]  # type: ignore[attr-defined]


def _check_finite(loss: Tensor, step: int, schedule: Schedule) -> None:
    if not torch.isfinite(loss):
        raise UserError(
            f"the detector's loss became {float(loss)} at step {step + 1} of {schedule.steps}; "
            f"lower --lr ({schedule.lr:g}), or raise --warmup-steps ({schedule.warmup_steps})"
        )


def _state(
    model: nn.Module, trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, done: int
) -> dict[str, Tensor]:
    """All that the next step depends on; random numbers depend on seed and step only."""
    return {
        "done": torch.tensor(done),
        **{f"parameter {name}": value.detach() for name, value in trained.items()},
        **{f"buffer {name}": value for name, value in model.named_buffers()},
        # A parameter that no loss depends on has no momentum.
        **{f"momentum {name}": s["momentum_buffer"] for name, p in trained.items() if (s := optimizer.state[p])},
    }


@torch.no_grad()
def _restore(
    model: nn.Module, trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]
) -> int:
    """Set the state that was kept; return how many steps are done."""
    for name, parameter in trained.items():
        parameter.copy_(state[f"parameter {name}"])
        if (momentum := state.get(f"momentum {name}")) is not None:
            optimizer.state[parameter]["momentum_buffer"] = momentum.to(parameter.device, copy=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(state[f"buffer {name}"])
    return int(state["done"])
