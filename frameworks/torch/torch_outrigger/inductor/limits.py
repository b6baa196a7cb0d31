"""Limits of a kernel: how many loops it fuses, and how many buffers and bytes of arguments it has.

Inductor's own options limit which loops it tries to fuse. Here they hold for what a kernel has in the end: before loops are
made, what an operator reads is kept below the limit, by storing operands that read too much themselves.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from . import config

LEAST = 4
"""A kernel needs so many buffers: operators of three operands, such as `where`, have no parts."""

_OPERANDS = LEAST - 1

_DEFAULTS = {"realize_acc_reads_threshold": inductor_config._realize_acc_reads_threshold_default}

_WORDS = 24
"""Words of an argument block that are kept for sizes."""


@functools.cache
def _words(device: torch.device) -> int:
    """The number of addresses that the argument block of a launch has room for; 0 if unknown."""
    from .. import _C

    held = _C.device_info(device.index or 0)["argument_block_bytes"] // 8
    return max(held - _WORDS, 1) if held else 0


def most_buffers(device: torch.device) -> int | None:
    """The most buffers that a kernel may have on a device; None if any number."""
    asked = {
        "max_fusion_unique_io_buffers": inductor_config.max_fusion_unique_io_buffers,
        f"{device.type}.max_kernel_buffers": config.max_kernel_buffers,
    }
    for name, most in asked.items():
        if most is not None and most < LEAST:
            raise ValueError(f"{name} is {most}, and a kernel has at least {LEAST} buffers: operators have three operands")
    known = [one for one in (*asked.values(), _words(device)) if one]
    return min(known, default=None)


def patches(device: torch.device) -> dict[str, Any]:
    """Options with which Inductor makes no loop that reads more than a kernel may."""
    most = most_buffers(device)
    if most is None:
        return {}
    # The most buffers that each operand of an operator may read.
    reads = (most - 1) // _OPERANDS
    wanted = dict.fromkeys(("realize_reads_threshold", "realize_acc_reads_threshold"), reads)
    wanted |= dict.fromkeys(("max_pointwise_cat_inputs", "max_complex_pointwise_cat_inputs"), _OPERANDS)
    set_already = {one: getattr(inductor_config, one) for one in wanted}
    set_already = {one: _DEFAULTS.get(one) if value is None else value for one, value in set_already.items()}
    return {one: value for one, value in wanted.items() if value < set_already[one]}


def check(name: str, buffers: int, device: torch.device) -> None:
    """RuntimeError if a kernel has more buffers than it may."""
    most = most_buffers(device)
    if most is not None and buffers > most:
        raise RuntimeError(f"{name} has {buffers} buffers, and a kernel has at most {most} on {device}: no part of it stands alone")


def buffers_of(nodes: list[Any]) -> set[str]:
    """The buffers that a kernel of these loops takes: what it reads from outside, and what others read of it."""
    inside = {one.get_name() for node in nodes for one in node.get_outputs()}
    names = {one.get_name() for one in nodes}
    real = V.graph.scheduler.mutation_real_name
    read, written = set(), set()
    for node in nodes:
        read |= {dep.name for dep in node.read_writes.reads if dep.name not in inside}
        for out in node.get_outputs():
            users = [user for user in out.users if user.get_name() not in names]
            if users or out.get_name() in V.graph.get_output_names():
                written.add(out.get_name())
    return {real.get(one, one) for one in read | written}


def allow(node1: Any, node2: Any) -> bool:
    """Whether two nodes may become one kernel."""
    nodes = [*node1.get_nodes(), *node2.get_nodes()]
    if len(nodes) > inductor_config.max_fusion_size:
        return False
    device = node1.get_device()
    most = most_buffers(device) if device is not None else None
    return most is None or len(buffers_of(nodes)) <= most
