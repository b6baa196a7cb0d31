"""FlexAttention in compiled code: torch's dense formulas, which Inductor fuses like any other code.

Torch lowers the operator to templates of Triton or C++. For our devices it is taken apart before: products are the
device's, and score_mod, mask_mod and softmax become loops over the scores. Other devices are as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward, sdpa_dense, sdpa_dense_backward
from torch._subclasses.functional_tensor import FunctionalTensorMode

from .._lifetime import is_served


def _dense(operator: Any, formula: Callable[..., Any]) -> None:
    """Has an operator traced as a formula of its operands."""
    table = operator.python_key_table
    stock = table[FunctionalTensorMode]

    def trace(mode: Any, query: Any, *rest: Any) -> Any:
        if not is_served(query.device.type):
            return stock(mode, query, *rest)
        # The formula is traced as the program's own operators are.
        with mode:
            return formula(query, *rest)

    table[FunctionalTensorMode] = trace
    operator._dispatch_cache.clear()


def install() -> None:
    """Changes how torch traces the operator, once."""
    _dense(flex_attention, sdpa_dense)
    _dense(flex_attention_backward, sdpa_dense_backward)
