"""Draws docs/timeline.svg, one training step as torch.profiler shows it: operators on their threads, the device's work on
its streams, and which operator each piece of work belongs to.

    .venv/bin/python -m demo.timeline docs/timeline.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

WIDTH, ROW, LEFT, GAP = 1000, 22, 120, 26
DEFAULT = "default stream"
COLORS = {
    "user_annotation": "#d9d9d9", "cpu_op": "#c6dbef", "kernel": "#74c476", "gpu_memcpy": "#fdae6b", "gpu_memset": "#fdd0a2",
}  # fmt: skip

Slice = dict[str, Any]


def record() -> list[Slice]:
    """The slices of one training step."""
    device = torch.accelerator.current_accelerator()
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(64, 256), torch.randint(10, (64,))
    copies = torch.Stream(device)

    def step() -> None:
        with record_function("load"), copies:
            x, y = inputs.to(device), labels.to(device)
        torch.accelerator.current_stream().wait_stream(copies)
        with record_function("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            optimizer.step()
            optimizer.zero_grad()

    # On a machine that does other things too, the shortest step is the one that was disturbed least.
    return min((one_step(step) for _ in range(20)), key=length)


def one_step(step: Callable[[], None]) -> list[Slice]:
    """The slices of a step, each with its row."""
    torch.accelerator.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as done:
        step()
        torch.accelerator.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        done.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X" and event.get("cat") in COLORS]
    for one in slices:
        one["row"] = "host" if one["cat"] in ("cpu_op", "user_annotation") else names[one["pid"], one["tid"]]
    return slices


def length(slices: list[Slice]) -> float:
    """From the first begin to the last end, in microseconds."""
    return max(one["ts"] + one["dur"] for one in slices) - min(one["ts"] for one in slices)


def draw(slices: list[Slice]) -> str:
    """The slices as SVG: a row for each stream, and for the host as many as its operators nest."""
    begin = min(one["ts"] for one in slices)
    scale = (WIDTH - LEFT - 10) / length(slices)
    threads = sorted({one["tid"] for one in slices if one["row"] == "host"})
    streams = sorted({one["row"] for one in slices} - {"host"})
    rows: list[tuple[str, list[tuple[int, Slice]]]] = []
    for title, own in [
        *((f"thread {number}", [one for one in slices if one["row"] == "host" and one["tid"] == thread])
          for number, thread in enumerate(threads, 1)),
        *((stream if stream == DEFAULT else "another stream", [one for one in slices if one["row"] == stream])
          for stream in streams),
    ]:  # fmt: skip
        rows.append((title, nested(own)))
    top = GAP
    parts: list[str] = []
    arrows: list[tuple[tuple[float, int], tuple[float, int]]] = []
    places: dict[int, tuple[float, int]] = {}
    for title, own in rows:
        depth = max(level for level, _ in own) + 1
        parts.append(f'<text x="8" y="{top + 15}" fill="#333">{escape(title)}</text>')
        for level, one in own:
            x, y = LEFT + (one["ts"] - begin) * scale, top + level * ROW
            width = max(one["dur"] * scale, 0.8)
            bytes_ = f', {one["args"]["bytes"]} bytes' if "bytes" in one.get("args", {}) else ""
            parts.append(
                f'<g><title>{escape(one["name"])}, {one["dur"]:.1f} us{bytes_}</title><rect x="{x:.1f}" y="{y}" '
                f'width="{width:.1f}" height="{ROW - 4}" rx="2" fill="{COLORS[one["cat"]]}" stroke="#888" stroke-width=".5"/>'
            )
            name = one["name"].removeprefix("aten::")
            if width > 6.2 * len(name) + 6:
                parts.append(f'<text x="{x + 4:.1f}" y="{y + 13}">{escape(name)}</text>')
            parts.append("</g>")
            number = one.get("args", {}).get("External id")
            if one["cat"] == "cpu_op":
                places[number] = (x, y + ROW - 4)
            elif one["row"] != "host" and number in places:
                arrows.append((places[number], (x, y)))
        top += depth * ROW + GAP // 2
    lines = [
        f'<path d="M{a[0]:.1f} {a[1]} L{b[0]:.1f} {b[1]}" stroke="#555" stroke-width=".6" opacity=".6"/>' for a, b in arrows
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 4}" font-family="sans-serif" font-size="11">'
    about = f'<text x="8" y="16" fill="#666">one training step, {length(slices) / 1000:.2f} ms</text>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top + 4}" fill="#fff"/>', about, *lines, *parts, "</svg>"]) + "\n"


def nested(slices: list[Slice]) -> list[tuple[int, Slice]]:
    """Each slice with how many others it lies in."""
    open_until: list[float] = []
    found = []
    for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
        while open_until and open_until[-1] <= one["ts"] + 0.001:
            open_until.pop()
        found.append((len(open_until), one))
        open_until.append(one["ts"] + one["dur"])
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(record()))
