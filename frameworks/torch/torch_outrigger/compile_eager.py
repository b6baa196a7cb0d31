"""`python -m torch_outrigger.compile_eager`: compiles operators that have no kernel on a device, ahead of time.

It calls them, so that what they need is stored, and a program in the default mode finds it there. A program that uses others
runs once with OUTRIGGER_EAGER_COMPILE=on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

ONE = (
    "acos acosh angle asin asinh atan atanh cosh deg2rad erfc exp2 frac hardsigmoid hardswish isneginf isposinf lgamma log10 "
    "logit mish nan_to_num rad2deg relu6 round selu signbit sinc sinh softsign softshrink tan tanhshrink"
).split()
TWO = "atan2 copysign floor_divide fmax fmin fmod heaviside hypot logaddexp logaddexp2 nextafter remainder xlogy".split()
LOSSES = "binary_cross_entropy huber_loss l1_loss mse_loss smooth_l1_loss".split()
FOLDS = "all amax amin aminmax any count_nonzero mean nansum prod std std_mean sum var var_mean".split()
MOVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "flip": lambda x: torch.flip(x, (-1,)),
    "glu": lambda x: F.glu(x, -1),
    "roll": lambda x: torch.roll(x, 1, -1),
    "tril": torch.tril,
    "triu": torch.triu,
}


def function(name: str) -> Callable[..., Any]:
    """A function of torch, or of its neural networks."""
    return getattr(torch, name, None) or getattr(F, name)


def calls(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls, by their operators' names. Operators of each element serve all shapes after one call."""

    def made(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device=device).mul_(0.8).add_(0.1).to(dtype)

    x, y = made(4, 6), made(4, 6)
    for name in ONE:
        yield name, lambda name=name: function(name)(x)
    for name in TWO:
        yield name, lambda name=name: function(name)(x, y)
        yield name, lambda name=name: function(name)(x, y[0])
    yield "addcmul", lambda: torch.addcmul(x, x, y)
    yield "addcdiv", lambda: torch.addcdiv(x, x, y)
    yield "lerp", lambda: torch.lerp(x, y, y)
    yield "mish_backward", lambda: torch.ops.aten.mish_backward(x, y)
    yield "hardswish_backward", lambda: torch.ops.aten.hardswish_backward(x, y)
    yield "where", lambda: torch.where(x > y, x, y)
    for name in LOSSES:
        yield name, lambda name=name: function(name)(x, y)
    for shape in ((6,), (4, 6), (3, 4, 6), (2, 3, 4, 6)):
        one = made(*shape)
        for name in FOLDS:
            yield name, lambda name=name, one=one: function(name)(one, dim=-1)
        if len(shape) > 1:
            for name, move in MOVES.items():
                yield name, lambda move=move, one=one: move(one)


def compile_calls(device: torch.device, dtype: torch.dtype, wanted: set[str]) -> dict[str, str]:
    """The place where each of the wanted operators ran in the end: the device, or the CPU."""
    import torch_outrigger

    from . import _C, _eager

    before = _C.set_compile_mode(_eager.MODES["on"])
    places: dict[str, str] = {}
    try:
        for name, call in calls(device, dtype):
            if name not in wanted:
                continue
            try:
                call()
                torch_outrigger.reset_fallback_report()
                call()
            except (RuntimeError, NotImplementedError) as error:
                places[name] = f"refused: {str(error).splitlines()[0]}"
                continue
            on_cpu = [row["operator"] for row in torch_outrigger.fallback_report()]
            if on_cpu or name not in places:
                places[name] = f"the CPU ({', '.join(on_cpu)})" if on_cpu else "the device"
    finally:
        _C.set_compile_mode(before)
    return places


def main(arguments: list[str]) -> int:
    """The command. 1 if nothing at all was compiled, or nothing can be kept."""
    from . import _C
    from ._device import device_count
    from ._lifetime import device_type

    parser = argparse.ArgumentParser(prog="python -m torch_outrigger.compile_eager", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--device", type=int, default=0, help="the index of the device (0)")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "bfloat16"], help="the element types")
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="these operators alone")
    chosen = parser.parse_args(arguments)
    if not 0 <= chosen.device < device_count():
        parser.error(f"there is no device {chosen.device}: there are {device_count()}, numbered from 0")
    dtypes = [getattr(torch, one, None) for one in chosen.dtypes]
    for name, dtype in zip(chosen.dtypes, dtypes, strict=True):
        if not isinstance(dtype, torch.dtype):
            parser.error(f"{name} is no type of torch; one is float32")
    if not _C.store_put(b"torch_outrigger.compile_eager", b""):
        print("Nothing can be kept for other processes. OUTRIGGER_LOG=outrigger::store=debug says why.", file=sys.stderr)
        return 1
    device, on_device = torch.device(device_type(), chosen.device), 0
    known = {name for name, _ in calls(device, torch.float32)}
    wanted = set(chosen.operators or known)
    if wanted - known:
        parser.error(f"{', '.join(sorted(wanted - known))} is none of the operators: {', '.join(sorted(known))}")
    for name, dtype in zip(chosen.dtypes, dtypes, strict=True):
        places = compile_calls(device, dtype, wanted)
        on_device += sum(place == "the device" for place in places.values())
        print(f"{name}: {sum(place == 'the device' for place in places.values())} of {len(places)} operators on the device")
        for operator, place in sorted(places.items()):
            if place != "the device":
                print(f"  {operator}: {place}")
    print("What was compiled is in the store (OUTRIGGER_CACHE)")
    return 0 if on_device else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
