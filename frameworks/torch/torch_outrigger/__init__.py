"""Outrigger devices in PyTorch.

`import torch` calls `autoload` through the entry point group `torch.backends`. It must never make
`import torch` fail: what goes wrong is kept, warned about once, and answered by `load_error`.
"""

from __future__ import annotations

import os
import warnings

__all__ = ["autoload", "load_error"]

_error: BaseException | None = None
_done = False


def load_error() -> BaseException | None:
    """What kept the devices from being served, or None if they are."""
    return _error


def _wanted() -> tuple[str, ...]:
    """The device types that OUTRIGGER_TORCH asks for."""
    choice = os.environ.get("OUTRIGGER_TORCH", "outrigger")
    if choice == "both":
        return ("outrigger", "mtia")
    if choice in ("outrigger", "mtia"):
        return (choice,)
    raise ValueError(f"OUTRIGGER_TORCH={choice!r}: outrigger, mtia or both is right")


def _reason(error: BaseException) -> str:
    """What to tell the user about a failed load, and what to do."""
    text = f"torch_outrigger could not serve its devices: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch_outrigger._C":
        return (
            "torch_outrigger is installed, but its compiled part is not built. Build it with "
            "`python -m pip install --no-build-isolation --no-deps -e frameworks/torch` in Outrigger's "
            "repository; that needs a C++20 compiler (Debian and Ubuntu: `apt install g++`) and "
            "liboutrigger.so (`cargo build --release`)."
        )
    if isinstance(error, ImportError):
        return text + ". Was it built against another torch, or was liboutrigger.so moved? Build it again."
    return text


def autoload() -> None:
    """Serves the devices. Called by torch at the end of its import; calling it again does nothing."""
    global _error, _done
    if _done:
        return
    _done = True
    try:
        from torch_outrigger import _setup

        _setup.serve(_wanted())
    except Exception as error:
        _error = error
        warnings.warn(_reason(error), RuntimeWarning, stacklevel=2)


if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
    autoload()
