"""All cases of a sweep: operators, modules and optimizers of the databases of the installed torch.

Names of operators are torch's own; a module's begins with `module`, an optimizer's with `optimizer`.
"""

from __future__ import annotations

import torch

from .cases import Case
from .modules import modules
from .operators import operators
from .optimizers import optimizers


def cases(dtype: torch.dtype = torch.float32) -> dict[str, Case]:
    """All cases of a sweep of `dtype`, by name, in the order of the databases."""
    return {**operators(dtype), **modules(dtype), **optimizers(dtype)}
