"""Checks that compiled code makes if asked to (`torch._inductor.config.nan_asserts`)."""

from __future__ import annotations

import torch


def assert_finite(name: str, *tensors: torch.Tensor) -> None:
    """Makes the stream fail if a tensor holds NaN or an infinity. It does not wait."""
    for number, tensor in enumerate(tensors):
        if tensor.is_floating_point() and tensor.numel():
            message = f"argument {number} of {name} has NaN or an infinity"
            torch._assert_async(tensor.isfinite().all(), message)
