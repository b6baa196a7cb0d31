"""Functions and modules whose forward and backward passes are graphs.

Only the tensors of a function go in and out. It must never capture other effects of the function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ._graph import Graph, graph, graph_pool_handle

Function = Callable[..., Any]


@dataclass
class _Passes:
    """The two graphs of one function, and the tensors through which they are fed and read, which nobody else has."""

    forward: Graph
    backward: Graph | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    structure: pytree.TreeSpec
    output_grads: tuple[Tensor | None, ...] = ()
    input_grads: tuple[Tensor | None, ...] = ()
    calls: int = 0
    """Replays of the forward graph."""


class _Replayed(torch.autograd.Function):
    """One call: copies the inputs in and replays the forward graph; the backward pass does the same for gradients."""

    @staticmethod
    def forward(ctx: Any, passes: _Passes, copied: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        for static, given in zip(passes.inputs[:copied], inputs[:copied], strict=True):
            static.copy_(given)
        passes.forward.replay()
        passes.calls += 1
        ctx.passes, ctx.call = passes, passes.calls
        outputs = tuple(output.clone() for output in passes.outputs)
        ctx.mark_non_differentiable(
            *(new for new, old in zip(outputs, passes.outputs, strict=True) if not old.requires_grad)
        )
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        passes: _Passes = ctx.passes
        if ctx.call != passes.calls:
            raise RuntimeError(
                "a graphed callable was called again before the backward pass of an earlier call, and what that pass needs is "
                "overwritten: run backward before the next call, or make a graphed callable for each of the calls"
            )
        for static, grad in zip(passes.output_grads, grads, strict=True):
            if static is not None:
                static.copy_(grad)
        if passes.backward is not None:
            passes.backward.replay()
        return (None, None, *(None if grad is None else grad.clone() for grad in passes.input_grads))


def make_graphed_callables(
    callables: Function | tuple[Function, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
    capture_error_mode: str = "global",
) -> Any:
    """Captures the forward and the backward pass of functions or modules as two graphs each, for use in larger models.

    callables: one function or `nn.Module`, or several, in the order in which they will be called. A module
    is changed in place: its `forward` replays while its training mode is the one of the capture. In the other mode, and
    with keyword arguments, it runs without the graph, and a warning says so.
    sample_args: the arguments of one call (for several: a tuple of such), tensors only, with the shapes
    and `requires_grad` of later calls, whose tensors are copied into memory of the graphs.
    num_warmup_iters: the number of eager passes before the capture.
    allow_unused_input: inputs may have no gradient.
    pool: shares the memory of other graphs.

    Results and gradients are the caller's. The backward pass of a call has to run before the next call.
    """
    single = not isinstance(callables, tuple)
    functions: tuple[Function, ...] = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    if len(functions) != len(samples):
        raise ValueError(f"{len(functions)} callables need as many sample_args, got {len(samples)}")
    samples = [pytree.tree_map(_own, sample) for sample in samples]
    surfaces = [_surface(function, sample) for function, sample in zip(functions, samples, strict=True)]
    shared = pool or graph_pool_handle()
    stream = torch.Stream(torch.accelerator.current_device_index())

    torch.accelerator.synchronize()
    with stream:
        for function, sample, surface in zip(functions, samples, surfaces, strict=True):
            for _ in range(num_warmup_iters):
                outputs = tuple(pytree.tree_leaves(function(*sample)))
                _gradients(outputs, surface, tuple(map(torch.empty_like, outputs)), allow_unused_input)
                del outputs
    torch.accelerator.synchronize()

    # In the order in which they will run, as they share memory: forward passes, then backward from the end.
    passes: list[_Passes] = []
    for function, sample, surface in zip(functions, samples, surfaces, strict=True):
        forward = Graph()
        with graph(forward, shared, stream, capture_error_mode):
            result = function(*sample)
        leaves, structure = pytree.tree_flatten(result)
        passes.append(_Passes(forward, None, surface, tuple(leaves), structure))
    for each in reversed(passes):
        each.output_grads = tuple(torch.empty_like(o) if o.requires_grad else None for o in each.outputs)
        if any(grad is not None for grad in each.output_grads):
            each.backward = Graph()
            with graph(each.backward, shared, stream, capture_error_mode):
                found = _gradients(each.outputs, each.inputs, each.output_grads, allow_unused_input)
            by_input = iter(found)
            each.input_grads = tuple(next(by_input) if i.requires_grad else None for i in each.inputs)
        else:
            each.input_grads = tuple(None for _ in each.inputs)

    made = [_replace(function, each, sample) for function, each, sample in zip(functions, passes, samples, strict=True)]
    return made[0] if single else tuple(made)


def _own(sample: Any) -> Tensor:
    """A tensor of the graphs like one of the samples."""
    if not isinstance(sample, Tensor):
        raise TypeError(f"sample_args must be made of tensors only, got {type(sample).__name__}")
    return sample.detach().clone().requires_grad_(sample.requires_grad)


def _surface(function: Function, sample: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """All tensors on which a pass depends and for which it computes gradients: arguments, then parameters."""
    leaves = pytree.tree_leaves(sample)
    if not isinstance(function, nn.Module):
        return tuple(leaves)
    if function._forward_hooks or function._forward_pre_hooks or function._backward_hooks:
        raise RuntimeError("a module must have no hooks when its passes are captured; add them afterwards")
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise RuntimeError("buffers of a captured module cannot require a gradient")
    return (*leaves, *function.parameters())


def _gradients(
    outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...], grads: tuple[Tensor | None, ...], allow_unused: bool
) -> tuple[Tensor | None, ...]:
    """The gradients for inputs that require one, from the outputs that have one."""
    pairs = [(o, grad) for o, grad in zip(outputs, grads, strict=True) if o.requires_grad]
    wanted = tuple(i for i in inputs if i.requires_grad)
    if not pairs or not wanted:
        return tuple(None for _ in wanted)
    return torch.autograd.grad(
        [o for o, _ in pairs], wanted, [grad for _, grad in pairs], only_inputs=True, allow_unused=allow_unused
    )


def _replace(function: Function, passes: _Passes, sample: tuple[Any, ...]) -> Function:
    """The function that replays. A module gets it as its `forward`."""
    samples, expected = pytree.tree_flatten(tuple(sample))
    copied = len(samples)
    rest = passes.inputs[copied:]

    def replay(*arguments: Any) -> Any:
        leaves, structure = pytree.tree_flatten(arguments)
        if len(leaves) != copied:
            raise TypeError(f"captured with {copied} tensors, called with {len(leaves)}")
        if structure != expected:
            raise TypeError(f"captured with arguments {expected}, called with {structure}")
        for number, (static, given) in enumerate(zip(passes.inputs, leaves, strict=False)):
            if given.shape != static.shape or given.dtype != static.dtype:
                raise ValueError(
                    f"tensor {number} was captured as {static.dtype} {tuple(static.shape)}, "
                    f"called with {given.dtype} {tuple(given.shape)}"
                )
            if given.requires_grad and not static.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"tensor {number} was captured without requires_grad, and would get no gradient: capture with a sample "
                    "that has it, or call with its detach()"
                )
        return pytree.tree_unflatten(_Replayed.apply(passes, copied, *leaves, *rest), passes.structure)

    if not isinstance(function, nn.Module):
        return replay
    eager, training = function.forward, function.training
    told: set[str] = set()

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if function.training == training and not keywords:
            return replay(*arguments)
        if keywords:
            reason = f"the call has keyword arguments ({', '.join(keywords)}), and the graph was captured without"
        else:
            reason = f"the module's training is {function.training}, and was {training} at the capture"
        if reason not in told:
            told.add(reason)
            warnings.warn(
                f"{type(function).__name__} was given to make_graphed_callables, and runs without its graph: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return eager(*arguments, **keywords)

    function.forward = forward
    return function
