"""Options of torch.compile for devices of Outrigger: `torch.compile(options={"outrigger.max_kernel_buffers": 8})`."""

import sys

from torch.utils._config_module import install_config_module

max_kernel_buffers: int | None = None
"""The most buffers that a kernel has; None: as many as the device takes."""

min_graph_nodes: int = 2
"""A region of fewer nodes, as launches and copies, is not replayed as a graph: it is quicker by itself."""

whole_operators: str = ""
"""Operators that are called whole instead of taken apart, by their names in `torch.ops.aten`, separated by commas."""

max_graphs: int = 8
"""The most graphs of a region that `mode="reduce-overhead"` keeps, one for each combination of sizes."""

templates: bool = True
"""Whether `mode="max-autotune"` tries kernels of this backend for products, besides the device's operators."""

split_k: bool = True
"""Whether kernels that split the sum of a product are among them."""

candidate: str = ""
"""The candidate that `mode="max-autotune"` uses where it is one, by its name in the log; nothing is measured then."""

candidate_seconds: int = 30
"""Seconds that a candidate may take in the process that measures, with the compilation of its code."""

code_version: str = ""
"""The state that compiled code depends on besides its text; set for each graph, and part of the key of caches."""

install_config_module(sys.modules[__name__])
