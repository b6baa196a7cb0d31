"""`diagnose`: what an engineer asks first when a device does not come, or is slow, as a text to read or to send.

It must never fail: what cannot be found out is a line that says why.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path

import torch

from . import _vendor

_SHOWN = 5
"""Operators on the CPU that are shown, the most expensive ones."""


def diagnose() -> str:
    """Versions, variables, drivers, devices, the devices of libraries, and operators that ran on the CPU so far. Loads the drivers."""
    parts: tuple[tuple[str, Callable[[], Iterable[str]]], ...] = (
        ("Versions", _versions),
        ("Environment", _environment),
        ("Vendors' packages", _vendors),
        ("Drivers", _drivers),
        ("Devices", _devices),
        ("Libraries", _libraries),
        ("Operators on the CPU", _fallbacks),
    )
    lines = []
    for title, part in parts:
        try:
            found = list(part())
        except Exception as error:
            found = [f"cannot be found out: {type(error).__name__}: {error}"]
        lines += [title, *(f"  {line}" for line in found or ["none"]), ""]
    return "\n".join(lines)


def _versions() -> Iterable[str]:
    import torch_outrigger

    yield f"torch_outrigger {torch_outrigger.__version__} in {Path(__file__).resolve().parent}"
    yield f"torch {torch.__version__}"
    yield f"Python {platform.python_version()} in {sys.prefix}"
    yield f"{platform.platform()}, {os.cpu_count()} processors, {torch.get_num_threads()} threads of torch"
    error = torch_outrigger.load_error()
    if error is not None:
        yield f"not loaded: {error}"
        return
    from . import _C

    yield f"liboutrigger {_C.version()}"


def _environment() -> Iterable[str]:
    for name, value in sorted(os.environ.items()):
        if name.startswith("OUTRIGGER_") or name == "TORCH_DEVICE_BACKEND_AUTOLOAD":
            yield f"{name}={value}"


def _vendors() -> Iterable[str]:
    for point in entry_points(group=_vendor.GROUP):
        yield f"{point.name}: {point.value}" + (f" of {point.dist.name} {point.dist.version}" if point.dist else "")


def _drivers() -> Iterable[str]:
    from . import _runtime

    for candidate in _runtime.load_report()["candidates"]:
        taken, refused = candidate["outcome"].get("taken"), candidate["outcome"].get("refused")
        named = candidate["spec"].partition("?")[0]
        where = f" ({candidate['path']})" if candidate["path"] not in (None, named) else ""
        if taken:
            yield f"{candidate['spec']}{where}: {taken['name']} {taken['version']}, {len(taken['devices'])} devices"
        else:
            yield f"{candidate['spec']}{where}: refused: {refused['reason']}"


def _devices() -> Iterable[str]:
    from . import _C

    count = _C.device_count()
    for index in range(count):
        info = _C.device_info(index)
        memory = "memory that the CPU sees" if info["host_visible"] else "memory of its own"
        yield (
            f"{index}: {info['name']} ({info['vendor']}), driver {info['driver']} {info['driver_version']}, "
            f"{info['total_memory'] / 2**30:.1f} GiB, {memory}, {info['compute_units']} compute units"
        )


def _libraries() -> Iterable[str]:
    from . import integrations

    for name, version, seen, device in integrations.report():
        tried = "" if integrations.is_seen(version, seen) else f" (not tried; {' and '.join(seen)} was)"
        yield f"{name} {version}{tried}: {device}"


def _fallbacks() -> Iterable[str]:
    from . import _runtime

    for entry in _runtime.fallback_report()[:_SHOWN]:
        yield f"{entry['operator']}: {entry['calls']} calls, {entry['seconds'] * 1e3:.1f} ms"
