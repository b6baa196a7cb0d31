"""Accelerate and Trainer of transformers in several processes: these are one training on the device.

Each test runs a function of rank_libraries.py on ranks that find what a launcher has set, and compares with one process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rank_libraries
import rank_models
import ranks
import torch
from support import run_python

# Libraries ask for the device's type, not its driver.
pytestmark = [pytest.mark.of_the_accelerator, pytest.mark.usefixtures("once")]


def port() -> str:
    """One that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.fixture
def run(tmp_path: Path, device_type: str):
    """Runs a case on two ranks, as torchrun does on one machine."""

    def run(case: str, **named: Any) -> list[Any]:
        launcher = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(), "LOCAL_WORLD_SIZE": "2"}
        return ranks.run(f"rank_libraries.{case}", 2, tmp_path, join=False, RANK_DEVICE=device_type, **launcher, **named)

    return run


def one_training(answers: list[dict[str, Any]], devices: list[str]) -> dict[str, list[Any]]:
    """Asserts that the ranks know of each other, have these devices, and end with the same weights, which it gives."""
    assert [answer["rank"] for answer in answers] == [(0, 2), (1, 2)]
    assert [answer["device"] for answer in answers] == devices
    first, second = (answer["weights"] for answer in answers)
    assert first and second in (None, first)
    return first


def same_weights(actual: dict[str, list[Any]], expected: dict[str, list[Any]], **tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, weight in actual.items():
        torch.testing.assert_close(torch.tensor(weight), torch.tensor(expected[name]), **(tolerance or {"rtol": 1e-3, "atol": 1e-4}))


# In one process on the CPU: losses and weights.
def alone() -> tuple[list[float], dict[str, list[Any]]]:
    net = rank_models.model()
    losses = rank_models.train(net, rank_models.batches(), average=False)
    return losses, {name: tensor.tolist() for name, tensor in net.state_dict().items()}


def test_two_processes_of_accelerate_train_what_one_process_trains(run, device_type: str) -> None:
    losses, weights = alone()
    answers = run("accelerated")
    same_weights(one_training(answers, [f"{device_type}:0", f"{device_type}:1"]), weights)
    for answer in answers:
        assert answer["backend"] == "outrigger"
        assert answer["losses"] == pytest.approx(losses, rel=1e-4)


@pytest.mark.only_with_all
def test_processes_of_accelerate_share_one_device(run, device_type: str) -> None:
    answers = run("accelerated", OUTRIGGER_DRIVER="host?devices=1")
    same_weights(one_training(answers, [f"{device_type}:0"] * 2), alone()[1])


@pytest.mark.only_with_all
@pytest.mark.parametrize("plugin", ["fsdp1", "fsdp2"])
def test_accelerate_shards_weights(run, device_type: str, plugin: str) -> None:
    answers = run("accelerated", RANK_PLUGIN=plugin)
    same_weights(one_training(answers, [f"{device_type}:0", f"{device_type}:1"]), alone()[1])


@pytest.mark.only_with_all
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_accelerate_trains_in_16_bits(run, device_type: str, precision: str) -> None:
    losses, _ = alone()
    answers = run("accelerated", RANK_PRECISION=precision)
    one_training(answers, [f"{device_type}:0", f"{device_type}:1"])
    assert {answer["scales on"] for answer in answers} == {device_type if precision == "fp16" else None}
    assert answers[0]["losses"] == pytest.approx(losses, rel=0.05)
    assert answers[0]["losses"] != pytest.approx(losses, rel=1e-5)


@pytest.mark.only_with_all
@pytest.mark.parametrize("sharded", ["", "1"])
def test_two_processes_of_trainer_train_what_one_process_trains(run, device_type: str, sharded: str) -> None:
    expected = ranks_of_one(device_type)
    answers = run("trained", RANK_FSDP=sharded)
    same_weights(one_training(answers, [f"{device_type}:0", f"{device_type}:1"]), expected["weights"])


def ranks_of_one(device_type: str) -> dict[str, Any]:
    """Trainer in this process, on the device."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        answer = rank_libraries.trained()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert answer["rank"] == (0, 1) and answer["device"].startswith(device_type)
    return answer


@pytest.mark.only_with_all
def test_ranks_go_on_with_their_own_random_numbers(run, tmp_path: Path) -> None:
    assert run("resumed", RANK_FOLDER=str(tmp_path / "state")) == [True, True]


@pytest.mark.only_with_all
@pytest.mark.parametrize("name", [None, "cuda"])
def test_accelerate_synchronizes_random_states(run, device_type: str, name: str | None) -> None:
    first, second = run("synchronized", RANK_GENERATOR=name or device_type)
    assert first == second


@pytest.mark.only_with_all
def test_two_processes_of_opacus_train_what_one_process_trains(run, device_type: str) -> None:
    pytest.importorskip("opacus", reason="opacus is not installed")
    expected = rank_libraries.private()["weights"]
    plain = rank_models.model().state_dict()
    assert not torch.allclose(torch.tensor(expected["first.weight"]), plain["first.weight"], atol=1e-3)
    same_weights(one_training(run("private"), [f"{device_type}:0", f"{device_type}:1"]), expected)


@pytest.mark.only_with_all
def test_two_processes_of_lightning_train_what_one_process_trains(run, device_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    expected = rank_libraries.of_lightning()
    assert expected["device"] == f"{device_type}:0"
    # As torchrun sets it; Lightning starts processes of its own else.
    answers = run("of_lightning", TORCHELASTIC_RUN_ID="test", GROUP_RANK="0")
    same_weights(one_training(answers, [f"{device_type}:0", f"{device_type}:1"]), expected["weights"])


def test_a_process_that_would_train_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE=2 tells of several processes, and LOCAL_RANK is not set"):
        PartialState()
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(NotImplementedError, match="DeepSpeed.*use DDP or FSDP"):
        PartialState()
    AcceleratorState._reset_state(reset_partial_state=True)


def launched(*arguments: str) -> Any:
    """The arguments of `accelerate launch`, as it has understood them."""
    from accelerate.commands import launch

    parsed = launch.launch_command_parser().parse_args([*arguments, "train.py"])
    return launch._validate_launch_command(parsed)[0]


def test_accelerate_launch_starts_a_process_for_each_device(module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("accelerate.commands.launch.default_config_file", str(tmp_path / "none.yaml"))
    count = module.device_count()
    found = launched()
    assert (found.num_processes, found.multi_gpu) == (count, count > 1)
    found = launched("--num_processes=3")
    assert (found.num_processes, found.multi_gpu) == (3, True)
    found = launched("--num_processes=1")
    assert (found.num_processes, found.multi_gpu) == (1, False)
    found = launched("--use_fsdp", "--num_processes=2")
    assert not found.multi_gpu and found.use_fsdp
    with pytest.raises(ValueError, match="--gpu_ids=0,1 chooses devices of CUDA"):
        launched("--gpu_ids=0,1")


def test_a_single_process_instead_of_several_is_an_error(device_type: str) -> None:
    """As `python -m accelerate.commands.launch` would start it: a module that nobody imports."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    parsed = launch.launch_command_parser().parse_args(["--num_processes=2", "train.py"])
    parsed.use_cpu = False
    with pytest.raises(ValueError, match=f"one process would be started, and there are 2, each with a device of {device_type}: add --multi_gpu"):
        prepare_simple_launcher_cmd_env(parsed)


LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    "accelerate launch": ("accelerate.commands.accelerate_cli", "launch", "--num_processes=2", "--main_process_port=0"),
    "python -m accelerate.commands.launch": ("accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"),
}


def launch(name: str, script: Path, options: tuple[str, ...] = ()) -> str:
    """Runs a script under a launcher, and gives what it has said."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "OMP_NUM_THREADS": "1",
        # No settings of whoever runs this.
        "HF_HOME": os.devnull,
    }
    done = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[name], *options, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.only_with_all
@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_start_one_training(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, rank_libraries\n"
        "answer = rank_libraries.accelerated()\n"
        "os.write(1, (json.dumps([answer['rank'], answer['losses']]) + '\\n').encode())\n"
    )
    losses, _ = alone()
    said = sorted(json.loads(line) for line in launch(name, script).splitlines() if line.startswith("[["))
    assert [rank for rank, _ in said] == [[0, 2], [1, 2]]
    assert said[0][1] == said[1][1] == pytest.approx(losses, rel=1e-4)


NOTEBOOK = """
import sys, json, os, torch
from accelerate import notebook_launcher
import rank_libraries

def train():
    answer = rank_libraries.accelerated()
    os.write(1, (json.dumps([answer["rank"], answer["losses"]]) + "\\n").encode())

if sys.argv[2] == "used":
    torch.ones(1, device=torch.accelerator.current_accelerator())
notebook_launcher(train, num_processes=2, use_port=sys.argv[1])
"""


@pytest.mark.only_with_all
@pytest.mark.parametrize("before", ["unused", "used"])
def test_the_launcher_for_notebooks_forks_one_training(before: str) -> None:
    done = run_python(f"import sys\nsys.argv[1:] = ['{port()}', '{before}']\n" + NOTEBOOK, OMP_NUM_THREADS="1")
    if before == "used":
        assert done.returncode != 0 and "was forked off one that had used" in done.stderr, done.stdout + done.stderr
        return
    said = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("[["))
    assert [rank for rank, _ in said] == [[0, 2], [1, 2]], done.stdout + done.stderr
    assert said[0][1] == said[1][1] == pytest.approx(alone()[0], rel=1e-4)


@pytest.mark.only_with_all
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["test_script", "test_sync", "test_ops"])
def test_accelerates_own_tests_pass(name: str, count: int) -> None:
    """Scripts that `accelerate test` runs, and others."""
    from accelerate.test_utils import path_in_accelerate_package

    path = path_in_accelerate_package("test_utils", "scripts", f"{name}.py")
    said = launch("accelerate launch", path, options=(f"--num_processes={count}",))
    if name == "test_script":
        assert f"Num processes: {count}" in said
