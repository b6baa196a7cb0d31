"""What torch and other libraries know of the devices that they list by name, and not of ours.

One module for each library. `serve` changes a library when it is imported: a library that is not imported costs nothing,
and a version of it that has no longer what is replaced is left as it is. None of this may start the runtime.

`SEEN` of a module has the versions that it was tried with, as far as their second number; another one is a warning.
"""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

from .._after_import import after_import
from . import parallel, sharing

_OF_TORCH = (parallel, sharing)

BY_LIBRARY = {
    "accelerate": "accelerate",
    "lightning": "lightning",
    "lightning_fabric": "lightning",
    "pytorch_lightning": "lightning",
    "peft": "peft",
    "safetensors": "safetensors",
    "torch.nn.attention.flex_attention": "flex_attention",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""The module here for each module that it changes, or whose parts it changes. It is imported behind that one."""


def serve(types: tuple[str, ...]) -> None:
    """Has the libraries serve devices of these types. Once."""
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


def _warn_of_version(library: ModuleType, seen: tuple[str, ...]) -> None:
    version = getattr(library, "__version__", "")
    if seen and ".".join(version.split(".")[:2]) not in seen:
        warnings.warn(
            f"{library.__name__} {version} was not tried with torch_outrigger, but {' and '.join(seen)}: what is changed in it for "
            "the device may have moved. docs/torch.md lists what was seen",
            stacklevel=2,
        )
