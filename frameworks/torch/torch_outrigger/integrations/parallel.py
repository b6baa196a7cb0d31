"""torch.nn.DataParallel: refused, where torch would use the code of CUDA and say that there is no NVIDIA driver."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def serve(types: tuple[str, ...]) -> None:
    """Refuses DataParallel for devices of these types."""

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

    original = torch.nn.DataParallel.__init__
    torch.nn.DataParallel.__init__ = refusing(original, "DataParallel")
    # torch.nn.parallel has a function of the name of this module.
    module = sys.modules["torch.nn.parallel.data_parallel"]
    module.data_parallel = refusing(module.data_parallel, "parallel.data_parallel")
    torch.nn.parallel.data_parallel = module.data_parallel
