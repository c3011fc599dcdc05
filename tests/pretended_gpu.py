"""A GPU that is pretended: its tensors compute on the CPU, but cannot be mixed with those of the CPU.

torch's own fake tensors obey the same rules (test_fake_cuda.py compares them), but have no numbers, so that k-means
cannot run, and no backward pass on a machine without a driver. Here whole trainings run, to the bytes of the CPU.
What differs from a real GPU: kernels and their rounding, autocast, and code of torch that asks in C++ for the device.
"""

import functools
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import ClassVar

import torch
from lightning_fabric.plugins import Precision
from torch import Tensor
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda", 0)
COPIES = {"copy_", "_to_copy", "_foreach_copy_"}  # from one device to another
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # indices may be on the CPU
JOINS = {"cat", "stack", "_foreach_norm"}  # a number on the CPU may be an operand of others, but not of these
WAITS = {  # the host needs a result before it can go on
    *("_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero", "argwhere"),
    *("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "histc"),
}


class OnGPU(Tensor):
    """A tensor that says it is on the GPU."""

    waits: ClassVar[Counter] = Counter()  # what made the host wait for the device, by name

    @staticmethod
    def __new__(cls, host):
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset(), "dtype": host.dtype}
        return Tensor._make_wrapper_subclass(cls, host.shape, **layout, device="cpu", requires_grad=host.requires_grad)

    def __init__(self, host):
        self.host = host.detach()

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"OnGPU({self.host})"

    def __deepcopy__(self, memo):
        copied = memo[id(self)] = OnGPU(self.host.clone()).requires_grad_(self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol):  # for torch.save
        return self.host.__reduce_ex__(protocol)

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name.removeprefix("aten::")
        written = written_to(func, args, kwargs)
        check(name, args, kwargs, written)
        if name in WAITS or (name in INDEXING and any(t.dtype in (torch.bool, torch.uint8) for t in tensors(args[1]))):
            cls.waits[name] += 1
        result = func(*change(args, OnGPU, _host), **change(kwargs, OnGPU, _host))
        if written:  # in place, or with out=
            return (written[0] if len(written) == 1 else tuple(written)) if func._schema.returns else None
        return result if name in COPIES and not isinstance(args[0], OnGPU) else change(result, Tensor, OnGPU)


def _host(tensor):
    return tensor.host


def change(tree, kind, how):
    """Replace what is of this kind in nested lists, tuples and dicts; torch's `tree_map` is slow."""
    if isinstance(tree, kind):
        return how(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([change(value, kind, how) for value in tree])
    return {name: change(value, kind, how) for name, value in tree.items()} if isinstance(tree, dict) else tree


def tensors(*trees):
    """All tensors in nested lists, tuples and dicts."""
    found = []
    change(trees, Tensor, found.append)
    return found


@functools.cache
def _writes(func):
    arguments = list(enumerate(func._schema.arguments))
    return [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def written_to(func, args, kwargs):
    """The arguments that an operation writes to."""
    given = [args[i] if i < len(args) else kwargs.get(name) for i, name in _writes(func)]
    return [value for value in given if value is not None]


def check(name, args, kwargs, written):
    """Raise as torch does if tensors of the CPU take part in an operation on the GPU."""
    if name in COPIES:
        OnGPU.waits.update(["copy to the CPU"] * any(not isinstance(t, OnGPU) for t in tensors(args[0])))
        return
    operands = tensors(args[0], args[2:], kwargs) if name in INDEXING else tensors(args, kwargs)
    strangers = [t for t in operands if not isinstance(t, OnGPU)]
    numbers_only = all(t.dim() == 0 and all(t is not w for w in tensors(written)) for t in strangers)
    if (strangers and (name in JOINS or not numbers_only)) or (name in INDEXING and not isinstance(args[0], OnGPU)):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {name}")


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        if not isinstance(tensor, OnGPU):
            return OnGPU(tensor.detach().clone())
        OnGPU.waits["copy to the CPU"] += 1
        return tensor.host.clone()

    @staticmethod
    def backward(ctx, upstream):
        return _Move.apply(upstream)


def move(tensor, device):
    """The tensor on that device, itself if it is there."""
    there = isinstance(tensor, OnGPU) == (torch.device(device).type == "cuda")
    return tensor if there else _Move.apply(tensor)


class PretendedGPU(TorchFunctionMode):
    """Context in which there is one, as far as torch's functions with a `device` are concerned."""

    def __enter__(self):
        self.overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter changes its class
        OnGPU.waits.clear()
        return super().__enter__()

    def __exit__(self, *error):
        torch.__future__.set_overwrite_module_params_on_conversion(self.overwrites)
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("cpu", "cuda") and isinstance(args[0], Tensor):
            return move(args[0], name)
        if name == "tolist" and isinstance(args[0], OnGPU):
            OnGPU.waits["tolist"] += 1
            return args[0].host.tolist()
        if name == "new_tensor" and isinstance(args[0], OnGPU):
            return OnGPU(torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)))
        if name == "one_hot" and isinstance(args[0], OnGPU):  # asks in C++ for the device
            return OnGPU(func(args[0].host, *args[1:]))
        device = kwargs.pop("device", None)
        if name == "to":
            device, args = _destination(device, args)
        if device is None:
            return func(*args, **kwargs)
        if name == "to":
            stays = {k: v for k, v in kwargs.items() if k != "non_blocking"}
            return move(func(*args, **stays) if args[1:] or stays else args[0], device)
        return change(func(*args, **kwargs), Tensor, functools.partial(move, device=device))


def _destination(device, args):
    """The device that `tensor.to(...)` names, and its arguments without it."""
    tensor, *rest = args
    if rest and isinstance(rest[0], Tensor):
        return rest[0].device, (tensor, rest[0].dtype)
    if rest and isinstance(rest[0], str | torch.device):
        return rest[0], (tensor, *(v for v in rest[1:2] if v is not None))
    return device, tuple(args)


GROUPING = "_group_tensors_by_device_and_dtype"  # asks for the device in C++


def _grouped(original, lists, *arguments):
    grouped = original(lists, *arguments)
    return {(groups[0][0].device, dtype): (groups, rows) for (_, dtype), (groups, rows) in grouped.items()}


class PretendedFabric:
    """What training needs of Lightning Fabric, for one process on the pretended GPU."""

    device = GPU
    strategy = SimpleNamespace(precision=Precision())

    def setup(self, module, optimizer):
        return module, SimpleNamespace(
            param_groups=optimizer.param_groups,
            zero_grad=optimizer.zero_grad,
            step=optimizer.step,
            optimizer=optimizer,
        )

    def backward(self, loss):
        loss.backward()


@contextmanager
def pretended_gpu(monkeypatch):
    """Context in which `device="cuda"` trains and evaluates."""
    from protonce import assembly, auto, capacity, preparation, randomness
    from protonce.run import Run

    machine = auto.Machine("cuda", bfloat16=False, faiss=False, cores=1)
    monkeypatch.setattr(preparation, "find_device", lambda asked: asked)
    monkeypatch.setattr(preparation, "look_at_machine", lambda *_: machine)
    monkeypatch.setattr(capacity, "gpu_memory", lambda: 1 << 34)
    monkeypatch.setattr(assembly, "launch", lambda *_: PretendedFabric())
    monkeypatch.setattr(randomness, "preserved", lambda _: nullcontext())
    monkeypatch.setattr(Run, "device", "cuda")
    for module in map(sys.modules.__getitem__, ("torch.nn.utils.clip_grad", "torch.optim.optimizer")):
        monkeypatch.setattr(module, GROUPING, functools.partial(_grouped, getattr(module, GROUPING)))
    with PretendedGPU():
        yield OnGPU.waits
