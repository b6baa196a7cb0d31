"""Graphs as PyTorch captures and replays them, against the same work on CPU tensors in eager mode and compiled.

`torch_chain_speedup`: 1,000 operators on tensors of one element, each on the result of the one before.
`torch_mlp_speedup`: the training step of an MLP that is bound by launches, captured whole: a batch of 8 through
16-32-32-10 with ReLU, cross entropy, backward, SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .compiled import compiled
from .harness import US, Bar, Metric, Missing, Parts, Seconds, SubjectFailure, Timer, timed

if TYPE_CHECKING:
    from torch import Tensor

OPERATORS = 1000
WARM_UP = 3  # runs in eager mode: everything that is made on first use has been made then


def repeated(call: Callable[[], object], finish: Callable[[], object]) -> Timer:
    """The time of so many calls, each finished before the next one."""

    def block(repetitions: int) -> None:
        try:
            for _ in range(repetitions):
                call()
                finish()
        except RuntimeError as error:
            raise SubjectFailure(str(error)) from error

    return timed(block)


def chain(device: str) -> Callable[[], Tensor]:
    """Sums and products in turn, whose values come near to 1/3."""
    import torch

    x, quarter = torch.ones(1, device=device), torch.full((1,), 0.25, device=device)

    def call() -> Tensor:
        y = x
        for _ in range(OPERATORS // 2):
            y = y + x
            y = y * quarter
        return y

    return call


def training_step(device: str) -> Callable[[], Tensor]:
    """A step on one batch; gradients stay where they are, as a graph needs it."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(8, 16, generator=generator).to(device)
    labels = torch.arange(8).to(device)
    loss_function = nn.CrossEntropyLoss()

    def call() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_function(model(batch), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def captured(make: Callable[[str], Callable[[], Tensor]]) -> Callable[[], Tensor]:
    """A replay of the call that `make` gives for the device, after as many runs in eager mode as `WARM_UP`."""
    import torch

    from demo.device import open_device

    device = open_device("outrigger")
    call = make(str(device))
    for _ in range(WARM_UP):
        call()
    torch.accelerator.synchronize()
    graph = torch.accelerator.Graph()
    with graph:
        result = call()

    def replay() -> Tensor:
        graph.replay()
        return result  # the same memory for every replay

    return replay


def contest(make: Callable[[str], Callable[[], Tensor]]) -> dict[str, Parts | Missing]:
    """The replay next to the same work on CPU tensors, of which the first results must agree; and the compiled work."""
    on_cpu = make("cpu")
    for _ in range(WARM_UP):
        on_cpu()
    try:
        import torch

        replay = captured(make)
        for _ in range(3):
            torch.testing.assert_close(replay().cpu(), on_cpu())
    except (RuntimeError, ImportError, AttributeError, AssertionError) as error:
        return {US: Missing(" ".join(f"{type(error).__name__}: {error}".split()))}
    eager = repeated(on_cpu, lambda: None)
    cpu = {"cpu": eager, "cpu_one_thread": on_one_thread(eager)}
    fast = compiled(lambda: make("cpu"))
    peer: Parts | Missing
    if isinstance(fast, Missing):
        peer = fast
    else:
        code = repeated(fast, lambda: None)
        peer = {"replay": code, "replay_one_thread": on_one_thread(code), **cpu}
    return {US: {"replay": repeated(replay, torch.accelerator.synchronize), **cpu}, "torch_compile": peer}


def on_one_thread(timer: Timer) -> Timer:
    """The same without torch's other threads, which small operators gain nothing from."""

    def run(repetitions: int) -> float:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return timer(repetitions)
        finally:
            torch.set_num_threads(threads)

    return run


def speedup(seconds: Seconds) -> float:
    """The time of an eager run on CPU tensors in times of a replay, or of a compiled run. Work on CPU tensors has as
    many threads as are best for it."""
    replay = min(seconds["replay"], seconds.get("replay_one_thread", seconds["replay"]))
    return min(seconds["cpu"], seconds["cpu_one_thread"]) / replay


def metrics() -> list[Metric]:
    """The part of the suite that goes through PyTorch."""
    return [
        Metric("torch_chain_speedup", lambda: contest(chain), (Bar(20.0),), "x", "higher", speedup),
        Metric("torch_mlp_speedup", lambda: contest(training_step), (Bar(3.0),), "x", "higher", speedup),
    ]
