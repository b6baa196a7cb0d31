"""Writes one trace of a few training steps that Perfetto opens: what PyTorch called, and below it what
the device ran.

The two come from two recorders with clocks of their own. Both are put on PyTorch's: microseconds since
the `baseTimeNanoseconds` that its trace names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch_outrigger
from torch.profiler import ProfilerActivity, profile

DEVICE_PROCESS = 1_000_000_000  # above every process id of the host, so that the device is a row of its own

Event = dict[str, Any]


def record(work: Callable[[], None], path: Path) -> int:
    """Runs `work` under both recorders and writes the merged trace; the number of device commands in it."""
    with TemporaryDirectory() as folder:
        host_file, device_file = Path(folder, "host.json"), Path(folder, "device.json")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            began_ns = time.time_ns()
            with torch_outrigger.trace(str(device_file)):
                work()
                torch.accelerator.synchronize()
        profiler.export_chrome_trace(str(host_file))
        trace = json.loads(host_file.read_text())
        commands = json.loads(device_file.read_text())
    offset = (began_ns - trace.get("baseTimeNanoseconds", 0)) / 1e3
    trace["traceEvents"] += [process_name(), *(shifted(event, offset) for event in commands)]
    trace["traceName"] = path.name
    path.write_text(json.dumps(trace))
    return sum(event["ph"] in "BX" for event in commands)


def process_name() -> Event:
    """The record that names the device's row."""
    name = {"name": "Outrigger: commands as the device runs them"}
    return {"ph": "M", "name": "process_name", "pid": DEVICE_PROCESS, "tid": 0, "ts": 0, "args": name}


def shifted(event: Event, offset: float) -> Event:
    """The device's event on the host's clock, `offset` microseconds later, in the device's row."""
    moved = dict(event, pid=DEVICE_PROCESS)
    if "ts" in moved:
        moved["ts"] += offset
    return moved
