"""torch.profiler shows the device's work: what ran, when, on which stream, for which operator."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule, supported_activities

from support import run_python

_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")


@dataclass
class Trace:
    """A trace as Chrome and Perfetto read it."""

    events: list[dict[str, Any]]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """Slices of these kinds, in the order of their begin."""
        found = [event for event in self.events if event.get("cat") in kinds and event["ph"] == "X"]
        return sorted(found, key=lambda event: event["ts"])

    def work(self) -> list[dict[str, Any]]:
        return self.of(*_DEVICE_WORK)

    def operator(self, name: str) -> dict[str, Any]:
        (found,) = (event for event in self.of("cpu_op") if event["name"] == name)
        return found

    def work_of(self, operator: dict[str, Any]) -> list[dict[str, Any]]:
        number = operator["args"]["External id"]
        return [event for event in self.work() if event["args"].get("External id") == number]

    def names(self, what: str) -> dict[Any, str]:
        """Names of processes by pid, or of threads by pid and tid."""
        found = {}
        for event in self.events:
            if event["ph"] == "M" and event["name"] == what:
                key = event["pid"] if what.startswith("process") else (event["pid"], event["tid"])
                found[key] = event["args"].get("name") or event["args"].get("labels")
        return found


def activity(device_type: str) -> ProfilerActivity:
    found = ProfilerActivity.MTIA if device_type == "mtia" else ProfilerActivity.PrivateUse1
    assert found in supported_activities()
    return found


@pytest.fixture
def profiled(device_type):
    """Starts a profile of host and device."""
    return lambda **options: profile(activities=[ProfilerActivity.CPU, activity(device_type)], **options)


@pytest.fixture
def exported(tmp_path):
    """A profile as a trace."""

    def export(done: profile) -> Trace:
        path = tmp_path / "trace.json"
        done.export_chrome_trace(str(path))
        return Trace(json.loads(path.read_text())["traceEvents"])

    return export


def end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


def lies_in(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    # Times have three digits behind the point of a microsecond.
    return outer["ts"] - 0.0015 <= inner["ts"] and end(inner) <= end(outer) + 0.0015


def test_work_belongs_to_its_operator_and_lies_within_the_wait(device, module, profiled, exported):
    x = torch.rand(256, 256, device=device)
    module.synchronize()
    with profiled() as done:
        with record_function("all of it"):
            y = torch.mm(x, x)
            y.relu_()
            module.synchronize()
    trace = exported(done)
    whole = next(event for event in trace.of("user_annotation") if event["name"] == "all of it")
    starts = {event["id"]: event for event in trace.events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    ends = {event["id"]: event for event in trace.events if event.get("cat") == "ac2g" and event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    for name in ("aten::mm", "aten::relu_"):
        operator = trace.operator(name)
        work = trace.work_of(operator)
        assert work, f"{name} has no work"
        for event in work:
            assert event["name"] and event["dur"] > 0
            assert event["ts"] >= operator["ts"] and lies_in(event, whole)
            # An arrow leads from within the operator, on its thread, to the work.
            flow = event["args"]["correlation"]
            begin = starts[flow]
            assert (begin["pid"], begin["tid"]) == (operator["pid"], operator["tid"])
            assert operator["ts"] <= begin["ts"] <= end(operator)
            assert (ends[flow]["pid"], ends[flow]["tid"]) == (event["pid"], event["tid"])
    # In the order of the stream, and one after the other.
    work = trace.work()
    for before, after in zip(work, work[1:]):
        assert end(before) <= after["ts"] + 0.0015
    assert trace.names("process_name")[work[0]["pid"]] == f"{device.type} {device.index}"


@pytest.mark.not_on_mtia("torch has one category for all work of MTIA")
def test_copies_and_fills_have_their_bytes(device, profiled, exported):
    x = torch.rand(1000)
    with profiled() as done:
        y = x.to(device)
        y.zero_()
        z = y.cpu()
    assert not z.any()
    trace = exported(done)
    into, out = trace.of("gpu_memcpy")
    assert (into["name"], out["name"]) == ("copy host to device", "copy device to host")
    assert into["args"]["bytes"] == out["args"]["bytes"] == 4000
    (fill,) = trace.of("gpu_memset")
    assert fill["args"]["bytes"] == 4000
    assert end(into) <= fill["ts"] + 0.0015 and end(fill) <= out["ts"] + 0.0015
    assert trace.work_of(trace.operator("aten::zero_")) == [fill]


def test_each_stream_is_a_row(device, module, profiled, exported):
    other = torch.Stream(device)
    x = torch.rand(64, 64, device=device)
    module.synchronize()
    with profiled() as done:
        x.sin()
        with other:
            x.cos()
        module.synchronize()
    trace = exported(done)
    rows = {name: {(event["pid"], event["tid"]) for event in trace.work_of(trace.operator(name))} for name in ("aten::sin", "aten::cos")}
    names = trace.names("thread_name")
    (first,), (second,) = rows["aten::sin"], rows["aten::cos"]
    assert names[first] == "default stream"
    assert names[second] == f"stream {other.stream_id}"


@pytest.mark.not_on_mtia("torch adds up the device times of CUDA, XPU and PrivateUse1 alone")
def test_averages_have_the_times_of_the_trace(device, module, profiled, exported):
    x = torch.rand(128, 128, device=device)
    module.synchronize()
    with profiled() as done:
        for _ in range(3):
            torch.mm(x, x)
        module.synchronize()
    (mm,) = (average for average in done.key_averages() if average.key == "aten::mm")
    work = defaultdict(float)
    trace = exported(done)
    for event in trace.of("cpu_op"):
        for one in trace.work_of(event):
            work[event["name"]] += one["dur"]
    assert mm.count == 3
    assert mm.self_device_time_total == pytest.approx(work["aten::mm"], abs=0.01) and work["aten::mm"] > 0
    table = done.key_averages().table(sort_by="self_device_time_total")
    assert f"Self {device.type.upper()}" in table


def test_work_says_so_where_the_host_has_measured(device, module, profiled, exported):
    try:
        torch.Event(device, enable_timing=True).record()
        has_timestamps = True
    except NotImplementedError:
        has_timestamps = False
    with profiled() as done:
        torch.rand(64, device=device).sin()
        module.synchronize()
    work = exported(done).work()
    assert work and all(("clock" in event["args"]) != has_timestamps for event in work)


def test_memory_is_that_of_the_device(device, module, profiled, exported):
    with profiled(profile_memory=True, record_shapes=True) as done:
        x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
        allocated = module.memory_allocated() if hasattr(module, "memory_allocated") else None
        del x
    events = [event for event in exported(done).events if event["name"] == "[memory]"]
    took, gave = (event["args"] for event in events if event["args"]["Device Id"] == device.index)
    assert took["Bytes"] == -gave["Bytes"] == 1 << 20
    assert took["Addr"] == gave["Addr"]
    assert took["Total Allocated"] - gave["Total Allocated"] == 1 << 20
    if allocated is not None:
        assert took["Total Allocated"] == allocated
    if device.type != "mtia":
        # torch adds up the memory of MTIA nowhere.
        (empty,) = (average for average in done.key_averages() if average.key == "aten::empty")
        assert empty.self_device_memory_usage == 1 << 20


def test_a_profile_without_work_has_no_rows(device, profiled, exported):
    with profiled() as done:
        torch.ones(3).sum()
    trace = exported(done)
    assert trace.work() == []
    assert f"{device.type} {device.index}" not in trace.names("process_name").values()


def test_a_profile_of_the_host_alone_leaves_the_device_alone(device, exported):
    x = torch.rand(8, device=device)
    with profile(activities=[ProfilerActivity.CPU]) as done:
        x.sin()
    trace = exported(done)
    assert trace.operator("aten::sin")
    assert trace.work() == [] and trace.of("privateuse1_runtime", "mtia_runtime") == []


def test_each_step_of_a_schedule_has_its_own_work(device, module, device_type, tmp_path):
    x = torch.rand(16, device=device)
    step_of = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.abs, torch.neg]
    traces: list[Trace] = []

    def ready(done: profile) -> None:
        path = tmp_path / f"{len(traces)}.json"
        done.export_chrome_trace(str(path))
        traces.append(Trace(json.loads(path.read_text())["traceEvents"]))

    steps = schedule(wait=1, warmup=1, active=1, repeat=2)
    activities = [ProfilerActivity.CPU, activity(device_type)]
    with profile(activities=activities, schedule=steps, on_trace_ready=ready) as running:
        for operator in step_of:
            operator(x)
            module.synchronize()
            running.step()
    assert len(traces) == 2
    for trace, name in zip(traces, ("aten::exp", "aten::neg")):
        assert {event["args"]["External id"] for event in trace.work()} == {trace.operator(name)["args"]["External id"]}


def test_a_profile_that_starts_over_queued_work_shows_what_comes_behind(device, module, hold, profiled, exported):
    x = torch.rand(64, device=device)
    module.synchronize()
    done = profiled()
    with hold():
        x.sin()
        done.start()
        x.cos()
    done.stop()
    trace = exported(done)
    (cos,) = {event["args"]["External id"] for event in trace.work()}
    assert cos == trace.operator("aten::cos")["args"]["External id"]


def test_a_failure_in_the_middle_ends_nothing(device, module, profiled, exported):
    from torch_outrigger import _C

    x = torch.rand(64, device=device)
    module.synchronize()
    with profiled() as done:
        x.sin()
        _C._fail_on_stream(device.index)
        x.cos()
        with pytest.raises(RuntimeError):
            module.synchronize()
        x.exp()
        module.synchronize()
    trace = exported(done)
    assert trace.work_of(trace.operator("aten::sin")) and trace.work_of(trace.operator("aten::exp"))
    # Work that the failure kept from running has no time; the event of its submission says why.
    cos = trace.operator("aten::cos")
    assert trace.work_of(cos) == []
    submitted = [event for event in trace.of("privateuse1_runtime", "mtia_runtime") if lies_in(event, cos)]
    assert submitted and all("failed" in event["args"]["outcome"] for event in submitted)


def test_work_of_all_threads_is_shown(device, module, profiled, exported):
    x = torch.rand(64, device=device)
    module.synchronize()

    def work() -> None:
        with module.stream(torch.Stream(device)):
            for _ in range(50):
                x.sin()

    with profiled() as done:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        module.synchronize()
    trace = exported(done)
    by_row = Counter(event["tid"] for event in trace.work() if event["name"] == "sin")
    assert list(by_row.values()) == [50, 50, 50, 50]


def test_each_replay_of_a_graph_is_shown(device, module, profiled, exported):
    from torch_outrigger import graphs

    x = torch.rand(64, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        y = x.sin().cos()
    graph.replay()
    module.synchronize()
    with profiled() as done:
        for _ in range(3):
            graph.replay()
        module.synchronize()
    work = exported(done).work()
    # One for each replay, or one for each node of it.
    assert len(work) >= 3 and len(work) % 3 == 0
    assert all(event["dur"] > 0 for event in work if event["cat"] == "kernel")
    torch.testing.assert_close(y.cpu(), x.cpu().sin().cos())


def test_ranges_are_on_their_thread_and_over_their_work(device, module, profiled, exported):
    x = torch.rand(64, device=device)
    module.synchronize()
    with profiled() as done:
        x.exp()
        assert module.nvtx.range_push("outer") == 0
        with module.nvtx.range("inner {}", 1):
            x.sin()
        x.cos()
        module.nvtx.mark("now")
        assert module.nvtx.range_pop() == 0
        module.synchronize()
    with pytest.raises(RuntimeError, match="range_push"):
        module.nvtx.range_pop()
    trace = exported(done)
    ranges = {event["name"]: event for event in trace.of("user_annotation")}
    assert lies_in(ranges["inner 1"], ranges["outer"]) and lies_in(ranges["now"], ranges["outer"])
    assert lies_in(trace.operator("aten::sin"), ranges["inner 1"])
    on_device = {event["name"]: event for event in trace.of("gpu_user_annotation", "mtia_insight")}
    for name, within in (("aten::sin", "inner 1"), ("aten::cos", "outer")):
        for event in trace.work_of(trace.operator(name)):
            assert lies_in(event, on_device[within]) and event["tid"] == on_device[within]["tid"]
    for before in trace.work_of(trace.operator("aten::exp")):
        assert not any(lies_in(before, one) for one in on_device.values())


def test_stacks_lead_from_the_program_to_the_work(device, module, profiled, exported):
    x = torch.rand(64, device=device)

    def of_the_program() -> None:
        x.sin()

    with profiled(with_stack=True) as done:
        of_the_program()
        module.synchronize()
    trace = exported(done)
    sin = trace.operator("aten::sin")
    assert trace.work_of(sin)
    around = [event["name"] for event in trace.of("python_function") if lies_in(sin, event)]
    assert any("of_the_program" in name for name in around)


@pytest.mark.usefixtures("once")
def test_rows_have_the_name_of_the_vendor(tmp_path):
    (tmp_path / "zeta_device.py").write_text("from torch_outrigger import Vendor\nvendor = Vendor(name='zeta', driver='/nowhere/libzeta.so')\n")
    metadata = tmp_path / "zeta_device-2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: zeta-device\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text("[torch_outrigger.vendors]\nzeta = zeta_device:vendor\n")
    path = tmp_path / "trace.json"
    code = f"""
        import torch
        from torch.profiler import ProfilerActivity, profile
        x = torch.rand(64, device="zeta")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as done:
            with torch.zeta.nvtx.range("mine"):
                x.sin()
        print(done.key_averages().table())
        done.export_chrome_trace({str(path)!r})
    """
    python_path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    driver = os.environ.get("OUTRIGGER_DRIVER", "host")
    ran = run_python(code, PYTHONPATH=python_path, OUTRIGGER_VENDOR="zeta", OUTRIGGER_DRIVER=driver, OUTRIGGER_TORCH="outrigger")
    assert ran.returncode == 0, ran.stderr
    assert "Self ZETA" in ran.stdout
    trace = Trace(json.loads(path.read_text())["traceEvents"])
    work = trace.work_of(trace.operator("aten::sin"))[0]
    assert trace.names("process_name")[work["pid"]] == "zeta 0"
