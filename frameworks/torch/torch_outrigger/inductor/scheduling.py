"""The choice of loops that become one kernel, and of the place for its text.

This module must never launch or compile: it writes lines of the wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.utils import get_fused_kernel_name, get_kernel_metadata
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from . import limits
from .kernel import Kernel


class Scheduling(SIMDScheduling):
    """Every kernel has one flat dimension of items, and one of what is folded."""

    kernel_type = Kernel

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:
        return OrderedSet([BackendFeature.INPLACE_BUFFERS, BackendFeature.MASKED_SCATTER_WITH_INDEX])

    @classmethod
    def get_tiling_and_scores(
        cls,
        node_schedule: Sequence[Any],
        numel: sympy.Expr,
        reduction_numel: sympy.Expr = sympy.S.One,
        coalesce_analysis: Any = None,
    ) -> tuple[dict[str, sympy.Expr], None]:
        return cls.create_tiling([numel], [reduction_numel]), None

    def can_fuse(self, node1: Any, node2: Any) -> bool:
        return super().can_fuse(node1, node2) and limits.allow(node1, node2)

    can_fuse_vertical = can_fuse_horizontal = can_fuse

    def codegen_combo_kernel(self, combo_kernel_node: Any) -> None:
        """Kernels side by side are launched one after the other: all of them are in one program anyway."""
        # Buffers are freed behind the last one, since each may read what another one has read.
        self.free_buffers_in_scheduler = lambda: None
        try:
            for node in combo_kernel_node.get_subkernel_nodes():
                self.codegen_node(node)
        finally:
            del self.free_buffers_in_scheduler
        self.free_buffers_in_scheduler()

    def define_kernel(self, src_code: str, node_schedule: Sequence[Any], kernel: Kernel) -> str:
        wrapper = V.graph.wrapper_code
        # A kernel is one of a device: another one with the same text has its own.
        key = f"{V.graph.get_current_device_or_throw()}: {src_code}"
        known = wrapper.src_to_kernel.get(key)
        if known is not None:
            return known
        fused = get_fused_kernel_name(node_schedule, config.cpp.descriptive_names)
        name = "_".join(("otr", fused, wrapper.next_kernel_suffix()))
        wrapper.src_to_kernel[key] = name
        origins, details = get_kernel_metadata(node_schedule, wrapper)
        comment = "\n".join(line for line in f"{origins}\n{details}".splitlines() if line.startswith("#"))
        wrapper.define_outrigger_kernel(name, src_code.replace("KERNEL_NAME", name), kernel, comment)
        return name
