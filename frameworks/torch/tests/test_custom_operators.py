"""Operators of a user: counted, captured, and served by a function that a C host has registered."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch_outrigger
from support import same
from torch_outrigger import graphs


class Call(ctypes.Structure):
    """otr_operator_call_t."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("input_count", ctypes.c_uint32),
        ("output_count", ctypes.c_uint32),
        ("scalar_count", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


Function = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(Call)
)


class Registration(ctypes.Structure):
    """otr_operator_registration_t."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("owner", ctypes.c_char_p),
        ("function", Function),
        ("user", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
        ("device", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


ALL_DEVICES = 0xFFFFFFFF


@torch.library.custom_op("outrigger_tests::square", mutates_args=(), device_types="cpu")
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@square.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.fixture(scope="module")
def library():
    """liboutrigger.so, as this process has it."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "liboutrigger.so" in line)
    library = ctypes.CDLL(path)
    for name in ["register", "withdraw", "find", "call"]:
        getattr(library, f"otr_operator_{name}").restype = ctypes.c_void_p
    return library


@pytest.fixture
def registered(library):
    """The operator is served by the operator `mul` of the device; a list with a number for each call."""
    mul, calls = ctypes.c_uint32(), []
    assert library.otr_operator_find(b"mul", ctypes.byref(mul)) is None

    @Function
    def serve(user, stream, operator, call):
        calls.append(operator)
        inputs = ctypes.string_at(call[0].inputs, TENSOR) * 2
        product = Call.from_buffer_copy(call[0])
        twice = ctypes.create_string_buffer(inputs, len(inputs))
        product.inputs, product.input_count = ctypes.addressof(twice), 2
        product.next, product.flags = None, 0  # any kernel may serve it
        return library.otr_operator_call(ctypes.c_uint64(stream), mul, ctypes.byref(product))

    params = Registration(
        ctypes.sizeof(Registration), None, b"outrigger_tests::square", b"the tests", serve, None, None, ALL_DEVICES, 0
    )
    number = ctypes.c_uint64()
    assert library.otr_operator_register(ctypes.byref(params), ctypes.byref(number)) is None
    yield calls
    assert library.otr_operator_withdraw(number) is None


# sizeof(otr_tensor_t): an address, a dtype, a rank, sizes and strides.
TENSOR = 32


def places():
    rows = torch_outrigger.operator_report()
    return {row["operator"]: row["place"] for row in rows}


def test_a_kernel_for_the_cpu_is_counted_as_the_frameworks(device):
    there = torch.arange(4.0, device=device)
    torch_outrigger.reset_fallback_report()
    same(square(there), torch.arange(4.0) ** 2)
    assert places()["outrigger_tests::square"] == "framework"


def test_a_registered_function_serves_it_on_the_device(device, registered):
    there = torch.arange(4.0, device=device)
    torch_outrigger.reset_fallback_report()
    same(square(there), torch.arange(4.0) ** 2)
    assert len(registered) == 1
    assert places()["outrigger_tests::square"] in ("device", "host_kernel")


def test_a_registered_function_is_captured(device, module, registered):
    there = torch.arange(4.0, device=device)
    square(there)
    module.synchronize(device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        result = square(there)
    calls = len(registered)
    there.fill_(5)
    graph.replay()
    same(result, torch.full((4,), 25.0))
    assert len(registered) == calls, "a replay does not call the function again"
