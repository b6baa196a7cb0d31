"""The memory API as torch.cuda has it: figures, limits, snapshots that PyTorch's own tools read, stacks and
labels, pools, and pools that sleep."""

from __future__ import annotations

import pickle

import pytest
import torch
from support import run_python, same
from torch_outrigger import graphs

pytestmark = pytest.mark.of_driver

MIB = 2**20


@pytest.fixture
def memory():
    """The module under test, with no history at the end."""
    from torch_outrigger import memory

    yield memory
    memory._record_memory_history(None)


def blocks_around(snapshot, address):
    """The blocks of a snapshot that an address is in, as (segment, block)."""
    return [
        (segment, block)
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["address"] <= address < block["address"] + block["size"]
    ]


def test_figures_have_torchs_names_and_add_up(device, module, memory):
    assert module.memory.memory_holders is memory.memory_holders
    module.init()
    flat = memory.memory_stats(device)
    counts = ("maps", "unmaps", "views", "view_reuses", "stream_waits", "host_waits", "device_alloc", "ooms")
    assert all(isinstance(flat[f"num_{name}"], int) for name in counts)
    for name in ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes"):
        for field in ("current", "peak", "allocated", "freed"):
            parts = [flat[f"{name}.{kind}.{field}"] for kind in ("small_pool", "large_pool")]
            if field != "peak":
                assert sum(parts) == flat[f"{name}.all.{field}"], f"{name}.{field}"
    nested = memory.memory_stats_as_nested_dict(device)
    assert nested["reserved_bytes"]["all"]["peak"] == flat["reserved_bytes.all.peak"]
    small, large = torch.empty(7, device=device), torch.empty(3 * MIB, dtype=torch.uint8, device=device)
    after = torch.accelerator.memory_stats(device)
    assert memory.memory_stats(device).items() >= after.items(), "torch's own names have the same numbers"
    assert after["allocated_bytes.small_pool.current"] == flat["allocated_bytes.small_pool.current"] + 512
    assert after["allocated_bytes.large_pool.current"] == flat["allocated_bytes.large_pool.current"] + 3 * MIB
    full, short = memory.memory_summary(device), memory.memory_summary(device, abbreviated=True)
    assert "Reserved memory" in short and len(full) > len(short)
    memory.reset_accumulated_memory_stats(device)
    assert memory.memory_stats(device)["allocation.all.allocated"] == 0
    del small, large


def test_fractions_are_told_as_they_were_set(device, memory):
    assert memory.get_per_process_memory_fraction(device) == 1
    memory.set_per_process_memory_fraction(0.25, device)
    try:
        assert memory.get_per_process_memory_fraction(device) == pytest.approx(0.25)
    finally:
        memory.set_per_process_memory_fraction(1, device)
    assert memory.get_per_process_memory_fraction(device) == 1


def test_memory_outside_of_tensors(device, memory):
    before = memory.memory_allocated(device)
    stream = torch.Stream(device)
    first = memory.caching_allocator_alloc(5000, device)
    second = memory.caching_allocator_alloc(5000, device, stream)
    third = memory.caching_allocator_alloc(5000, device, stream.stream_id)
    assert len({first, second, third}) == 3 and memory.memory_allocated(device) >= before + 15000
    for address in (first, second, third):
        memory.caching_allocator_delete(address)
    assert memory.memory_allocated(device) == before
    with pytest.raises(RuntimeError, match="not in the live memory of any device"):
        memory.caching_allocator_delete(first)
    memory.caching_allocator_delete(0)


def test_snapshots_are_read_by_pytorchs_own_tools(device, module, memory, tmp_path):
    """`torch.cuda._memory_viz` checks its sums itself."""
    import torch.cuda._memory_viz as viz

    module.synchronize(device)
    memory.empty_cache()
    memory._record_memory_history(stacks="python", clear_history=True)
    # Holes between what stays, and a request that only all of them together can hold.
    pieces = [torch.empty(6 * MIB, dtype=torch.uint8, device=device) for _ in range(8)]
    kept = pieces[1::2]
    del pieces
    whole = torch.empty(20 * MIB, dtype=torch.uint8, device=device)
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        snapshot = pickle.load(file)
    if memory.memory_stats(device)["num_maps"]:
        assert memory.memory_stats(device)["num_views"] >= 1, "this test is about memory at two addresses"

    ours = [one for one in snapshot["segments"] if one["device"] == device.index]
    assert sum(one["total_size"] for one in ours) == memory.memory_reserved(device)
    assert sum(one["allocated_size"] for one in ours) == memory.memory_allocated(device)
    assert all(isinstance(one["segment_pool_id"], tuple) and "is_view" not in one for one in ours)
    [(_, block)] = blocks_around(snapshot, whole.data_ptr())
    assert block["state"] == "active_allocated" and block["requested_size"] == 20 * MIB
    assert any(__file__ == frame["filename"] for frame in block["frames"]), block["frames"]

    assert "total_reserved" in viz.segsum(snapshot)
    text = viz.trace(snapshot)
    assert "TOTAL MEM" in text and "cudaMalloc" in text or "segment_map" in text
    lines = viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "active_allocated" in lines and "test_memory.py" in lines
    assert viz.segments(snapshot, format_flamegraph=lambda lines: lines)
    for plot in (viz.segment_plot, viz.trace_plot):
        assert "MemoryViz" in plot(snapshot)
    del kept, whole


def test_a_history_keeps_stacks_labels_and_the_last_events(device, memory):
    def allocate_here():
        return torch.empty(70_001, dtype=torch.uint8, device=device)

    memory._record_memory_history(stacks="python", max_entries=6, clear_history=True)
    with memory.label("outer"), memory.label("inner"):
        tensor = allocate_here()
    address = tensor.data_ptr()
    snapshot = memory._snapshot(device)
    [(_, block)] = blocks_around(snapshot, address)
    names = [frame["name"] for frame in block["frames"]]
    assert names[:2] == ["allocate_here", "test_a_history_keeps_stacks_labels_and_the_last_events"], names
    assert block["label"] == "inner"
    assert {"label": "inner", "bytes": block["size"], "blocks": 1} in memory.memory_holders(device)
    del tensor
    events = [one for one in memory._snapshot(device)["device_traces"][device.index] if one.get("addr") == address]
    assert [one["action"] for one in events[-3:]] == ["alloc", "free_requested", "free_completed"]
    assert events[-1]["user_metadata"] == "inner" and events[-2]["frames"], "stacks of frees, too"
    for _ in range(10):
        torch.empty(5, device=device)
    trace = memory._snapshot(device)["device_traces"][device.index]
    assert len(trace) == 6, "the ring has room for so many"
    times = [one["time_us"] for one in trace]
    assert times == sorted(times)

    memory._record_memory_history("state", context="state", stacks="all", clear_history=True)
    memory._set_memory_metadata({"step": 3})
    try:
        assert memory._get_memory_metadata() == '{"step":3}'
        tensor = allocate_here()
    finally:
        memory._set_memory_metadata("")
    snapshot = memory._snapshot(device)
    assert not snapshot["device_traces"][device.index]
    [(_, block)] = blocks_around(snapshot, tensor.data_ptr())
    assert block["label"] == '{"step":3}' and len(block["frames"]) > 2
    memory._record_memory_history(None)
    [(_, block)] = blocks_around(memory._snapshot(device), tensor.data_ptr())
    assert block["frames"] == []
    for wrong in ({"enabled": "some"}, {"context": "python"}, {"stacks": "cpp"}):
        with pytest.raises(ValueError, match="must be one of"):
            memory._record_memory_history(**wrong)


def test_backward_has_stacks_although_it_runs_on_another_thread(device, memory):
    weight = torch.ones(300, 300, device=device, requires_grad=True)
    loss = (weight @ weight).sum()
    memory._record_memory_history(stacks="python", clear_history=True)
    loss.backward()
    [(_, block)] = blocks_around(memory._snapshot(device), weight.grad.data_ptr())
    assert block["state"] == "active_allocated"


def test_pinned_memory_has_a_history_too(device, memory):
    memory._record_memory_history(stacks="python", record_pinned_host_memory=True)
    torch.accelerator.synchronize()
    torch.empty(1, pin_memory=True)  # what was freed before is not pending any more
    before = memory.host_memory_stats()
    with memory.label("input"):
        pinned = torch.empty(200_001, dtype=torch.uint8, pin_memory=True)
    stats = memory.host_memory_stats()
    assert stats["active_requests.current"] == before["active_requests.current"] + 1
    assert stats["active_bytes.current"] >= before["active_bytes.current"] + 200_001
    assert memory.host_memory_stats_as_nested_dict()["active_bytes"]["current"] == stats["active_bytes.current"]
    snapshot = memory._snapshot()
    [block] = [one for one in snapshot["host_segments"] if one["address"] == pinned.data_ptr()]
    assert block["allocated"] and block["label"] == "input" and block["requested_size"] == 200_001
    assert any(frame["filename"] == __file__ for frame in block["frames"])
    assert any(one["action"] == "alloc" and one["addr"] == pinned.data_ptr() for one in snapshot["host_traces"])
    memory._record_memory_history(None)
    assert memory._snapshot()["host_traces"] == []


def test_an_observer_of_failed_requests_replaces_the_one_before(device, memory):
    first, second = [], []
    memory.attach_out_of_memory_observer(lambda *seen: first.append(seen))
    memory.attach_out_of_memory_observer(lambda *seen: second.append(seen))
    total = memory.mem_get_info(device)[1]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(3 * total, dtype=torch.uint8, device=device)
    assert first == [] and len(second) == 1
    index, size, of_all, left = second[0]
    assert (index, size, of_all) == (device.index, 3 * total, total) and 0 <= left <= total
    memory.attach_out_of_memory_observer(lambda *seen: None)


def test_a_pool_serves_who_uses_it_and_graphs_that_name_it(device, memory):
    pool = memory.MemPool()
    outside = torch.empty(1000, device=device)
    with memory.use_mem_pool(pool, device):
        inside = torch.ones(1000, device=device)
    [(segment, _)] = blocks_around({"segments": pool.snapshot()}, inside.data_ptr())
    assert segment["segment_pool_id"][1] == pool.info(device)["number"]
    assert not blocks_around({"segments": pool.snapshot()}, outside.data_ptr())
    assert pool.info(device)["allocated_bytes"] == 4096 and pool.use_count() == 1
    graph = graphs.Graph()
    with graphs.graph(graph, pool=pool.id):
        result = inside * 2
    assert pool.use_count() > 1 and pool.info(device)["allocated_bytes"] > 4096
    graph.replay()
    same(result, torch.full((1000,), 2.0))
    pool.set_limit(0, device)
    with memory.use_mem_pool(pool, device), pytest.raises(torch.OutOfMemoryError, match="Pool"):
        torch.empty(1000, device=device)
    pool.set_limit(None, device)
    for wrong in ({"allocator": 1}, {"use_on_oom": True}, {"no_split": True}):
        with pytest.raises(NotImplementedError):
            memory.MemPool(**wrong)


def test_a_pool_sleeps_and_its_tensors_are_as_before(device, module, memory):
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, device):
        weights = [torch.randn(size, device=device) for size in (10, 70_000, 3_000_000)]
    expected = [weight.cpu() for weight in weights]
    addresses = [weight.data_ptr() for weight in weights]
    graph = graphs.Graph()
    with graphs.graph(graph):
        total = weights[1].sum()
    module.synchronize(device)
    memory.empty_cache()
    reserved, free = memory.memory_reserved(device), memory.mem_get_info(device)[0]
    try:
        released = pool.sleep()
    except NotImplementedError as error:
        assert "virtual memory" in str(error) and not pool.is_asleep
        pytest.skip("the driver has no virtual memory")
    assert released >= sum(weight.nbytes for weight in expected) and pool.is_asleep
    assert memory.memory_reserved(device) == reserved - released
    assert memory.mem_get_info(device)[0] == free + released
    for use in (lambda: weights[0] + 1, lambda: weights[2].cpu(), graph.replay):
        with pytest.raises(RuntimeError, match="sleeps"):
            use()
    del weights[2]
    pool.wake()
    pool.wake()
    assert not pool.is_asleep and [weight.data_ptr() for weight in weights] == addresses[:2]
    for weight, before in zip(weights, expected, strict=False):
        same(weight, before)
    graph.replay()
    same(total, expected[1].sum(), rtol=1e-4, atol=1e-3)


def test_a_trace_of_memory_is_written(device, memory, tmp_path):
    with memory.memory_trace(str(tmp_path / "run.trace"), device) as trace:
        trace.mark("step 1")
        with memory.label("activations"):
            kept = torch.empty(12_345, dtype=torch.uint8, device=device)
    text = (tmp_path / "run.trace").read_text()
    assert "12345" in text and "activations" in text and "step 1" in text
    del kept


@pytest.mark.usefixtures("once")
def test_the_memory_functions_of_torch_mtia():
    result = run_python(
        """
        import pickle, tempfile, torch, torch_outrigger
        kept = torch.ones(3, device="mtia")
        assert torch.mtia.memory_stats()["dram"]["allocated_bytes"] > 0
        torch.mtia.record_memory_history("all", "python", 100)
        x = torch.empty(100_000, dtype=torch.uint8, device="mtia")
        snapshot = torch.mtia.snapshot()
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        [block] = [one for one in blocks if one["address"] == x.data_ptr()]
        assert block["frames"], block
        assert any(one["action"] == "alloc" for one in snapshot["device_traces"][0])
        torch.mtia.record_memory_history(None)
        assert not torch.mtia.snapshot()["device_traces"][0]
        seen = []
        torch.mtia.attach_out_of_memory_observer(lambda *what: seen.append(what))
        try:
            torch.empty(2**45, dtype=torch.uint8, device="mtia")
        except torch.OutOfMemoryError:
            pass
        assert len(seen) == 1 and seen[0][:2] == (0, 2**45), seen
        torch.accelerator.empty_cache()
        assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated() > 0
        print("done")
        """,
        OUTRIGGER_TORCH="mtia",
    )
    assert result.stdout == "done\n", result.stdout + result.stderr


@pytest.mark.usefixtures("once")
def test_options_of_the_environment():
    program = """
        import time, torch
        x = torch.empty(64 << 20, dtype=torch.uint8, device="outrigger")
        total = torch.outrigger.mem_get_info()[1]
        assert torch.outrigger.get_per_process_memory_fraction() == 0.25
        assert torch.empty(5000, dtype=torch.uint8, device="outrigger").nbytes == 5000
        assert torch.outrigger.memory_stats()["allocated_bytes.small_pool.peak"] == 5120, "of four parts"
        try:
            torch.empty(total // 2, dtype=torch.uint8, device="outrigger")
        except torch.OutOfMemoryError:
            print("limited")
        del x
        end = time.monotonic() + 60
        while torch.outrigger.memory_reserved() and time.monotonic() < end:
            time.sleep(0.05)
        print(torch.outrigger.memory_reserved())
        """
    options = "trim_after_ms:200,per_process_memory_fraction:0.25,stream_waits:False,roundup_power2_divisions:4"
    result = run_python(program, OUTRIGGER_ALLOC=options, OUTRIGGER_TORCH="outrigger")
    assert result.stdout == "limited\n0\n", result.stdout + result.stderr
    result = run_python(program, OUTRIGGER_ALLOC="garbage_collection_treshold:0.8", OUTRIGGER_TORCH="outrigger")
    assert "no allocator option is called `garbage_collection_treshold`" in result.stderr, result.stderr
