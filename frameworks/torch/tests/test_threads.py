"""Several Python threads use a device at the same time, each on its own stream."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from support import same

THREADS = 4
ROUNDS = 40


def test_threads_on_their_own_streams(device, module):
    start = threading.Barrier(THREADS, timeout=60)

    def work(number: int) -> torch.Tensor:
        start.wait()
        with torch.Stream(device) as stream:
            value = torch.full((257,), float(number), device=device)
            for _ in range(ROUNDS):
                scratch = value * 2  # memory is taken and given back all the time
                value = scratch - value + 1
                del scratch
            pinned = torch.empty(257, pin_memory=True).copy_(value, non_blocking=True)
            stream.synchronize()
            assert torch.equal(pinned, value.cpu())
            return value

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS), timeout=120))
    for number, result in enumerate(results):
        same(result, torch.full((257,), float(number + ROUNDS)))


def test_tensors_cross_threads_and_die_anywhere(device, module):
    tensors = [torch.full((1000,), float(i), device=device) for i in range(32)]

    def use(index: int) -> float:
        with torch.Stream(device) as stream:
            stream.wait_stream(module.default_stream(device))
            mine = tensors[index] + 1
            tensors[index].record_stream(stream)
            tensors[index] = None  # freed here, though it was made in another thread on another stream
            return mine.sum().item()

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(use, range(32), timeout=120)) == [1000.0 * (i + 1) for i in range(32)]


def test_backward_runs_in_many_threads(device):
    weight = torch.ones(64, 64, device=device, requires_grad=True)

    def step(number: int) -> float:
        loss = (torch.full((8, 64), float(number), device=device) @ weight).mean()
        return torch.autograd.grad(loss, weight)[0].sum().item()

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(step, range(8), timeout=120))
    assert results == [float(number) * 64 for number in range(8)]
