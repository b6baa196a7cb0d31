"""Stream order is the truth: nothing overtakes a task that holds its stream, and nothing is lost.

The held task ends when the test says so, and the fixture fails if anything waited for it meanwhile. What
is asserted is order, never time.
"""

from __future__ import annotations

import pytest
import torch
from support import needs_graphs_of_torch, run_python, same

pytestmark = pytest.mark.of_driver

SIZE = 4096


def host_tensor(value: float, pinned: bool) -> torch.Tensor:
    """A CPU tensor, in pinned memory if asked."""
    return torch.full((SIZE,), value, dtype=torch.float32, pin_memory=pinned)


def test_operator_and_fill_wait_their_turn(device, module, hold):
    source = torch.ones(SIZE, device=device)
    target = torch.zeros(SIZE, device=device)
    module.synchronize(device)
    stream = module.current_stream(device)
    with hold():
        result = source + 1  # an operator
        target.fill_(3)  # a fill
        target += result
        assert not stream.query()
    stream.synchronize()
    assert stream.query()
    same(result, torch.full((SIZE,), 2.0))
    same(target, torch.full((SIZE,), 5.0))


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_host_to_device_waits_its_turn(device, module, hold, pinned):
    target = torch.zeros(SIZE, device=device)
    module.synchronize(device)
    stream = module.current_stream(device)
    with hold():
        source = host_tensor(7, pinned)
        target.copy_(source, non_blocking=True)
        if pinned:
            source.fill_(8)  # not read yet: the copy must see this, or it has overtaken the stream
        del source  # the copy keeps what it needs
        torch.full((SIZE,), -1.0)  # takes the freed memory, if it was freed
        assert not stream.query()
    stream.synchronize()
    same(target, torch.full((SIZE,), 8.0 if pinned else 7.0))


def test_pageable_copies_that_wait_have_memory_of_their_own(device, module, hold):
    targets = [torch.full((SIZE,), -1.0, device=device) for _ in range(3)]
    module.synchronize(device)
    stream = module.current_stream(device)
    with hold():
        for value, target in enumerate(targets):
            target.copy_(host_tensor(value, pinned=False), non_blocking=True)
        assert not stream.query()
    for value, target in enumerate(targets):
        same(target, torch.full((SIZE,), float(value)))


@pytest.mark.parametrize("kind", ["pageable", "pinned", "strided", "negative"])
def test_a_blocking_copy_has_arrived_for_every_stream(device, module, kind):
    from torch_outrigger import _C

    first, second = torch.Stream(device), torch.Stream(device)
    source = host_tensor(7, pinned=kind == "pinned").view(64, 64)
    target = torch.zeros(64, 64, device=device)
    if kind == "negative":
        source = torch._neg_view(source)  # its sign is a bit until the device has it
    into = target.t() if kind == "strided" else target
    module.synchronize(device)
    with first:
        _C._sleep_on_stream(300, device.index)
        into.copy_(source)
        assert first.query()
    with second:  # without an event
        result = target + 1
    second.synchronize()
    same(result, source + 1)


def test_a_small_blocking_copy_of_a_program_with_one_stream_does_not_wait(device):
    run = run_python(
        f"""
        import torch, torch_outrigger
        from torch_outrigger import _C
        x = torch.zeros(8, device="{device}")
        torch.accelerator.synchronize()
        _C._sleep_on_stream(300, {device.index})
        source = torch.ones(8)
        x.copy_(source)
        source.fill_(2)
        assert not torch.accelerator.current_stream().query()
        assert x.sum().item() == 8
        """
    )
    assert run.returncode == 0, run.stderr


def test_device_to_pinned_waits_its_turn(device, module, hold):
    source = torch.full((SIZE,), 4.0, device=device)
    target = host_tensor(-1, pinned=True)
    module.synchronize(device)
    stream = module.current_stream(device)
    with hold():
        source.mul_(2)
        target.copy_(source, non_blocking=True)
        assert target[0].item() == -1 and target[-1].item() == -1
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(target, torch.full((SIZE,), 8.0))


def test_parts_of_pinned_memory_are_copied_in_stream_order(device, module, hold):
    slab = host_tensor(1, pinned=True).view(64, -1)
    part = slab.size(1)
    target = torch.zeros(part, device=device)
    module.synchronize(device)
    stream = module.current_stream(device)
    with hold():
        target.copy_(slab[5], non_blocking=True)
        slab[9].copy_(target * 3, non_blocking=True)
        slab[5].fill_(2)  # the copy must see this
        assert slab[9].eq(1).all() and not stream.query()
    stream.synchronize()
    same(target, torch.full((part,), 2.0))
    assert slab[9].eq(6).all() and slab[8].eq(1).all() and slab[10].eq(1).all()


def test_device_to_device_waits_its_turn(device, module, hold):
    source = torch.zeros(SIZE, device=device)
    module.synchronize(device)
    with hold():
        source.fill_(6)
        duplicate = source.clone()
        strided = source.view(64, 64).t().contiguous()
        cast = source.to(torch.float64, non_blocking=True)
        assert not module.current_stream(device).query()
    for result in (duplicate, strided.view(-1), cast.float()):
        same(result, torch.full((SIZE,), 6.0))


def test_copies_to_another_device_wait_their_turn(device, other_device, module, hold):
    if not module.can_device_access_peer(device, other_device):
        pytest.skip("the driver copies between devices through the host, which waits")
    source, target = torch.zeros(SIZE, device=device), torch.zeros(SIZE, device=other_device)
    for each in (device, other_device):
        module.synchronize(each)
    with hold():
        source.fill_(6)
        copies = [source.to(other_device), source.to(other_device, torch.float64), target.copy_(source)]
        copies.append(source.view(64, 64).t().to(other_device))
        assert not module.current_stream(other_device).query()
        source.fill_(7)
    for copy in copies:
        same(copy.flatten().float(), torch.full((SIZE,), 6.0))
    with hold(other_device.index):
        target.fill_(8)
        back = target.to(device)
        target.fill_(9)
    same(back, torch.full((SIZE,), 8.0))


@needs_graphs_of_torch
def test_asserts_wait_their_turn(device, module, hold):
    """An assert fails the stream where it is false; the host goes on."""
    flag, chances = torch.ones((), device=device), torch.ones(2, 4, device=device)
    module.synchronize()
    with hold():
        torch._assert_async(flag)
        torch._assert_async(flag == 1, "the flag is one")
        drawn = torch.multinomial(chances, 1)
    assert drawn.cpu().max() < 4
    with hold():
        torch._assert_async(flag == 2, "the flag is two")
    with pytest.raises(RuntimeError, match="the flag is two"):
        module.synchronize()
    graph = torch.accelerator.Graph()
    with graph:
        torch._assert_async(flag == 1, "the flag has stayed")
        torch.multinomial(chances, 1)
    graph.replay()
    module.synchronize()
    for changed, text in ((flag, "the flag has stayed"), (chances, "inf`, `nan` or element < 0")):
        changed.fill_(-1)
        graph.replay()
        with pytest.raises(RuntimeError, match=text):
            module.synchronize()
        changed.fill_(1)
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch._assert_async(chances)


def test_reading_waits_for_the_stream(device, module):
    from torch_outrigger import _C

    value = torch.zeros((), device=device)
    module.synchronize(device)
    _C._sleep_on_stream(300, device.index)
    value.add_(1)
    assert not module.current_stream(device).query()
    assert value.item() == 1  # waits for sleep and addition
    assert module.current_stream(device).query()


def test_another_stream_does_not_wait_unless_told(device, module, hold):
    first, second = torch.Stream(device), torch.Stream(device)
    shared = torch.zeros(SIZE, device=device)
    module.synchronize(device)
    event = torch.Event(device.type)
    with first, hold():
        shared.fill_(2)
        event.record()
        assert not event.query() and not first.query()
        with second:
            alone = torch.ones(SIZE, device=device) * 5  # independent of the held stream
            second.synchronize()
            same(alone, torch.full((SIZE,), 5.0))
            second.wait_event(event)
            after = shared * 10
            assert not second.query()
    second.synchronize()
    assert event.query() and second.query()
    same(after, torch.full((SIZE,), 20.0))


def test_an_event_marks_its_point(device, module, hold):
    stream = torch.Stream(device)
    with stream:
        early = stream.record_event()
        early.synchronize()
        with hold():
            late = stream.record_event()
            assert early.query() and not late.query()
        late.synchronize()
        assert late.query()


def test_an_event_is_of_the_stream_that_it_was_recorded_on(device, module, hold):
    other = torch.Stream(device)
    module.synchronize(device)
    with hold():  # the current stream, which is another one
        event = other.record_event()
        event.synchronize()
        assert event.query()


def test_timed_events_measure(device, module, timestamps):
    from torch_outrigger import _C

    start, end = torch.Event(device.type, enable_timing=True), torch.Event(device.type, enable_timing=True)
    start.record()
    _C._sleep_on_stream(50, device.index)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 50
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        torch.Event(device.type, enable_timing=True).elapsed_time(end)


def test_current_streams_are_per_thread_and_restored(device, module):
    import threading

    default = module.current_stream(device)
    stream = torch.Stream(device)
    seen = []
    with stream:
        assert module.current_stream(device) == stream != default
        thread = threading.Thread(target=lambda: seen.append(module.current_stream(device)))
        thread.start()
        thread.join(60)
    assert seen == [default] and module.current_stream(device) == default


def test_memory_in_use_on_another_stream_is_not_reused(device, module, hold):
    default, side = module.default_stream(device), torch.Stream(device)
    tensor = torch.full((SIZE,), 3.0, device=device)
    address = tensor.data_ptr()
    side.wait_stream(default)
    with side, hold():
        result = tensor + 1  # not done while the stream is held
        tensor.record_stream(side)
        del tensor  # given back to the default stream, while `side` still has to read it
        with default:
            others = [torch.full((SIZE,), 9.0, device=device) for _ in range(8)]
            assert address not in [other.data_ptr() for other in others]
    side.synchronize()
    same(result, torch.full((SIZE,), 4.0))


def test_a_failure_is_reported_once_and_the_stream_goes_on(device, module):
    from torch_outrigger import _C

    _C._fail_on_stream(device.index)
    with pytest.raises(RuntimeError):
        module.current_stream(device).synchronize()
    same(torch.ones(3, device=device) + 1, torch.full((3,), 2.0))


def test_waits_that_nobody_asked_for_are_found(device, module):
    x = torch.ones(8, device=device)
    waits = (x.sum().item, x.cpu, lambda: x.to("cpu"), x.nonzero)
    try:
        module.set_sync_debug_mode("warn")
        assert module.get_sync_debug_mode() == 1
        for wait in waits:
            with pytest.warns(UserWarning, match="called a synchronizing operation"):
                wait()
        module.set_sync_debug_mode("error")
        for wait in waits:
            with pytest.raises(RuntimeError, match="called a synchronizing operation"):
                wait()
        module.synchronize()
        module.current_stream().synchronize()
        y = (x + 1).relu()
    finally:
        module.set_sync_debug_mode("default")
    assert y.sum().item() == 16
    for wrong in ("loud", 3):
        with pytest.raises(ValueError, match="unknown"):
            module.set_sync_debug_mode(wrong)
