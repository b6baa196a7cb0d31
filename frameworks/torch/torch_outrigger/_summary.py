"""Statistics of memory as a table that people read. It must never ask for figures itself."""

from __future__ import annotations

from typing import Any

_CLASSES = {"all": "", "large_pool": "  above 1 MiB", "small_pool": "  up to 1 MiB"}

_ROWS = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Cached memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active blocks", "active", False),
    ("Reserved pieces", "segment", False),
    ("Free blocks", "inactive_split", False),
)

_COUNTS = (
    ("requests that ran out of memory", "num_ooms"),
    ("requests met after caches were given back", "num_alloc_retries"),
    ("pieces taken from the device", "num_device_alloc"),
    ("pieces given back to the device", "num_device_free"),
    ("requests met by memory from several places", "num_views"),
    ("waits between streams", "num_stream_waits"),
    ("waits of threads", "num_host_waits"),
)

_FIELDS = (("current", "Now"), ("peak", "Peak"), ("allocated", "Came"), ("freed", "Went"))
_NAME, _COLUMN = 26, 12


def summary(device: str, stats: dict[str, Any], abbreviated: bool) -> str:
    """The table of one device."""
    title = f"Memory of {device}"
    header = " " * _NAME + "".join(f"{name:>{_COLUMN}}" for _, name in _FIELDS)
    line = "-" * len(header)
    lines = [title, "=" * len(header), header, line]
    for name, stat, is_size in _ROWS:
        for kind, note in _CLASSES.items():
            if kind != "all" and abbreviated:
                continue
            numbers = [stats.get(f"{stat}.{kind}.{field}", 0) for field, _ in _FIELDS]
            cells = [_size(number) if is_size else str(number) for number in numbers]
            lines.append(f"{note or name:<{_NAME}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells))
    lines.append(line)
    lines += [f"{stats.get(stat, 0):>{_COLUMN}} {name}" for name, stat in _COUNTS]
    return "\n".join(lines) + "\n"


def _size(number: int) -> str:
    """Bytes with at most four digits before their unit."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if abs(number) < 10_240:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} {units[-1]}"
