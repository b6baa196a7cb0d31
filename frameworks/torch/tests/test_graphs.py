"""The life of a graph: captured, made executable, replayed, rebound, shown, reset; and how it fails."""

from __future__ import annotations

import json

import pytest
import torch
from support import NO_GRAPHS, needs_graphs_of_torch, same
from torch_outrigger import graphs

pytestmark = pytest.mark.of_driver


@pytest.fixture(params=["ours", "torch"])
def make(request, device_type):
    """A function that captures a body into a new graph, of this package or of torch itself."""

    def ours(body, keep=False, **options):
        graph = graphs.Graph(keep)
        with graphs.graph(graph, **options):
            graph.result = body()
        return graph

    if request.param == "torch" and device_type != "mtia" and NO_GRAPHS:
        pytest.skip(NO_GRAPHS)

    def mtia(body, keep=False, pool=None):
        graph = torch.mtia.MTIAGraph(keep)
        before = torch.mtia.current_stream()
        try:
            with torch.mtia.graph(graph, pool=pool, stream=stream):
                graph.result = body()
        finally:
            # torch leaves its stream the current one where the end of a capture fails.
            torch.mtia.set_stream(before)
        return graph

    def accelerator(body, keep=False, pool=None):
        graph = torch.accelerator.Graph(keep, pool=pool)
        with stream, graph:
            graph.result = body()
        return graph

    if request.param == "ours":
        return ours
    # One for all captures of a test: memory of a pool is shared by what is captured on the same stream.
    stream = torch.mtia.Stream("mtia") if device_type == "mtia" else torch.Stream(device_type)
    return mtia if device_type == "mtia" else accelerator


def test_a_replay_computes_anew_from_what_its_inputs_hold(device, make):
    x = torch.arange(8.0, device=device)
    graph = make(lambda: (x * 2 + 1).sum())
    for start in (0.0, 5.0):
        x.copy_(torch.arange(8.0) + start)
        graph.replay()
        assert graph.result.item() == ((torch.arange(8.0) + start) * 2 + 1).sum().item()


def test_nothing_runs_during_a_capture(device, make):
    x = torch.zeros(4, device=device)
    graph = make(lambda: x.add_(1))
    same(x, torch.zeros(4))
    for count in range(1, 4):
        graph.replay()
        same(x, torch.full((4,), float(count)))


def test_capture_is_seen_and_ends(device, module, make):
    def asked():
        yield graphs.is_current_stream_capturing()
        if hasattr(torch.Stream, "is_capturing"):  # from torch 2.12 on
            yield torch.accelerator.current_stream().is_capturing()
        if device.type == "mtia":
            yield torch.mtia.is_current_stream_capturing()

    seen = []
    make(lambda: seen.extend(asked()) or torch.ones(1, device=device))
    assert all(seen) and not any(asked())


def test_other_streams_join_by_events(device, make):
    x = torch.arange(6.0, device=device)
    side = torch.Stream(device)

    def body():
        main = torch.accelerator.current_stream()
        y = x + 1
        side.wait_stream(main)
        with side:
            z = x * 3
        main.wait_stream(side)
        return y + z

    graph = make(body)
    x.fill_(2)
    graph.replay()
    same(graph.result, torch.full((6,), 9.0))


def test_a_stream_that_is_not_joined_fails_the_capture(device, make):
    x = torch.ones(3, device=device)
    side = torch.Stream(device)

    def body():
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            x.add_(1)

    with pytest.raises(RuntimeError, match="join"):
        make(body)
    with side:
        y = x + 1
    side.synchronize()
    same(y, torch.full((3,), 2.0))


def test_no_stream_of_the_program_is_that_of_a_capture(device):
    x = torch.ones(3, device=device)
    captured = []

    def body():
        captured.append(torch.accelerator.current_stream().stream_id)
        x.add_(1)

    for _ in range(2):
        with graphs.graph(graphs.Graph()):
            body()
    # Torch gives streams of a pool in turn.
    streams = {torch.Stream(device).stream_id for _ in range(128)}
    assert captured[0] == captured[1] and captured[0] not in streams


def test_keep_graph_leaves_it_to_instantiate_or_replay(device, make):
    x = torch.ones(3, device=device)
    graph = make(lambda: x.add_(1), keep=True)
    graph.instantiate()
    graph.instantiate()
    graph.replay()
    later = make(lambda: x.add_(1), keep=True)
    later.replay()
    same(x, torch.full((3,), 3.0))
    with pytest.raises(RuntimeError, match="keep_graph"):
        make(lambda: x.add_(1)).instantiate()


def test_use_after_reset_is_an_error_and_the_object_can_capture_again(device):
    x = torch.ones(3, device=device)
    graph = graphs.Graph()
    with pytest.raises(RuntimeError, match="nothing is captured"):
        graph.replay()
    with graphs.graph(graph):
        x.add_(1)
    with pytest.raises(RuntimeError, match="captured already"):
        graph.capture_begin()
    graph.reset()
    for use in (graph.replay, graph.instantiate, graph.pool, graph.profile):
        with pytest.raises(RuntimeError, match="reset"):
            use()
    with graphs.graph(graph):
        x.mul_(5)
    graph.replay()
    same(x, torch.full((3,), 5.0))


def test_reset_while_a_replay_runs(device, hold):
    x = torch.zeros(1 << 12, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        kept = x + 1
        x.copy_(kept)
    del kept
    with hold():
        for _ in range(3):
            graph.replay()
        graph.reset()
        del graph
    same(x, torch.full((1 << 12,), 3.0))


def test_pools_are_shared_and_given_back_to_the_last_byte(device, module, make):
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved(device)
    x = torch.zeros(1 << 18, device=device)

    def body():
        for _ in range(4):
            x.add_(torch.cos(x) * 2)

    handle = torch.mtia.graph_pool_handle() if device.type == "mtia" else graphs.graph_pool_handle()
    first = make(body, pool=handle)
    alone = torch.accelerator.memory_reserved(device)
    second = make(body, pool=first.pool())
    assert first.pool() == second.pool() == tuple(handle)
    assert torch.accelerator.memory_reserved(device) == alone, "the second graph uses the first one's memory"
    other = make(body)
    assert other.pool() != first.pool()
    for graph in (first, second, other):
        graph.replay()
    expected = torch.zeros(1 << 18)
    for _ in range(12):
        expected.add_(torch.cos(expected) * 2)
    same(x, expected, rtol=1e-5, atol=1e-6)
    first.reset()
    second.replay()
    for graph in (second, other):
        graph.reset()
    del x, first, second, other, graph
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(device) == before


def test_other_work_uses_what_a_graph_has_free_and_both_are_right(device, make):
    x = torch.ones(3 << 20, device=device)
    graph = make(lambda: ((x + x) * x - x).sum())
    kept = []
    for step in range(6):
        x.fill_(step)
        others = torch.full((3 << 20,), -1.0, device=device) * 2
        if step % 3 == 0:
            kept.append(others)
        graph.replay()
        assert graph.result.item() == (2 * step * step - step) * (3 << 20)
        assert others.min().item() == others.max().item() == -2
    assert all((one == -2).all().item() for one in kept)


def test_a_capture_uses_what_streams_have_used_again_as_eager_execution_does(device, make):
    count, layers = 1 << 18, 40
    x, side = torch.ones(count, device=device), torch.Stream(device)
    total = torch.zeros(count, device=device)
    addresses = set()

    def body():
        main = torch.accelerator.current_stream()
        total.zero_()
        for layer in range(layers):
            y = x * layer
            addresses.add(y.data_ptr())
            side.wait_stream(main)
            with side:
                z = y + 1
                y.record_stream(side)
            main.wait_stream(side)
            total.add_(z)
            z.record_stream(main)

    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(device)
    before = torch.accelerator.memory_reserved(device)
    graph = make(body)
    grown = torch.accelerator.max_memory_reserved(device) - before
    assert len(addresses) <= 3, len(addresses)
    assert grown <= 16 << 20, grown
    for value in (2.0, 5.0):
        x.fill_(value)
        graph.replay()
        same(total, torch.full((count,), value * sum(range(layers)) + layers))


def test_a_tensor_of_a_graph_outlives_it(device):
    graph = graphs.Graph()
    with graphs.graph(graph):
        y = torch.ones(100, device=device) * 7
    graph.replay()
    graph.reset()
    del graph
    same(y + 0, torch.full((100,), 7.0))


def test_a_pool_id_that_was_not_handed_out(device):
    with pytest.raises(ValueError, match="not the id of a pool"), graphs.graph(graphs.Graph(), pool=(1 << 40, 0)):
        pass
    assert not graphs.is_current_stream_capturing()


class Oops(Exception):
    """The error that the bodies here raise."""


def test_an_exception_in_a_capture_poisons_the_graph_and_nothing_else(device, make):
    x = torch.ones(64, device=device)
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved(device)
    kept = []

    def body():
        x.add_(torch.ones(1 << 16, device=device).sum())
        raise Oops("in the middle")

    def capture():
        kept.append(None)
        return make(body)

    with pytest.raises(Oops, match="in the middle"):
        capture()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(device) == before
    assert not graphs.is_current_stream_capturing()
    same(x, torch.ones(64))
    graph = make(lambda: x.add_(1))
    graph.replay()
    same(x, torch.full((64,), 2.0))


@pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=needs_graphs_of_torch)])
def test_a_poisoned_graph_can_never_be_replayed(device, kind):
    x = torch.ones(4, device=device)
    if kind == "ours":
        graph = graphs.Graph()
        context = graphs.graph(graph)
    elif device.type == "mtia":
        graph = torch.mtia.MTIAGraph()
        context = torch.mtia.graph(graph, stream=torch.mtia.Stream("mtia"))
    else:
        context = graph = torch.accelerator.Graph()
    with torch.Stream(device):
        with pytest.raises(Oops), context:
            x.add_(1)
            raise Oops("half way")
        with pytest.raises(RuntimeError, match="half way"):
            graph.replay()
    same(x, torch.ones(4))
    graph.reset()
    with torch.Stream(device):
        if kind == "torch" and device.type != "mtia":
            with graph:
                x.add_(2)
        else:
            graph.capture_begin((0, 0))
            x.add_(2)
            graph.capture_end()
        graph.replay()
        torch.accelerator.current_stream().synchronize()
    same(x, torch.full((4,), 3.0))


def test_an_exception_handled_before_a_capture_is_no_reason(device, make):
    x = torch.ones(4, device=device)
    try:
        raise Oops("long past")
    except Oops:
        graph = make(lambda: x.add_(1))
    graph.replay()
    same(x, torch.full((4,), 2.0))


def test_an_exception_caught_within_a_capture_is_no_reason(device, make):
    x = torch.ones(4, device=device)

    def body():
        try:
            raise Oops("caught")
        except Oops:
            x.add_(1)

    make(body).replay()
    same(x, torch.full((4,), 2.0))


# ---- bindings ---------------------------------------------------------------------------------------


def test_bound_tensors_are_exchanged_without_a_copy(device):
    x = torch.zeros(3, 4, device=device)
    out = torch.zeros(3, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        out.copy_((x.t() * 2).sum(0) + x[:, 1])
        graph.bind("x", x)
        graph.bind("out", out)
    assert graph.bound == ("x", "out")
    for seed in range(3):
        value = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed))
        result = torch.empty(3, device=device)
        graph.replay(x=value.to(device), out=result)
        same(result, (value.t() * 2).sum(0) + value[:, 1], rtol=1e-6, atol=1e-6)
    same(out, torch.zeros(3))
    # A binding stays set, and its memory is held though nothing else holds it.
    result.zero_()
    graph.replay()
    same(result, (value.t() * 2).sum(0) + value[:, 1], rtol=1e-6, atol=1e-6)


def test_bound_tensors_reach_operators_on_the_cpu(device):
    x = torch.tensor([3.0, 1.0, 2.0], device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        y = torch.sort(x).values + torch.linalg.inv_ex(x.diag()).inverse.sum()
        graph.bind("x", x)
    other = torch.tensor([8.0, 4.0, 2.0], device=device)
    graph.replay(x=other)
    same(y, torch.tensor([2.0, 4.0, 8.0]) + 0.875)
    assert {row["operator"] for row in torch_fallbacks()} >= {"linalg_inv_ex"}


def torch_fallbacks():
    import torch_outrigger

    return torch_outrigger.fallback_report()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda d: torch.zeros(3, 5, device=d), "shape"),
        (lambda d: torch.zeros(3, 4, device=d, dtype=torch.int32), "dtype"),
        (lambda d: torch.zeros(4, 3, device=d).t(), "stride"),
        (lambda d: torch.zeros(3, 4), "device"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(device, other, what):
    x = torch.ones(3, 4, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        y = x + 1
        graph.bind("x", x)
    with pytest.raises(ValueError, match=f"x was captured with {what}"):
        graph.replay(x=other(device))
    with pytest.raises(ValueError, match="no tensor named 'z'; bound is x"):
        graph.set(z=x)
    graph.replay()
    same(y, torch.full((3, 4), 2.0))


def test_a_graph_is_updated_from_another_capture(device):
    def capture(x, factor, keep):
        graph = graphs.Graph(keep)
        with graphs.graph(graph):
            x.mul_(factor)
        return graph

    x, y = torch.ones(3, device=device), torch.ones(3, device=device)
    graph = capture(x, 2.0, keep=False)
    graph.update(capture(y, 5.0, keep=True))
    graph.replay()
    same(x, torch.ones(3))
    same(y, torch.full((3,), 5.0))
    different = graphs.Graph(keep_graph=True)
    with graphs.graph(different):
        x.mul_(2).add_(1)
    with pytest.raises(RuntimeError):
        graph.update(different)


# ---- looking at a graph -----------------------------------------------------------------------------


def test_dumps_name_operators_and_labels(device, tmp_path):
    x = torch.ones(3, 3, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph), graphs.label("block"):
        torch.sort(x @ x)
    for ending, start in ((".dot", "digraph"), (".svg", "<svg"), (".json", "{")):
        path = tmp_path / f"graph{ending}"
        graph.dump(path)
        text = path.read_text()
        assert text.lstrip().startswith(start) and "sort" in text and "block" in text, text
    nodes = json.loads(text)["nodes"]
    assert any("mm" in node["label"] for node in nodes), nodes
    with pytest.raises(ValueError, match=r"\.dot, \.svg or \.json"):
        graph.dump(tmp_path / "graph.txt")
    assert graph.info()["nodes"] == len(nodes)


@needs_graphs_of_torch
def test_debug_mode_of_torch_keeps_the_graph(device, tmp_path):
    x = torch.ones(3, device=device)
    graph = torch.accelerator.Graph()
    graph.enable_debug_mode()
    with torch.Stream(device), graph:
        x.add_(1)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")
    plain = torch.accelerator.Graph()
    with torch.Stream(device), plain:
        x.add_(1)
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        plain.debug_dump(str(tmp_path / "plain.dot"))


def test_profile_and_check_run_the_graph(device):
    x = torch.rand(8, 8, device=device)
    graph = graphs.Graph()
    with graphs.graph(graph):
        y = torch.softmax(x @ x, dim=-1)
    graph.check()
    cost = graph.cost()
    assert cost["nodes"] == graph.info()["nodes"] and cost["replay_ns"] > 0 and cost["node_by_node_ns"] > 0
    profile = graph.profile()
    assert len(profile["nodes"]) == graph.info()["exec"]["nodes"] and profile["total_ns"] > 0
    same(y, torch.softmax(x.cpu() @ x.cpu(), dim=-1), rtol=1e-5, atol=1e-6)
