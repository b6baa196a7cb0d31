"""Results as a page of docs/measurements."""

from __future__ import annotations

import os
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .harness import US, number, times

LIBRARIES = ("torch", "triton")


def of(results: list[dict[str, Any]], suites: list[str], rounds: int) -> str:
    """The page: how it was measured, and a table for each suite."""
    named = ", ".join(suites)
    lines = [
        f"# Benchmarks: {named}, {date.today().isoformat()}",
        "",
        f"`cargo xtask bench {' '.join(suites)}`, medians of at most {rounds} rounds in turns. Driver `{os.environ.get('OUTRIGGER_DRIVER', 'host')}`.",
        f"{_machine()}. [docs/benchmarks.md](../benchmarks.md) says what each metric is.",
    ]
    for suite in suites:
        lines += ["", f"## {suite}", "", f"| metric | {US} | peers | ratio | bar | |", "|---|--:|---|--:|---|---|"]
        for one in results:
            if one["suite"] == suite:
                lines += _rows(one)
    return "\n".join(lines) + "\n"


def _rows(one: dict[str, Any]) -> list[str]:
    ours, unit = one["outrigger"], one["unit"]
    peers = [f"{name} {number(value)}" for name, value in one["peers"].items()] + [f"{name} missing" for name in one["missing"]]
    bars = [f"{times(bar['ratio'])} | {bar['bar']} | {bar['verdict']} |" for bar in one["bars"]] or [" | | |"]
    first = f"| `{one['metric']}` | {'failed' if ours is None else f'{number(ours)} {unit}'} | {', '.join(peers)} |"
    return [f"{first} {bars[0]}", *(f"| | | | {bar}" for bar in bars[1:])]


def _machine() -> str:
    try:
        about = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(one.split(":")[1].strip() for one in about if one.startswith("model name"))
    except (OSError, StopIteration):
        name = "an unknown processor"
    libraries = []
    for library in LIBRARIES:
        try:
            libraries.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            continue
    # The load tells of other programs: this program itself adds about as many as it has threads.
    load = f"load {os.getloadavg()[2]:.1f} over the last 15 minutes"
    return ", ".join([name, f"{len(os.sched_getaffinity(0))} CPUs", load, *libraries])
