"""A fused loop of Inductor as a kernel of the dialect.

There are two ways to share the work. By item: an item of a group computes an output, and folds what belongs to it
alone. By row: a group folds a row together. A kernel is a list of sections: a loop over what is folded, or what stands
between two such loops. What lives from section to section is a slot where items are lanes of a thread.

The text says nothing of sizes of groups or numbers of items: the launch does. It must never name a device or a language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.common import CSE, CSEVariable, DeferredLine, IndentedBuffer, SizeArg, TensorArg
from torch._inductor.codegen.simd import SIMDKernel
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.ops_handler import StoreMode
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from . import limits, types
from .overrides import Overrides
from .printer import text_of
from .program import group_size
from .types import MEMORY, REGISTER, computed, literal

LEAST_ROW, LEAST_SERIAL_ROW = 64, 8
"""A group folds rows that are at least so long, where neighbours in memory are in the same row: a group of many items,
and one that a thread runs."""

LEAST_APART = 8
"""Elements between neighbours in a row of an operand that is transposed, at least."""

TILE_COLUMNS, CROWDED_COLUMNS = 64, 8
CACHE_WAY = 4096
"""Bytes from line to line of one set, in caches of the first level."""

MOST_LANES = 64
"""Lanes of a thread that runs a group: what it keeps for each of them fits into its registers."""


class TypedCSE(CSE):
    """Declares each variable with its type, since the dialect has no `auto`."""

    def generate(self, buffer: IndentedBuffer, expr: Any, *, dtype: Any = None, assignment: bool = True, **rest: Any):
        if isinstance(dtype, (list, tuple)):
            dtype = dtype[0]
        if assignment and not isinstance(expr, CSEVariable) and not hasattr(expr, "value"):
            if dtype is None:
                raise AssertionError(f"no dtype for {expr}")
            self.prefix = f"const {REGISTER[dtype]} "
        var = super().generate(buffer, expr, dtype=dtype, assignment=assignment, **rest)
        V.kernel.note(var)
        return var


@dataclass
class Section:
    """A part of a kernel: the body of a loop over what is folded, or what stands between two such loops."""

    loops: bool
    before: list[str] = field(default_factory=list)
    """Declarations in front of the loop."""
    body: str = ""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    kind: str
    """a(ddress), i(nteger), or w(ide): a floating-point number."""
    type: str
    call: str
    """The argument, as text of Python."""


@dataclass(frozen=True)
class Signature:
    """The call of a kernel, as texts of Python: the kinds of its arguments, and the number of items."""

    kinds: str
    """As csrc/program.h says."""
    items: str
    reduced: str
    """The elements of an item."""
    by_row: bool
    pointers: list[str]


class Kernel(SIMDKernel):
    """Pointwise: a lane for each element. Reductions: see above."""

    overrides = Overrides
    suffix = ";"
    sexpr = kexpr = staticmethod(text_of)

    def __init__(self, tiling: dict[str, sympy.Expr], features: SIMDKernelFeatures, **rest: Any) -> None:
        super().__init__(tiling, features=features, **rest)
        self.cse = TypedCSE("", ";")
        self.by_row = features.is_reduction() and self._folds_by_row()
        self.head = IndentedBuffer()
        self.accumulators: list[str] = []
        self.after = IndentedBuffer()
        self.sections: list[tuple[bool, list[str], IndentedBuffer]] = []
        self.outside: OrderedSet[CSEVariable] = OrderedSet()
        self.scratch: dict[str, str] = {}
        self.count = 0
        self.has_checks = False
        self.asserted: list[str] = []
        """The messages of asserts, for failures."""
        self.column = "OTR_HERE(otr_column)"
        self.position = "OTR_HERE(otr_at)"
        self.lanes = self._lanes() if self.by_row else MOST_LANES

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sizes that are real numbers."""
        return torch.float64

    def _folds_by_row(self) -> bool:
        """Whether a group folds a row together."""
        features = self.features
        length = V.graph.sizevars.optimization_hint(features.reduction_numel, fallback=1024)
        rows = V.graph.sizevars.optimization_hint(features.numel, fallback=1024)
        if rows == 1:
            return True
        index = V.graph.get_current_device_or_throw().index or 0
        if length < (LEAST_SERIAL_ROW if group_size(index) == 1 else LEAST_ROW):
            return False
        hint = features.get_reduction_hint()
        if hint in (ReductionHint.OUTER, ReductionHint.OUTER_TINY):
            return False
        return not self._neighbours_are_in_columns()

    def _neighbours_are_in_columns(self) -> bool:
        """Whether most of what is read lies next to what belongs to another row."""
        inner = outer = 0
        for node in self.features.reduction_nodes():
            ranges, reduced = node.get_ranges()
            for dep in node.read_writes.reads:
                index = getattr(dep, "index", None)
                if index is None or not hasattr(dep, "var_names"):
                    continue
                names = dep.var_names
                rows, columns = names[: len(ranges)], names[len(ranges) :]
                if len(names) != len(ranges) + len(reduced):
                    continue
                stride = V.graph.sizevars.stride_hints(index, names) if names else []
                by_row = [s for s in stride[: len(rows)] if s != 0]
                by_column = [s for s in stride[len(rows) :] if s != 0]
                if by_row and by_column:
                    inner += min(by_column) < min(by_row)
                    outer += min(by_column) > min(by_row)
        return outer > inner

    def _lanes(self) -> int:
        """The number of lanes that a thread has for a row."""
        length = self.features.reduction_numel
        if not length.is_number or int(length) >= MOST_LANES:
            return MOST_LANES
        return max(1 << (int(length) - 1).bit_length(), 2) if int(length) > 1 else 2

    # ---- variables ----

    def note(self, var: CSEVariable) -> None:
        """Remembers a variable that was made outside of a loop: it lives until the end of the kernel."""
        if not self.inside_reduction:
            self.outside.add(var)

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return REGISTER[dtype]

    def codegen_iteration_ranges_entry(self, entry: Any) -> None:
        """Nothing: indices are declared where a section is put together, which knows what is fixed in a span."""


    def within(self, var: CSEVariable, size: sympy.Expr, check: bool) -> sympy.Symbol:
        """The symbol of an index that was read from memory: one that is out of bounds is not used."""
        low, high = var.bounds.lower, var.bounds.upper
        if not check or (low >= 0 and isinstance(size, sympy.Number) and high < size):
            return sympy_index_symbol(str(var))
        tells = inductor_config.assert_indirect_indexing
        self.has_checks |= tells
        function = "otr_checked(otr_failed, " if tells else "otr_within("
        text = f"{function}{var}, {self.index_to_str(self.prepare_indexing(size))})"
        return sympy_index_symbol(str(self.cse.generate(self.compute, text, bounds=var.bounds, dtype=torch.int64)))

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        if not (lower or upper) or isinstance(expr, sympy.Symbol) or not inductor_config.assert_indirect_indexing:
            # The index of an element that is read or written has been checked by `within`.
            return
        index, most = (self.index_to_str(self.prepare_indexing(one)) for one in (expr, size))
        tests = [f"({index}) >= 0"] * bool(lower) + [f"({index}) < ({most})"] * bool(upper)
        self._check(" && ".join(tests), "OTR_OUT_OF_RANGE")

    def device_assert_async(self, cond: Any, msg: str) -> None:
        if msg and msg not in self.asserted:
            self.asserted.append(msg)
        self._check(str(cond), "OTR_EXECUTION")

    def _check(self, condition: str, code: str) -> None:
        """Lets the stream fail with this code behind the kernel, unless the condition holds."""
        self.has_checks = True
        self.compute.writeline(f"OTR_CHECK({condition}, {code});")

    # ---- memory ----

    def _is_number(self, name: str) -> bool:
        """Whether a buffer is a number on the CPU, which is passed by its value."""
        device = V.graph.get_buffer(name).get_device() if V.graph.try_get_buffer(name) is not None else None
        return device is not None and device.type == "cpu"

    def load(self, name: str, index: sympy.Expr) -> CSEVariable:
        pointer, dtype = self.args.input(name), V.graph.get_dtype(name)
        if self._is_number(name):
            return self.cse.generate(self.loads, f"({REGISTER[dtype]}){pointer}", dtype=computed(dtype))
        place = self.index_to_str(self.prepare_indexing(index))
        return self.cse.generate(self.loads, types.load(dtype, pointer, place), dtype=computed(dtype))

    def _stored(self, name: str, index: sympy.Expr, value: Any, mode: StoreMode = None) -> str:
        pointer, dtype = self.args.output(name), V.graph.get_dtype(name)
        place = self.index_to_str(self.prepare_indexing(index))
        if mode is None:
            return types.store(dtype, pointer, place, str(value))
        if mode == "atomic_add":
            memory = MEMORY[dtype]
            return f"otr_atomic_add_{memory}(&{pointer}[{place}], ({REGISTER[dtype]}){value});"
        raise NotImplementedError(f"a store of the mode {mode}")

    def store(self, name: str, index: sympy.Expr, value: CSEVariable, mode: StoreMode = None) -> None:
        text = self._stored(name, index, value, mode)
        self.stores.writeline(DeferredLine(name, self._once(text)))

    def _once(self, text: str) -> str:
        """A store of what all lanes of a row have: one of them does it."""
        return f"if (OTR_LANE == 0) {text}" if self.by_row and not self.inside_reduction else text

    def store_reduction(self, name: str, index: sympy.Expr, value: CSEVariable) -> None:
        before, self.inside_reduction = self.inside_reduction, False
        try:
            self.after.writeline(DeferredLine(name, self._once(self._stored(name, index, value))))
        finally:
            self.inside_reduction = before

    # ---- folds ----

    def _accumulator(self, register: str, start: str) -> str:
        name = f"acc{self.count}"
        self.count += 1
        self.accumulators += [f"OTR_SLOT({register}, {name}, {self.lanes});", f"OTR_START({name}, {start}, {self.lanes});"]
        return name

    def _result(self, text: str, dtype: torch.dtype) -> CSEVariable:
        var = self.cse.newvar(dtype=dtype)
        self.after.writeline(f"const {REGISTER[dtype]} {var} = {text};")
        self.outside.add(var)
        return var

    def _shared(self, register: str, name: str | None = None) -> str:
        """The memory in which lanes of a row fold."""
        name = name or f"scratch_{register}"
        self.scratch[name] = register
        return name

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        key = (src_dtype, reduction_type, value)
        if key not in self.cse.reduction_cache:
            self.cse.reduction_cache[key] = self._reduction(dtype, src_dtype, reduction_type, value)
        return self.cse.reduction_cache[key]

    def _reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: Any) -> Any:
        if kind in ("welford_reduce", "welford_combine"):
            return self._moments(computed(dtype), kind, value)
        if kind in ("argmax", "argmin"):
            return self._place(dtype, src_dtype, kind[3:], value)
        if kind == "online_softmax_reduce":
            raise NotImplementedError("the fold online_softmax_reduce")
        steps = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "fmax": "max", "fmin": "min", "any": "max"}
        steps["xor_sum"] = "xor"
        if kind not in steps:
            raise NotImplementedError(f"the fold {kind}")
        step = steps[kind]
        found = torch.bool if kind == "any" else computed(src_dtype if step in ("max", "min") else dtype)
        register = REGISTER[found]
        accumulator = self._accumulator(register, _neutral(step, found))
        given = f"({register})({value} != 0)" if kind == "any" else f"({register}){value}"
        function = {"sum": "add", "prod": "mul"}.get(step, step)
        self.compute.writeline(
            f"OTR_AT({accumulator}) = otr_{function}_{register}(OTR_AT({accumulator}), {given});"
        )
        if not self.by_row:
            return self._result(types.narrowed(found, f"OTR_AT({accumulator})"), found)
        folded = f"OTR_FOLDED({step}, {register}, {accumulator}, {self._shared(register)}, {self.lanes})"
        return self._result(types.narrowed(found, folded), found)

    def _place(self, dtype: torch.dtype, src_dtype: torch.dtype, which: str, value: Any) -> CSEVariable:
        is_next = not isinstance(value, tuple)
        value, place = (value, self.range_trees[-1].name) if is_next else value
        register = REGISTER[computed(src_dtype)]
        best = self._accumulator(register, literal(0, register))
        at = self._accumulator("i64", "-1")
        # A lane meets its places in their order, unless the place is a number of its own.
        test = f"next_{which}_{register}({value}, " if is_next else f"better_{which}_{register}({value}, {place}, "
        better = self.cse.newvar(dtype=torch.bool)
        self.compute.writelines([
            f"const i32 {better} = otr_{test}OTR_AT({best}), OTR_AT({at}));",
            f"OTR_AT({best}) = {better} ? {value} : OTR_AT({best});",
            f"OTR_AT({at}) = {better} ? {place} : OTR_AT({at});",
        ])  # fmt: skip
        if not self.by_row:
            return self._result(f"OTR_AT({at})", dtype)
        scratch, places = self._shared(register), self._shared("i64", "scratch_places")
        return self._result(f"OTR_PLACE({which}, {register}, {best}, {at}, {scratch}, {places}, {self.lanes})", dtype)

    def _moments(self, dtype: torch.dtype, kind: str, value: Any) -> tuple[CSEVariable, ...]:
        register = REGISTER[dtype]
        struct = f"otr_moments_{register}"
        name = f"acc{self.count}"
        self.count += 1
        zero = literal(0, register)
        self.accumulators += [f"OTR_SLOT({struct}, {name}, {self.lanes});"]
        self.accumulators += [f"const {struct} {name}_none = {{{zero}, {zero}, {zero}}};"]
        self.accumulators += [f"OTR_START({name}, {name}_none, {self.lanes});"]
        mine = f"OTR_AT({name})"
        if kind == "welford_reduce":
            apart = self.cse.newvar(dtype=dtype)
            self.compute.writelines([
                f"const {register} {apart} = {value} - {mine}.mean;",
                f"{mine}.weight += 1;",
                f"{mine}.mean += {apart} / {mine}.weight;",
                f"{mine}.m2 += {apart} * ({value} - {mine}.mean);",
            ])  # fmt: skip
        else:
            part = self.cse.newvar(dtype=dtype)
            mean, m2, weight = value
            self.compute.writelines([
                f"const {struct} {part} = {{{mean}, {m2}, {weight}}};",
                f"{mine} = otr_joined_{register}({mine}, {part});",
            ])  # fmt: skip
        if self.by_row:
            whole = f"{name}_whole"
            scratch = self._shared(struct)
            self.after.writeline(f"const {struct} {whole} = OTR_JOINED({register}, {name}, {scratch}, {self.lanes});")
            return tuple(self._result(f"{whole}.{part}", dtype) for part in ("mean", "m2", "weight"))
        return tuple(self._result(f"{mine}.{part}", dtype) for part in ("mean", "m2", "weight"))

    # ---- sections ----

    def codegen_body(self) -> None:
        parts = (self.loads, self.compute, self.stores)
        if not (any(parts) or self.after or self.accumulators):
            return
        root = self.range_trees[-1]
        loops = self.inside_reduction and self.features.is_reduction()
        body = IndentedBuffer()
        for part in parts:
            body.splice(part)
            part.clear()
        self.sections.append((loops, list(self.accumulators), body))
        self.accumulators.clear()
        if loops:
            if self.after:
                after = IndentedBuffer()
                after.splice(self.after)
                self.after.clear()
                self.sections.append((False, [], after))
            # Values that were computed for an element are not there for the next one.
            self.cse.invalidate(self.outside)
            root.cache_clear()

    def _indices(self, text: str, is_reduced: bool, length: sympy.Expr | None) -> list[str]:
        """Declarations of the indices that a text uses. Where rows have a length, they are in terms of row and column."""
        lines = []
        for entry in self.range_tree_nodes.values():
            if entry.is_reduction != is_reduced or not re.search(rf"\b{entry.name}\b", text):
                continue
            lines.append(f"const i64 {entry.name} = {self._index_of(entry, length)};")
        return lines

    def _index_of(self, entry: Any, length: sympy.Expr | None) -> str:
        root = entry.root
        if length is None:
            return self.kexpr(self.rename_indexing(entry.expr))
        size = V.graph.sizevars
        if entry.divisor == 1 and size.statically_known_equals(entry.length, length):
            return self.column
        if size.statically_known_multiple_of(entry.divisor, length):
            row = sympy.Symbol("otr_row", integer=True, nonnegative=True)
            quotient = size.simplify(sympy.simplify(entry.divisor / length))
            if size.statically_known_equals(entry.divisor * entry.length, root.numel):
                expr = row if quotient == 1 else FloorDiv(row, quotient)
            else:
                expr = ModularIndexing(row, quotient, entry.length)
            return self.kexpr(self.rename_indexing(expr))
        return self.kexpr(self.rename_indexing(entry.expr))

    def _length(self, root: Any) -> sympy.Expr:
        """The length of the rows in which a dimension is gone through: that of its innermost part."""
        inner = [e for e in self.range_tree_nodes.values() if e.root is root and e.divisor == 1]
        for entry in inner:
            if not V.graph.sizevars.statically_known_equals(entry.length, root.numel):
                return entry.length
        return root.numel

    def _numel(self, root: Any) -> str:
        return f"{root.prefix}numel"

    def _tile_columns(self) -> int:
        """The columns of a tile, where neighbours in a row are neighbours in memory for one operand, and those in a column for
        another; 0 elsewhere."""
        along, columns = False, 0
        for node in self.features.scheduler_nodes():
            for dep in (*node.read_writes.reads, *node.read_writes.writes):
                if getattr(dep, "var_names", ()):
                    *others, last = V.graph.sizevars.stride_hints(dep.index, dep.var_names)
                    along |= last == 1
                    if last >= LEAST_APART and 1 in others:
                        # Lines that are so far apart are in one set of a cache.
                        crowded = last * V.graph.get_dtype(dep.name).itemsize % CACHE_WAY == 0
                        columns = CROWDED_COLUMNS if crowded else columns or TILE_COLUMNS
        return columns if along else 0

    def _spans(self, root: Any, first: str, last: str, has_slots: bool) -> tuple[list[str], sympy.Expr]:
        """The lines that begin spans of a dimension, and the length of their rows."""
        length = self._length(root)
        lines = [f"OTR_SPANS({first}, {last}) {{"]
        if length is root.numel or V.graph.sizevars.statically_known_equals(length, root.numel):
            lines.append("  const i64 otr_column = otr_at;")
            most = f"{last} - otr_at"
        elif not self.features.is_reduction() and (columns := self._tile_columns()):
            text = self.kexpr(self.rename_indexing(length))
            lines = [
                f"const i64 otr_length = {text}, otr_rows = {self._numel(root)} / otr_length;",
                f"OTR_TILES({first}, {last}, otr_rows, otr_length, {columns}) {{",
                f"  const otr_tile_t otr_here = OTR_TILE(otr_rows, otr_length, {columns});",
                "  const i64 otr_row = otr_here.row, otr_column = otr_here.column;",
            ]
            most = f"otr_min_i64(otr_here.left, {last} - otr_at)"
            self.position = f"otr_row * otr_length + {self.column}"
        else:
            text = self.kexpr(self.rename_indexing(length))
            lines.append(f"  const i64 otr_row = otr_at / ({text}), otr_column = otr_at - otr_row * ({text});")
            most = f"otr_min_i64(({text}) - otr_column, {last} - otr_at)"
        if has_slots:
            # The compiler may know the count if rows have no rest.
            is_even = first == "0" and length.is_number and int(length) % self.lanes == 0
            most = str(self.lanes) if is_even else f"otr_min_i64({self.lanes}, {most})"
        lines.append(f"  OTR_COUNT({most});")
        lines.append("  (void)otr_column;")
        return lines, length

    def _with_slots(self, sections: list[Section]) -> list[str]:
        """Makes slots of the variables that live from section to section. Returns their declarations."""
        declared = []
        for var in self.outside:
            name = re.compile(rf"\b{re.escape(str(var))}\b")
            users = [one for one in sections if name.search(one.body)]
            if len(users) < 2:
                continue
            register = REGISTER[computed(var.dtype)]
            declared.append(f"OTR_SLOT({register}, {var}, {self.lanes});")
            for one in users:
                # The declaration becomes a store.
                one.body = re.sub(rf"\b(const )?{register} {re.escape(str(var))} = ", f"{var} = ", one.body)
                one.body = name.sub(f"OTR_AT({var})", one.body)
        return declared

    def _assembled(self, code: IndentedBuffer) -> None:
        """Puts the sections together."""
        sections = [Section(loops, before, body.getvalue()) for loops, before, body in self.sections]
        sections = [one for one in sections if one.body.strip() or one.before]
        x = self.range_trees[0] if not self.range_trees[0].is_reduction else None
        r = self.range_trees[-1] if self.features.is_reduction() else None
        for name, register in self.scratch.items():
            code.writeline(f"OTR_SCRATCH({register}, {name})")
        items = self._numel(x) if x is not None else "1"
        code.writeline("const i64 otr_first = (i64)OTR_GROUP_ID(0) * numbers.chunk;")
        code.writeline(f"const i64 otr_last = otr_min_i64(otr_first + numbers.chunk, {items});")
        if self.by_row:
            self._by_row(code, sections, x, r)
        else:
            self._by_item(code, sections, x, r)

    def _by_row(self, code: IndentedBuffer, sections: list[Section], x: Any, r: Any) -> None:
        everything = "\n".join(one.body for one in sections)
        # Lanes begin at one place and go on together, since they meet at barriers.
        code.writeline("for (i64 xindex = otr_first; xindex < otr_last; xindex++) {")
        with code.indent():
            if x is not None:
                code.writelines(self._indices(everything, False, None))
            for one in sections:
                code.writelines(one.before)
                if not one.loops:
                    code.splice(one.body)
                    continue
                lines, length = self._spans(r, "0", self._numel(r), True)
                code.writelines(lines)
                with code.indent():
                    code.writeline("OTR_EACH {")
                    with code.indent():
                        self._root_index(code, r, one.body)
                        code.writelines(self._indices(one.body, True, length))
                        code.splice(one.body)
                    code.writeline("}")
                code.writeline("}")
        code.writeline("}")

    def _root_index(self, code: IndentedBuffer, root: Any, text: str) -> None:
        names = [e.name for e in self.range_tree_nodes.values() if e.root is root]
        if re.search(rf"\b{root.name}\b", text) or names:
            code.writeline(f"const i64 {root.name} = {self.position};")
            code.writeline(f"(void){root.name};")

    def _by_item(self, code: IndentedBuffer, sections: list[Section], x: Any, r: Any) -> None:
        declared = self._with_slots(sections)
        has_slots = bool(declared) or any(one.before for one in sections)
        lines, length = self._spans(x, "otr_first", "otr_last", has_slots)
        code.writelines(lines)
        with code.indent():
            code.writelines(declared)
            for one in sections:
                code.writelines(one.before)
                if one.loops:
                    code.writeline(f"for (i64 {r.name} = 0; {r.name} < {self._numel(r)}; {r.name}++) {{")
                    code.writelines(self._indices(one.body, True, None))
                code.writeline("OTR_EACH {")
                with code.indent():
                    self._root_index(code, x, one.body)
                    code.writelines(self._indices(one.body, False, length))
                    code.splice(one.body)
                code.writeline("}")
                if one.loops:
                    code.writeline("}")
        code.writeline("}")

    # ---- the whole ----

    def parameters(self) -> list[Parameter]:
        """The parameters of the kernel, addresses first."""
        names, calls, about, _ = self.args.python_argdefs()
        written = self._written()
        addresses, numbers = [], []
        for name, call, one in zip(names, calls, about, strict=True):
            if isinstance(one, TensorArg) and self._is_number(one.buffer):
                dtype = V.graph.get_dtype(one.buffer)
                kind = "w" if dtype.is_floating_point else "i"
                numbers.append(Parameter(name.name, kind, "", f"{call}.item()"))
            elif isinstance(one, TensorArg):
                # Memory that is only read is written by nobody meanwhile, so that the compiler may read it once.
                alone = name.name not in written
                memory = f"OTR_GLOBAL {'const ' if alone else ''}OTR_MEMORY({MEMORY[one.dtype]})*{' OTR_RESTRICT' * alone}"
                addresses.append(Parameter(name.name, "a", memory, str(call)))
            elif isinstance(one, SizeArg):
                kind = "w" if one.expr.is_integer is False else "i"
                numbers.append(Parameter(name.name, kind, "", V.graph.wrapper_code.codegen_python_sizevar(one.expr)))
            else:
                raise NotImplementedError(f"an argument of the type {type(one).__name__}")
        return addresses + numbers

    def _written(self) -> set[str]:
        """Parameters that the kernel writes to."""
        found = {str(one) for one in self.args.output_buffers.values()}
        return found | {one.inner_name for one in self.args.inplace_buffers.values() if hasattr(one, "inner_name")}

    def moving_roots(self) -> list[Any]:
        """The dimensions whose sizes are not known to the text."""
        used = [t for t in self.range_trees if not t.is_reduction or self.features.is_reduction()]
        return [t for t in used if not t.numel.is_number]

    def declared(self, parameters: list[Parameter], numbers: str) -> list[str]:
        """The numbers that the kernel is given, as variables."""
        of_kind = {"i": ("i64", "{}"), "w": ("OTR_WIDE", "OTR_OF_WORD({})")}
        given = [(p.name, *of_kind[p.kind]) for p in parameters if p.kind != "a"]
        return [f"const {kind} {name} = {form.format(f'{numbers}.{name}')};" for name, kind, form in given]

    def signature(self) -> Signature:
        parameters, roots = self.parameters(), self.moving_roots()

        def extent(tree: Any) -> str:
            if tree is None:
                return "1"
            if tree.numel.is_number:
                return str(tree.numel)
            return f"({len(parameters) + [one.prefix for one in roots].index(tree.prefix)},)"

        x = None if self.range_trees[0].is_reduction else self.range_trees[0]
        r = self.range_trees[-1] if self.features.is_reduction() else None
        kinds = "".join(one.kind for one in parameters) + "i" * len(roots) + "c" * self.has_checks
        pointers = [one.type for one in parameters if one.kind == "a"]
        return Signature(kinds, extent(x), extent(r), self.by_row, pointers)

    def word_of_checks(self) -> list[str]:
        """The declaration of the word that the launch gives to kernels with checks."""
        return ["OTR_GLOBAL i32* otr_failed"] if self.has_checks else []

    def further_arguments(self) -> list[sympy.Expr]:
        """The numbers of a launch behind the parameters."""
        return [tree.numel for tree in self.moving_roots()]

    def codegen_kernel(self, name: str = "KERNEL_NAME") -> str:
        self.codegen_body()
        body, code = IndentedBuffer(), IndentedBuffer()
        self._assembled(body)
        parameters = self.parameters()
        limits.check(name, sum(p.kind == "a" for p in parameters), V.graph.get_current_device_or_throw())
        roots = self.moving_roots()
        numbers = ["i64 chunk;"] + [f"i64 {p.name};" for p in parameters if p.kind != "a"]
        numbers += [f"i64 {self._numel(t)};" for t in roots]
        code.writeline(f"typedef struct {{ {' '.join(numbers)} }} {name}_numbers;")
        addresses = [f"{p.type} {p.name}" for p in parameters if p.kind == "a"] + self.word_of_checks()
        taken = ", ".join([*addresses, f"const {name}_numbers numbers"])
        code.writeline(f"OTR_KERNEL({name})(OTR_ITEM {taken}) {{")
        with code.indent():
            code.writelines(self.declared(parameters, "numbers"))
            for tree in self.range_trees:
                if tree.is_reduction and not self.features.is_reduction():
                    continue
                known = self.kexpr(tree.numel) if tree.numel.is_number else f"numbers.{self._numel(tree)}"
                code.writeline(f"const i64 {self._numel(tree)} = {known};")
            code.splice(body)
        code.writeline("}")
        return code.getvalue()

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        wrapper = V.graph.wrapper_code
        for size in self.args.sizevars:
            wrapper.ensure_size_computed(size)
        calls = [one.call for one in self.parameters()]
        calls += [wrapper.codegen_python_sizevar(one) for one in self.further_arguments()]
        device = V.graph.get_current_device_or_throw()
        wrapper.generate_kernel_call(name, calls, device=device, triton=False)

    def codegen_nan_check(self) -> None:
        _, calls, about, _ = self.args.python_argdefs()
        names = [str(call) for call, one in zip(calls, about, strict=True) if isinstance(one, TensorArg)]
        check = V.graph.wrapper_code.write_assert_finite()
        V.graph.wrapper_code.writeline(f"{check}({self.kernel_name!r}, {', '.join(names)})")


def _neutral(step: str, dtype: torch.dtype) -> str:
    """The value that a fold begins with."""
    register = REGISTER[dtype]
    if step in ("sum", "xor"):
        return literal(0, register)
    if step == "prod":
        return literal(1, register)
    if dtype.is_floating_point:
        return literal(float("-inf") if step == "max" else float("inf"), register)
    if dtype == torch.bool:
        return "0" if step == "max" else "1"
    bounds = torch.iinfo(dtype)
    return literal(bounds.min if step == "max" else bounds.max, register)
