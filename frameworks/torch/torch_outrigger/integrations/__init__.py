"""What torch and other libraries know of the devices that they list by name, and not of ours.

One module for each library. `serve` changes a library when it is imported: a library that is not imported costs nothing,
and a version of it that has no longer what is replaced is left as it is. None of this may start the runtime.
"""

from __future__ import annotations

from . import accelerate, flex_attention, parallel, safetensors, sharing, torchvision, transformers

_ALL = (accelerate, flex_attention, parallel, safetensors, sharing, torchvision, transformers)


def serve(types: tuple[str, ...]) -> None:
    """Has the libraries serve devices of these types. Once."""
    for module in _ALL:
        module.serve(types)
