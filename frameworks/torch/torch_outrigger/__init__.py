"""Outrigger devices in PyTorch.

`import torch` loads this package automatically (entry point `torch.backends`). If torch's autoload is off,
`import torch_outrigger` loads it. It must never make `import torch` fail, and never load a driver: the first
use of a device does that.

`torch.outrigger` is the device's module, as `torch.cuda` is CUDA's. The functions that are the same for all
device types (fallbacks, traces, drivers, observers) are here too: see `_runtime`.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_ALWAYS = {"Vendor": "._vendor", "diagnose": "._diagnose"}
"""Names that are there also if the shim could not be loaded."""

_lock = threading.RLock()
_loaded = False
_error: Exception | None = None


def autoload() -> None:
    """Registers the device types with torch, once. A problem is a warning, and is kept for `load_error`."""
    global _loaded, _error
    with _lock:
        if _loaded:
            return
        _loaded = True
        try:
            from . import _activate

            _activate.activate()
            _activate.as_cuda()
        except Exception as error:
            _error = error
            try:
                warnings.warn(
                    f"torch_outrigger could not be loaded; its devices are not available.\n{_text(error)}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            except RuntimeWarning:
                # Warnings are errors here. `import torch` must work all the same, and `load_error` tells.
                pass


def load_error() -> Exception | None:
    """The error of loading the package, or None."""
    return _error


def _text(error: Exception) -> str:
    # An ImportError of the package says what to do.
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"


def include_folder() -> Path:
    """The folder with `outrigger/driver.h` and the other headers, for a driver that is built against this package.

    RuntimeError if the package was built in place: the headers are then in the repository.
    """
    folder = Path(__file__).resolve().parent / "include"
    if not folder.is_dir():
        raise RuntimeError(f"{folder} does not exist: the package was built in place, and has no headers")
    return folder


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ALWAYS:
        return getattr(importlib.import_module(_ALWAYS[name], __name__), name)
    if _error is not None:
        raise AttributeError(f"{__name__}.{name}: the package could not be loaded: {_text(_error)}") from _error
    from . import _runtime

    if name not in _runtime.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_runtime, name)


# With torch's autoload this import comes back to `autoload` above; the call below is then the second.
import torch  # noqa: E402, F401

autoload()
