"""Kernels of the user's own: compiled for the device, launched on tensors in stream order, captured."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch_outrigger import LocalMemory, _C, compile_kernel, graphs

SOURCE = """
__kernel void affine(__global float* x, float by, int plus) {
  x[get_global_id(0)] = x[get_global_id(0)] * by + plus;
}
__kernel void wide(__global long* x, long value, uchar small) { x[get_global_id(0)] = value + small; }
__kernel void sums(__global float* to, __global const float* from, __local float* group) {
  size_t own = get_local_id(0);
  group[own] = from[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  for (size_t i = 0; i < get_local_size(0); i++) sum += group[i];
  to[get_global_id(0)] = sum;
}
"""


@pytest.fixture
def opencl(device):
    """The device, whose driver compiles OpenCL C."""
    if not _C.device_info(device.index)["code_formats"] >> 5 & 1:
        pytest.skip("the driver compiles no OpenCL C")
    return device


def test_a_driver_without_a_compiler_says_so(device):
    if _C.device_info(device.index)["code_formats"] >> 5 & 1:
        assert compile_kernel(SOURCE, "affine", device=device).name == "affine"
        return
    with pytest.raises(NotImplementedError, match="compiles no language"):
        compile_kernel(SOURCE, "affine", device=device)
    with pytest.raises(NotImplementedError, match="does not compile opencl; it compiles: nothing"):
        compile_kernel(SOURCE, "affine", language="opencl", device=device)


def test_wrong_requests_name_what_is_right(device):
    with pytest.raises(ValueError, match="language 'basic' is unknown"):
        compile_kernel(SOURCE, "affine", language="basic", device=device)
    with pytest.raises(ValueError, match="not for cpu"):
        compile_kernel(SOURCE, "affine", device="cpu")


def test_arguments_of_every_kind(opencl):
    x = torch.arange(64, dtype=torch.float32, device=opencl)
    sums, out = compile_kernel(SOURCE, "sums", device=opencl), torch.zeros(64, device=opencl)
    compile_kernel(SOURCE, "affine", device=opencl)(4, 16, (x, 2.0, 3))
    sums((4, 1), (16,), (out, x, LocalMemory(64)))
    expected = torch.arange(64.0) * 2 + 3
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(out.cpu(), expected.view(4, 16).sum(1).repeat_interleave(16))
    wide = torch.zeros(8, dtype=torch.int64, device=opencl)
    compile_kernel(SOURCE, "wide", device=opencl)(8, 1, (wide, ctypes.c_int64(2**40), ctypes.c_uint8(7)))
    assert torch.equal(wide.cpu(), torch.full((8,), 2**40 + 7))


def test_work_before_and_behind_is_in_order(opencl):
    affine = compile_kernel(SOURCE, "affine", device=opencl)
    x = torch.ones(64, device=opencl)
    for _ in range(20):
        x.add_(1)
        affine(1, 64, (x, 0.5, 0))
    expected = torch.ones(64)
    for _ in range(20):
        expected = (expected + 1) * 0.5
    assert torch.equal((x * 1).cpu(), expected)


def test_a_captured_launch_is_replayed(opencl):
    affine = compile_kernel(SOURCE, "affine", device=opencl)
    x, y = torch.ones(64, device=opencl), torch.zeros(64, device=opencl)
    graph = graphs.Graph()
    with graphs.graph(graph):
        affine(1, 64, (x, 2.0, 1))
        y.copy_(x)
    for expected in (3.0, 7.0):
        graph.replay()
        assert torch.equal(y.cpu(), torch.full((64,), expected))


def test_compiled_code_runs_on_both_sides_of_a_launch(opencl):
    affine = compile_kernel(SOURCE, "affine", device=opencl)

    @torch.compile(backend="eager")
    def step(x):
        y = x * 3
        affine(1, 64, (y, 2.0, 1))
        return y + 1

    assert torch.equal(step(torch.ones(64, device=opencl)).cpu(), torch.full((64,), 8.0))


def test_errors_show_the_line_and_the_argument(opencl):
    with pytest.raises(RuntimeError, match="x.0. = not_declared;"):
        compile_kernel("__kernel void f(__global float* x) {\n  x[0] = not_declared;\n}\n", "f", device=opencl)
    with pytest.raises(Exception, match="no_such_kernel"):
        compile_kernel(SOURCE, "no_such_kernel", device=opencl)
    affine, x = compile_kernel(SOURCE, "affine", device=opencl), torch.ones(64, device=opencl)
    with pytest.raises(ValueError, match="argument 0 of affine is a tensor on cpu"):
        affine(1, 64, (torch.ones(64), 2.0, 1))
    with pytest.raises(TypeError, match="argument 2 of affine is a bool"):
        affine(1, 64, (x, 2.0, True))
    with pytest.raises(OverflowError, match="ctypes.c_int64"):
        affine(1, 64, (x, 2.0, 2**31))
    with pytest.raises(TypeError, match="is of type list"):
        affine(1, 64, (x, 2.0, [1]))
    with pytest.raises(ValueError, match="grid is 0"):
        affine(0, 64, (x, 2.0, 1))
    with pytest.raises(Exception, match="argument"):
        affine(1, 64, (x, 2.0))
    assert torch.equal(x.cpu(), torch.ones(64))
