"""Ranks of test_distributed.py: processes that run one function together, and what is needed to start them.

The functions stand in rank_cases.py and rank_models.py. Processes are forked off one that has imported torch and has
not used a device: a rank then starts in no time. A rank must never outlive its test.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CASES = ("rank_cases", "rank_models")
LIMIT_SECONDS = 60
TIMEOUT = timedelta(seconds=40)
"""Of a group: less than the limit, so that a rank which waits in vain says for what."""


def device() -> torch.device:
    """The device of this rank."""
    return torch.device(os.environ["RANK_DEVICE"], 0)


def _enter(case: str, rank: int, size: int, store: str, environment: dict[str, str], answers: Any) -> None:
    """The life of a rank: joins the group, runs the case, and tells what came out."""
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    try:
        module, function = case.split(".")
        body = getattr(importlib.import_module(module), function)
        if store:
            backend = environment.get("RANK_BACKEND")
            dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=TIMEOUT)
        answer = body()
        if dist.is_initialized():
            dist.destroy_process_group()
        answers.send((True, answer))
    except BaseException:
        answers.send((False, traceback.format_exc()))
        # Others may wait for this rank: it leaves as one that fails does.
        os._exit(1)


def run(case: str, size: int, folder: Path, join: bool = True, lost: tuple[int, ...] = (), **environment: str) -> list[Any]:
    """Runs a case on all ranks, and gives their answers. AssertionError says what went wrong on which rank.

    Those of `lost` end by themselves, without an answer.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *CASES])
    store = str(folder / f"store-{time.monotonic_ns()}") if join else ""
    processes, pipes = [], []
    for rank in range(size):
        mine, theirs = context.Pipe(duplex=False)
        arguments = (case, rank, size, store, environment, theirs)
        process = context.Process(target=_enter, args=arguments, daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(mine)
    end = time.monotonic() + LIMIT_SECONDS
    answers, failures = [], []
    try:
        for rank, pipe in enumerate(pipes):
            if rank in lost:
                answers.append(None)
            elif not pipe.poll(max(0.0, end - time.monotonic())):
                failures.append(f"rank {rank} is still running after {LIMIT_SECONDS} s")
            else:
                try:
                    good, answer = pipe.recv()
                except EOFError:
                    good, answer = False, "it ended without an answer"
                answers.append(answer)
                if not good:
                    failures.append(f"rank {rank}: {answer}")
        assert not failures, "\n".join([f"{case} on {size} ranks, {environment}", *failures])
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        codes = [process.exitcode for rank, process in enumerate(processes) if rank not in lost]
        assert codes == [0] * len(codes), f"{case}: the ranks ended with {codes}"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
    return answers
