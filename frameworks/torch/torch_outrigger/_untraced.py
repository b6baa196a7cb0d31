"""Functions that Dynamo cannot trace: a graph ends in front of them, and the next one begins behind.

It must never import Dynamo: programs without it go straight to the function.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P, R = ParamSpec("P"), TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which Dynamo calls instead of tracing it."""
    disabled = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call
