"""Queues that torch and another library use at the same time, and what devices reach."""

from __future__ import annotations

import ctypes

import pytest
import torch
from support import same
from torch_outrigger import _C

pytestmark = pytest.mark.of_driver

CL_QUEUE_CONTEXT, CL_QUEUE_DEVICE = 0x1090, 0x1091


@pytest.fixture
def stream(device):
    """A stream whose queue the driver shares."""
    stream = torch.Stream(device)
    try:
        assert stream.native_handle
    except NotImplementedError as error:
        assert "shares its queues with no other library" in str(error)
        with pytest.raises(NotImplementedError, match="shares its queues with no other library"):
            torch.get_device_module(device).ExternalStream(1, device)
        pytest.skip("the driver shares no queues")
    return stream


def test_two_users_of_a_queue_need_no_event(device, module, stream):
    other = module.ExternalStream(stream.native_handle, device)
    assert isinstance(other, torch.Stream) and other.device == device and other != stream
    assert module.get_stream_from_external(stream.native_handle, device) == other, "one stream for a queue"
    x = torch.zeros(1 << 18, device=device)
    module.synchronize()
    for _ in range(10):
        with module.stream(stream):
            x.add_(1)
        assert stream.native_handle == other.native_handle
        with module.stream(other):
            x.mul_(2)
        assert other.native_handle
    stream.synchronize()
    same(x, torch.full((1 << 18,), 2046.0))


def test_a_queue_is_not_handed_out_before_what_is_in_it(device, module, stream):
    other = module.ExternalStream(stream.native_handle, device)
    x = torch.zeros(4, device=device)
    module.synchronize()
    with module.stream(stream):
        _C._sleep_on_stream(50, device.index)
        x.add_(3)
    assert stream.native_handle
    with module.stream(other):
        y = x * 2
    other.synchronize()
    same(y, torch.full((4,), 6.0))


def test_wrong_queues_are_refused(device, module, stream):
    for wrong in ("0x1", None, True, -1):
        with pytest.raises(TypeError, match="must be its handle as a number"):
            module.ExternalStream(wrong, device)
    with pytest.raises(RuntimeError):
        module.ExternalStream(0, device)
    with pytest.raises(RuntimeError, match="invalid device index 99"):
        module.ExternalStream(stream.native_handle, 99)


def test_a_queue_of_opencl_itself(device, module, stream):
    """The other library is OpenCL: it fills memory of torch in torch's queue, and torch works in a queue of OpenCL's."""
    if _C.device_info(device.index)["driver"] != "opencl":
        pytest.skip("the driver is another one")
    cl = ctypes.CDLL("libOpenCL.so.1")
    native, pattern = ctypes.c_void_p(stream.native_handle), ctypes.c_float(5)

    def fill(queue: ctypes.c_void_p, tensor: torch.Tensor) -> None:
        size = ctypes.c_size_t(tensor.nbytes)
        address = ctypes.c_void_p(tensor.data_ptr())
        code = cl.clEnqueueSVMMemFill(queue, address, ctypes.byref(pattern), ctypes.c_size_t(4), size, 0, None, None)
        assert code == 0

    x = torch.empty(4096, device=device)
    module.synchronize()
    with module.stream(stream):
        x.zero_()
        native = ctypes.c_void_p(stream.native_handle)
        fill(native, x)
        y = x + 1
    stream.synchronize()
    same(y, torch.full((4096,), 6.0))

    context, device_id, code = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    for what, place in ((CL_QUEUE_CONTEXT, context), (CL_QUEUE_DEVICE, device_id)):
        assert cl.clGetCommandQueueInfo(native, what, ctypes.c_size_t(8), ctypes.byref(place), None) == 0
    make = cl.clCreateCommandQueueWithProperties
    make.restype = ctypes.c_void_p
    theirs = ctypes.c_void_p(make(context, device_id, None, ctypes.byref(code)))
    assert code.value == 0
    foreign = module.ExternalStream(theirs.value, device)
    assert foreign.native_handle == theirs.value
    for _ in range(20):
        with module.stream(foreign):
            x.zero_()
        assert foreign.native_handle
        fill(theirs, x)
        with module.stream(foreign):
            z = x * 2
        foreign.synchronize()
        same(z, torch.full((4096,), 10.0))
    out_of_order = (ctypes.c_uint64 * 3)(0x1093, 1, 0)
    unordered = make(context, device_id, out_of_order, ctypes.byref(code))
    if unordered is not None:
        with pytest.raises(RuntimeError, match="runs out of order"):
            module.ExternalStream(unordered, device)


def test_who_reaches_whom(device, other_device, module):
    assert module.can_device_access_peer(device, device)
    reached = module.can_device_access_peer(device, other_device)
    assert reached == module.can_device_access_peer(other_device.index, device.index)
    if _C.device_info(device.index)["driver"] == "host":
        assert reached, "they are one driver, which copies between its devices"
    with pytest.raises(RuntimeError, match="invalid device index 99"):
        module.can_device_access_peer(device, 99)
