"""Compiled operators on disk: what the C++ side asks for an operator that has no kernel on the device.

A recipe says what one operator does for a class of calls: which outputs it allocates, and which kernels it launches with
what. It lies as JSON in the library's store, as the kernels do, so that another process only loads it. This module must
never import Inductor: `inductor.eager` compiles, and is imported where the mode allows to.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from typing import Any

import torch

from . import _C

CHOICE = "OUTRIGGER_EAGER_COMPILE"
MODES = {"off": 0, "cached": 1, "on": 2}

LATER = False
"""The answer of `find` where nothing can be compiled now."""

_log = logging.getLogger("torch_outrigger.eager")
_lock = threading.Lock()
_loaded: dict[tuple[bytes, int], dict[str, Any]] = {}


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
        place = _place(name, overload, key, device)
        with _lock:
            stored = _read(place)
            has_more = _take(place, stored["recipes"], device, may_compile)
        if has_more or stored["refused"] or not may_compile:
            return _known(place, device)
        from .inductor import eager

        made = eager.compile_call(name, overload, args, kwargs, device, is_flat)
        if made is eager.BUSY:
            return LATER
        with _lock:
            stored = _read(place)
            if made is None:
                stored["refused"] = True
            elif made not in stored["recipes"]:
                stored["recipes"].append(made)
            _take(place, stored["recipes"], device, may_compile)
            _C.store_put(place, json.dumps({"operator": f"{name}.{overload}", **stored}).encode())
        return _known(place, device)
    except Exception:
        # The CPU computes the operator, and says what is wrong with a call.
        _log.debug("%s.%s is not compiled", name, overload, exc_info=True)
        return None


def _take(place: bytes, recipes: list[Any], device: torch.device, may_compile: bool) -> bool:
    """Loads what is not known. False if all of it is."""
    # A class without a recipe leaves nothing behind: an operator may have one for each number.
    known = _loaded.get((place, device.index), {})
    before = len(known)
    for one in recipes:
        text = json.dumps(one)
        if text not in known:
            known[text] = _load(one, device, may_compile)
            _loaded[place, device.index] = known
    return len(known) > before


def _known(place: bytes, device: torch.device) -> list[Any] | None:
    """The loaded recipes of a class; None if there are none."""
    return list(_loaded.get((place, device.index), {}).values()) or None


def _place(name: str, overload: str, key: bytes, device: torch.device) -> bytes:
    """The key of a class in the store."""
    from .inductor import program

    about = program.device_version(device.index)
    text = "\0".join(["torch_outrigger recipes", torch.__version__, program.code_version(), about, name, overload])
    return text.encode() + b"\0" + key


def _read(place: bytes) -> dict[str, Any]:
    """The stored recipes of a class; empty if there are none."""
    value = _C.store_get(place)
    with contextlib.suppress(ValueError):
        stored = json.loads(value or b"")
        if isinstance(stored, dict) and isinstance(stored.get("recipes"), list):
            return {"recipes": stored["recipes"], "refused": bool(stored.get("refused"))}
    return {"recipes": [], "refused": False}


def _load(recipe: dict[str, Any], device: torch.device, may_compile: bool) -> tuple[list[int], list[Any], list[torch.dtype]]:
    """A stored recipe with its kernels. An error if they are to be compiled, and must not."""
    from .inductor.program import Program

    program = Program(device.type, device.index)
    kernels = [
        program.kernel(name, kinds, _extent(items), _extent(reduced), by_row, pointers, text)
        for name, kinds, items, reduced, by_row, pointers, text in recipe["kernels"]
    ]
    program.begin(may_compile)
    for one in kernels:
        # The load finds what the kernel's compiler refuses, which a call of the program would find too late.
        one.load()
    return recipe["code"], kernels, [getattr(torch, one) for one in recipe["dtypes"]]


def _extent(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored
