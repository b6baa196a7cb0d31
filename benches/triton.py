"""Kernels of Triton on the device, against torch.compile of the same function, operators, and CPU tensors. `cargo xtask bench triton`.

Kernels are those of triton_kernels.py. Each result is compared with that of torch on CPU tensors before it is measured. `softmax`,
`layer_norm`, `layer_norm_backward` and `rms_norm` have 16,384 rows of 1,024 in float32; layer norm gives mean and scale, too.
`moved/...` is the bytes that have to be moved, per time, relative to a triad. `matmul/...` is square; its kernel has no mask along
rows and columns, as in Triton's tutorial. `attention` and `causal_attention` have 8 heads of 512 x 64, in blocks of 64 rows and
128 keys, the fastest of 12 sizes that were tried on `host`.

`launch` is the time of the calling thread for a launch with four arguments that has run before, without the work; `triton` is
Triton's own `run` of the same kernel. `process` is the first launch of a process that finds its kernel in the caches; `key` is the part of it
in which Triton hashes itself. `first/...` is the first call of another kernel then, until it has run on few rows, with empty caches; `compiler` is
what the C compiler takes alone for the text of that kernel. `second/...` is the same in a process that has the caches of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.jit import JITFunction

from demo.device import open_device

from . import triton_kernels as kernels
from .eager import CPU, repeated, repeated_here
from .harness import US, Bar, Metric, Missing, Parts, Seconds, timed

ROWS, COLUMNS = 16384, 1024
HEADS, LENGTH, DEPTH = 8, 512, 64
BATCH_OF_LAUNCHES = 64
PROCESS_ROUNDS = 3
START_ROWS = 64  # of a first call, which is not measured for its work
RUNS = 3  # of each call before it counts
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}

Call = Callable[..., Any]


class Case:
    """A function as a kernel, as torch has it, and what it is given."""

    def __init__(self, kernel: Call, function: Call, given: Callable[[], tuple[Any, ...]]) -> None:
        self.kernel, self.function, self.given = kernel, function, given

    def on(self, device: torch.device) -> list[Any]:
        """The arguments, the same on each device."""
        torch.manual_seed(1)
        return [one.to(device) if isinstance(one, Tensor) else one for one in self.given()]


def _matrix() -> Tensor:
    return torch.randn(ROWS, COLUMNS)


def _norm_given() -> tuple[Tensor, ...]:
    return _matrix(), torch.rand(COLUMNS), torch.randn(COLUMNS)


def _norm_backward_given() -> tuple[Tensor, ...]:
    x, weight, bias = _norm_given()
    _, means, scales = torch.native_layer_norm(x, (COLUMNS,), weight, bias, 1e-5)
    return _matrix(), x, weight, means, scales


def _norm_backward(dy: Tensor, x: Tensor, weight: Tensor, means: Tensor, scales: Tensor) -> tuple[Tensor, ...]:
    return torch.ops.aten.native_layer_norm_backward(dy, x, (COLUMNS,), means, scales, weight, weight, [True] * 3)


def _product(size: int, dtype: torch.dtype) -> Case:
    return Case(kernels.matmul, torch.mm, lambda: tuple(torch.randn(size, size).to(dtype) for _ in range(2)))


def _attention(causal: bool) -> Case:
    return Case(
        partial(kernels.attention, causal=causal),
        partial(F.scaled_dot_product_attention, is_causal=causal),
        lambda: tuple(torch.randn(1, HEADS, LENGTH, DEPTH) for _ in range(3)),
    )


CASES = {
    "softmax": Case(kernels.softmax, lambda x: torch.softmax(x, 1), lambda: (_matrix(),)),
    "layer_norm": Case(
        kernels.layer_norm, lambda x, weight, bias: torch.native_layer_norm(x, (COLUMNS,), weight, bias, 1e-5), _norm_given
    ),
    "layer_norm_backward": Case(kernels.layer_norm_backward, _norm_backward, _norm_backward_given),
    "rms_norm": Case(kernels.rms_norm, lambda x, weight: F.rms_norm(x, (COLUMNS,), weight, 1e-5), lambda: _norm_given()[:2]),
    **{
        f"matmul/{str(dtype).removeprefix('torch.')}_{size}": _product(size, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for size in (512, 1024)
    },
    "attention": _attention(False),
    "causal_attention": _attention(True),
    "sort": Case(kernels.sort, lambda x: torch.sort(x)[0], lambda: (torch.randn(256, 1024),)),
}
POINTWISE = ("softmax", "layer_norm", "layer_norm_backward", "rms_norm")
MOVED = {"softmax": 2, "layer_norm": 2}
"""Matrices that go in and out."""
STARTS = ("softmax", "layer_norm", "matmul/float32_512", "attention", "sort")


def _checked(name: str, call: Call, given: list[Any], wanted: Any) -> Callable[[], Any]:
    """A call that gives what torch gives on CPU tensors."""
    for _ in range(RUNS):
        found = call(*given)
    for one, other in zip(*((it,) if isinstance(it, Tensor) else it for it in (found, wanted)), strict=True):
        bound = TOLERANCE[other.dtype] * max(1.0, other.abs().max().item())
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=bound, msg=lambda text: f"{name}: {text}")
    return partial(call, *given)


@torch.no_grad()
def _subjects(name: str, with_compiled: bool) -> dict[str, Parts | Missing]:
    case, device = CASES[name], open_device("outrigger")
    here, there = case.on(CPU), case.on(device)
    wanted = case.function(*here)
    found: dict[str, Parts | Missing] = {US: repeated(_checked(name, case.kernel, there, wanted))}
    if with_compiled:
        torch._dynamo.reset()
        found["compiled"] = repeated(_checked(name, torch.compile(case.function), there, wanted))
    found["eager"] = repeated(_checked(name, case.function, there, wanted))
    found["cpu"] = repeated_here(partial(case.function, *here))
    return found


@torch.no_grad()
def _moved(name: str) -> dict[str, Parts]:
    case = CASES[name]
    call = _checked(name, case.kernel, case.on(open_device("outrigger")), case.function(*case.on(CPU)))
    x, y, out = _matrix(), _matrix(), torch.empty(ROWS, COLUMNS)
    return {
        US: {name: repeated(call)["block"]},
        "triad": {"triad": repeated_here(lambda: torch.add(x, y, alpha=2.5, out=out))["block"]},
    }


def _bandwidth(seconds: Seconds) -> float:
    """GB/s."""
    ((name, spent),) = seconds.items()
    return 4e-9 * ROWS * COLUMNS * MOVED.get(name, 3) / spent


def _launch() -> dict[str, Parts]:
    x, y = (torch.ones(16, device=open_device("outrigger")) for _ in range(2))
    out = torch.empty_like(x)
    grid = (1,)

    def ours() -> None:
        kernels.add_kernel[grid](x, y, out, 16, BLOCK=16)

    def tritons() -> None:
        # The first launch has put the short way in front of it.
        JITFunction.run.__wrapped__(kernels.add_kernel, x, y, out, 16, BLOCK=16, grid=grid, warmup=False)

    def timer(call: Callable[[], None]) -> Callable[[int], float]:
        block = timed(lambda repetitions: [call() for _ in range(repetitions)])

        def run(repetitions: int) -> float:
            spent = 0.0
            for first in range(0, repetitions, BATCH_OF_LAUNCHES):
                spent += block(min(BATCH_OF_LAUNCHES, repetitions - first))
                torch.accelerator.synchronize()
            return spent

        return run

    for call in (ours, tritons):
        out.zero_()
        call()
        if out.tolist() != [2.0] * 16:
            raise AssertionError(f"x + y is {out.tolist()}")
    return {US: {"block": timer(ours)}, "triton": {"block": timer(tritons)}}


# ---- processes ---------------------------------------------------------------------------------------

_folder: Path | None = None


@contextmanager
def _caches() -> Iterator[None]:
    """A place for the caches of the processes that are measured."""
    global _folder
    _folder = Path(tempfile.mkdtemp(prefix="bench-triton-"))
    try:
        yield
    finally:
        shutil.rmtree(_folder)


def _start(name: str, fresh: bool) -> dict[str, float]:
    """Seconds of a process for its first launches, and of the C compiler if it compiled the kernel of that name."""
    held = _folder / name.replace("/", "_")
    if fresh:
        shutil.rmtree(held, ignore_errors=True)
    elif not held.exists():
        _start(name, True)
    caches = {"TRITON_CACHE_DIR": str(held / "triton"), "OUTRIGGER_CACHE": str(held / "store")}
    done = subprocess.run(
        [sys.executable, "-m", __name__, name], env={**os.environ, **caches}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the process for {name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _both(name: str, fresh: bool, ours: str, peer: str) -> dict[str, Parts]:
    """Two figures of the same process."""
    left: dict[str, float] = {}

    def one(key: str) -> Callable[[int], float]:
        def run(repetitions: int) -> float:
            if key not in left:
                left.update(_start(name, fresh))
            return left.pop(key)

        return run

    return {US: {"s": one(ours)}, peer: {"s": one(peer)}}


def _second(name: str) -> dict[str, Parts]:
    def timer(fresh: bool) -> Callable[[int], float]:
        return lambda repetitions: _start(name, fresh)["call"]

    return {US: {"s": timer(False)}, "first": {"s": timer(True)}}


def _spent(call: Callable[[], Any]) -> float:
    """Seconds of a call and the work of the device."""
    began = time.perf_counter()
    call()
    torch.accelerator.synchronize()
    return time.perf_counter() - began


def _measured(name: str) -> dict[str, float]:
    """The seconds of this process."""
    from torch_outrigger.inductor import program
    from triton.runtime import cache

    device = open_device("outrigger")
    one = torch.ones(16, device=device)
    given = [it[:START_ROWS] if isinstance(it, Tensor) and len(it) == ROWS else it for it in CASES[name].on(device)]
    torch.accelerator.synchronize()
    found = {"process": _spent(lambda: kernels.add_kernel[(1,)](one, torch.ones_like(one), torch.empty_like(one), 16, BLOCK=16))}
    cache.triton_key.cache_clear()
    found["key"] = _spent(cache.triton_key)

    texts: list[str] = []
    part = program._part

    def noted(text: str, *how: bool) -> Any:
        made = part(text, *how)
        texts.extend([text] * (made._process is not None))
        return made

    program._part = noted
    found["call"] = _spent(lambda: CASES[name].kernel(*given))
    if texts:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernels.c"
            source.write_text(texts[0])
            command = [*program._compiler()[0], *program._FLAGS, "-o", str(source.with_suffix(".so")), str(source), "-lm"]
            found["compiler"] = _spent(lambda: subprocess.run(command, check=True))
    return found


# ---- the suite ---------------------------------------------------------------------------------------


def metrics() -> list[Metric]:
    """The suite."""
    all_ = [Metric(name, partial(_subjects, name, True), (Bar(1.5, "compiled"),)) for name in POINTWISE]
    all_ += [
        Metric(f"moved/{name}", partial(_moved, name), (Bar(0.6, "triad"),), unit="GB/s", better="higher", figure=_bandwidth)
        for name in MOVED
    ]
    others = [name for name in CASES if name.startswith("matmul") or name.endswith("attention")]
    all_ += [Metric(name, partial(_subjects, name, False), (Bar(1.5, "eager"),)) for name in others]
    all_.append(Metric("sort", partial(_subjects, "sort", False)))
    all_.append(Metric("launch", _launch, (Bar(0.5, "triton"),)))
    once = {"unit": "s", "figure": lambda parts: parts["s"], "warmed_up": False, "around": _caches, "most_rounds": PROCESS_ROUNDS}
    all_.append(Metric("process", partial(_both, "softmax", False, "process", "key"), **once))
    for name in STARTS:
        all_ += [
            Metric(f"first/{name}", partial(_both, name, True, "call", "compiler"), (Bar(1.25, "compiler"),), **once),
            Metric(f"second/{name}", partial(_second, name), (Bar(0.1, "first"),), **once),
        ]
    return all_


def main() -> None:
    """A process that is measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CASES)
    print(json.dumps(_measured(parser.parse_args().name)))


if __name__ == "__main__":
    main()
