"""A kernel of Triton on CUDA, called and compiled."""

import json

import torch
import triton
import triton.language as tl

DEVICE = torch.device(f"cuda:{torch.cuda.current_device()}")


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    assert x.is_cuda and out.device == DEVICE
    add_kernel[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](x, y, out, out.numel(), BLOCK=256)
    return out


x, y = torch.rand(1000, device=DEVICE), torch.rand(1000, device="cuda")
found = [(made - (x + y)).abs().max().item() for made in (add(x, y), torch.compile(add, fullgraph=True)(x, y))]
print(json.dumps({"differences": found, "backend": triton.runtime.driver.active.get_current_target().backend}))
