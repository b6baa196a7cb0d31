"""Accelerate, and what stands on it (Trainer and device_map of transformers): uses our devices where it finds no others.

Ranks on our devices have the name MULTI_NPU: what Accelerate does under it asks torch.distributed alone, and programs take MULTI_GPU
for a promise that torch.cuda is there.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .. import _distributed
from .._after_import import after_import, replace, replace_in
from . import devices

SEEN = ("1.15",)
OTHER_LAUNCHERS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "WORLD_SIZE")
"""Variables in which launchers tell the number of processes."""


def serve(types: tuple[str, ...]) -> None:
    """Has Accelerate choose devices of these types, and make one training of the processes that a launcher starts."""
    chosen = functools.partial(devices.chosen, types)
    after_import("accelerate.state", functools.partial(_change_state, types, chosen))
    after_import("accelerate.accelerator", functools.partial(_change_accelerator, types, chosen))
    after_import("accelerate.checkpointing", functools.partial(_change_checkpoints, types))
    after_import("accelerate.commands.launch", functools.partial(_change_launch, chosen))
    after_import("accelerate.utils.dataclasses", functools.partial(_change_fsdp, chosen))
    after_import("accelerate.utils.environment", functools.partial(_change_environment, types))
    after_import("accelerate.utils.launch", functools.partial(_change_simple_launch, chosen))
    after_import("accelerate.utils.memory", functools.partial(_change_memory, chosen))
    after_import("accelerate.utils.modeling", functools.partial(_change_modeling, types, chosen))
    after_import("accelerate.utils.random", functools.partial(_change_random, types))


def tell(types: tuple[str, ...]) -> str:
    """The device that Accelerate uses, for which process, and why the CPU if it does."""
    from accelerate.state import PartialState

    if not PartialState._shared_state:
        return f"has not chosen yet, would choose {devices.choice(types)}"
    state = PartialState()
    ranks = f"process {state.process_index} of {state.num_processes} on {state.device}"
    if state.device.type != "cpu" or devices.chosen(types) is None:
        return ranks
    return f"{ranks}, {_why_cpu(state)}"


def _why_cpu(state: Any) -> str:
    if state._cpu:
        return "as the program or ACCELERATE_USE_CPU says"
    if "ACCELERATE_TORCH_DEVICE" in os.environ:
        return f"as ACCELERATE_TORCH_DEVICE={os.environ['ACCELERATE_TORCH_DEVICE']} says"
    return "though there is a device: it has chosen before torch_outrigger was loaded, or its code for that has moved"


Chosen = Callable[[], "torch.device | None"]


# ---- device and ranks ------------------------------------------------------------------------------


def _change_state(types: tuple[str, ...], chosen: Chosen, module: ModuleType) -> None:
    several = module.DistributedType.MULTI_NPU

    def choosing(original: Any) -> Any:
        @functools.wraps(original.fget)
        def default_device(self: Any) -> torch.device:
            found = original.fget(self)
            return (chosen() or found) if found.type == "cpu" else found

        return property(default_device)

    def preparing(original: Any) -> Any:
        @functools.wraps(original)
        def _prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
            found, kind = original(self, cpu, sagemaker_dp, backend)
            if not cpu:
                devices.refuse_forked(types)
            device = None if cpu or kind != module.DistributedType.NO else chosen()
            if device is None:
                return found, kind
            if int(os.environ.get("LOCAL_RANK", -1)) == -1:
                _refuse_lone_rank(device)
                return found, kind
            _refuse_other_engines(device)
            return found or _distributed.NAME, several

        return _prepare_backend

    def setting(original: Any) -> Any:
        @functools.wraps(original)
        def set_device(self: Any) -> None:
            device = chosen()
            if self.device is not None or self.distributed_type != several or device is None:
                return original(self)
            index = self.local_process_index % torch.accelerator.device_count()
            torch.accelerator.set_device_index(index)
            self.device = torch.device(device.type, index)

        return set_device

    def waiting(original: Any) -> Any:
        @functools.wraps(original)
        def wait_for_everyone(self: Any) -> None:
            # Accelerate names the device by the number of the process.
            if self.distributed_type != module.DistributedType.NO and _is_shared(self):
                torch.distributed.barrier(device_ids=[self.device.index])
            else:
                original(self)

        return wait_for_everyone

    replace_in(module.PartialState, "default_device", choosing)
    replace_in(module.PartialState, "_prepare_backend", preparing)
    replace_in(module.PartialState, "set_device", setting)
    replace_in(module.PartialState, "wait_for_everyone", waiting)


def _refuse_lone_rank(device: torch.device) -> None:
    """An error if a launcher has started several processes, and Accelerate would not know."""
    for name in OTHER_LAUNCHERS:
        if int(os.environ.get(name) or 1) > 1:
            raise RuntimeError(
                f"{name}={os.environ[name]} tells of several processes, and LOCAL_RANK is not set: each would train alone. "
                f"Start them by torchrun or accelerate launch, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; "
                f"LOCAL_RANK chooses the {device.type} device"
            )


def _refuse_other_engines(device: torch.device) -> None:
    for name, what in (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM")):
        if os.environ.get(name, "false").lower() == "true":
            raise NotImplementedError(f"{what} has kernels for CUDA alone, and the device is {device.type}: use DDP or FSDP")


def _is_shared(state: Any) -> bool:
    """Whether the process has another device than that of its number, because there are fewer devices than processes."""
    return state.device.type != "cpu" and state.device.index not in (None, state.local_process_index)


# ---- models, precision and random numbers ----------------------------------------------------------


def _change_accelerator(types: tuple[str, ...], chosen: Chosen, module: ModuleType) -> None:
    is_told = False

    def looking(original: Any) -> Any:
        @functools.wraps(original)
        def backward(self: Any, loss: Any, **keywords: Any) -> Any:
            nonlocal is_told
            if not is_told and getattr(loss, "is_cpu", False) and not self.state._cpu and chosen() is not None:
                is_told = True
                warnings.warn(
                    f"a training step of Accelerate runs on the CPU, and there is a device of {chosen().type}: give model, optimizer and "
                    "data to Accelerator.prepare, or choose the CPU by Accelerator(cpu=True). torch_outrigger.diagnose() tells more",
                    stacklevel=2,
                )
            return original(self, loss, **keywords)

        return backward

    def preparing(original: Any) -> Any:
        @functools.wraps(original)
        def prepare_model(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.device.type not in types or not _is_shared(self.state):
                return original(self, *arguments, **keywords)
            # Else DistributedDataParallel gets the number of the process for that of the device.
            from accelerate.utils import patch_environment

            with patch_environment(accelerate_bypass_device_map="true"):
                return original(self, *arguments, **keywords)

        return prepare_model

    def knowing(original: Any) -> Any:
        # Devices with float16 are a constant of this function.
        return devices.knowing(original, types, {"cuda", "xpu", "npu"})

    replace_in(module.Accelerator, "backward", looking)
    replace_in(module.Accelerator, "prepare_model", preparing)
    replace_in(module.Accelerator, "__init__", knowing)


def _change_memory(chosen: Chosen, module: ModuleType) -> None:
    def clearing(original: Any) -> Any:
        @functools.wraps(original)
        def clear_device_cache(garbage_collection: bool = False) -> None:
            original(garbage_collection)
            if chosen() is not None:
                torch.accelerator.empty_cache()

        return clear_device_cache

    replace(module, "clear_device_cache", clearing)


def _change_modeling(types: tuple[str, ...], chosen: Chosen, module: ModuleType) -> None:
    def scaling(original: Any) -> Any:
        @functools.wraps(original)
        def get_grad_scaler(distributed_type: Any = None, **keywords: Any) -> Any:
            device = module.AcceleratorState().device.type
            if device not in types:
                return original(distributed_type, **keywords)
            if distributed_type == module.DistributedType.FSDP:
                from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

                return ShardedGradScaler(device, **keywords)
            return torch.amp.GradScaler(device, **keywords)

        return get_grad_scaler

    def knowing(original: Any) -> Any:
        @functools.wraps(original)
        def get_max_memory(max_memory: dict[int | str, int | str] | None = None) -> dict[int | str, int]:
            if chosen() is None:
                return original(max_memory)
            there = range(torch.accelerator.device_count())
            if max_memory is None:
                numbers = {index: torch.accelerator.get_memory_info(index)[0] for index in there}
                return {**numbers, **original({"cpu": _host_memory()})}
            # Accelerate's own code turns texts into bytes, and warns of any number.
            size = module.convert_file_size_to_int
            numbers = {key: max_memory[key] for key in sorted(key for key in max_memory if isinstance(key, int))}
            for key in numbers:
                if key not in there:
                    module.logger.warning(f"Device {key} is not available, available devices are {list(there)}")
            others = {key: value for key, value in max_memory.items() if not isinstance(key, int)}
            return {**{key: size(value) for key, value in numbers.items()}, **original(others)}

        return get_max_memory

    replace(module, "get_grad_scaler", scaling)
    replace(module, "get_max_memory", knowing)


def _host_memory() -> int:
    # Accelerate itself needs psutil.
    import psutil

    return psutil.virtual_memory().available


def _change_fsdp(chosen: Chosen, module: ModuleType) -> None:
    def completing(original: Any) -> Any:
        @functools.wraps(original)
        def __post_init__(self: Any) -> None:
            try:
                original(self)
            except RuntimeError:
                device = chosen()
                if device is None or not self.sync_module_states or self.param_init_fn is not None:
                    raise
                # Accelerate has looked for the device where rank 0 sends its weights to, as the last of its steps.
                self.param_init_fn = lambda part: part.to_empty(device=device, recurse=False)

        return __post_init__

    replace_in(module.FullyShardedDataParallelPlugin, "__post_init__", completing)


def _change_checkpoints(types: tuple[str, ...], module: ModuleType) -> None:
    def followed_by(act: Callable[[Path, str], None]) -> Callable[[Any], Any]:
        def change(original: Any) -> Any:
            signature = inspect.signature(original)

            @functools.wraps(original)
            def call(*arguments: Any, **keywords: Any) -> Any:
                result = original(*arguments, **keywords)
                device = module.PartialState().device.type
                if device in types:
                    given = signature.bind(*arguments, **keywords).arguments
                    # The folder is the first argument of both.
                    folder, process = next(iter(given.values())), given["process_index"]
                    act(Path(folder) / f"{module.RNG_STATE_NAME}_{process}.pkl", device)
                return result

            return call

        return change

    replace(module, "save_accelerator_state", followed_by(devices.save_random_states))
    replace(module, "load_accelerator_state", followed_by(devices.load_random_states))


def _change_random(types: tuple[str, ...], module: ModuleType) -> None:
    def synchronizing(original: Any) -> Any:
        @functools.wraps(original)
        def synchronize_rng_states(rng_types: list[Any], generator: Any = None) -> None:
            device = module.AcceleratorState().device.type
            for each in rng_types:
                # A program that names CUDA means the accelerator.
                if device in types and getattr(each, "value", each) in (device, "cuda"):
                    state = torch.get_device_module(device).get_rng_state()
                    if module.AcceleratorState().use_distributed:
                        torch.distributed.broadcast(state, 0)
                    torch.get_device_module(device).set_rng_state(state)
                else:
                    original([each], generator)

        return synchronize_rng_states

    replace(module, "synchronize_rng_states", synchronizing)


# ---- launchers -------------------------------------------------------------------------------------


def _change_environment(types: tuple[str, ...], module: ModuleType) -> None:
    def choosing(original: Any) -> Any:
        @functools.wraps(original)
        def get_current_device_type() -> tuple[str, str]:
            found = original()
            # The caller forks: the drivers must not be loaded to find out whether there is a device.
            device = torch.accelerator.current_accelerator()
            if found[0] != "cuda" or torch.cuda.is_available() or device is None or device.type not in types:
                return found
            return device.type, "MULTI_NPU"

        return get_current_device_type

    replace(module, "get_current_device_type", choosing)


def _change_launch(chosen: Chosen, module: ModuleType) -> None:
    def validating(original: Any) -> Any:
        @functools.wraps(original)
        def _validate_launch_command(args: Any) -> Any:
            device = None if args.cpu else chosen()
            if device is not None and args.gpu_ids not in (None, "all"):
                raise ValueError(
                    f"--gpu_ids={args.gpu_ids} chooses devices of CUDA, and the device is {device.type}: leave it out. Process i has "
                    "device i; options of the driver in OUTRIGGER_DRIVER choose the devices"
                )
            found = original(args)
            args = found[0]
            if device is None or args.use_cpu:
                return found
            # Accelerate has counted the devices of CUDA.
            args.num_processes = args.num_processes or torch.accelerator.device_count()
            if args.num_processes > 1 and not any(_other_launchers(args)):
                args.multi_gpu = True
            return found

        return _validate_launch_command

    replace(module, "_validate_launch_command", validating)


def _change_simple_launch(chosen: Chosen, module: ModuleType) -> None:
    def refusing(original: Any) -> Any:
        @functools.wraps(original)
        def prepare_simple_launcher_cmd_env(args: Any) -> Any:
            device = None if args.cpu or args.use_cpu else chosen()
            asked = 1 if device is None else args.num_processes or torch.accelerator.device_count()
            if asked > 1:
                # `python -m accelerate.commands.launch` is not the module that is changed above.
                raise ValueError(
                    f"one process would be started, and there are {asked}, each with a device of {device.type}: add --multi_gpu, or "
                    "--num_processes=1 for a single one"
                )
            return original(args)

        return prepare_simple_launcher_cmd_env

    replace(module, "prepare_simple_launcher_cmd_env", refusing)


def _other_launchers(args: Any) -> Iterator[bool]:
    for name in ("multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "tpu_use_cluster"):
        yield bool(getattr(args, name, False))
