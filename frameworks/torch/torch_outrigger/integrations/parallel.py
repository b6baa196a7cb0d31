"""torch.nn.DataParallel: refuses to run, where torch would use the code of CUDA and say that there is no NVIDIA driver.

It may be made, and a model taken out of it again, as libraries do when they save one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def serve(types: tuple[str, ...]) -> None:
    """Refuses to run DataParallel on devices of these types."""

    def refusing(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def refuse(*arguments: Any, **keywords: Any) -> Any:
            device = torch._utils._get_available_device_type()
            if device in types:
                raise NotImplementedError(
                    f"torch.nn.{name} is only for CUDA, and the device is {device}: use one process for each device and "
                    "torch.nn.parallel.DistributedDataParallel"
                )
            return function(*arguments, **keywords)

        return refuse

    def making(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(self: Any, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
            if torch._utils._get_available_device_type() not in types:
                return original(self, module, device_ids, output_device, dim)
            torch.nn.Module.__init__(self)
            self.module, self.dim = module, dim
            self.device_ids = list(range(torch.accelerator.device_count())) if device_ids is None else list(device_ids)
            self.output_device = self.device_ids[0] if output_device is None else output_device

        return __init__

    torch.nn.DataParallel.__init__ = making(torch.nn.DataParallel.__init__)
    torch.nn.DataParallel.forward = refusing(torch.nn.DataParallel.forward, "DataParallel")
    # torch.nn.parallel has a function of the name of this module.
    module = sys.modules["torch.nn.parallel.data_parallel"]
    module.data_parallel = refusing(module.data_parallel, "parallel.data_parallel")
    torch.nn.parallel.data_parallel = module.data_parallel
