"""Results of fake tensors on the device, where the device does otherwise than torch assumes.

This module must never compute: it is about shapes and layouts. docs/compile.md says who asks.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from ._after_import import after_import

_MODULE = "torch._subclasses.fake_impls"


def _add_to(module: ModuleType, name: str) -> None:
    aten = torch.ops.aten
    for overload in (aten.convolution.default, aten._convolution.default, aten._convolution.deprecated):
        # Older versions of torch have a rule for `convolution` alone.
        stock = module.op_implementations_dict.get(overload)
        if stock is None:
            continue

        def convolution(fake_mode: Any, func: Any, *args: Any, stock: Any = stock, **kwargs: Any) -> Any:
            result, image = stock(fake_mode, func, *args, **kwargs), args[0] if args else kwargs["input"]
            if image.fake_device.type != name or image.dim() != 4:
                return result
            # The device gives the layout of the images, whatever that of the weights.
            layout = torch._prims_common.suggest_memory_format(image)
            with fake_mode:
                return result.contiguous(memory_format=layout)

        module.op_implementations_dict[overload] = convolution

    overload = aten._scaled_dot_product_fused_attention_overrideable.default
    other = module.op_implementations_dict.get(overload, lambda *args, **kwargs: NotImplemented)

    def attention(fake_mode: Any, func: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if query.fake_device.type != name:
            return other(fake_mode, func, query, key, value, *args, **kwargs)
        batch, heads, length, _ = query.shape
        wide = query.dtype == torch.float64
        with fake_mode:
            out = torch.empty_like(query)
            # torch assumes f32 for those of f64, too.
            sums = query.new_empty((batch, heads, length), dtype=torch.float64 if wide else torch.float32)
            none = query.new_empty((0,), dtype=torch.int64)
        return out, sums, none, none, length, key.size(2), none, none, none

    module.op_implementations_dict[overload] = attention

    for overload in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
        stock = module.op_implementations_dict.get(overload, lambda *args, **kwargs: NotImplemented)

        def bag(fake_mode: Any, func: Any, weight: Any, *args: Any, stock: Any = stock, **kwargs: Any) -> Any:
            device = weight.fake_device
            if device.type != name:
                return stock(fake_mode, func, weight, *args, **kwargs)

            def moved(value: Any, to: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=to)

            # Results besides the sums have the sizes of the CPU's, and torch assumes those of CUDA.
            with fake_mode:
                named = {key: moved(value, "cpu") for key, value in kwargs.items()}
                results = func(moved(weight, "cpu"), *(moved(one, "cpu") for one in args), **named)
                return tuple(moved(one, device) for one in results)

        module.op_implementations_dict[overload] = bag


def register(name: str) -> None:
    """Corrects what is assumed of the device type `name`, now or when torch makes its first fake tensor."""
    after_import(_MODULE, lambda module: _add_to(module, name))
