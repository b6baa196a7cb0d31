"""Random states of the devices' default generators.

A seed that is set before the runtime has started is kept until it starts: seeding must never load a driver.
"""

from __future__ import annotations

import torch

from . import _C
from ._lifetime import DeviceLike, _lazy_init, device_count, device_index, when_initialized
from ._untraced import untraced

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: DeviceLike) -> torch.Generator:
    return _C.default_generator(device_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    value = int(seed)
    when_initialized("seed", lambda: _generator(None).manual_seed(value) and None)


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices."""
    value = int(seed)

    def apply() -> None:
        for index in range(_C.device_count()):
            _generator(index).manual_seed(value)

    when_initialized("seed all", apply)


def seed() -> int:
    """Seeds the current device's generator with a number that is not predictable, and returns it."""
    return _generator(None).seed()


def seed_all() -> int:
    """Seeds the generators of all devices with one number that is not predictable, and returns it."""
    value = seed()
    manual_seed_all(value)
    return value


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()


@untraced
def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """The state of a device's generator: 16 bytes, seed and offset."""
    return _generator(device).get_state()


@untraced
def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Sets the state of a device's generator to one of `get_rng_state`."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of the generators of all devices."""
    _lazy_init()
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets the states of the generators of all devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
