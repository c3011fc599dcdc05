"""The processes that train one encoder together, as torchrun started them: a handful of exchanges between them.

A batch is one batch, whoever computes it: each rank takes a part of its images, and what is drawn, queued and
clustered is the same on all. So the number of ranks changes rounding and running statistics, and nothing else.
"""

import atexit
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from protonce.errors import UserError

T = TypeVar("T")
WAIT = timedelta(hours=6)  # for another rank: k-means of millions of images may take long


class Ranks:
    """A process and its fellows. By itself it is rank 0 of 1, and every exchange gives back what it got."""

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # on this machine
        self.place = int(os.environ.get("LOCAL_RANK", "0"))  # among those
        self.machines = self.size // self.here

    def meet(self, backend: str) -> None:
        """Make the process group of all ranks, which waits until all are there."""
        if self.size == 1 or dist.is_initialized():
            return
        store, _, _ = next(rendezvous("env://", self.rank, self.size))
        # On restarting its processes torchrun keeps the store, with the addresses of the dead ones in it. Several
        # machines may count restarts differently; for them TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives a new store.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if self.machines == 1 else "any"
        store = PrefixStore(f"attempt-{attempt}", store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=WAIT)
        atexit.register(_leave)  # gloo's threads would end the process with an error, now and then

    @property
    def first(self) -> bool:
        """Whether this is the rank that clusters, writes and speaks."""
        return self.rank == 0

    def part(self, rows: Tensor) -> Tensor:
        """The share of this rank in rows (B, ...) that all ranks have; shares differ by one row at most."""
        return rows.tensor_split(self.size)[self.rank]

    def gather(self, part: Tensor, total: int) -> Tensor:
        """The rows of all ranks, in the order of the ranks: what `part` took apart; (total, ...)."""
        if self.size == 1:
            return part
        longest = -(-total // self.size)  # collectives exchange equal shapes
        padded = part.new_zeros(longest, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        sizes = [len(rows) for rows in torch.empty(total, 0).tensor_split(self.size)]
        return torch.cat([rows[:length] for rows, length in zip(parts, sizes, strict=True)])

    @torch.no_grad()
    def average(self, tensors: Iterable[Tensor], weight: float = 1.0) -> None:
        """Replace each tensor by its mean over the ranks, weighted; in one exchange.

        Args:
            tensors: of the same shapes on all ranks.
            weight: of this rank's; over the ranks weights have a mean of 1.
        """
        tensors = list(tensors)
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([t.flatten().float() for t in tensors]) * (weight / self.size)
        dist.all_reduce(flat)
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, as a new tensor."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def most(self, value: int, device: torch.device) -> int:
        """The largest value of any rank; the same answer on all."""
        if self.size == 1:
            return value
        found = torch.tensor(value, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def from_first(self, value: T | None) -> T:
        """What rank 0 has, on every rank; the others may pass None."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[return-value]

    @torch.no_grad()
    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite each tensor by rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def wait(self) -> None:
        """For all others to come here."""
        self.from_first(None)

    def check_alike(self, facts: Mapping[str, object]) -> None:
        """The ranks of one training have the same data and settings.

        Raises:
            UserError: this one has not what rank 0 has.
        """
        for name, value in self.from_first(facts if self.first else None).items():
            if facts[name] != value:
                raise UserError(f"{name} is {facts[name]} on rank {self.rank} and {value} on rank 0; start all alike")

    @contextmanager
    def while_others_wait(self) -> Iterator[None]:
        """The cores of this machine are rank 0's meanwhile: torchrun gives each rank its share of threads only."""
        if self.size == 1:
            yield
            return
        with threadpool_limits(self.here * torch.get_num_threads(), "openmp"):
            yield


@contextmanager
def said_once() -> Iterator[None]:
    """A mistake that every rank finds before they have met is said by the first of each machine alone."""
    try:
        yield
    except UserError:
        if Ranks().place > 0:
            raise SystemExit(2) from None
        raise


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
