"""Inductor's backend for devices of Outrigger: `torch.compile` without options.

Kernels are in the project's dialect of C, one text for every device. docs/compile.md tells the whole. Nothing here is
imported before a program compiles for the device.
"""

from __future__ import annotations

import operator
import threading
from typing import Any

import torch

_registered: set[str] = set()
_lock = threading.RLock()

PATCHES: dict[str, Any] = {
    # Random operators stay calls of eager ones, so that results are those of eager execution.
    "fallback_random": True,
    # Convolutions take the layout that the program gives: whatever changes it is work of the device.
    "layout_optimization": False,
    # A region is captured as a whole, or not at all.
    "graph_partition": False,
}
"""Options of Inductor that a graph for the device is compiled with."""


def patches(devices: list[torch.device], places: str = "") -> dict[str, Any]:
    """The options with which a graph with tensors of some devices is compiled, besides those of the program; those that are
    not set yet. `places` tells on which streams it computes."""
    from torch._inductor import config as inductor_config

    from .. import __version__
    from . import config, graphs, kept, limits
    from .program import code_version, device_version

    kept.keep_whole()
    wanted = {**PATCHES, **limits.patches(devices[0])}
    if inductor_config.cudagraph_policy is None:
        wanted["cudagraph_policy"] = graphs.Policy()
    changed = {key: value for key, value in wanted.items() if operator.attrgetter(key)(inductor_config) != value}
    # Of each device by its number: two of one process may have drivers that write different code.
    about = [f"{index}: {device_version(index)}" for index in sorted({one.index or 0 for one in devices})]
    # torch's key of a graph has its operators, and not the streams that they run on.
    version = "; ".join([__version__, code_version(), *about, *filter(None, [places])])
    return changed if config.code_version == version else {**changed, f"{devices[0].type}.code_version": version}


def register(name: str) -> None:
    """Tells Inductor of a device type, once."""
    with _lock:
        if name in _registered:
            return
        from .program import check_torch

        check_torch()
        _registered.add(name)
        from torch._inductor.codegen.common import (
            _init_builtin_backend_registration,
            _initialize_device_op_overrides,
            register_backend_for_device,
            register_device_op_overrides,
        )

        from . import attention, choices, config, kept
        from .scheduling import Scheduling
        from .wrapper import DeviceOps, Wrapper

        # Torch's own registration for MTIA imports packages that are not public.
        _init_builtin_backend_registration()
        _initialize_device_op_overrides()
        from .. import _dynamo

        config.whole_operators = ",".join(_dynamo.whole_operators)
        register_device_op_overrides(name, DeviceOps(name))
        register_backend_for_device(name, Scheduling, Wrapper, device_custom_config=config)
        kept.install()
        attention.install()
        choices.install()
        # Devices whose code `mode="reduce-overhead"` may capture.
        from torch._inductor import cudagraph_utils

        cudagraph_utils._CUDAGRAPH_SUPPORTED_DEVICE_TYPES |= {name}
