"""Graphs in many threads, and very many graphs: nothing is mixed up, nothing grows."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support import same
from torch_outrigger import graphs

THREADS = 8
ROUNDS = 12


def test_threads_capture_and_replay_while_others_run_eagerly(device_type, module):
    devices = min(2, module.device_count())
    start = threading.Barrier(THREADS, timeout=60)
    running = THREADS

    def captures(number: int) -> None:
        with torch.accelerator.device_index(number % devices):
            start.wait()
            device = torch.device(device_type, number % devices)
            stream = torch.Stream(device)
            for round_ in range(ROUNDS):
                x = torch.full((65,), float(number), device=device)
                graph = graphs.Graph()
                torch.accelerator.current_stream().synchronize()
                with stream:
                    graph.capture_begin()
                    y = torch.sort(x * 2 + round_).values.cumsum(0)
                    graph.capture_end()
                    graph.replay()
                    graph.replay()
                    stream.synchronize()
                same(y, torch.full((65,), float(number * 2 + round_)).cumsum(0))
                graph.reset()

    def runs_eagerly(number: int) -> None:
        with torch.accelerator.device_index(number % devices):
            start.wait()
            device = torch.device(device_type, number % devices)
            for round_ in range(ROUNDS * 8):
                value = torch.full((129 + round_,), float(number), device=device)
                for _ in range(4):
                    value = value * 2 - torch.sort(value).values
                assert value[0].item() == number
                torch.accelerator.synchronize()
                torch.accelerator.empty_cache()

    with ThreadPoolExecutor(running) as pool:
        work = [pool.submit(captures if number < THREADS - 3 else runs_eagerly, number) for number in range(THREADS)]
        for each in work:
            each.result(timeout=180)


def test_one_graph_replayed_by_many_threads_runs_every_time(device):
    x = torch.zeros(17, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        x.add_(1)

    torch.accelerator.synchronize()

    def replay(_number: int) -> None:
        with torch.Stream(device) as stream:
            for _ in range(20):
                graph.replay()
            stream.synchronize()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replay, range(4), timeout=120))
    torch.accelerator.synchronize()
    same(x, torch.full((17,), 80.0))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the process cannot be measured here")
def test_ten_thousand_captures_leave_nothing_behind(device):
    x = torch.zeros(16, device=device)
    stream = torch.Stream(device)

    def cycle() -> None:
        graph = graphs.Graph()
        graph.capture_begin()
        # Native operators, memory of the pool, an operator on the CPU, and memory of the host.
        x.add_(torch.cummax(x * 0 + 1, 0).values * torch.tensor([1.0], device=device))
        graph.capture_end()
        graph.replay()
        graph.reset()

    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        for _ in range(500):
            cycle()
        stream.synchronize()
        gc.collect()
        torch.accelerator.empty_cache()
        threads, resident = _threads(), _resident()
        allocated, reserved = torch.accelerator.memory_allocated(device), torch.accelerator.memory_reserved(device)
        for _ in range(9_500):
            cycle()
        stream.synchronize()
    gc.collect()
    torch.accelerator.empty_cache()
    same(x, torch.full((16,), 10_000.0))
    assert _threads() <= threads  # idle workers may have ended
    assert torch.accelerator.memory_allocated(device) == allocated
    assert torch.accelerator.memory_reserved(device) == reserved
    # A leak of a hundred bytes in each cycle would be seen.
    assert _resident() - resident < 9_500 * 100 + (8 << 20)
