"""Random numbers of the devices: seeds and states of their default generators.

It must never hold state: the runtime's generators do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from torch_outrigger import _C


def _module() -> Any:
    from torch_outrigger import device

    return device


class _Generators(Sequence[torch.Generator]):
    """The default generators of all devices, made when asked for."""

    def __len__(self) -> int:
        return _module().device_count()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        _module()._lazy_init()
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"there is no device {index}: there are {len(self)}")
        return _C.default_generator("outrigger", index)

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def get_rng_state(device: Any = "outrigger") -> torch.Tensor:
    """The state of a device's default generator: a CPU tensor of 16 bytes."""
    return default_generators[_module()._index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' default generators."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Any = "outrigger") -> None:
    """Sets the state of a device's default generator."""
    default_generators[_module()._index(device)].set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' default generators."""
    for generator, state in zip(default_generators, new_states, strict=False):
        generator.set_state(state)


def manual_seed(seed: int) -> None:
    """Seeds the current device's default generator."""
    default_generators[_module().current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices. `torch.manual_seed` calls it."""
    if _module()._is_in_bad_fork():
        return
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's default generator with a random number, and returns it."""
    return default_generators[_module().current_device()].seed()


def seed_all() -> None:
    """Seeds the default generators of all devices with one random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's default generator."""
    return default_generators[_module().current_device()].initial_seed()
