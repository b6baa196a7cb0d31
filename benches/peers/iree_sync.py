"""IREE's device `local-sync`: a compiled function of so many dispatches, which IREE keeps as one reusable
command buffer. Dispatches are written out, since the compiler would fuse the operators that they come from.

Calls go through IREE's Python binding; what that costs is in the time of the chain of one node, and drops out
of the time per node.
"""

from __future__ import annotations

import numpy as np
from iree import runtime
from iree.compiler import compile_str, version
from wire import serve, timed

CHAIN = 1000  # as in benches/native/work.h

EXECUTABLE = """
flow.executable private @work {
  flow.executable.export public @add_one workgroups() -> (index, index, index) {
    %one = arith.constant 1 : index
    flow.return %one, %one, %one : index, index, index
  }
  builtin.module {
    func.func @add_one(%value: !iree_tensor_ext.dispatch.tensor<readwrite:tensor<1xf32>>) {
      %empty = tensor.empty() : tensor<1xf32>
      %old = iree_tensor_ext.dispatch.tensor.load %value, offsets = [0], sizes = [1], strides = [1]
        : !iree_tensor_ext.dispatch.tensor<readwrite:tensor<1xf32>> -> tensor<1xf32>
      %new = linalg.generic {
          indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
        } ins(%old : tensor<1xf32>) outs(%empty : tensor<1xf32>) {
        ^bb0(%in: f32, %out: f32):
          %one = arith.constant 1.0 : f32
          %sum = arith.addf %in, %one : f32
          linalg.yield %sum : f32
        } -> tensor<1xf32>
      iree_tensor_ext.dispatch.tensor.store %new, %value, offsets = [0], sizes = [1], strides = [1]
        : tensor<1xf32> -> !iree_tensor_ext.dispatch.tensor<readwrite:tensor<1xf32>>
      return
    }
  }
}
"""


def chain_source(nodes: int) -> str:
    """A function that adds 1 to its argument by `nodes` dispatches."""
    dispatches = "\n".join(
        f"  %v{i + 1} = flow.dispatch @work::@add_one(%v{i}) : (tensor<1xf32>) -> %v{i}" for i in range(nodes)
    )
    return (
        f"{EXECUTABLE}func.func @main(%v0: tensor<1xf32>) -> tensor<1xf32> {{\n"
        f"{dispatches}\n  return %v{nodes} : tensor<1xf32>\n}}\n"
    )


def main() -> None:
    """Compiles both chains, and answers the harness."""
    config = runtime.Config("local-sync")

    def zero() -> runtime.DeviceArray:
        return runtime.asdevicearray(config.device, np.zeros(1, np.float32))

    def load(nodes: int) -> runtime.FunctionInvoker:
        module = compile_str(
            chain_source(nodes), target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"]
        )
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, module))
        function = context.modules.module["main"]
        result = function(zero()).to_host()[0]
        if result != nodes:
            raise RuntimeError(f"the nodes ran {result} times, not {nodes}")
        return function

    functions = {"chain_1": load(1), "chain_1000": load(CHAIN)}

    def chain(name: str, repetitions: int) -> float:
        function, argument = functions[name], zero()

        def block(count: int) -> None:
            for _ in range(count):
                function(argument)

        return timed(block)(repetitions)

    serve(
        f"IREE {version.VERSION}",
        {"chain_1": lambda n: chain("chain_1", n), "chain_1000": lambda n: chain("chain_1000", n)},
    )


if __name__ == "__main__":
    main()
