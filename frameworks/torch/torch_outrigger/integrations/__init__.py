"""Changes to torch and other libraries that list devices by name, and do not know ours.

One module for each library. `serve` changes a library when it is imported: a library that is not imported costs nothing,
and a version of it that has no longer what is replaced is left as it is. None of this may start the runtime.

`SEEN` of a module has the versions that it was tried with, as far as their second number; another one is a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

from .._after_import import after_import
from . import devices, parallel, sharing

_OF_TORCH = (parallel, sharing)

BY_LIBRARY = {
    "accelerate": "accelerate",
    "helion": "helion",
    "lightning": "lightning",
    "lightning_fabric": "lightning",
    "pytorch_lightning": "lightning",
    "peft": "peft",
    "safetensors": "safetensors",
    "torch.nn.attention.flex_attention": "flex_attention",
    "torch_geometric": "torch_geometric",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""The module here for each module that it changes, or whose parts it changes. It is imported behind that one."""

CHOOSE = ("accelerate", "lightning", "lightning_fabric", "peft", "pytorch_lightning", "torch_geometric", "transformers")
"""Libraries that choose a device by themselves. The others use that of their tensors."""
FOLLOW = ("diffusers", "opacus", "timm", "torchao")
"""Libraries that were tried and need no change: they use the device of their tensors."""

_types: tuple[str, ...] = ()


def serve(types: tuple[str, ...]) -> None:
    """Has the libraries serve devices of these types. Once."""
    global _types
    _types = types
    for module in _OF_TORCH:
        module.serve(types)

    served = set()

    def change(library: ModuleType, name: str) -> None:
        ours = importlib.import_module(f"{__package__}.{name}")
        _warn_of_version(library, getattr(ours, "SEEN", ()))
        if name not in served:
            served.add(name)
            ours.serve(types)

    for library, name in BY_LIBRARY.items():
        after_import(library, lambda module, name=name: change(module, name))


def report() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Of each imported library: name, version, the versions that were tried if it is changed, and the device."""
    for name in sorted({*BY_LIBRARY, *FOLLOW}):
        library = sys.modules.get(name)
        if library is None or name.startswith("torch."):
            continue
        ours = importlib.import_module(f"{__package__}.{BY_LIBRARY[name]}") if name in BY_LIBRARY else None
        tell = getattr(ours, "tell", None)
        if tell is not None:
            device = tell(_types)
        elif name in CHOOSE:
            device = f"chooses {devices.choice(_types)}"
        else:
            device = "uses the device of its tensors"
        yield name, _version(library) or "of an unknown version", getattr(ours, "SEEN", ()), device


def _version(library: ModuleType) -> str:
    """The version of a library, or of the package of its name; empty if there is none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return getattr(library, "__version__", None) or importlib.metadata.version(library.__name__)
    return ""


def is_seen(version: str, seen: tuple[str, ...]) -> bool:
    """Whether a version is one of those that were tried."""
    return not seen or ".".join(version.split(".")[:2]) in seen


def _warn_of_version(library: ModuleType, seen: tuple[str, ...]) -> None:
    version = _version(library)
    if not is_seen(version, seen):
        warnings.warn(
            f"{library.__name__} {version} was not tried with torch_outrigger, but {' and '.join(seen)}: what is changed in it for "
            "the device may have moved. docs/torch.md lists what was seen",
            stacklevel=2,
        )
