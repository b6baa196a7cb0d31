"""Checks that compiled code makes if asked to (`torch._inductor.config.nan_asserts`)."""

from __future__ import annotations

import torch


def assert_finite(name: str, *values: object) -> None:
    """Fails if a tensor among the values holds NaN or an infinity. A capture records the check."""
    for number, tensor in enumerate(values):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
            message = f"argument {number} of {name} has NaN or an infinity"
            torch._assert_async(tensor.isfinite().all(), message)
