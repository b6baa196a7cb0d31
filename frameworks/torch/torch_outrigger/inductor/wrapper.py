"""The Python code around the kernels: one program for all of them, calls without a step between.

It must never synchronize, and never change the current device: kernels and tensors name theirs.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._inductor import config, ir
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.stream_constants import DEFAULT_STREAM_IDX
from torch._inductor.stream_utils import get_stream_name
from torch._inductor.virtualized import V

from .._lifetime import is_served

PROGRAM = "torch_outrigger.inductor.program"

where = threading.local()
"""`where.programs`: the module with another class Program that code of this thread gets, while it is set."""


class Written(BaseException):
    """Ends a compilation with the code that was written, where that is all that is wanted: no file is made of it and loaded.

    Inductor hands on what is no Exception."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


class Wrapper(PythonWrapperCodegen):
    """The body of `call`, as Python."""

    def __init__(self) -> None:
        self._programs: dict[torch.device, str] = {}
        self._has_streams = False
        super().__init__()

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            return Subgraph(subgraph_name, parent_wrapper, partition_signatures)
        return Wrapper()

    def program_of(self, device: torch.device) -> str:
        """The name of the program for a device, which holds all kernels of the module for it."""
        if device not in self._programs:
            name = f"outrigger_program{len(self._programs) or ''}"
            if not self._programs:
                programs = getattr(where, "programs", PROGRAM)
                self.header.writeline(f"from {programs} import Program as OutriggerProgram")
            self.header.writeline(f"{name} = OutriggerProgram('{device.type}', {device.index or 0})")
            self._programs[device] = name
        return self._programs[device]

    def define_outrigger_kernel(self, name: str, text: str, kernel: Any, comment: str) -> None:
        """Adds a kernel to the program of its device."""
        program = self.program_of(V.graph.get_current_device_or_throw())
        how = kernel.signature()
        pointers = [one.removesuffix(" OTR_RESTRICT") for one in how.pointers]
        self.header.splice(f"\n\n{comment}\n{name} = {program}.kernel({name!r}, {how.kinds!r}, {how.items}, {how.reduced}, ")
        label = f", {name + ': ' + '; '.join(kernel.asserted)!r}" if kernel.asserted else ""
        self.header.splice(f"    {how.by_row}, {pointers!r}, r'''\n{text}'''{label})\n")

    def generate(self, is_inference: bool) -> Any:
        # All kernels are in the header by now.
        for name in self._programs.values():
            self.header.writeline(f"{name}.begin()")
        if config.triton.cudagraphs and any(_namespace(one) == "streams" for one in V.graph.operations):
            # A region's graph would wait for events once, and not at each replay.
            V.graph.disable_cudagraphs_reason = "streams or events of the program"
        generated = super().generate(is_inference)
        if getattr(where, "programs", None) is not None:
            raise Written(generated[0].value)
        return generated

    def _generate_kernel_call_helper(
        self, kernel_name: str, call_args: Any, *, device: Any = None, triton: bool = True, **rest: Any
    ) -> None:
        if device is not None and is_served(device.type) and not triton:
            self.writeline(f"{kernel_name}({', '.join(str(one) for one in call_args)})")
            return
        super()._generate_kernel_call_helper(kernel_name, call_args, device=device, triton=triton, **rest)

    def make_allocation(
        self, name: Any, device: Any, dtype: Any, shape: Any, stride: Any, allocation_shape: Any = None, is_pinned: bool = False
    ) -> str:
        if not is_served(device.type):
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
        sizes = self.codegen_python_shape_tuple(shape)
        held = self.codegen_python_shape_tuple(shape if allocation_shape is None else allocation_shape)
        strides = self.codegen_python_shape_tuple(stride)
        text = f"{name} = {self._import('_C', 'program_empty')}({held}, {strides}, {dtype}, {self._device_name(device)})"
        return text if held == sizes else f"{text}.as_strided({sizes}, {strides})"

    def _device_name(self, device: torch.device) -> str:
        name = f"{device.type}_{device.index or 0}"
        line = f"{name} = torch.device('{device.type}', {device.index or 0})"
        if not self.header.contains(line):
            self.header.writeline(line)
        return name

    def _import(self, module: str, name: str) -> str:
        """Imports a function of ours. Returns its name in the code."""
        line = f"from torch_outrigger.{module} import {name} as outrigger_{name}"
        if not self.imports.contains(line):
            self.imports.writeline(line)
        return f"outrigger_{name}"

    def codegen_switch(self, node: Any) -> None:
        if isinstance(node.selector, ir.ShapeAsConstantBuffer):
            super().codegen_switch(node)
            return
        name, branches = node.get_name(), [self._part(one) for one in node.branches]
        given = ", ".join(one.codegen_reference() for one in (node.selector, *node.operands))
        self.writeline(f"{name}_given = [{given}]")
        # Buffers that nobody else needs can be freed within a branch.
        V.graph.scheduler.free_buffers()
        self.writeline(f"{name} = {self._import('inductor.branches', 'switch')}([{', '.join(branches)}], {name}_given)")

    def codegen_while_loop(self, while_loop: Any, stack_output: bool) -> None:
        if stack_output:
            super().codegen_while_loop(while_loop, stack_output)
            return
        parts = ", ".join(self._part(one) for one in (while_loop.cond_subgraph, while_loop.body_subgraph))
        carried, others = (
            ", ".join(one.codegen_reference() for one in values)
            for values in (while_loop.carried_inputs, while_loop.additional_inputs)
        )
        run = self._import("inductor.branches", "while_loop")
        self.writeline(f"{while_loop.get_name()} = {run}({parts}, [{carried}], [{others}])")

    def _part(self, subgraph: Any) -> str:
        """The name of the function that a graph within this one becomes."""
        self.codegen_subgraph_common(subgraph)
        self.pop_codegened_graph()
        return subgraph.graph.name

    def codegen_input_nan_asserts(self) -> None:
        tensors = [name for name, value in V.graph.graph_inputs.items() if hasattr(value, "get_device")]
        if tensors:
            self.prefix.writeline(f"{self.write_assert_finite()}('the graph', {', '.join(tensors)})")

    def generate_return(self, output_refs: list[str]) -> None:
        if not config.nan_asserts:
            super().generate_return(output_refs)
            return
        # Inductor's own code would wait for each result.
        self.wrapper_call.writeline(f"{self.write_assert_finite()}('the graph', {', '.join(output_refs)})")
        with config.patch(nan_asserts=False):
            super().generate_return(output_refs)

    def write_assert_finite(self) -> str:
        """Imports what `nan_asserts` calls. Returns its name in the code."""
        return self._import("inductor.checks", "assert_finite")

    # The current device stays as it is: nothing that is called here asks for it.

    def codegen_device_guard_enter(self, device_idx: int, num_streams: int = 1, *rest: Any, **more: Any) -> None:
        if num_streams > 1:
            super().codegen_device_guard_enter(device_idx, num_streams, *rest, **more)
            return
        self.last_seen_device_guard_index = device_idx

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        # Inductor defines the names of streams within the guard of a device.
        if not self._has_streams:
            self._has_streams = True
            get = "_get_stream_by_index"
            self.imports.writeline(f"from torch._dynamo.variables.streams import {get}")
            self.writeline(f"{get_stream_name(DEFAULT_STREAM_IDX)} = {V.graph.device_ops.current_stream()}")
            for one, index in V.graph.scheduler.stream_idx_to_user_obj_idx.items():
                if one != DEFAULT_STREAM_IDX:
                    self.writeline(f"{get_stream_name(one)} = {get}({index})")
        return super().codegen_cuda_stream_enter(stream_idx)

    def codegen_device_guard_exit(self, *args: Any, **rest: Any) -> None:
        if args and args[0] and args[0] > 1:
            super().codegen_device_guard_exit(*args, **rest)


def _namespace(operation: Any) -> str:
    """The library of an operator that is called as it is; an empty text for all else."""
    return getattr(getattr(operation, "op_overload", None), "namespace", "")


class Subgraph(SubgraphPythonWrapperCodegen, Wrapper):
    """A part of the module, whose kernels are in the program of the whole."""

    def __init__(self, subgraph_name: str, parent_wrapper: Any, partition_signatures: Any = None) -> None:
        SubgraphPythonWrapperCodegen.__init__(self, subgraph_name, parent_wrapper, partition_signatures)

    def define_outrigger_kernel(self, name: str, text: str, kernel: Any, comment: str) -> None:
        self.parent_wrapper.define_outrigger_kernel(name, text, kernel, comment)

    def generate(self, is_inference: bool) -> Any:
        return SubgraphPythonWrapperCodegen.generate(self, is_inference)

    def _device_name(self, device: torch.device) -> str:
        return self.parent_wrapper._device_name(device)

    def _import(self, module: str, name: str) -> str:
        return self.parent_wrapper._import(module, name)


class DeviceOps(DeviceOpOverrides):
    """The names of a device's functions in the wrapper."""

    def __init__(self, name: str) -> None:
        self._module = f"torch.{name}"

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"def {name}(index): return torch.accelerator.current_stream(index).stream_id"

    def set_device(self, device_idx: int | str) -> str:
        return f"{self._module}.set_device({device_idx})"

    def synchronize(self) -> str:
        return f"{self._module}.synchronize()"

    def device_guard(self, device_idx: int | str) -> str:
        return f"torch.accelerator.device_index({device_idx})"

    def current_stream(self) -> str:
        return f"{self._module}.current_stream()"
