"""The cost of a call that names CUDA beyond the same call that names the device: python -m torch_outrigger.as_cuda costs.py

Nanoseconds of the calling thread, the least of many rounds in which both take turns.
"""

import time
import timeit

import torch

names = {"torch": torch, "x": torch.ones(3, device="cuda"), "seen": globals()["__as_cuda__"]}
# timeit's texts are not rewritten.
setup = "d, c = x.device, torch.device('cuda:0'); from torch_outrigger import _device as own"

PAIRS = {
    "torch.empty(3, device=c)": "torch.empty(3, device=d)",
    "torch.zeros(3, device=c)": "torch.zeros(3, device=d)",
    "x.to(c)": "x.to(d)",
    "x.cuda()": "x.to(d)",
    "torch.Generator(c)": "torch.Generator(d)",
    "torch.cuda.Event()": "torch.Event(d)",
    "torch.cuda.current_stream()": "own.current_stream()",
    "torch.cuda.is_available()": "own.is_available()",
    "torch.autocast('cuda')": "torch.autocast(d.type)",
    "seen.type_of(d)": "d.type",
    "seen.is_cuda(x)": "x.is_cuda",
    "torch.empty(3)": "torch.empty(3)",
}


def both(first, second):
    timers = [timeit.Timer(text, setup, time.thread_time, names) for text in (first, second)]
    number = max(1, int(100_000 // max(1, timers[0].timeit(200) / 200 * 1e9)))
    rounds = [[timer.timeit(number) / number * 1e9 for timer in timers] for _ in range(400)]
    return [min(each) for each in zip(*rounds)]


for first, second in PAIRS.items():
    mine, theirs = both(first, second)
    print(f"{first:32} {mine:7.0f} {second:32} {theirs:7.0f} {mine - theirs:+7.0f}", flush=True)


def wrapped(*arguments, **keywords):
    """Another design, to compare with: functions in Python around torch's."""
    device = keywords.get("device")
    if device is not None and device == names["c"]:
        keywords["device"] = names["d"]
    return torch.empty(*arguments, **keywords)


class Mode(torch.overrides.TorchFunctionMode):
    """The third design."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if kwargs and kwargs.get("device") == names["c"]:
            kwargs["device"] = names["d"]
        return func(*args, **(kwargs or {}))


names |= {"wrapped": wrapped, "c": torch.empty(0, device="meta").device, "d": names["x"].device, "a": torch.ones(3)}
for first, second in (("wrapped(3, device=c)", "torch.empty(3, device=d)"), ("wrapped(3)", "torch.empty(3)")):
    mine, theirs = both(first, second)
    print(f"{first:32} {mine:7.0f} {second:32} {theirs:7.0f} {mine - theirs:+7.0f}", flush=True)
plain = [both(text, text)[0] for text in ("torch.empty(3, device=d)", "a + a")]
with Mode():
    inside = [both(text, text)[0] for text in ("torch.empty(3, device=c)", "a + a")]
print(f"in a TorchFunctionMode: torch.empty(3, device=c) {inside[0] - plain[0]:+.0f}, a + a {inside[1] - plain[1]:+.0f}")
