"""Kernels of Helion that the tests launch."""

from __future__ import annotations

import helion
import helion.language as hl
import torch


@helion.kernel(autotune_effort="none")
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel(autotune_effort="none")
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        out[row, :] = torch.nn.functional.softmax(x[row, :], dim=1)
    return out


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for row, column in hl.tile([m, n]):
        total = hl.zeros([row, column], dtype=torch.float32)
        for inner in hl.tile(k):
            total = torch.addmm(total, x[row, inner], y[inner, column])
        out[row, column] = total
    return out


product = helion.kernel(autotune_effort="none")(_product)


def tuned_product() -> helion.Kernel:
    """The product with a short search."""
    return helion.kernel(
        autotune_effort="quick", autotune_max_generations=1, autotune_random_seed=1, autotune_progress_bar=False
    )(_product)
