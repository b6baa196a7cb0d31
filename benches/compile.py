"""torch.compile for the device, against CPU tensors under stock Inductor and in eager mode. `cargo xtask bench compile`.

Models are those of models.py, in float32. `step/...` is a training step: forward and loss compiled, backward, and AdamW with
`fused=True`; `step` is the geometric mean of all of them. `products/...` is how much of a step's time on CPU tensors is in
matrix products and convolutions, which no compiler makes faster. `overhead` is a call of a compiled function with one kernel
on 8 elements, `reduce_overhead` the same with `mode="reduce-overhead"`, and `replay` that of a graph into which it was captured.
`fused_norm` is `x + gelu(layer_norm(x))` in memory, relative to a triad. `autotune/...` is a feed-forward layer with `mode="max-autotune"`, against the
same by default, and against both under stock Inductor on CPU tensors. `cold/...` and `warm/...` are processes, from the import of
torch to the end of the first step, with an empty cache and with that of the process before. `opencl_step` is the step of a GPT
block over PoCL, in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.device import open_device

from . import models
from .eager import CPU, repeated, repeated_here
from .harness import US, Bar, Metric, Missing, Parts, Seconds

MODELS = ("gpt2", "bert", "resnet18", "vit", "unet")
OPENCL = "opencl?platform=portable&host_visible=0"
ROWS, COLUMNS = 16384, 1024
TOKENS, WIDTH = 256, 512
STEP_ROUNDS = 9
PROCESS_ROUNDS = 3
BLOCK_RUNS = 9

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "mkldnn_convolution", "convolution_backward", "attention")


class Block(nn.Module):
    """A block of a GPT, with the head's products outside."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


def _block(device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(1)
    model = Block().to(device)
    given = torch.randn(4, 128, 256, generator=torch.Generator().manual_seed(2)).to(device)
    return model, lambda: model(given).square().mean()


def _stepping(model: nn.Module, loss_of: Callable[[], Tensor], compiles: bool) -> Callable[[], Tensor]:
    """A training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loss_of = torch.compile(loss_of) if compiles else loss_of

    def call() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


@cache
def _step(name: str, device: torch.device, compiles: bool) -> Callable[[], Tensor]:
    call = _stepping(*models.training(name, device), compiles)
    for _ in range(models.WARM_UP):
        call()
    return call


@cache
def _subjects(name: str) -> dict[str, Parts]:
    """The step of a model, on all subjects, which compute the same."""
    device = open_device("outrigger")
    calls = {US: _step(name, device, True), "torch_compile": _step(name, CPU, True), "cpu": _step(name, CPU, False)}
    losses = [call().item() for call in calls.values()]
    if max(losses) - min(losses) > 1e-3 * abs(losses[0]):
        raise AssertionError(f"{name}: the losses are {losses}")
    return {who: (repeated if who == US else repeated_here)(call) for who, call in calls.items()}


def _all_models() -> dict[str, Parts]:
    each = {name: _subjects(name) for name in MODELS}
    return {who: {name: each[name][who]["block"] for name in MODELS} for who in (US, "torch_compile", "cpu")}


def _mean(seconds: Seconds) -> float:
    """The geometric mean, in microseconds."""
    return 1e6 * math.exp(sum(map(math.log, seconds.values())) / len(seconds))


def _products(name: str) -> dict[str, Parts]:
    """The share of products and convolutions in a step on CPU tensors in eager mode, in per cent."""
    call = _step(name, CPU, False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    times = {one.key: one.self_cpu_time_total for one in profile.key_averages()}
    mine = sum(spent for key, spent in times.items() if any(part in key for part in PRODUCTS))
    share = 100.0 * mine / sum(times.values())
    return {US: {"block": lambda repetitions: share * repetitions}}


def _small(device: torch.device, mode: str | None = None) -> Callable[[], Tensor]:
    x = torch.ones(8, device=device)
    fast = torch.compile(lambda x: x * 2 + 1, mode=mode)
    for _ in range(models.WARM_UP):
        fast(x)
    return lambda: fast(x)


@torch.no_grad()
def _overhead(mode: str | None) -> dict[str, Parts]:
    return {US: repeated(_small(open_device("outrigger"), mode)), "torch_compile": repeated_here(_small(CPU))}


@torch.no_grad()
def _replay() -> dict[str, Parts]:
    call, graph = _small(open_device("outrigger")), torch.outrigger.Graph()
    with torch.outrigger.graph(graph):
        call()
    return {US: repeated(graph.replay), "torch_compile": repeated_here(_small(CPU))}


@torch.no_grad()
def _fused_norm() -> dict[str, Parts]:
    def norm(x: Tensor) -> Tensor:
        return x + F.gelu(F.layer_norm(x, (COLUMNS,)))

    x = torch.randn(ROWS, COLUMNS)
    y, out = torch.randn_like(x), torch.empty_like(x)
    ours, fast, peer = x.to(open_device("outrigger")), torch.compile(norm), torch.compile(norm)
    for _ in range(models.WARM_UP):
        torch.testing.assert_close(fast(ours).cpu(), peer(x))
    return {
        US: {"norm": repeated(lambda: fast(ours))["block"]},
        "torch_compile": {"norm": repeated_here(lambda: peer(x))["block"]},
        "triad": {"triad": repeated_here(lambda: torch.add(x, y, alpha=2.5, out=out))["block"]},
    }


@torch.no_grad()
def _autotune(dtype: torch.dtype) -> dict[str, Parts]:
    def layer(x: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
        return x + F.linear(F.gelu(F.linear(x, up, bias)), down)

    shapes = ((TOKENS, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,))
    there = [(torch.randn(*shape) / shape[-1] ** 0.5).to(dtype) for shape in shapes]
    here = [one.to(open_device("outrigger")) for one in there]
    calls = {}
    for name, mode, given in (
        (US, "max-autotune-no-cudagraphs", here),
        ("default", None, here),
        ("torch_autotune", "max-autotune-no-cudagraphs", there),
        ("torch_compile", None, there),
    ):
        torch._dynamo.reset()
        fast = torch.compile(layer, mode=mode)
        for _ in range(models.WARM_UP):
            torch.testing.assert_close(fast(*given).cpu(), layer(*there), rtol=2e-2, atol=2e-2)
        calls[name] = partial(fast, *given)
    return {name: (repeated if name in (US, "default") else repeated_here)(call) for name, call in calls.items()}


def _bandwidth(seconds: Seconds) -> float:
    """GB/s of what has to be moved: a matrix in and one out, or two in and one out."""
    matrices = 2 if "norm" in seconds else 3
    return matrices * 4e-9 * ROWS * COLUMNS / sum(seconds.values())


# ---- processes ---------------------------------------------------------------------------------------


def _process(*arguments: str, **environment: str) -> float:
    """The number that this program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


_folder: Path | None = None


@contextmanager
def _caches() -> Iterator[None]:
    """A place for the caches of the processes that are measured."""
    global _folder
    _folder = Path(tempfile.mkdtemp(prefix="bench-compile-"))
    try:
        yield
    finally:
        shutil.rmtree(_folder)


def _starts(name: str, warm: bool) -> dict[str, Parts]:
    def start(kind: str, fresh: bool) -> float:
        held = _folder / kind
        if fresh and held.exists():
            shutil.rmtree(held)
        return _process("first", name, kind, TORCHINDUCTOR_CACHE_DIR=str(held), OUTRIGGER_CACHE=str(held / "store"))

    def timer(kind: str, fresh: bool, prepares: bool) -> Callable[[int], float]:
        def run(repetitions: int) -> float:
            if prepares:
                start(kind, False)
            return start(kind, fresh)

        return run

    if not warm:
        return {US: {"s": timer("outrigger", True, False)}, "torch_compile": {"s": timer("cpu", True, False)}}
    return {
        US: {"s": timer("outrigger", False, True)},
        "cold": {"s": timer("outrigger", True, False)},
        "torch_compile": {"s": timer("cpu", False, True)},
    }


def _opencl() -> dict[str, Parts]:
    def timer(driver: str, how: str) -> Callable[[int], float]:
        return lambda repetitions: _process("block", how, OUTRIGGER_DRIVER=driver)

    host = os.environ.get("OUTRIGGER_DRIVER", "host")
    return {
        US: {"s": timer(OPENCL, "compiled")},
        "eager": {"s": timer(OPENCL, "eager")},
        "on_host": {"s": timer(host, "compiled")},
    }


def _first_step(name: str, kind: str) -> float:
    """Seconds from the start of this process's Python to the end of a step."""
    device = CPU if kind == "cpu" else open_device(kind)
    _stepping(*models.training(name, device), True)().item()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _started()


def _started() -> float:
    """When this process was started, in seconds since the machine was."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _block_step(how: str) -> float:
    """Seconds of a step of the block, once it is warm."""
    call = _stepping(*_block(open_device("outrigger")), how == "compiled")
    seconds = []
    for _ in range(models.WARM_UP + BLOCK_RUNS):
        began = time.perf_counter()
        call().item()
        seconds.append(time.perf_counter() - began)
    return median(seconds[models.WARM_UP :])


# ---- the suite ---------------------------------------------------------------------------------------


def metrics() -> list[Metric]:
    """The suite."""
    all_ = [Metric("step", _all_models, (Bar(1 / 0.9, "torch_compile"), Bar(1 / 1.2, "cpu")), figure=_mean, most_rounds=STEP_ROUNDS)]
    for name in MODELS:
        all_ += [
            Metric(f"step/{name}", partial(_subjects, name), (Bar(1 / 0.9, "torch_compile"),), most_rounds=STEP_ROUNDS),
            Metric(
                f"products/{name}", partial(_products, name), unit="%", figure=lambda parts: parts["block"],
                most_rounds=1, warmed_up=False,
            ),
        ]
    all_ += [
        Metric("overhead", partial(_overhead, None), (Bar(1.1, "torch_compile"),)),
        Metric("reduce_overhead", partial(_overhead, "reduce-overhead"), (Bar(1.0, "torch_compile"),)),
        Metric("replay", _replay, (Bar(0.1, "torch_compile"),)),
        Metric("fused_norm", _fused_norm, (Bar(0.8, "triad"),), unit="GB/s", better="higher", figure=_bandwidth),
    ]
    for dtype in (torch.float32, torch.bfloat16):
        name = f"autotune/{str(dtype).removeprefix('torch.')}"
        all_.append(Metric(name, partial(_autotune, dtype), (Bar(1.0, "default"),)))
    once = {"unit": "s", "figure": lambda parts: parts["s"], "warmed_up": False}
    for name in MODELS:
        all_ += [
            Metric(
                f"cold/{name}", partial(_starts, name, False), (Bar(1.2, "torch_compile"),), around=_caches, most_rounds=1, **once
            ),
            Metric(f"warm/{name}", partial(_starts, name, True), (Bar(0.3, "cold"),), around=_caches, most_rounds=1, **once),
        ]
    all_.append(
        Metric("opencl_step", _opencl, (Bar(0.5, "eager"), Bar(3.0, "on_host")), most_rounds=PROCESS_ROUNDS, **once)
    )
    return all_


def main() -> None:
    """A process that is measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["first", "block"])
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    print(json.dumps((_first_step if options.what == "first" else _block_step)(*options.arguments)))


if __name__ == "__main__":
    main()
