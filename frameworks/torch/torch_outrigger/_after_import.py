"""Does something when another module has been imported, or now if it has been.

So that what this package adds to Dynamo or to a library costs nothing, and imports nothing, in a program without it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]

_waiting: dict[str, list[Action]] = {}


class _Looking(threading.local):
    """The names that a thread looks for through the finder."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_looking = _Looking()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it puts the actions behind the execution of the modules that others find."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in _waiting or fullname in _looking.names:
            return None
        _looking.names.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            _looking.names.remove(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Not before: who looks for a module does not always import it.
            for action in _waiting.pop(fullname, []):
                action(module)

        spec.loader.exec_module = exec_module
        return spec


class _Watched(importlib.machinery.ModuleSpec):
    """The spec of a module whose code runs already: the import system sets `_initializing` to False behind that code."""

    @property
    def _initializing(self) -> bool:
        return vars(self)["_initializing"]

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        module = sys.modules.get(self.name)
        # A module whose code has failed is not there any more, and its actions wait for another attempt.
        if not value and module is not None:
            for action in _waiting.pop(self.name, []):
                action(module)


def after_import(name: str, action: Action) -> None:
    """Calls `action` with the module of this name, once: now, or right after its code has run for the first time."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        action(module)
        return
    if module is not None:
        # A library that imports torch has brought us here.
        spec.__class__ = _Watched
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(action)


def replace(module: ModuleType, name: str, make: Callable[[Any], Any]) -> None:
    """Puts `make(original)` in the place of a module's function, also where modules have imported it by its name.

    A module without this function is left as it is: a later version of a library may do without.
    """
    original = getattr(module, name, None)
    if original is None:
        return
    made = make(original)
    for each in list(sys.modules.values()):
        if getattr(each, "__dict__", {}).get(name) is original:
            setattr(each, name, made)


def replace_in(kind: type, name: str, make: Callable[[Any], Any]) -> None:
    """Puts `make(original)` in the place of what a class defines. A class that does not define it is left as it is."""
    original = vars(kind).get(name)
    if original is not None:
        setattr(kind, name, make(original))
