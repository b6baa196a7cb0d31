"""A product in Inductor's graph, and the kernel that it becomes with the loops that are fused behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V, ops
from torch.utils._ordered_set import OrderedSet

from . import limits, product
from .kernel import Kernel, Signature
from .types import REGISTER, computed


class ProductBuffer(ir.TemplateBuffer):
    """The result of a product of two matrices, of batches of them, or of a convolution: row by row."""

    def __init__(self, layout: ir.FixedLayout, inputs: Sequence[Any], kernel: product.Kernel, numbers: Sequence[Any]) -> None:
        super().__init__(layout, inputs, lambda node, hint_override=None: (ProductKernel(node), None))
        self.product = kernel
        self.numbers = [sympy.sympify(one) for one in numbers]
        self.row = self.numbers[product.NUMBERS.index("n")]


class ProductKernel(Kernel):
    """The sums are a variable of the loops behind them. One that nothing else reads is never stored."""

    def __init__(self, node: ProductBuffer) -> None:
        numel = sympy_product(node.get_size())
        one = sympy.S.One
        super().__init__({"x": numel, "r0_": one}, features=SIMDKernelFeatures([], numel, one))
        self.node = node
        # Loops in front of a product are kernels of their own.
        self.prologue_fused_inputs: OrderedSet[str] = OrderedSet()
        self.column = "(otr_column + otr_j)"
        self.position = f"otr_row * args.n + {self.column}"

    def codegen_template_body(
        self, scheduling: Any, template_node: Any, epilogue_nodes: Any, prologue_nodes: Any, *rest: Any
    ) -> str:
        node = self.node
        dtype = computed(node.product.dtype)
        with self:
            matrices = [self.args.input(one.get_name()) for one in node.inputs]
            sums = self.cse.newvar(dtype=dtype)
            index, _ = self.split_and_set_ranges((node.get_size(), ()))
            ops.store(node.get_name(), node.get_layout().make_indexer()(index), sums)
            for one in epilogue_nodes:
                one.codegen(self.split_and_set_ranges(one.get_ranges()))
            self.codegen_body()
        with V.set_kernel_handler(self):
            return self._text(matrices, f"const {REGISTER[dtype]} {sums} = otr_sums[otr_j];")

    def _text(self, matrices: list[str], sums: str) -> str:
        body = "\n".join(one.getvalue() for _, _, one in self.sections)
        root, end = self.range_trees[0], IndentedBuffer()
        parameters = self.parameters()
        limits.check("a product", sum(p.kind == "a" for p in parameters), V.graph.get_current_device_or_throw())
        end.writelines(self.declared(parameters, "args"))
        end.writeline("OTR_PRODUCTS(RN) {")
        with end.indent():
            end.writeline(sums)
            self._root_index(end, root, body)
            end.writelines(self._indices(body, False, self.node.row))
            end.splice(body)
        end.writeline("}")
        addresses = [f"{p.type} {p.name}" for p in parameters if p.kind == "a"] + self.word_of_checks()
        numbers = [p.name for p in parameters if p.kind != "a"]
        return self.node.product.text("KERNEL_NAME", addresses, numbers, matrices, end.getvalue())

    def signature(self) -> Signature:
        parameters = self.parameters()
        kinds = "".join(p.kind for p in parameters) + "i" * len(self.node.numbers) + "c" * self.has_checks
        pointers = [p.type for p in parameters if p.kind == "a"]
        return Signature(kinds, f"({len(parameters)},)", str(self.node.product.work), True, pointers)

    def further_arguments(self) -> list[Any]:
        return self.node.numbers

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        super().call_kernel(name, node, deallocate_ws)
        if inductor_config.nan_asserts:
            self.codegen_nan_check()
