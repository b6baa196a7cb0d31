"""Work on CPU tensors under `torch.compile`: the peer `torch_compile` of the suites that go through PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from .harness import Missing

RUNS = 5  # of a compiled call before it counts: some compile a second time when gradients have come

Result = TypeVar("Result")


def compiled(make: Callable[[], Callable[[], Result]]) -> Callable[[], Result] | Missing:
    """The call that `make` gives, compiled by Inductor, which gives the same as without it; or why there is none, as
    where the machine has no C++ compiler."""
    import torch

    torch._logging.set_logs(dynamo=logging.ERROR)  # warnings of what it leaves out would stand amid the table
    fast: Callable[[], Result] = torch.compile(make())
    plain = make()
    try:
        for _ in range(RUNS):
            torch.testing.assert_close(fast(), plain())
    except (RuntimeError, OSError, ImportError, AssertionError) as error:
        return Missing(" ".join(f"{type(error).__name__}: {error}".split())[:200])
    return fast
