"""Compiled operators on disk: what the C++ side asks for an operator that has no kernel on the device.

A recipe says what one operator does for a class of calls: which outputs it allocates, and which kernels it launches with
what. It lies as JSON beside the kernels that Inductor's backend has made, so that another process only loads it. This
module must never import Inductor: `inductor.eager` compiles, and is imported where the mode allows to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

CHOICE = "OUTRIGGER_EAGER_COMPILE"
MODES = {"off": 0, "cached": 1, "on": 2}

LATER = False
"""The answer of `find` where nothing can be compiled now."""

_log = logging.getLogger("torch_outrigger.eager")
_lock = threading.Lock()
_loaded: dict[tuple[str, int], dict[str, Any]] = {}


def mode_of_environment() -> int:
    """The number of the mode that OUTRIGGER_EAGER_COMPILE names. ValueError if it names none."""
    chosen = os.environ.get(CHOICE) or "cached"
    if chosen not in MODES:
        raise ValueError(f"{CHOICE}={chosen} is no mode of compiled operators; what is: off, cached (the default), on")
    return MODES[chosen]


def find(
    name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any], key: bytes, device: torch.device, is_flat: bool, may_compile: bool
) -> list[Any] | bool | None:
    """The recipes for a class of calls of `torch.ops.aten.NAME.OVERLOAD`. None: there are none; LATER: not now.

    `key` tells the class; the arguments are one call of it. `is_flat` says that tensors of many dimensions are shown as
    one of all their elements, since the operator does the same with each.
    """
    try:
        path = _path(name, overload, key, device)
        with _lock:
            stored = _read(path)
            known = _loaded.setdefault((str(path), device.index), {})
            has_more = _take(known, stored["recipes"], device, may_compile)
        if has_more or stored["refused"] or not may_compile:
            return list(known.values()) or None
        from .inductor import eager

        made = eager.compile_call(name, overload, args, kwargs, device, is_flat)
        if made is eager.BUSY:
            return LATER
        with _lock:
            stored = _read(path)
            if made is None:
                stored["refused"] = True
            else:
                stored["recipes"].append(made)
                _take(known, [made], device, may_compile)
            _write(path, {"operator": f"{name}.{overload}", **stored})
        return list(known.values()) or None
    except Exception:
        # The CPU computes the operator, and says what is wrong with a call.
        _log.debug("%s.%s is not compiled", name, overload, exc_info=True)
        return None


def _take(known: dict[str, Any], recipes: list[Any], device: torch.device, may_compile: bool) -> bool:
    """Loads what is not known. False if all of it is."""
    before = len(known)
    for one in recipes:
        text = json.dumps(one)
        if text not in known:
            known[text] = _load(one, device, may_compile)
    return len(known) > before


def folder() -> Path:
    """Where recipes lie: in Inductor's cache folder, beside the kernels that they launch."""
    from .inductor.program import cache_folder

    return cache_folder() / "outrigger" / "eager"


def _path(name: str, overload: str, key: bytes, device: torch.device) -> Path:
    from .inductor import program

    about = program.device_version(device.index)
    text = "\0".join([torch.__version__, program.code_version(), about, name, overload])
    digest = hashlib.sha256(text.encode() + b"\0" + key).hexdigest()
    return folder() / digest[:2] / f"{digest}.json"


def _read(path: Path) -> dict[str, Any]:
    """What is stored for a class; nothing if the file is not there, or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        stored = json.loads(path.read_text())
        if isinstance(stored, dict) and isinstance(stored.get("recipes"), list):
            return {"recipes": stored["recipes"], "refused": bool(stored.get("refused"))}
    return {"recipes": [], "refused": False}


def _write(path: Path, stored: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, suffix=".new")
    with os.fdopen(descriptor, "w") as file:
        json.dump(stored, file)
    # Renamed: another process never sees a part of it.
    os.replace(fresh, path)


def _load(recipe: dict[str, Any], device: torch.device, may_compile: bool) -> tuple[list[int], list[Any], list[torch.dtype]]:
    """A stored recipe with its kernels. LookupError if they are to be compiled, and must not."""
    from .inductor.program import Program

    program = Program(device.type, device.index)
    kernels = [
        program.kernel(name, kinds, _extent(items), _extent(reduced), by_row, pointers, text)
        for name, kinds, items, reduced, by_row, pointers, text in recipe["kernels"]
    ]
    program.begin(may_compile)
    for one in kernels:
        # What its compiler refuses is found here, not in a call of the program.
        one.load()
    return recipe["code"], kernels, [getattr(torch, one) for one in recipe["dtypes"]]


def _extent(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored
