"""The typed storage classes that torch looks for in a device's module, such as `torch.outrigger.FloatStorage`.

They are a legacy of torch, only for old pickles and for code that names them. They must never have behaviour.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import _LegacyStorage, _warn_typed_storage_removal


class _ClassProperty:
    """A property that is read on the class."""

    def __init__(self, dtype: torch.dtype, warn: bool) -> None:
        self._dtype = dtype
        self._warn = warn

    def __get__(self, _instance: object, _owner: type) -> torch.dtype:
        if self._warn:
            _warn_typed_storage_removal()
        return self._dtype


class _DeviceStorage(_LegacyStorage):
    """A storage in device memory, which cannot be made from a buffer, or shared by name."""

    @classmethod
    def from_buffer(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Refused: the buffer is in host memory."""
        raise RuntimeError("from_buffer: not available for storage in device memory")

    @classmethod
    def _new_with_weak_ptr(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("_new_with_weak_ptr: not available for storage in device memory")

    @classmethod
    def _new_shared_filename(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("_new_shared_filename: not available for storage in device memory")


def storage_classes(module: str) -> dict[str, type]:
    """The storage classes by name, one for each dtype that has one. Torch finds the device by `module`."""
    return {
        name: type(
            name,
            (_DeviceStorage,),
            {
                "__module__": module,
                "__doc__": f"Storage of {dtype} in device memory.",
                "dtype": _ClassProperty(dtype, warn=True),
                "_dtype": _ClassProperty(dtype, warn=False),
            },
        )
        for dtype, name in torch.storage._dtype_to_storage_type_map().items()
        if not name.startswith("Q")
    }
