"""DLPack: tensors of our devices for other libraries, in the order of streams.

torch 2.15 exports PrivateUse1 as kDLExtDev, but looks for it under the name "privateuseone", knows no MTIA, and hands over
streams of CUDA alone. Where the CPU sees the memory, a consumer that asks for the CPU gets it without a copy. This must
change nothing for other devices.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import has_torch_function_unary


def patch(types: tuple[str, ...]) -> None:
    """Has tensors of these device types answer `__dlpack_device__` and `__dlpack__`. Once."""
    original_device = torch.Tensor.__dlpack_device__
    original = torch.Tensor.__dlpack__

    def is_ours(tensor: torch.Tensor) -> bool:
        return not has_torch_function_unary(tensor) and tensor.device.type in types

    @functools.wraps(original_device)
    def dlpack_device(self: torch.Tensor) -> tuple[int, int]:
        return _device_of(self) if is_ours(self) else original_device(self)

    @functools.wraps(original)
    def dlpack(
        self: torch.Tensor,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **rest: Any,
    ) -> Any:
        if not is_ours(self):
            return original(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy, **rest)
        from torch.utils.dlpack import DLDeviceType

        wanted = _device_of(self) if dl_device is None else tuple(dl_device)
        if wanted == (DLDeviceType.kDLCPU, 0):
            return original(_on_cpu(self, copy), max_version=max_version, **rest)
        if wanted != _device_of(self):
            raise BufferError(f"a tensor of {self.device} cannot be exported to the DLPack device {wanted}")
        _hand_over(self, stream)
        return original(self, max_version=max_version, copy=copy, **rest)

    torch.Tensor.__dlpack_device__ = dlpack_device
    torch.Tensor.__dlpack__ = dlpack


def _device_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The device under which DLPack knows the tensor."""
    from torch.utils.dlpack import DLDeviceType

    if tensor.device.type != "mtia":
        return DLDeviceType.kDLExtDev, tensor.device.index
    # DLPack has no number for MTIA.
    if not _is_host_visible(tensor):
        raise BufferError(f"DLPack has no number for MTIA, and the CPU does not see the memory of {tensor.device}")
    return DLDeviceType.kDLCPU, 0


def _is_host_visible(tensor: torch.Tensor) -> bool:
    from . import _C

    return _C.device_info(tensor.device.index)["host_visible"]


def _on_cpu(tensor: torch.Tensor, copy: bool | None) -> torch.Tensor:
    """The tensor for a consumer on the CPU, whose contents are there already."""
    from . import _C

    if tensor.requires_grad:
        raise BufferError("a tensor that requires a gradient cannot be exported: export tensor.detach()")
    if copy is not True and _is_host_visible(tensor):
        return _C.host_view(tensor)
    if copy is False:
        raise BufferError(f"the CPU does not see the memory of {tensor.device}, and copy=False forbids a copy")
    return tensor.cpu()


def _hand_over(tensor: torch.Tensor, stream: Any) -> None:
    """Has the consumer's stream wait for the work that is queued on the current stream.

    The consumer names a stream by its number (`torch.Stream.stream_id`). None is a consumer that knows no
    streams: the work is waited for. -1 asks for nothing.
    """
    if stream == -1:
        return
    current = torch.get_device_module(tensor.device.type).current_stream(tensor.device)
    if stream is None:
        current.synchronize()
        return
    if not isinstance(stream, int) or isinstance(stream, bool):
        raise TypeError(f"the stream must be a number or None, got {stream!r}")
    index = tensor.device.index
    kind = current.device_type
    consumer = torch.Stream(stream_id=stream, device_index=index, device_type=kind)
    consumer.wait_event(current.record_event())
