"""torch.compile against eager execution, for the operators of torch's database: one sample each, forward.

    python compile_sweep.py [--shard 0/4] [--device outrigger] [--timeout 60] [names ...]

Each operator is compiled by Inductor for the device, and compared with the CPU. Operators that eager execution on the
device refuses do not count. A process runs a share, and begins anew behind an operator that ends it.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import signal
import sys
import warnings
import zlib
from typing import Any

NOT_COMPARED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose results have no defined values."""


def _moved(value: Any, device: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    def move(one: Any) -> Any:
        return one.detach().clone().to(device) if isinstance(one, torch.Tensor) else one

    return pytree.tree_map(move, value)


def _late(*_: object) -> None:
    raise TimeoutError("too slow")


def check(op: Any, device: Any, seconds: int) -> tuple[str, str]:
    """What comes of one operator: an outcome, and what went wrong."""
    import torch
    from torch.utils import _pytree as pytree

    torch.manual_seed(zlib.crc32(op.name.encode()))
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)), None)
    if sample is None:
        return "none", "no sample"
    arguments, named = (sample.input, *sample.args), sample.kwargs
    if any(isinstance(one, torch.device) for one in pytree.tree_leaves(named)) or "device" in named:
        named = {key: device if key == "device" else one for key, one in named.items()}

    def call(function: Any, there: Any) -> Any:
        torch.manual_seed(7)
        return function(*_moved(arguments, there), **_moved(named, there))

    try:
        eager = call(op.op, device)
    except Exception as error:
        return "none", f"eager: {type(error).__name__}: {error}"
    torch._dynamo.reset()
    signal.alarm(seconds)
    try:
        compiled = call(torch.compile(lambda *a, **k: op.op(*a, **k)), device)
        got, want = pytree.tree_leaves(compiled), pytree.tree_leaves(eager)
        if len(got) != len(want):
            return "fail", f"{len(got)} results instead of {len(want)}"
        for one, other in zip(got, want, strict=True):
            if not isinstance(other, torch.Tensor):
                continue
            if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
                return "fail", f"{one.dtype}{tuple(one.shape)} instead of {other.dtype}{tuple(other.shape)}"
            if op.name not in NOT_COMPARED:
                torch.testing.assert_close(one.cpu(), other.cpu(), rtol=2e-4, atol=2e-5, equal_nan=True)
    except Exception as error:
        return "fail", f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
    finally:
        signal.alarm(0)
    return "pass", ""


def main() -> int:
    """Runs a share, and prints a line for each failure and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--device", default="outrigger")
    parser.add_argument("--timeout", type=int, default=60)
    parser.add_argument("--all", action="store_true", help="also print what passed")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    faulthandler.enable()
    import torch
    import torch._inductor.config
    from torch.testing._internal.common_methods_invocations import op_db

    torch._inductor.config.force_disable_caches = not options.all
    signal.signal(signal.SIGALRM, _late)
    number, count = map(int, options.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    ops = [op for op in op_db if torch.float32 in op.dtypes]
    if options.names:
        ops = [op for op in ops if op.name in options.names]
    else:
        ops = ops[number::count]
    for op in ops:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        print(json.dumps({"begin": name}), file=sys.stderr, flush=True)
        outcome, why = check(op, torch.device(options.device, 0), options.timeout)
        counts[outcome] += 1
        if outcome == "fail" or options.all:
            print(f"{outcome} {name}: {why}", flush=True)
    print(dict(counts))
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
