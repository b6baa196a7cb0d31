"""torch's own `torch.mtia` on an Outrigger device. Other tests run on it too, with `--device mtia`."""

from __future__ import annotations

import pytest
from support import run_python

PROGRAM = """
    import torch

    assert torch.mtia.is_available()
    count = torch.mtia.device_count()
    assert count == torch.accelerator.device_count() > 0
    assert torch.accelerator.current_accelerator().type == "mtia"
    torch.mtia.init()
    assert torch.mtia.is_initialized() and not torch.mtia._is_in_bad_fork()
    assert torch.mtia.current_device() == 0

    x = torch.arange(6.0, device="mtia").reshape(2, 3)
    assert x.device == torch.device("mtia", 0) and (x @ x.t()).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    assert torch.mtia.default_stream() == torch.mtia.current_stream()

    stream = torch.mtia.Stream()
    with torch.mtia.stream(stream):
        assert torch.mtia.current_stream() == stream
        y = x * 2
        event = torch.mtia.Event()
        event.record()
    event.synchronize()
    assert event.query() and y.sum().item() == 30
    stream.wait_stream(torch.mtia.default_stream())
    torch.mtia.synchronize()

    stats = torch.mtia.memory_stats()
    allocated = torch.mtia.memory_allocated()
    kept = torch.empty(1 << 20, device="mtia")
    assert torch.mtia.memory_allocated() >= allocated + (4 << 20)
    assert torch.mtia.max_memory_allocated() >= torch.mtia.memory_allocated()
    torch.mtia.reset_peak_memory_stats()
    torch.mtia.empty_cache()
    properties = torch.mtia.get_device_properties()
    assert properties["total_memory"] > 0, properties
    assert len(torch.mtia.get_device_capability()) == 2

    torch.mtia.manual_seed(3)
    first = torch.rand(9, device="mtia")
    state = torch.mtia.get_rng_state()
    second = torch.rand(9, device="mtia")
    torch.mtia.set_rng_state(state)
    assert torch.equal(torch.rand(9, device="mtia"), second) and not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(9, device="mtia"), first)

    if count > 1:
        with torch.mtia.device(1):
            assert torch.empty(1, device="mtia").device.index == 1 == torch.mtia.current_device()
        assert torch.mtia.current_device() == 0
        torch.mtia.set_device(1)
        assert torch.mtia.current_device() == 1
        torch.mtia.set_device(0)

    model = torch.nn.Linear(3, 1).to("mtia")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10, losses
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned() and pinned.to("mtia", non_blocking=True).sum().item() == 4
    assert torch_outrigger.fallback_report() is not None
    print("done")
"""


def test_torch_mtia():
    result = run_python("    import torch_outrigger" + PROGRAM, OUTRIGGER_TORCH="mtia")
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr


@pytest.mark.usefixtures("once")
@pytest.mark.takes_turns
def test_mtia_is_there_however_torch_is_first_asked():
    for first in ("torch.accelerator.is_available()", "torch.Event()", "torch.ones(1).pin_memory()"):
        result = run_python(f"import torch; {first}; print(torch.ones(2, device='mtia').sum().item())", OUTRIGGER_TORCH="mtia")
        assert result.stdout == "2.0\n", f"{first}: {result.stderr}"


@pytest.mark.usefixtures("once")
def test_mtia_is_left_alone_unless_chosen():
    result = run_python("import torch; print(torch.mtia.is_available())", OUTRIGGER_TORCH="outrigger")
    assert result.stdout == "False\n", result.stderr


CALLS = """
    import torch, torch_outrigger

    one, x = torch.mtia.Stream("mtia"), torch.rand(4, device="mtia")
    with torch.mtia.stream(one):
        pass
    graph, pool = torch.mtia.MTIAGraph(), torch.mtia.graph_pool_handle()
    with torch.mtia.graph(graph, pool=pool, stream=one):
        assert torch.mtia.is_current_stream_capturing()
        y = x + 1
    with torch.mtia.device(0):
        graph.replay()
    assert graph.pool() == pool and not torch.mtia.is_current_stream_capturing()
    calls = {
        "attach_out_of_memory_observer": lambda call: call(lambda *seen: None),
        "record_memory_history": lambda call: (call("all", "python", 10), call(None)),
        "set_device": lambda call: call(0),
        "set_rng_state": lambda call: call(torch.mtia.get_rng_state()),
        "set_rng_state_all": lambda call: call(torch.mtia.get_rng_state_all()),
        "manual_seed": lambda call: call(1),
        "manual_seed_all": lambda call: call(1),
        "set_stream": lambda call: call(torch.mtia.default_stream()),
        "stream": lambda call: call(one),
        "device": lambda call: call(0),
        "graph": lambda call: call(graph),
    }
    for name in torch.mtia.__all__:
        calls.get(name, lambda call: call())(getattr(torch.mtia, name))
    for wrong in (-2, 127):
        for call in (torch.mtia.get_device_properties, torch.mtia.memory_stats, torch.mtia.get_device_capability):
            try:
                call(wrong)
                raise AssertionError(f"{call} took the device {wrong}")
            except RuntimeError as error:
                assert f"invalid device index {wrong}" in str(error), error
    torch.mtia.synchronize()
    assert torch.equal(y.cpu(), x.cpu() + 1)
    # Pools and labels, which torch.mtia lacks beside torch.outrigger.
    pool = torch.mtia.MemPool()
    with torch.mtia.use_mem_pool(pool, "mtia:0"), torch.mtia.memory.label("mine"):
        kept = torch.ones(1000, device="mtia")
    assert pool.info("mtia:0")["allocated_bytes"] == 4096
    assert {"label": "mine", "bytes": 4096, "blocks": 1} in torch.mtia.memory.memory_holders()
    with torch.mtia.device_of(torch.ones(1, device="mtia:1")):
        assert torch.mtia.current_device() == 1
    assert torch.mtia.current_device() == 0
    torch.mtia.random.manual_seed(5)
    assert torch.mtia.initial_seed() == 5
    try:
        torch.mtia.memory_allocated("cpu")
    except ValueError as error:
        assert "cpu" in str(error)
    print("done")
"""


def test_every_function_of_torch_mtia_works():
    for types in ("mtia", "both"):
        result = run_python(CALLS, OUTRIGGER_TORCH=types, OUTRIGGER_DRIVER="host?devices=2")
        assert result.returncode == 0 and result.stdout.endswith("done\n"), types + result.stdout + result.stderr
