"""Finds the compiled part, `torch_outrigger._C`, for the torch at hand.

A shim is good for one minor version of torch, and a package can carry several: `shims/2.15/_C.*.so`. This module must
never load one that was built for another torch: torch's C++ interface has no versions, and such a shim would crash.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

_FOLDER = Path(__file__).resolve().parent / "shims"
_BUILD = (
    "Build it for this Python environment, in the repository of Outrigger:\n"
    "    cargo build --release\n"
    "    python -m pip install --no-build-isolation --no-deps frameworks/torch\n"
    "It needs a C++20 compiler. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from trying."
)


def load() -> ModuleType:
    """Loads the shim as `torch_outrigger._C`. ImportError says which versions of torch are served, or what to do."""
    wanted = ".".join(torch.__version__.split(".")[:2])
    shims = _shims()
    if wanted not in shims:
        raise ImportError(_refusal(wanted, sorted(shims)))
    name = f"{__package__}._C"
    spec = importlib.util.spec_from_file_location(name, shims[wanted])
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ImportError(f"The compiled part does not load: {error}\n{_BUILD}") from error
    sys.modules[name] = module
    # The package's attribute, which `from . import _C` finds.
    setattr(sys.modules[__package__], "_C", module)
    return module


def _shims() -> dict[str, Path]:
    """The shims for this Python, by the version of torch."""
    found = {}
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for path in _FOLDER.glob(f"*/_C{suffix}"):
            found.setdefault(path.parent.name, path)
    return found


def _refusal(wanted: str, served: list[str]) -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    if not served:
        return f"The compiled part is not built: {_FOLDER} has none for Python {python}. {_BUILD}"
    choices = " or ".join(f"'torch=={version}.*'" for version in served)
    return (
        f"This torch_outrigger serves torch {' and '.join(served)}, and this is torch {torch.__version__}. "
        f"Install one that it serves: python -m pip install {choices}"
    )
