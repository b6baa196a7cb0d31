"""Options of torch.compile for devices of Outrigger: `torch.compile(options={"outrigger.max_kernel_buffers": 8})`."""

import sys

from torch.utils._config_module import install_config_module

max_kernel_buffers: int | None = None
"""The most buffers that a kernel has; None: as many as the device takes."""

whole_operators: str = ""
"""Operators that are called whole instead of taken apart, by their names in `torch.ops.aten`, separated by commas."""

max_graphs: int = 8
"""The most graphs of a region that `mode="reduce-overhead"` keeps, one for each combination of sizes."""

code_version: str = ""
"""What compiled code depends on besides its text; set at registration, and part of the key of caches."""

install_config_module(sys.modules[__name__])
