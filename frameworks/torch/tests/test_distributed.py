"""torch.distributed: ranks in processes of their own work together on device tensors.

Each test runs a function of rank_cases.py or rank_models.py on several ranks; `gloo` moves the data over torch's Gloo,
`auto` by the driver's collectives where it has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
from torch_outrigger import _C

pytestmark = pytest.mark.of_the_accelerator


@pytest.fixture
def has_collectives(device: torch.device) -> bool:
    """Whether the driver under test moves data between ranks. Of those in this repository, the built-in one does."""
    return _C.device_info(device.index)["driver"] == "host"


@pytest.fixture(params=["gloo", "auto"])
def engine(request: pytest.FixtureRequest, has_collectives: bool) -> str:
    """The engine that moves the data."""
    if request.param == "auto" and not has_collectives:
        pytest.skip("the driver has no collectives: the same as gloo")
    return request.param


@pytest.fixture
def run(tmp_path: Path, device_type: str):
    """Runs a case on ranks."""

    def run(case: str, size: int, engine: str = "auto", **named: Any) -> list[Any]:
        return ranks.run(case, size, tmp_path, OUTRIGGER_DISTRIBUTED=engine, RANK_DEVICE=device_type, **named)

    return run


CASES = ["reductions", "movements", "batches", "errors", "stream_order", "futures", "groups_come_and_go"]


@pytest.mark.parametrize("case", CASES)
def test_each_collective_does_what_it_says(run, case: str, engine: str) -> None:
    run(f"rank_cases.{case}", 3, engine)


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("case", ["bitwise", "any_source"])
def test_gloo_does_what_no_driver_does(run, case: str) -> None:
    """Bitwise reductions go over Gloo by themselves, receives from any rank where it moves all."""
    run(f"rank_cases.{case}", 3, "gloo" if case == "any_source" else "auto")


def test_the_driver_alone_says_what_it_cannot(run, has_collectives: bool) -> None:
    if not has_collectives:
        with pytest.raises(AssertionError, match="OUTRIGGER_DISTRIBUTED=driver.*takes no part: .*collectives"):
            run("rank_cases.bitwise", 2, "driver")
        return
    (text, _) = run("rank_cases.bitwise_is_refused", 2, "driver")
    assert "OUTRIGGER_DISTRIBUTED=driver" in text
    assert "cannot do this for Int" in text


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("case", ["capture_is_refused", "fork_is_refused"])
def test_what_cannot_be_is_refused(run, case: str) -> None:
    run(f"rank_cases.{case}", 2)


@pytest.mark.usefixtures("once")
def test_a_torch_that_does_not_tell_the_group_is_refused(device_type: str) -> None:
    from torch_outrigger import _distributed

    with pytest.raises(NotImplementedError, match=f"torch {torch.__version__.split('+')[0]}.*groups of {device_type} need torch 2.14 or 2.15"):
        _distributed._create(SimpleNamespace(store=None), device_type)


@pytest.mark.usefixtures("once")
def test_an_unknown_engine_is_refused(run) -> None:
    with pytest.raises(AssertionError, match="OUTRIGGER_DISTRIBUTED=nccl names nothing that moves data"):
        run("rank_cases.bitwise", 1, "nccl")


def test_a_rank_that_dies_is_an_error_in_the_others(run, engine: str) -> None:
    first, second, _ = run("rank_cases.a_rank_dies", 3, engine, lost=(2,))
    for texts in (first, second):
        # The driver knows which rank it was; Gloo knows the connection alone.
        part = "rank 2 has ended" if engine == "auto" else "failed in Gloo: another rank has ended"
        assert any(part in text for text in texts), texts


def test_a_rank_that_does_not_come_is_an_error_in_the_others(run, engine: str) -> None:
    (text, _) = run("rank_cases.a_rank_is_late", 2, engine)
    assert ("rank 1 did not come in time" if engine == "auto" else "another rank has ended, failed, or not come") in text


@pytest.mark.usefixtures("once")
def test_cpu_and_device_in_one_group(run, tmp_path: Path) -> None:
    run("rank_cases.mixed_backends", 2, join=False, RANK_STORE=str(tmp_path / "store"))


@pytest.mark.usefixtures("once")
def test_a_group_of_the_device_serves_tensors_of_the_cpu(run) -> None:
    run("rank_cases.tensors_of_the_cpu", 2, RANK_BACKEND="outrigger")


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("case", ["movements", "stream_order", "futures", "groups_of_gloo"])
def test_a_group_of_gloo_serves_device_tensors(run, case: str) -> None:
    """As it serves those of CUDA: through the host, in the order of the streams, whatever the driver could do."""
    run(f"rank_cases.{case}", 3, RANK_BACKEND="gloo")


@pytest.mark.usefixtures("once")
def test_gloo_is_named_for_the_device(run, device_type: str) -> None:
    run("rank_cases.groups_of_gloo", 3, RANK_BACKEND=f"cpu:gloo,{device_type}:gloo")


def alone(case: str) -> list[float]:
    """The losses of one process."""
    import rank_models

    return getattr(rank_models, case)()


MODELS = [("data_parallel", "alone"), ("sharded", "alone"), ("embedding", "embedding_alone")]


def trains(run, case: str, one: str, size: int, engine: str) -> None:
    """Asserts that the losses of ranks are those of one process."""
    expected = alone(one)
    for losses in run(f"rank_models.{case}", size, engine):
        assert losses == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0]


@pytest.mark.parametrize(("case", "one"), MODELS)
def test_two_ranks_train_what_one_process_trains(run, case: str, one: str) -> None:
    trains(run, case, one, 2, "auto")


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(("case", "one"), [*MODELS[:2], ("tensor_parallel", "tensor_parallel_alone")])
def test_four_ranks_train_what_one_process_trains(run, case: str, one: str) -> None:
    trains(run, case, one, 4, "gloo")


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("backend", ["outrigger", "gloo"])
def test_parameters_that_no_rank_uses(run, backend: str) -> None:
    run("rank_models.unused_parameters", 2, RANK_BACKEND=backend)


@pytest.mark.not_on_mtia("torch has a list of devices for SyncBatchNorm, and MTIA is not in it")
@pytest.mark.of_driver
def test_batches_are_normalized_over_all_ranks(run) -> None:
    run("rank_models.normalized", 3)


@pytest.mark.usefixtures("once")
def test_distributed_tensors(run) -> None:
    run("rank_models.distributed_tensors", 2)


@pytest.mark.usefixtures("once")
def test_a_checkpoint_of_shards(run, tmp_path: Path) -> None:
    run("rank_models.saved_and_loaded", 2, RANK_FOLDER=str(tmp_path / "checkpoint"))


@pytest.mark.usefixtures("once")
@pytest.mark.takes_turns
def test_torchrun_starts_ranks_again(device_type: str) -> None:
    """A rank that ends is started again with the others, and they form a new group."""
    script = Path(__file__).with_name("torchrun_script.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "OMP_NUM_THREADS": "1",
        # Else the second round finds the addresses of the first one in the store, with any backend.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    done = subprocess.run(
        [*command, str(script), device_type],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert f"rank {rank} of 2 has finished with {device_type}:outrigger" in done.stdout
