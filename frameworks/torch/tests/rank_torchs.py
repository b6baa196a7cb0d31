"""Ranks that run torch's own tests of torch.distributed, as the installed torch carries them, on tensors of a device.

The tests make tensors of the CPU for Gloo: with the device as the default, they make tensors of the device, and the group moves
them. They run one after the other in one group. A test that fails may leave its ranks apart, so that the group ends with it.
"""

from __future__ import annotations

import os
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# The module of torch's tests reads these when it is imported, and wants a folder for its barriers.
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("INIT_METHOD", "env://")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("TEMP_DIR", ".")

from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402


class Theirs(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    """Torch's tests, each of them a method."""


def run() -> list[tuple[str, str]]:
    """The outcome of each of the tests that RANK_TESTS names; the last of them is the first that failed."""
    os.environ["TEMP_DIR"] = os.environ["RANK_FOLDER"]
    for folder in ("barrier", "test_dir"):
        Path(os.environ["RANK_FOLDER"], folder).mkdir(exist_ok=True)
    torch.set_default_device(os.environ["RANK_DEVICE"])
    assert theirs._build_tensor(2).device.type == os.environ["RANK_DEVICE"], "their tensors are not on the device"
    outcomes = []
    for name in os.environ["RANK_TESTS"].split():
        outcomes.append((name, outcome(name)))
        if outcomes[-1][1].startswith("failed"):
            break
        dist.barrier()
    return outcomes


def outcome(name: str) -> str:
    """The outcome of one test, with the reason if it did not pass."""
    test: Any = Theirs(name)
    test.rank = dist.get_rank()
    try:
        getattr(test, name)()
    except unittest.SkipTest as reason:
        return f"skipped: {reason}"
    except SystemExit as skipped:
        # Torch's tests skip like this in a process of their own.
        return f"skipped: exit status {skipped.code}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    return "passed"
