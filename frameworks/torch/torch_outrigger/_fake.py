"""What torch's fake tensors say of results on the device, where the device does otherwise than they assume.

It must never compute: it is about shapes and layouts. docs/compile.md says who asks.
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
        stock = module.op_implementations_dict[overload]

        def convolution(fake_mode: Any, func: Any, *args: Any, stock: Any = stock, **kwargs: Any) -> Any:
            result, image = stock(fake_mode, func, *args, **kwargs), args[0] if args else kwargs["input"]
            if image.fake_device.type != name or image.dim() != 4:
                return result
            # The device gives the layout of the images, whatever that of the weights.
            layout = torch._prims_common.suggest_memory_format(image)
            with fake_mode:
                return result.contiguous(memory_format=layout)

        module.op_implementations_dict[overload] = convolution


def register(name: str) -> None:
    """Corrects what is assumed of the device type `name`, now or when torch makes its first fake tensor."""
    after_import(_MODULE, lambda module: _add_to(module, name))
