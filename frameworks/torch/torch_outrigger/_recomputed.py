"""Random operators that a compiled checkpoint runs twice: with a state that is saved in the forward pass, and set again.

Torch's two higher-order operators for this have a fixed list of device types. They draw what eager checkpoints draw. This must
never start the runtime.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from . import _C
from ._after_import import after_import
from ._lifetime import device_index

_MODULE = "torch._prims.rng_prims"

_STATE_BYTES = 16
"""As in csrc/generator.cpp."""


def _generator() -> torch.Generator:
    return _C.default_generator(device_index(None))


def _saved(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Runs an operator. Returns the state before it, and its results."""
    return _generator().get_state(), op(*args, **kwargs)


def _again(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operator with a state of `_saved`, and leaves the generator as it was."""
    generator = _generator()
    before = generator.get_state()
    generator.set_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        generator.set_state(before)


def _add_to(module: ModuleType, name: str) -> None:
    from torch._functorch._aot_autograd import utils
    from torch._higher_order_ops.utils import registered_hop_fake_fns

    if not hasattr(utils, "register_graphsafe_rng_device_type"):
        # This torch has a fixed list of device types there too: it refuses random operators in compiled checkpoints.
        return
    # The partitioner takes the form of a state from such devices. Other backends than Inductor's share generators instead.
    utils.register_graphsafe_rng_device_type(name)
    key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(name))
    select = torch._C.DispatchKey.BackendSelect

    def ours(args: Any, kwargs: Any) -> bool:
        return module.get_device(args, kwargs) == name

    save, run = module.run_and_save_rng_state, module.run_with_rng_state
    stock_save, stock_run, stock_fake = save.py_kernels.pop(select), run.py_kernels.pop(select), registered_hop_fake_fns[save]

    def select_save(op: Any, *args: Any, **kwargs: Any) -> Any:
        return (_saved if ours(args, kwargs) else stock_save)(op, *args, **kwargs)

    def select_run(state: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return (_again if ours(args, kwargs) else stock_run)(state, op, *args, **kwargs)

    def fake_save(op: Any, *args: Any, **kwargs: Any) -> Any:
        if not ours(args, kwargs):
            return stock_fake(op, *args, **kwargs)
        return torch.empty(_STATE_BYTES, dtype=torch.uint8), op(*args, **kwargs)

    save.py_impl(key)(_saved)
    save.py_impl(select)(select_save)
    run.py_impl(key)(_again)
    run.py_impl(select)(select_run)
    registered_hop_fake_fns[save] = fake_save


def register(name: str) -> None:
    """Adds the device type `name` to torch's operators, now or when they are imported."""
    after_import(_MODULE, lambda module: _add_to(module, name))
