"""The ranks of a distributed run, as launched by torchrun, and the collectives that training needs.

Each rank processes its part of the global batch; random draws, queue and prototypes are identical on all ranks. The
world size therefore changes only rounding and the running statistics of batch norm.
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
TIMEOUT = timedelta(hours=6)  # of a collective: k-means on rank 0 may take long for millions of images


class Ranks:
    """Rank and world size of this process, and collectives over all ranks.

    Without torchrun the world size is 1, and every collective returns its input.

    Attributes:
        world_size: number of processes.
        rank: of this process, from 0.
        local_world_size: number of processes on this node.
        local_rank: rank of this process on its node.
        num_nodes: number of nodes.
    """

    def __init__(self) -> None:
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.num_nodes = self.world_size // self.local_world_size

    def init_process_group(self, backend: str) -> None:
        """Initialise the default process group; blocks until all ranks have joined."""
        if self.world_size == 1 or dist.is_initialized():
            return
        store, _, _ = next(rendezvous("env://", self.rank, self.world_size))
        # When torchrun restarts its workers it keeps the store, which still has the addresses of the dead ones. Nodes
        # may differ in their restart count; with several, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 to get a new store.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if self.num_nodes == 1 else "any"
        store = PrefixStore(f"attempt-{attempt}", store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size, timeout=TIMEOUT)
        atexit.register(_destroy_process_group)  # otherwise gloo's threads sometimes abort the process at exit

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which runs k-means, writes files and prints."""
        return self.rank == 0

    def part(self, rows: Tensor) -> Tensor:
        """The rows of this rank out of rows (B, ...) that all ranks have; parts differ by at most one row."""
        return rows.tensor_split(self.world_size)[self.rank]

    def gather(self, part: Tensor, total: int) -> Tensor:
        """Concatenate the rows of all ranks in rank order, the inverse of `part`; (total, ...)."""
        if self.world_size == 1:
            return part
        longest = -(-total // self.world_size)  # all_gather needs equal shapes
        padded = part.new_zeros(longest, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        sizes = [len(rows) for rows in torch.empty(total, 0).tensor_split(self.world_size)]
        return torch.cat([rows[:length] for rows, length in zip(parts, sizes, strict=True)])

    @torch.no_grad()
    def average(self, tensors: Iterable[Tensor], weight: float = 1.0) -> None:
        """Replace each tensor by its weighted mean over all ranks, in one all-reduce.

        Args:
            tensors: with the same shapes on all ranks.
            weight: of this rank; the weights of all ranks have mean 1.
        """
        tensors = list(tensors)
        if self.world_size == 1 or not tensors:
            return
        flat = torch.cat([t.flatten().float() for t in tensors]) * (weight / self.world_size)
        dist.all_reduce(flat)
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum of a tensor over all ranks, as a new tensor."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def max(self, value: int, device: torch.device) -> int:
        """Maximum of a value over all ranks."""
        if self.world_size == 1:
            return value
        found = torch.tensor(value, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def broadcast_object(self, value: T | None) -> T:
        """The object of rank 0, on every rank; the other ranks may pass None."""
        objects = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(objects, src=0)
        return objects[0]  # type: ignore[return-value]

    def gather_objects(self, value: T) -> list[T]:
        """The objects of all ranks, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        objects: list[T | None] = [None] * self.world_size
        dist.all_gather_object(objects, value)
        return objects  # type: ignore[return-value]

    @torch.no_grad()
    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast each tensor from rank 0, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def barrier(self) -> None:
        """Block until rank 0, which writes the files, has reached this call."""
        self.broadcast_object(None)

    def check_equal(self, values: Mapping[str, object]) -> None:
        """Check that named values, such as settings, are the same on all ranks.

        Raises:
            UserError: a value of this rank differs from that of rank 0.
        """
        for name, expected in self.broadcast_object(values if self.is_first else None).items():
            if values[name] != expected:
                raise UserError(
                    f"{name} is {values[name]} on rank {self.rank} but {expected} on rank 0; "
                    "start all ranks with the same data and settings"
                )

    @contextmanager
    def all_local_threads(self) -> Iterator[None]:
        """Context in which this rank uses the threads of all ranks on its node, for work that the others wait for."""
        if self.world_size == 1:
            yield
            return
        with threadpool_limits(self.local_world_size * torch.get_num_threads(), "openmp"):
            yield


@contextmanager
def error_on_first_rank() -> Iterator[None]:
    """Context in which a UserError is reported by the first rank of each node only; the others exit with status 2.

    For errors that every rank finds before the process group is initialised.
    """
    try:
        yield
    except UserError:
        if Ranks().local_rank > 0:
            raise SystemExit(2) from None
        raise


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
