"""Device memory that others see: other libraries by DLPack, the CPU, and other processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import run_python, same
from torch.utils.dlpack import DLDeviceType

CPU = (int(DLDeviceType.kDLCPU), 0)


@pytest.fixture
def visible(host_visible):
    """Skips a test of what needs memory that the CPU sees."""
    if not host_visible:
        pytest.skip("the CPU does not see the memory")


# ---- DLPack ----------------------------------------------------------------------------------------


@pytest.mark.not_on_mtia("DLPack has no number for MTIA")
def test_dlpack_within_torch_shares_the_memory(device):
    x = torch.arange(6.0, device=device).view(2, 3).t()
    assert x.__dlpack_device__() == (DLDeviceType.kDLExtDev, device.index)
    other = torch.from_dlpack(x)
    assert other.device == device and other.stride() == x.stride()
    other += 1
    same(x, torch.arange(6.0).view(2, 3).t() + 1)
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()


@pytest.mark.not_on_mtia("DLPack has no number for MTIA")
def test_dlpack_hands_the_stream_over(device, hold):
    x = torch.zeros(4, device=device)
    consumer = torch.Stream(device)
    torch.accelerator.synchronize()
    with hold():
        x.add_(1)
        capsule = x.__dlpack__(stream=consumer.stream_id)
        with consumer:
            read = torch.from_dlpack(capsule) * 2
        assert not consumer.query(), "the consumer runs before the work that the tensor waits for"
    consumer.synchronize()
    same(read, torch.full((4,), 2.0))
    with pytest.raises(TypeError, match="must be a number or None"):
        x.__dlpack__(stream="0")


def test_numpy_sees_the_memory(device, device_type, visible):
    x = torch.zeros(2, 3, device=device).t()
    x.add_(1)
    # The numbers of MTIA are unknown to DLPack, so it is the CPU there without being asked.
    array = np.from_dlpack(x) if device_type == "mtia" else np.from_dlpack(x, device="cpu", copy=False)
    assert array.shape == (3, 2) and array.strides == (4, 12) and (array == 1).all()
    x.add_(1)
    torch.accelerator.synchronize()
    assert (array == 2).all()
    copied = np.from_dlpack(x, device="cpu", copy=True)
    x.zero_()
    torch.accelerator.synchronize()
    assert (copied == 2).all()


def test_numpy_gets_a_copy_of_memory_that_the_cpu_does_not_see(device, device_type, host_visible):
    if host_visible:
        pytest.skip("the CPU sees the memory")
    x = torch.arange(3, device=device)
    if device_type == "mtia":
        with pytest.raises(BufferError, match="the CPU does not see the memory of mtia:0"):
            x.__dlpack_device__()
        return
    assert (np.from_dlpack(x, device="cpu") == np.arange(3)).all()
    with pytest.raises(BufferError, match="copy=False forbids a copy"):
        np.from_dlpack(x, device="cpu", copy=False)


def test_dlpack_refuses_what_it_cannot_carry(device):
    x = torch.ones(2, device=device, requires_grad=True)
    with pytest.raises(BufferError, match="grad"):
        x.__dlpack__(dl_device=CPU, copy=False)
    with pytest.raises(BufferError, match=r"cannot be exported to the DLPack device \(2, 0\)"):
        x.detach().__dlpack__(dl_device=(2, 0))


def test_arrays_come_to_the_device(device):
    array = np.arange(4, dtype=np.float32)[::2]
    same(torch.from_dlpack(array).to(device), torch.tensor([0.0, 2.0]))
    if device.type != "mtia":
        same(torch.from_dlpack(array, device=device), torch.tensor([0.0, 2.0]))


# ---- the CPU ---------------------------------------------------------------------------------------


def test_host_view_is_the_memory(device, hold, visible):
    import torch_outrigger

    x = torch.zeros(4, 4, device=device)[1:, ::2]
    x.add_(3)
    view = torch_outrigger.host_view(x)
    assert view.device.type == "cpu" and view.stride() == x.stride() and view.eq(3).all()
    array = view.numpy()
    array[0, 1] = 7
    assert x[0, 1].item() == 7
    del x, view
    # The memory stays as long as someone sees it.
    torch.full((4, 4), 9.0, device=device)
    torch.accelerator.synchronize()
    assert array[0, 1] == 7


def test_host_view_refuses_what_the_cpu_cannot_see(device, host_visible):
    import torch_outrigger

    with pytest.raises(RuntimeError, match="expected a tensor of the device, got one of cpu"):
        torch_outrigger.host_view(torch.ones(1))
    if not host_visible:
        with pytest.raises(NotImplementedError, match=r"the CPU does not see the memory of .*:0: copy .* with .cpu()"):
            torch_outrigger.host_view(torch.ones(1, device=device))


# ---- other processes -------------------------------------------------------------------------------

# `spawn` imports the main module anew, so the program is a file.
PROGRAM = """
import gc, os, sys, torch, torch_outrigger
import torch.multiprocessing as mp
from multiprocessing.reduction import ForkingPickler
from torch_outrigger.integrations import sharing

DEVICE = "{device}"
COUNT = 40

def files():
    return len(os.listdir("/proc/self/fd"))

def work(first, to_child, to_parent):
    first.mul_(2)
    torch.accelerator.synchronize()
    to_parent.put("first")
    got = to_child.get()
    assert type(got) is torch.nn.Parameter and got.requires_grad and got.device == torch.device(DEVICE)
    got.detach()[1].record_stream(torch.Stream(DEVICE))
    with torch.no_grad():
        got[1] += 40
    torch.accelerator.synchronize()
    to_parent.put("second")
    assert to_child.get().numel() == 0
    # The same storage again, three times in two messages: it is here once.
    row, (whole, column) = to_child.get(), to_child.get()
    storages = {{each.untyped_storage()._cdata for each in (got, row, whole, column)}}
    assert len(storages) == 1, storages
    try:
        ForkingPickler.dumps(whole)
        raise AssertionError("memory of another process was sent on")
    except RuntimeError as error:
        assert "was received from another process: send tensor.clone()" in str(error), error
    whole[3] = 5
    assert row.tolist() == [5] * 3 and column.tolist() == [1, 1, 1, 5]
    torch.accelerator.synchronize()
    to_parent.put("views")
    del row, whole, column
    before = files()
    many = [to_child.get() for _ in range(COUNT)]
    assert files() == before, "files of each message are open"
    assert [each.item() for each in many] == list(range(COUNT))
    del many
    to_parent.put("many")
    assert to_child.get() == "go"
    with torch.no_grad():
        to_parent.put(got[1].clone().sum().item())
    del got
    gc.collect()
    to_parent.put("released")
    to_child.get()

def sent():
    torch_outrigger.ipc_collect()
    return len(sharing._sender.messages)

if __name__ == "__main__":
    context = mp.get_context("spawn")
    to_child, to_parent = context.Queue(), context.Queue()
    first = torch.ones(5, device=DEVICE)
    child = context.Process(target=work, args=(first, to_child, to_parent), daemon=True)
    child.start()
    assert to_parent.get(timeout=100) == "first"
    assert first.tolist() == [2] * 5
    # A part of a larger tensor, behind its start, while work for it is queued.
    whole = torch.zeros(4, 3, device=DEVICE)
    whole.add_(1)
    parameter = torch.nn.Parameter(whole[1:].t())
    to_child.put(parameter)
    assert to_parent.get(timeout=100) == "second"
    assert whole.tolist() == [[1, 1, 1], [1, 41, 1], [1, 41, 1], [1, 41, 1]]
    to_child.put(torch.ones(0, 2, device=DEVICE))
    to_child.put(whole[3])
    to_child.put((whole, whole[:, 0]))
    assert to_parent.get(timeout=100) == "views"
    assert whole[3].tolist() == [5] * 3
    # The messages with what the child had already are over.
    assert sent() == 2, sharing._sender.messages
    before = files()
    for number in range(COUNT):
        to_child.put(torch.full((1,), number, device=DEVICE))
    assert files() == before, "files of each message are open"
    assert to_parent.get(timeout=100) == "many"
    # The sender has no tensor any more; the child still has.
    assert sent() == 2, sharing._sender.messages
    del whole, parameter
    gc.collect()
    junk = [torch.full((4, 3), 9.0, device=DEVICE) for _ in range(20)]
    torch.accelerator.synchronize()
    to_child.put("go")
    assert to_parent.get(timeout=100) == 87
    assert to_parent.get(timeout=100) == "released"
    # An argument of a process is held to its end, whatever that is.
    assert sent() == 1, sharing._sender.messages
    assert child.is_alive()
    child.kill()
    child.join(100)
    assert sent() == 0 and not sharing._sender.storages, "memory of a process that was killed is kept"
    print("shared")
"""


def shares_memory(device) -> bool:
    """Whether the driver shares memory with other processes."""
    from torch_outrigger import _C

    try:
        _C.memory_export(torch.ones(1, device=device))
    except NotImplementedError:
        return False
    return True


def test_tensors_go_to_other_processes(device, tmp_path):
    if not shares_memory(device):
        pytest.skip("the driver shares no memory")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(device=device))
    finished = run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')", timeout=250)
    assert finished.returncode == 0 and "shared" in finished.stdout, finished.stdout + finished.stderr


def test_what_cannot_be_sent_is_refused(device):
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(2, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="send tensor.detach"):
        ForkingPickler.dumps(x * 2)
    with pytest.raises(RuntimeError, match="send a tensor"):
        ForkingPickler.dumps(x.untyped_storage())
    if not shares_memory(device):
        with pytest.raises(NotImplementedError, match=r"of .*:0 cannot be sent to another process: .* Send tensor.cpu\(\)"):
            ForkingPickler.dumps(x)


# ---- workers of a DataLoader -----------------------------------------------------------------------


class Probe(torch.utils.data.Dataset):
    """The device as a worker finds it: whether the runtime runs, and how many devices there are."""

    def __init__(self, device_type: str, uses_the_device: bool) -> None:
        self.device_type = device_type
        self.uses_the_device = uses_the_device

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.uses_the_device:
            return torch.ones(1, device=self.device_type)
        module = torch.get_device_module(self.device_type)
        return torch.tensor([float(index), module.is_initialized(), module.device_count()])


def test_forked_workers_leave_the_device_alone(device):
    held = torch.arange(3.0, device=device)
    options = {"num_workers": 2, "multiprocessing_context": "fork", "pin_memory": True, "timeout": 60}
    loader = torch.utils.data.DataLoader(Probe(device.type, False), batch_size=2, **options)
    batches = [batch for batch in loader]
    assert all(batch.is_pinned() for batch in batches)
    same(torch.cat([batch.to(device) for batch in batches]), torch.tensor([[float(i), 0, 0] for i in range(4)]))
    # One worker, since torch waits five seconds for each that has failed.
    broken = torch.utils.data.DataLoader(Probe(device.type, True), **options | {"num_workers": 1})
    with pytest.raises(RuntimeError, match="fork.*spawn"):
        list(broken)
    same(held, torch.arange(3.0))
