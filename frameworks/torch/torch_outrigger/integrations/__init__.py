"""What torch and other libraries know of the devices that they list by name, and not of ours.

One module for each library. `serve` changes a library when it is imported: a library that is not imported costs nothing,
and a version of it that has no longer what is replaced is left as it is. None of this may start the runtime.
"""

from __future__ import annotations

import importlib

from .._after_import import after_import
from . import parallel, sharing

_OF_TORCH = (parallel, sharing)

_BY_LIBRARY = {
    "accelerate": "accelerate",
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
    for library, name in _BY_LIBRARY.items():
        after_import(library, lambda _, name=name: importlib.import_module(f"{__package__}.{name}").serve(types))
