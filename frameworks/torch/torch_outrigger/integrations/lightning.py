"""Lightning, its Trainer and Fabric: an accelerator for the device, which `accelerator="auto"` chooses where there is no other."""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

import torch

from .._after_import import after_import, replace, replace_in
from . import devices

SEEN = ("2.6",)
PACKAGES = (("lightning.fabric", "lightning.pytorch"), ("lightning_fabric", "pytorch_lightning"))
"""Lightning is published as one package, and as two with the same code."""


def serve(types: tuple[str, ...]) -> None:
    """Registers accelerators of these types with Trainer and Fabric, and has both use them by themselves."""
    chosen = functools.partial(devices.chosen, types)

    def change_connector(module: ModuleType, kind: str) -> None:
        def is_ours(connector: Any) -> bool:
            found = connector._parallel_devices
            return bool(found) and isinstance(found[0], torch.device) and found[0].type in types

        def choosing(original: Any) -> Any:
            @functools.wraps(original.__func__)
            def _choose_auto_accelerator() -> str:
                found = original.__func__()
                device = chosen() if found == "cpu" else None
                return found if device is None else device.type

            return staticmethod(_choose_auto_accelerator)

        def placing(original: Any) -> Any:
            @functools.wraps(original)
            def _choose_strategy(self: Any) -> Any:
                found = original(self)
                if is_ours(self) and isinstance(found, module.SingleDeviceStrategy):
                    return module.SingleDeviceStrategy(device=self._parallel_devices[0])
                return found

            return _choose_strategy

        def computing(original: Any) -> Any:
            @functools.wraps(original)
            def _check_and_init_precision(self: Any) -> Any:
                with warnings.catch_warnings():
                    # Lightning makes a scaler for CUDA, which is thrown away.
                    warnings.filterwarnings("ignore", message=".*CUDA is not available")
                    found = original(self)
                if is_ours(self) and type(found) is module.MixedPrecision and found.device == "cuda":
                    return module.MixedPrecision(found.precision, self._parallel_devices[0].type)
                return found

            return _check_and_init_precision

        connector = getattr(module, kind)
        replace_in(connector, "_choose_auto_accelerator", choosing)
        replace_in(connector, "_choose_strategy", placing)
        replace_in(connector, "_check_and_init_precision", computing)

    def change_ddp(module: ModuleType, name: str) -> None:
        def leaving_out(original: Any) -> Any:
            @functools.wraps(original)
            def without_numbers(self: Any) -> list[int] | None:
                # With numbers, DistributedDataParallel is made in a stream of CUDA. Without, it takes the module's own device.
                return None if self.root_device.type in types else original(self)

            return without_numbers

        replace_in(module.DDPStrategy, name, leaving_out)

    def change_seeds(module: ModuleType) -> None:
        def collecting(original: Any) -> Any:
            @functools.wraps(original)
            def _collect_rng_states(*arguments: Any, **keywords: Any) -> dict[str, Any]:
                states = original(*arguments, **keywords)
                device = chosen()
                # Lightning asks before it forks, too, and a child has no device if its parent has used one.
                if device is not None and torch.get_device_module(device).is_initialized():
                    states[device.type] = torch.get_device_module(device).get_rng_state_all()
                return states

            return _collect_rng_states

        def setting(original: Any) -> Any:
            @functools.wraps(original)
            def _set_rng_states(states: dict[str, Any]) -> None:
                original(states)
                for each in types:
                    if each in states:
                        torch.get_device_module(each).set_rng_state_all(states[each])

            return _set_rng_states

        replace(module, "_collect_rng_states", collecting)
        replace(module, "_set_rng_states", setting)

    def change_memory(module: ModuleType) -> None:
        def knowing(original: Any) -> Any:
            @functools.wraps(original)
            def is_oom_error(exception: BaseException) -> bool:
                return isinstance(exception, torch.OutOfMemoryError) or original(exception)

            return is_oom_error

        replace(module, "is_oom_error", knowing)

    def register(module: ModuleType, registry: str) -> None:
        for each in types:
            getattr(module, registry).register(each, _accelerator(module.Accelerator, each), description=f"devices of {each}")

    for fabric, pytorch in PACKAGES:
        after_import(f"{fabric}.accelerators", functools.partial(register, registry="ACCELERATOR_REGISTRY"))
        after_import(f"{fabric}.connector", functools.partial(change_connector, kind="_Connector"))
        after_import(f"{fabric}.strategies.ddp", functools.partial(change_ddp, name="_determine_ddp_device_ids"))
        after_import(f"{fabric}.utilities.seed", change_seeds)
        after_import(f"{pytorch}.accelerators", functools.partial(register, registry="AcceleratorRegistry"))
        after_import(
            f"{pytorch}.trainer.connectors.accelerator_connector",
            functools.partial(change_connector, kind="_AcceleratorConnector"),
        )
        after_import(f"{pytorch}.utilities.memory", change_memory)
        after_import(f"{pytorch}.strategies.ddp", functools.partial(change_ddp, name="determine_ddp_device_ids"))


def _accelerator(base: type, device_type: str) -> type:
    """Lightning's accelerator for the devices of a type, as a class of the Trainer's or of Fabric's kind."""

    class DeviceAccelerator(base):
        """Devices by their numbers."""

        @staticmethod
        def name() -> str:
            return device_type

        @staticmethod
        def is_available() -> bool:
            return torch.get_device_module(device_type).is_available()

        @staticmethod
        def auto_device_count() -> int:
            return torch.get_device_module(device_type).device_count()

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            """A number of devices (-1 is all of them), or their numbers; as text, too."""
            count = DeviceAccelerator.auto_device_count()
            if isinstance(devices, str):
                numbers = [int(part) for part in devices.split(",") if part.strip()]
                devices = numbers if "," in devices else numbers[0]
            if isinstance(devices, int):
                devices = list(range(count if devices == -1 else devices))
            for number in devices:
                if not 0 <= number < count:
                    raise ValueError(f"devices={devices} names device {number}, but {device_type} has {count}, numbered from 0")
            return list(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(device_type, number) for number in devices]

        def setup_device(self, device: torch.device) -> None:
            torch.get_device_module(device_type).set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return torch.get_device_module(device_type).memory_stats(device)

        def teardown(self) -> None:
            torch.get_device_module(device_type).empty_cache()

    return DeviceAccelerator
