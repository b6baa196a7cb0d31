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


@pytest.mark.parametrize("case", ["bitwise", "any_source"])
def test_gloo_does_what_no_driver_does(run, case: str) -> None:
    """Bitwise reductions go over Gloo by themselves, receives from any rank where it moves all."""
    run(f"rank_cases.{case}", 3, "gloo" if case == "any_source" else "auto")


def test_the_driver_alone_says_what_it_cannot(run) -> None:
    (text, _) = run("rank_cases.bitwise_is_refused", 2, "driver")
    assert "OUTRIGGER_DISTRIBUTED=driver" in text and "int32" in text.lower() or "Int" in text


@pytest.mark.parametrize("case", ["capture_is_refused", "fork_is_refused"])
def test_what_cannot_be_is_refused(run, case: str) -> None:
    run(f"rank_cases.{case}", 2)


def test_an_unknown_engine_is_refused(run) -> None:
    with pytest.raises(AssertionError, match="OUTRIGGER_DISTRIBUTED=nccl names nothing that moves data"):
        run("rank_cases.bitwise", 1, "nccl")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_dies_is_an_error_in_the_others(run, engine: str) -> None:
    first, second, _ = run("rank_cases.a_rank_dies", 3, engine, lost=(2,))
    for texts in (first, second):
        # The driver knows which rank it was; Gloo knows the connection alone.
        part = "rank 2 has ended" if engine == "auto" else "failed in Gloo: another rank has ended"
        assert any(part in text for text in texts), texts


def test_cpu_and_device_in_one_group(run, tmp_path: Path) -> None:
    run("rank_cases.mixed_backends", 2, join=False, RANK_STORE=str(tmp_path / "store"))


def alone(case: str) -> list[float]:
    """The losses of one process."""
    import rank_models

    return getattr(rank_models, case)()


@pytest.mark.parametrize(
    ("case", "one", "size", "engine"),
    [
        ("data_parallel", "alone", 2, "gloo"),
        ("data_parallel", "alone", 4, "auto"),
        ("sharded", "alone", 2, "gloo"),
        ("sharded", "alone", 4, "auto"),
        ("tensor_parallel", "tensor_parallel_alone", 2, "auto"),
        ("embedding", "embedding_alone", 2, "gloo"),
        ("embedding", "embedding_alone", 2, "auto"),
    ],
)
def test_ranks_train_what_one_process_trains(run, case: str, one: str, size: int, engine: str) -> None:
    expected = alone(one)
    for losses in run(f"rank_models.{case}", size, engine):
        assert losses == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0]


def test_distributed_tensors(run) -> None:
    run("rank_models.distributed_tensors", 2)


def test_a_checkpoint_of_shards(run, tmp_path: Path) -> None:
    run("rank_models.saved_and_loaded", 2, RANK_FOLDER=str(tmp_path / "checkpoint"))
