"""Writes one trace of a few training steps that Perfetto opens: what PyTorch called, what the device ran,
and how much of its memory was in use.

They come from three recorders with clocks of their own. All are put on PyTorch's: microseconds since the
`baseTimeNanoseconds` that its trace names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .device import runtime

DEVICE_PROCESS = 1_000_000_000  # above every process id of the host, so that the device is a row of its own

Event = dict[str, Any]


@dataclass(frozen=True)
class MemoryMoment:
    """Device memory after one allocation or release. Times are nanoseconds since the epoch."""

    at_ns: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class Traced:
    """The recorded run: the number of commands of the device, and its memory over time."""

    commands: int
    memory: list[MemoryMoment]


def record(work: Callable[[], None], path: Path) -> Traced:
    """Runs `work` under all recorders and writes the merged trace."""
    memory: list[MemoryMoment] = []

    def remember(observation: runtime.Observation) -> None:
        memory.append(MemoryMoment(time.time_ns(), observation.allocated_bytes, observation.reserved_bytes))

    with TemporaryDirectory() as folder:
        host_file, device_file = Path(folder, "host.json"), Path(folder, "device.json")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            began_ns = time.time_ns()
            with runtime.trace(device_file), runtime.observe(remember, ["alloc", "free"]):
                work()
                torch.accelerator.synchronize()
        profiler.export_chrome_trace(str(host_file))
        trace = json.loads(host_file.read_text())
        commands = json.loads(device_file.read_text())
    base_ns = trace.get("baseTimeNanoseconds", 0)
    device_events = [shifted(event, (began_ns - base_ns) / 1e3) for event in commands if event["ph"] != "M"]
    trace["traceEvents"] += row_names(device_events) + device_events
    trace["traceEvents"] += [counter(moment, base_ns) for moment in memory]
    trace["traceName"] = path.name
    path.write_text(json.dumps(trace))
    return Traced(sum(event["ph"] in "BX" for event in device_events), memory)


def shifted(event: Event, offset: float) -> Event:
    """The device's event on the host's clock, `offset` microseconds later, in the row of its queue."""
    arguments = {name: value.strip('"') for name, value in event.get("args", {}).items()}
    moved: Event = {
        "ph": event["ph"],
        "cat": event.get("cat", ""),
        "pid": DEVICE_PROCESS,
        "tid": int(arguments.get("queue", 0)),
        "ts": event["ts"] + offset,
        "args": arguments,
    }
    if "label" in arguments:
        moved["name"] = arguments["label"]
    elif "operator" in arguments:
        moved["name"] = f"fallback: {arguments['operator']}"
    else:
        moved["name"] = event["name"]
    return moved


def row_names(events: list[Event]) -> list[Event]:
    """The records that name the device's row and those of its queues."""
    names = [("process_name", 0, "Outrigger: commands as the device runs them")]
    queues = sorted({event["tid"] for event in events})
    names += [("thread_name", queue, f"queue {queue}" if queue else "runtime") for queue in queues]
    return [
        {"ph": "M", "name": kind, "pid": DEVICE_PROCESS, "tid": queue, "ts": 0, "args": {"name": name}}
        for kind, queue, name in names
    ]


def counter(moment: MemoryMoment, base_ns: int) -> Event:
    """Device memory as a counter of the trace, in bytes."""
    return {
        "ph": "C",
        "name": "device memory",
        "pid": DEVICE_PROCESS,
        "tid": 0,
        "ts": (moment.at_ns - base_ns) / 1e3,
        "args": {"in tensors": moment.allocated, "cached": moment.reserved - moment.allocated},
    }
