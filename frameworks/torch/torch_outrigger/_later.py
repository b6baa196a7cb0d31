"""A module that is imported when one of its names is used for the first time.

`import torch` loads this package in every program. Those that never use a device do not pay for what only devices need.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

_ASKED_OF_ALL = ("__file__", "__path__", "__warningregistry__")
"""Names that tools ask every module for. A placeholder has none of them."""


class Later(ModuleType):
    """Stands for a module until `find` gives it. Who holds this one sees the module through it."""

    def __init__(self, name: str, find: Callable[[], ModuleType]) -> None:
        super().__init__(name)
        self.__dict__["_find"] = find

    def __getattr__(self, name: str) -> Any:
        if name in _ASKED_OF_ALL:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._find(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._find(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._find(), name)

    def __dir__(self) -> list[str]:
        return dir(self._find())
