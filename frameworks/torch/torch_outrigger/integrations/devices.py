"""Parts of the modules for several libraries: the device that each should use, and random states in files of theirs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch


def chosen(types: tuple[str, ...]) -> torch.device | None:
    """Our device without its number, if a library that has found no device of CUDA should use it, else None."""
    if torch.cuda.is_available():
        return None
    found = torch.accelerator.current_accelerator(check_available=True)
    return found if found is not None and found.type in types else None


def refuse_forked(types: tuple[str, ...]) -> None:
    """An error in a child that was forked off a process with a device: a library would take the CPU there."""
    device = torch.accelerator.current_accelerator()
    if device is not None and device.type in types and torch.get_device_module(device)._is_in_bad_fork():
        raise RuntimeError(
            f"this process was forked off one that had used {device.type}, so it has no device: use the device in the children alone, "
            "or start them by spawn"
        )


def choice(types: tuple[str, ...]) -> str:
    """The choice of a library, and why if it is not our device."""
    device = chosen(types)
    if device is not None:
        return str(device)
    if torch.cuda.is_available():
        return "cuda, for there is such a device"
    found = torch.accelerator.current_accelerator(check_available=True)
    return "the CPU, for no device is there" if found is None else f"the CPU or {found}, which is torch's accelerator"


def knowing(function: Callable[..., object], types: tuple[str, ...], names: set[str]) -> Callable[..., object]:
    """The function itself, with our types in its constant list of devices that has these names."""
    code = function.__code__
    constants = ((*each, *types) if isinstance(each, tuple) and names <= set(each) else each for each in code.co_consts)
    function.__code__ = code.replace(co_consts=tuple(constants))
    return function


def _beside(file: Path) -> Path:
    """The file of our random states, beside the library's own. It is read without trust in what it holds."""
    return file.with_name(f"{file.stem}_outrigger.pt")


def save_random_states(file: Path, device_type: str) -> None:
    """Saves the random states of all devices of a type beside the file where a library has saved those that it knows."""
    torch.save({device_type: torch.get_device_module(device_type).get_rng_state_all()}, _beside(file))


def load_random_states(file: Path, device_type: str) -> None:
    """Sets the random states that `save_random_states` has saved. A warning if there are none."""
    path = _beside(file)
    states = torch.load(path, weights_only=True).get(device_type) if path.is_file() else None
    if states is None:
        warnings.warn(
            f"{path} has no random states of {device_type}: random numbers will not be those of a run without a break",
            stacklevel=4,
        )
        return
    module = torch.get_device_module(device_type)
    for index, state in enumerate(states[: module.device_count()]):
        module.set_rng_state(state, index)
