"""Finds out whether a call draws random numbers, so that its values cannot be compared.

Asked only of calls whose results differ: a random operator that agrees all the same is compared as any other.
Must look at the generator and not at names: dropout in evaluation draws nothing and must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Draws(TorchDispatchMode):
    """Notes whether any operator below advances the CPU generator.

    Watching the generator from outside is not enough: torch's database seeds and restores it around calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operator and looks whether it moved the generator."""
        generator = next((one for one in (kwargs or {}).values() if isinstance(one, torch.Generator)), None)
        generator = generator or torch.default_generator
        before = generator.get_state()
        result = func(*args, **(kwargs or {}))
        self.seen |= not torch.equal(before, generator.get_state())
        return result


def draws_random(call: Callable[[], Any]) -> bool:
    """Whether `call`, on CPU tensors, draws random numbers. A call that cannot be watched does not."""
    try:
        with Draws() as draws:
            call()
    except Exception:
        return False
    return draws.seen
