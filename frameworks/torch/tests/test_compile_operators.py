"""torch's database of operators through torch.compile: forward, backward, and with sizes that are not fixed.

Each operator is compared with eager execution on the device, in float32. What eager execution refuses, or Inductor fails at for
CPU tensors too, does not count. Every run has a fortieth of the operators; `--compile-share 0/4` has the first of four parts of all.
"""

from __future__ import annotations

import signal
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

SECONDS = 120
"""The most seconds of one operator."""

UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose results have no defined values."""

STATISTICS = (
    "torch takes every device but the CPU for one that gives statistics in evaluation too, and the kernel here is the CPU's"
)

FAILS = {
    ("dynamic", "_native_batch_norm_legit"): STATISTICS,
    ("dynamic", "native_batch_norm"): STATISTICS,
}
"""Operators that fail here and not for CPU tensors, with the reason: at most 3 in 100."""

FORTIETH = "0/40"


@pytest.fixture
def share(request: pytest.FixtureRequest, compiles: None) -> list[Any]:
    """The operators of this run."""
    from torch.testing._internal.common_methods_invocations import op_db

    asked = request.config.getoption("--compile-share")
    if asked is None:
        request.getfixturevalue("once")
    number, count = map(int, (asked or FORTIETH).split("/"))
    typed = [op for op in op_db if torch.float32 in op.dtypes]
    return [op for op in typed if zlib.crc32(_name(op).encode()) % count == number]


@pytest.fixture(autouse=True)
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {SECONDS} s")

    held = signal.signal(signal.SIGALRM, late)
    with warnings.catch_warnings(), torch._inductor.config.patch(force_disable_caches=True):
        warnings.simplefilter("ignore")
        yield
    signal.signal(signal.SIGALRM, held)


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def _samples(op: Any, count: int, gradients: bool) -> list[Any]:
    torch.manual_seed(zlib.crc32(op.name.encode()))
    made = op.sample_inputs("cpu", torch.float32, requires_grad=gradients)
    return [one for one, _ in zip(made, range(count))]


def _there(value: Any, device: torch.device) -> Any:
    """The same on a device."""

    def move(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one.detach().clone().to(device).requires_grad_(one.requires_grad)
        return device if isinstance(one, torch.device) else one

    return pytree.tree_map(move, value)


Run = Callable[[Callable[..., Any], torch.device], list[Any]]
"""The results of a function, on a device."""


def _forward(samples: list[Any]) -> Run:
    def run(function: Callable[..., Any], device: torch.device) -> list[Any]:
        results: list[Any] = []
        for sample in samples:
            torch.manual_seed(7)
            given = _there((sample.input, sample.args, sample.kwargs), device)
            named = {key: device if key == "device" else value for key, value in given[2].items()}
            results += pytree.tree_leaves(function(given[0], *given[1], **named))
        return results

    return run


def _backward(sample: Any) -> Run:
    def run(function: Callable[..., Any], device: torch.device) -> list[Any]:
        torch.manual_seed(7)
        given = _there((sample.input, sample.args, sample.kwargs), device)
        inputs = [one for one in pytree.tree_leaves(given) if isinstance(one, torch.Tensor) and one.requires_grad]
        results = pytree.tree_leaves(function(given[0], *given[1], **given[2]))
        outputs = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
        if not inputs or not outputs:
            raise LookupError("no gradient")
        factors = [torch.linspace(-1, 1, one.numel(), device=device).reshape(one.shape).to(one.dtype) for one in outputs]
        return list(torch.autograd.grad(outputs, inputs, factors, allow_unused=True))

    return run


def _difference(run: Run, function: Callable[..., Any], device: torch.device, dynamic: bool, values: bool) -> str | None:
    """The error of the compiled function, in words; LookupError if eager execution refuses."""
    try:
        expected = run(function, device)
    except Exception as error:
        raise LookupError from error
    torch._dynamo.reset()
    signal.alarm(SECONDS)
    try:
        found = run(torch.compile(lambda *given, **named: function(*given, **named), dynamic=dynamic or None), device)
        assert len(found) == len(expected), f"{len(found)} results instead of {len(expected)}"
        for one, other in zip(found, expected, strict=True):
            if isinstance(other, torch.Tensor):
                assert (one.device, one.dtype, one.shape) == (other.device, other.dtype, other.shape)
                if values:
                    torch.testing.assert_close(one.cpu(), other.cpu(), rtol=2e-4, atol=2e-5, equal_nan=True)
            else:
                assert one == other or one is other
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    finally:
        signal.alarm(0)
    return None


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["forward", "backward", "dynamic"])
def test_operators_of_torch(device, share, how):
    passed, wrong = 0, []
    for op in share:
        if how == "backward" and not op.supports_autograd:
            continue
        samples = _samples(op, 2 if how == "dynamic" else 1, how == "backward")
        if not samples:
            continue
        run = _backward(samples[0]) if how == "backward" else _forward(samples)
        checked = (run, op.op)
        rules = (how == "dynamic", op.name not in UNDEFINED)
        try:
            difference = _difference(*checked, device, *rules)
            if difference is not None and _difference(*checked, torch.device("cpu"), *rules) is not None:
                continue
        except LookupError:
            continue
        is_known = (how, _name(op)) in FAILS
        passed += difference is None
        if is_known != (difference is not None):
            wrong.append(f"{_name(op)}: {difference or 'it passes, and is listed as one that fails'}")
    assert not wrong, "\n".join([f"{passed} passed, {len(wrong)} did not:", *wrong])
    assert passed > len(share) // 2
