"""Copies of a sample for one side of the comparison: CPU tensors, or tensors of the device.

A copy keeps what operators can see: sizes, strides, offset, which tensors share memory, and what requires
a gradient. It must never share memory with the sample, since operators write to their arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

# The dtypes whose results have a reference, and the dtype that it is computed in.
WIDER_THAN = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


@dataclass
class Arguments:
    """The arguments of one call, all on one side."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        leaves = pytree.tree_leaves((self.input, self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def place(self, device: torch.device) -> str | None:
        """The type of device that results must be on; None if the call neither names nor has `device`."""
        leaves = pytree.tree_leaves((self.input, self.args, self.kwargs))
        known = any(getattr(leaf, "device", leaf) == device for leaf in leaves)
        return device.type if known else None

    def differentiable(self) -> list[Tensor]:
        """The tensors whose gradients are wanted."""
        return [tensor for tensor in self.tensors() if tensor.requires_grad]


class Transfer:
    """One copy of one sample; remembers the storages that it has copied."""

    def __init__(self, device: torch.device, wide: bool = False, keeps_devices: bool = False) -> None:
        self.device = device
        self.wide = wide
        self.keeps_devices = keeps_devices
        # Keyed by the storage object's address: the sample outlives the transfer, so that none is reused.
        self.bases: dict[tuple[int, torch.dtype], Tensor] = {}

    def sample(self, sample: SampleInput, host_arguments: bool = False) -> Arguments:
        """The arguments of `sample` on this side; with `host_arguments` only the first of them."""
        kwargs = dict(sample.kwargs)
        # Names of devices are plain text and stand under this name only.
        if kwargs.get("device") == "cpu" and not self.keeps_devices:
            kwargs["device"] = self.device
        given = self.tree(sample.input)
        others = (sample.args, kwargs) if host_arguments else self.tree((sample.args, kwargs))
        return Arguments(given, *others)

    def tree(self, values: Any) -> Any:
        """All of `values` on this side."""
        return pytree.tree_map(self.value, values, is_leaf=lambda one: isinstance(one, PackedSequence))

    def value(self, value: Any) -> Any:
        """One argument on this side."""
        if isinstance(value, PackedSequence):
            # The sizes of its batches stay on the host, whatever the device.
            return value._replace(data=self.value(value.data), **{
                name: self.value(getattr(value, name)) for name in ("sorted_indices", "unsorted_indices")
            })
        if isinstance(value, Tensor):
            with torch.no_grad():
                return self.tensor(value).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) and value.type == "cpu" and not self.keeps_devices:
            return self.device
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        return value

    def tensor(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor` without its history."""
        tensor = tensor.detach()
        dtype = WIDER_THAN.get(tensor.dtype, tensor.dtype) if self.wide else tensor.dtype
        if tensor.layout is not torch.strided or tensor.is_nested:
            return tensor.to(self.device, dtype, copy=True)
        if tensor.is_conj():
            return self.tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self.tensor(torch._neg_view(tensor)))
        copy = torch.empty(0, dtype=dtype, device=self.device)
        storage = self.base(tensor, dtype).untyped_storage()
        return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def base(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The copy of the whole storage behind `tensor`: as bytes, or in a wider `dtype`."""
        storage = tensor.untyped_storage()
        narrow = torch.uint8 if dtype is tensor.dtype else tensor.dtype
        key = (storage._cdata, narrow)
        base = self.bases.get(key)
        if base is None:
            whole = torch.empty(0, dtype=narrow).set_(storage)
            base = whole.to(self.device, torch.uint8 if narrow is torch.uint8 else dtype, copy=True)
            self.bases[key] = base
        return base
