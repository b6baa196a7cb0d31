"""PyTorch in eager mode: device tensors against CPU tensors, in one run. `cargo xtask bench eager`.

All tensors are float32. Sizes: `add1`, `add1_inplace`, `item` 1 element; `empty16`, `view` 16;
`add1m` 1,048,576; `mm1024` 1024 x 1024 by 1024 x 1024; `mlp_step` a batch of 128 through 256-512-512-10
with ReLU, cross entropy, backward, SGD with momentum; `cnn_step` the demo's `DigitNet` on a batch of 64,
likewise; `h2d64m`, `d2h64m` 64 MiB of pageable memory, into memory that has been written before.

Each block submits all its repetitions and then waits once for the device, and that wait is counted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.device import open_device
from demo.models import DigitNet

from .compiled import compiled
from .harness import US, Bar, Metric, Missing, Parts, timed

ONE_MILLION = 1 << 20
COPY_ELEMENTS = 64 * 2**20 // 4
CPU = torch.device("cpu")


def repeated(call: Callable[[], object]) -> Parts:
    """Blocks that run `call` so many times and then wait for the device."""

    def block(repetitions: int) -> None:
        for _ in range(repetitions):
            call()
        torch.accelerator.synchronize()

    return {"block": timed(block)}


def repeated_here(call: Callable[[], object]) -> Parts:
    """Blocks of work that is finished when `call` returns."""

    def block(repetitions: int) -> None:
        for _ in range(repetitions):
            call()

    return {"block": timed(block)}


def against_cpu(name: str, make: Callable[[torch.device], Callable[[], object]], bar: float | None = None) -> Metric:
    """The call that `make` gives for a device, on the device and on CPU tensors."""
    bars = () if bar is None else (Bar(bar, "cpu"),)
    return Metric(
        name, lambda: {US: repeated(make(open_device("outrigger"))), "cpu": repeated_here(make(CPU))}, bars
    )


def step_against_cpu(name: str, make: Callable[[torch.device], Callable[[], Tensor]], bar: float) -> Metric:
    """A training step on the device, on CPU tensors, and on CPU tensors compiled by `torch.compile`."""

    def contest() -> dict[str, Parts | Missing]:
        fast = compiled(lambda: make(CPU))
        return {
            US: repeated(make(open_device("outrigger"))),
            "cpu": repeated_here(make(CPU)),
            "torch_compile": fast if isinstance(fast, Missing) else repeated_here(fast),
        }

    return Metric(name, contest, (Bar(bar, "cpu"),))


def make_add(count: int) -> Callable[[torch.device], Callable[[], Tensor]]:
    """`a + b` of `count` elements."""

    def make(device: torch.device) -> Callable[[], Tensor]:
        a, b = (torch.ones(count, device=device) for _ in range(2))
        return lambda: a + b

    return make


def make_add_inplace(device: torch.device) -> Callable[[], Tensor]:
    """`a += b` of one element."""
    a, b = torch.ones(1, device=device), torch.zeros(1, device=device)
    return lambda: a.add_(b)


def make_empty(device: torch.device) -> Callable[[], Tensor]:
    """An allocation of 16 elements, and its release."""
    return lambda: torch.empty(16, device=device)


def make_view(device: torch.device) -> Callable[[], Tensor]:
    """A view of another shape."""
    a = torch.ones(16, device=device)
    return lambda: a.view(4, 4)


def make_item(device: torch.device) -> Callable[[], float]:
    """A number on its way to Python."""
    a = torch.ones(1, device=device)
    return lambda: a.item()


def make_mm(device: torch.device) -> Callable[[], Tensor]:
    """A matrix product of 2 GFLOP."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1024, 1024, generator=generator).to(device) for _ in range(2))
    return lambda: a @ b


def make_step(make_model: Callable[[], nn.Module], inputs: Tensor) -> Callable[[torch.device], Callable[[], Tensor]]:
    """A training step of ten classes on one batch; gives the loss."""

    def make(device: torch.device) -> Callable[[], Tensor]:
        torch.manual_seed(0)
        model = make_model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        batch = inputs.to(device)
        labels = (torch.arange(len(inputs)) % 10).to(device)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return make


def make_mlp() -> nn.Module:
    """The model of `mlp_step`."""
    return nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def copies() -> list[Metric]:
    """Both directions, against torch's own copy between two CPU tensors and against memcpy on one thread."""

    def contest(to_device: bool) -> dict[str, Parts]:
        source, target, other = (torch.ones(COPY_ELEMENTS) for _ in range(3))
        on_device = torch.ones(COPY_ELEMENTS, device=open_device("outrigger"))
        copy = (lambda: on_device.copy_(source)) if to_device else (lambda: other.copy_(on_device))
        return {
            US: repeated(copy),
            "cpu": repeated_here(lambda: target.copy_(source)),
            "memcpy": repeated_here(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)),
        }

    bars = (Bar(1.05, "cpu"),)
    return [Metric("h2d64m", lambda: contest(True), bars), Metric("d2h64m", lambda: contest(False), bars)]


def synchronization() -> list[Metric]:
    """Events and idle waits. CPU tensors have no such thing: there is no peer."""

    def event_record() -> None:
        event.record(stream)

    def event_record_sync() -> None:
        event.record(stream)
        event.synchronize()

    device = open_device("outrigger")
    stream = torch.accelerator.current_stream(device)
    event = torch.Event(device)
    return [
        Metric("event_record", lambda: {US: repeated(event_record)}),
        Metric("event_record_sync", lambda: {US: repeated(event_record_sync)}),
        Metric("stream_sync_idle", lambda: {US: repeated(stream.synchronize)}),
        Metric("device_sync_idle", lambda: {US: repeated(torch.accelerator.synchronize)}, (Bar(5.0),)),
    ]


def metrics() -> list[Metric]:
    """The suite."""
    images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    vectors = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))
    return [
        against_cpu("add1", make_add(1), bar=3.0),
        against_cpu("add1_inplace", make_add_inplace),
        against_cpu("empty16", make_empty),
        against_cpu("view", make_view),
        against_cpu("item", make_item),
        against_cpu("add1m", make_add(ONE_MILLION), bar=1.1),
        against_cpu("mm1024", make_mm, bar=1.1),
        step_against_cpu("mlp_step", make_step(make_mlp, vectors), bar=1.3),
        step_against_cpu("cnn_step", make_step(DigitNet, images), bar=1.3),
        *copies(),
        *synchronization(),
    ]
