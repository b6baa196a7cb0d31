"""torch.distributed: ranks in processes of their own work together on device tensors.

Each test runs a function of rank_cases.py or rank_models.py on several ranks; `gloo` moves the data over torch's Gloo,
`auto` by the driver's collectives where it has them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ranks

pytestmark = pytest.mark.outrigger_only
ENGINES = ("gloo", "auto")


@pytest.fixture
def run(tmp_path: Path, device_type: str):
    """Runs a case on ranks."""

    def run(case: str, size: int, engine: str = "auto", **named: Any) -> list[Any]:
        return ranks.run(case, size, tmp_path, OUTRIGGER_DISTRIBUTED=engine, RANK_DEVICE=device_type, **named)

    return run


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["reductions", "movements", "batches", "errors", "stream_order", "groups_come_and_go"])
def test_each_collective_does_what_it_says(run, case: str, engine: str) -> None:
    run(f"rank_cases.{case}", 3, engine)
