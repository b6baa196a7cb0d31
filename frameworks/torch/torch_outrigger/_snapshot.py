"""Snapshots of memory in the format of PyTorch's memory snapshots, which its tools and viewer read.

The runtime's own JSON has nearly this format. But there idle memory can be in use at a second address: its blocks
are at this address, while it counts at its first one. PyTorch's format has nothing for this, so here each piece of
memory is shown once, where it is in use. This module must never depend on which device types are served.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

from . import _C

Snapshot = dict[str, Any]


def take(path: str | None = None, skip_actions: Iterable[str] = ()) -> Snapshot:
    """The snapshot of all devices and of pinned memory. With a `path` it is also pickled to a file.

    It leaves out memory that moves from one place to another while running work may still use it.
    """
    snapshot = _as_torch(json.loads(_C.memory_snapshot()), frozenset(skip_actions))
    if path is not None:
        with open(path, "wb") as file:
            pickle.dump(snapshot, file)
    return snapshot


def _as_torch(snapshot: Snapshot, skipped: frozenset[str]) -> Snapshot:
    snapshot["segments"] = [part for segment in snapshot["segments"] for part in _parts(segment)]
    snapshot["host_segments"] = [part for segment in snapshot["host_segments"] for part in _host_parts(segment)]
    traces = [*snapshot["device_traces"], snapshot["host_traces"]]
    for trace in traces:
        trace[:] = [_entry(entry) for entry in trace if entry["action"] not in skipped]
    return snapshot


def _parts(segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a segment that use their own memory: one segment for each run of blocks that are not lent."""
    shared = {key: value for key, value in segment.items() if key not in ("is_view", "blocks", "segment_pool_id")}
    shared["segment_pool_id"] = tuple(segment["segment_pool_id"])
    run: list[dict[str, Any]] = []
    for block in [*segment["blocks"], None]:
        if block is not None and not block.pop("is_lent", False):
            run.append(block)
        elif run:
            yield {**shared, **_sums(run), "blocks": run}
            run = []


def _sums(blocks: list[dict[str, Any]]) -> dict[str, int]:
    def total(key: str, *states: str) -> int:
        return sum(block[key] for block in blocks if block["state"] in states)

    return {
        "address": blocks[0]["address"],
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": total("size", "active_allocated"),
        "active_size": total("size", "active_allocated", "active_pending_free"),
        "requested_size": total("requested_size", "active_allocated"),
    }


def _host_parts(segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Pinned memory is a flat list of blocks in PyTorch's snapshots."""
    for block in segment["blocks"]:
        yield {
            **block,
            "allocated": block["state"] == "active_allocated",
            "active": block["state"] != "inactive",
            "segment_pool_id": tuple(segment["segment_pool_id"]),
        }


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    entry["pool_id"] = tuple(entry["pool_id"])
    entry["user_metadata"] = entry.get("label", "")
    entry["compile_context"] = ""
    return entry
