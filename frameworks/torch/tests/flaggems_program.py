"""Operators of FlagGems on the device against the CPU. It prints those that differ, and those that launched none of its kernels."""

from __future__ import annotations

import sys

import flag_gems
import torch
from torch.nn import functional as F  # noqa: F401  # used by the expressions
from triton import knobs

EXPRESSIONS = """
x + y; x - y; x * y; x / y; x.abs() ** y; torch.maximum(x, y); torch.minimum(x, y); x > y; x == y; torch.where(m, x, y); x.abs(); x.exp()
-x; x.abs().rsqrt(); x.sin(); x.cos(); x.tanh(); x.erf(); x.sigmoid(); x.relu(); F.gelu(x); F.silu(x); F.elu(x); x.clamp(-1, 1)
x.abs().log(); x.isnan(); x.isinf(); ~m; classes & 5; F.glu(x)
x.sum(); x.sum(1); x.mean(); x.mean(1); x.max(1)[0]; x.max(1)[1]; x.min(1)[0]; x.amax(1); x.argmax(1); (x.abs() + 0.5).prod(1)
m.all(); m.any(1); torch.var_mean(x, 1)[0]; torch.linalg.vector_norm(x); x.cumsum(1); x.cummax(1)[0]; x.softmax(1); x.log_softmax(1)
a @ b; n @ n.mT; torch.addmm(bias[:50], a, b); a @ b[:, 0]; torch.outer(x[0], y[0]); torch.dot(x[0], y[0])
F.layer_norm(x, (130,), weight, bias); F.rms_norm(x, (130,), weight); F.group_norm(x[:, :128], 4)
x.index_select(0, rows); x.gather(1, classes[:, None]); x.scatter(1, classes[:, None], y); F.embedding(rows, x); x.masked_fill(m, 2.0)
x.masked_select(m); m.nonzero(); x.triu(); x.tril(); x.flip(1); torch.cat([x, y], 1); torch.stack([x, y]); x.repeat(2, 3); x.tile(2)
x.topk(5)[0]; x.sort(1)[0]; x.sort(1)[1]; rows.unique()
torch.ones(7, 9, device=x.device); torch.full((7, 9), 3.0, device=x.device); torch.arange(3, 50, 2, device=x.device)
torch.linspace(0, 1, 50, device=x.device); torch.eye(7, device=x.device)
F.cross_entropy(x, classes); F.nll_loss(x, classes); F.mse_loss(x, y)
F.conv1d(x[None, :4], y[:4, :12].reshape(4, 4, 3)); F.conv2d(x[None, None], y[None, None, :3, :3])
F.interpolate(x[None, None], scale_factor=2, mode="nearest")
"""


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x = normal(37, 130)
    return {
        "x": x,
        "y": normal(37, 130),
        "m": x > 0,
        "a": normal(33, 70),
        "b": normal(70, 50),
        "n": normal(3, 20, 32),
        "weight": normal(130),
        "bias": normal(130),
        "rows": torch.randint(0, 37, (20,), generator=generator),
        "classes": torch.randint(0, 130, (37,), generator=generator),
    }


def main(device: str) -> None:
    launches: list[str] = []
    knobs.runtime.launch_enter_hook.add(lambda about: launches.append(about.get()["name"]))
    on_cpu = tensors()
    on_device = {name: one.to(device) for name, one in on_cpu.items()}
    expressions = [one.strip() for one in EXPRESSIONS.replace("\n", ";").split(";") if one.strip()]
    assert flag_gems.vendor_name == "outrigger", flag_gems.vendor_name
    for one in expressions:
        expected = eval(one, globals(), on_cpu)
        del launches[:]
        with flag_gems.use_gems():
            found = eval(one, globals(), on_device)
        try:
            torch.testing.assert_close(found.cpu(), expected, rtol=2e-3, atol=1e-4, equal_nan=True)
        except AssertionError as error:
            print(f"{one} differs: {error}")
        if not launches:
            print(f"{one} launched nothing")
    print(f"{len(expressions)} operators")


if __name__ == "__main__":
    main(sys.argv[1])
