"""`mode="reduce-overhead"`: compiled regions as graphs compute what eager execution does, with results that stay."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from support import run_python, same
from torch._higher_order_ops.while_loop import while_loop
from torch import nn


@pytest.fixture(autouse=True)
def fresh(compiles):
    """No graph of another test is used, and a region of one node has a graph too."""
    from torch_outrigger.inductor import config

    torch._dynamo.reset()
    with config.patch(min_graph_nodes=1):
        yield


@pytest.fixture
def replays(monkeypatch):
    """The number of replays so far, as the length of a list."""
    from torch_outrigger.inductor import graphs

    done = []
    run = graphs._C.graph_run
    monkeypatch.setattr(graphs._C, "graph_run", lambda *given: done.append(1) or run(*given))
    return done


@pytest.fixture
def regions(monkeypatch):
    """The regions that are made meanwhile."""
    from torch_outrigger.inductor import graphs

    made = []
    make = graphs.Policy.cudagraphify

    def note(self, *given, **more):
        region = make(self, *given, **more)
        made.append(region)
        return region

    monkeypatch.setattr(graphs.Policy, "cudagraphify", note)
    return made


@pytest.fixture
def skips(monkeypatch):
    """The log of regions that run without a graph."""
    from torch_outrigger.inductor import graphs

    said = []
    log = graphs.log_cudagraph_skip_and_bump_counter
    monkeypatch.setattr(graphs, "log_cudagraph_skip_and_bump_counter", lambda text: said.append(text) or log(text))
    return said


def graphed(function, **more):
    return torch.compile(function, mode="reduce-overhead", **more)


def test_a_region_of_one_launch_is_launched(device, replays):
    from torch_outrigger.inductor import config

    one, two = graphed(lambda x: x.sin() * 2), graphed(lambda x: (x.sin().sum(0) @ x.cos().t()) * 2)
    with config.patch(min_graph_nodes=2):
        for x in torch.randn(4, 8, 16):
            same(one(x.to(device)), x.sin() * 2, rtol=1e-5, atol=1e-5)
            same(two(x.to(device)), (x.sin().sum(0) @ x.cos().t()) * 2, rtol=1e-4, atol=1e-4)
    assert len(replays) == 3


def test_results_are_made_where_they_belong(device, regions):
    """A result that the region makes by itself is not copied."""

    def function(x):
        a = x.sin() * 2
        return a, (a @ x.t()).relu(), a.sum(1), a[1:]

    compiled = graphed(function)
    for x in torch.randn(4, 8, 16):
        for one, other in zip(compiled(x.to(device)), function(x), strict=True):
            same(one, other, rtol=1e-4, atol=1e-4)
    (region,) = regions
    (captured,) = region._graphs.values()
    # Two of the results share memory, which is copied. The others are those of the kernels.
    assert sum(one is not None for one in captured.plan.numbers) == 2
    # One kernel for `a` and its sum, the product, one for what follows it, and the copy.
    assert captured.graph.info()["nodes"] == 4


def test_results_stay_as_those_of_eager_execution_do(device, replays):
    def function(x, y):
        a = (x.sin() + y).relu()
        # The first of those in one storage is not the one that begins first.
        return a[2:], a, a[1:, ::2], x, x.t(), a @ y.t(), x.shape[0]

    compiled = graphed(function)
    calls = [(torch.randn(6, 8), torch.randn(6, 8)) for _ in range(5)]
    results = [compiled(*[one.to(device) for one in call]) for call in calls]
    assert len(replays) == 4
    for call, result in zip(calls, results, strict=True):
        for one, other in zip(result, function(*call), strict=True):
            if isinstance(other, torch.Tensor):
                same(one, other, rtol=1e-5, atol=1e-5)
                assert one.stride() == other.stride()
            else:
                assert one == other


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Dropout(0.4), nn.Linear(24, 4))

    def forward(self, x):
        return self.layers(x) + x[:, :4]


def test_training_steps_are_those_of_eager_execution(device, replays, module):
    torch.manual_seed(3)
    ours = Model().to(device)
    eager = copy.deepcopy(ours)
    compiled = graphed(ours)
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in (ours, eager)]
    data = [torch.randn(2, 10, 16).to(device) for _ in range(5)]
    states = []
    for model in (compiled, eager):
        torch.manual_seed(11)
        for step, (first, second) in enumerate(data):
            # Two passes forward before one backward, then a second backward into the same gradients.
            (model(first).square().mean() + model(second).sin().mean()).backward()
            model(first + step).mean().backward()
            optimizer = optimizers[model is eager]
            optimizer.step()
            optimizer.zero_grad()
        states.append(module.get_rng_state())
    assert len(replays) == 2 * 3 * 5 - 2
    assert torch.equal(*states)
    for one, other in zip(ours.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_arguments_may_share_memory_move_and_be_written(device, replays):
    def function(a, b, out):
        out.mul_(2).add_(a[: b.shape[0]] * b)
        return b.sum()

    def calls(where):
        for offset in (0, 0, 1, 1, 1, 4):
            memory = torch.arange(40.0).to(where)
            a, b = memory[offset : offset + 12], memory[offset + 3 : offset + 11]
            out = torch.full((9,), 3.0).to(where)[1:]
            yield compiled(a, b, out) if where == device else function(a, b, out), out

    compiled = graphed(function, dynamic=False)
    for ours, other in zip(list(calls(device)), calls("cpu"), strict=True):
        for one, expected in zip(ours, other, strict=True):
            same(one, expected)
    assert replays


def test_gradients_of_batches_that_are_slices(device, replays):
    """A batch begins anywhere in its storage. What is saved of it for the backward pass is a view."""
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    ours = copy.deepcopy(host).to(device)
    step = graphed(lambda x: ours(x).square().mean())
    data = torch.randn(40, 6, 16)
    there = data.to(device)
    for first in range(0, 40, 8):
        expected = torch.autograd.grad(host(data[first : first + 8]).square().mean(), list(host.parameters()))
        found = torch.autograd.grad(step(there[first : first + 8]), list(ours.parameters()))
        for one, other in zip(found, expected, strict=True):
            same(one, other, rtol=1e-4, atol=1e-5)
    assert replays


def test_each_combination_of_sizes_has_a_graph_up_to_a_limit(device, replays, regions, skips):
    compiled = torch.compile(
        lambda x: x.softmax(-1) * 2, dynamic=True, options={"triton.cudagraphs": True, f"{device.type}.max_graphs": 2}
    )
    for size in (3, 4, 3, 4, 4, 5, 5, 5, 3):
        x = torch.randn(size, 7)
        same(compiled(x.to(device)), x.softmax(-1) * 2, rtol=1e-5, atol=1e-6)
    assert len(regions) == 1 and len(replays) == 5
    assert len(regions[0]._graphs) == 2
    assert len(skips) == 1 and "more than 2 combinations of sizes" in skips[0]


def test_regions_of_a_step_and_streams(device, replays):
    @graphed
    def function(x):
        y = x * 2 + 1
        torch._dynamo.graph_break()
        return (y.cos() @ y).relu()

    streams = [torch.Stream(device) for _ in range(2)]
    given = [torch.randn(32, 32) for _ in range(8)]
    results = []
    for number, one in enumerate(given):
        there = one.to(device)
        torch.compiler.cudagraph_mark_step_begin()
        torch.accelerator.synchronize()
        with streams[number % 2]:
            results.append(function(there))
    torch.accelerator.synchronize()
    assert len(replays) == 14
    for one, result in zip(given, results, strict=True):
        y = one * 2 + 1
        same(result, (y.cos() @ y).relu(), rtol=1e-4, atol=1e-4)


def test_what_no_graph_takes_runs_without_one(device, replays, skips):
    def draws(x):
        return torch.cond(x.sum() > 50, lambda x: x + torch.rand_like(x), torch.cos, (x * 2,))

    def waits(x):
        return x + x.sum().item()

    on_cpu = torch.ones(3)

    def mixed(x):
        return x * 2 + on_cpu.sum().to(x.device)

    def streams(x):
        side = torch.Stream(x.device) if x.device.type != "cpu" else None
        if side is None:
            return x * 2 + 1
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            y = x * 2
        torch.accelerator.current_stream().wait_stream(side)
        return y + 1

    for function, reason in (
        (draws, "random numbers in a body"), (waits, None), (mixed, "cpu device"), (streams, "streams or events")
    ):  # fmt: skip
        compiled = graphed(function)
        before = len(skips)
        for sign in (1, -1, 1, -1):
            x = torch.arange(1.0, 5) * sign
            same(compiled(x.to(device)), function(x), rtol=1e-6, atol=1e-6)
        if reason:
            assert len(skips) == before + 1 and reason in skips[-1]
    before = len(replays)
    compiled = graphed(lambda x: x * 3)
    for _ in range(3):
        same(compiled(torch.ones(3, device=device)), torch.full((3,), 3.0))
    assert len(replays) == before + 2


def test_branches_and_loops_are_nodes_of_the_graph(device, replays, skips):
    def call(x):
        before, after = x * 2, x.exp()
        x = torch.cond(x.sum() > 0, lambda x: (x.sin() * 2).relu().sum() + x, lambda x: x.cos() - 1, (before,))
        _, x = while_loop(lambda i, x: (i < 9) & (x.sum() < 40), lambda i, x: (i + 1, x * 1.5 + i), (before.sum().long() * 0, x))
        return x, after + 1, x.exp() + before, before

    compiled = graphed(call)
    for sign in (1, -1, 2, -2, 0.1):
        x = torch.rand(8) * sign
        for one, other in zip(compiled(x.to(device)), call(x), strict=True):
            same(one, other, rtol=1e-5, atol=1e-5)
    assert len(replays) >= 4 and not skips


def test_a_compiled_call_is_a_part_of_a_capture_of_the_program(device, replays):
    compiled = graphed(lambda x: x.exp() + 1)
    x = torch.zeros(5, device=device)
    for _ in range(3):
        compiled(x)
    recorded = torch.accelerator.Graph()
    before = len(replays)
    with recorded:
        y = compiled(x)
    x.fill_(1)
    recorded.replay()
    same(y, torch.ones(5).exp() + 1, rtol=1e-6, atol=1e-6)
    assert len(replays) == before


def test_graphs_die_with_what_was_compiled(device, regions):
    compiled = graphed(lambda x: x @ x + 1)
    for _ in range(3):
        compiled(torch.ones(4, 4, device=device))
    captured = [weakref.ref(one.graph) for region in regions for one in region._graphs.values()]
    assert len(captured) == 1 and captured[0]() is not None
    regions.clear()
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert captured[0]() is None


def test_a_graph_holds_neither_arguments_nor_results(device, module):
    compiled = graphed(lambda x: x * 2)
    size = 1 << 20
    for _ in range(3):
        compiled(torch.ones(size, device=device))
    module.synchronize()
    gc.collect()
    before = module.memory_allocated()
    compiled(torch.ones(size, device=device))
    module.synchronize()
    x = torch.ones(size, device=device)
    y = compiled(x)
    assert module.memory_allocated() == before + 2 * 4 * size
    del x, y
    assert module.memory_allocated() == before


@pytest.mark.takes_turns
def test_a_second_process_replays_what_the_first_has_compiled(once, device, tmp_path):
    code = f"""
        import torch
        from torch._dynamo.utils import counters
        from torch_outrigger.inductor import config, graphs
        config.min_graph_nodes = 1
        done = []
        run = graphs._C.graph_run
        graphs._C.graph_run = lambda *given: done.append(1) or run(*given)
        model = torch.nn.Linear(8, 8).to({device.type!r})
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(3):
            x = torch.randn(4, 8, device={device.type!r})
            compiled(x).square().sum().backward()
        expected = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
        assert torch.allclose(compiled(x), expected, atol=1e-6)
        print(len(done), counters["aot_autograd"]["autograd_cache_hit"])
    """
    results = [run_python(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [one.stdout for one in results] == ["5 0\n", "5 1\n"], [one.stderr for one in results]
