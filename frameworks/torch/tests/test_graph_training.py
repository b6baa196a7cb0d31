"""Whole training steps as graphs, equal to eager ones; callables with two graphs; variants for shapes."""

from __future__ import annotations

import copy
import warnings
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import same
from torch import nn
from torch_outrigger import graphs

sys.path.append(str(Path(__file__).resolve().parents[3]))

from demo.models import CharModel, DigitNet  # noqa: E402

WARM_UP = 3
STEPS = 6


def digits(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(16, 1, 8, 8, generator=generator), torch.randint(0, 10, (16,), generator=generator)


def chars(seed):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, 30, (4, 17), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def text_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


TRAININGS = {
    "digits, SGD": (DigitNet, lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9), F.cross_entropy, digits),
    "chars, fused AdamW": (
        lambda: CharModel(30, length=16, width=32, heads=2, depth=2),
        lambda w: torch.optim.AdamW(w, lr=1e-3, fused=True, capturable=True), text_loss, chars,
    ),
    "digits, Adam": (
        DigitNet, lambda w: torch.optim.Adam(w, lr=1e-3, capturable=True, foreach=False), F.cross_entropy, digits,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAININGS)
def test_a_replayed_training_step_equals_an_eager_one(device, name):
    make_model, make_optimizer, loss_of, batch = TRAININGS[name]
    if device.type == "mtia" and "Adam" in name and "fused" not in name:
        pytest.skip("torch takes capturable optimizers on some devices only, and mtia is none of them")
    torch.manual_seed(0)
    model = make_model().to(device)
    twin = copy.deepcopy(model)
    optimizer, other = make_optimizer(model.parameters()), make_optimizer(twin.parameters())
    inputs, targets = (part.to(device) for part in batch(0))

    def step(net, optimizer, inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        for number in range(WARM_UP):
            step(model, optimizer, *(part.to(device) for part in batch(number)))
    torch.accelerator.synchronize()
    for number in range(WARM_UP):
        step(twin, other, *(part.to(device) for part in batch(number)))

    graph = graphs.Graph()
    with graphs.graph(graph, stream=side):
        loss = step(model, optimizer, inputs, targets)
    for number in range(WARM_UP, WARM_UP + STEPS):
        given = tuple(part.to(device) for part in batch(number))
        inputs.copy_(given[0])
        targets.copy_(given[1])
        graph.replay()
        expected = step(twin, other, *given)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6), number
    for one, its in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        same(one, its.cpu(), rtol=1e-5, atol=1e-6)


def test_dropout_in_a_captured_step(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1)).to(device)
    twin = copy.deepcopy(model)
    x = torch.ones(4, 8, device=device)

    def step(net):
        for parameter in net.parameters():
            parameter.grad = None
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
        return loss.detach()

    torch.manual_seed(7)
    eager = [step(twin).item() for _ in range(4)]
    graph = graphs.Graph()
    with graphs.graph(graph):
        loss = step(model)
    torch.manual_seed(7)
    replayed = []
    for _ in range(4):
        graph.replay()
        replayed.append(loss.item())
    assert replayed == pytest.approx(eager, rel=1e-6)


# ---- callables --------------------------------------------------------------------------------------


def test_graphed_callables_train_like_the_modules(device):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    twin = copy.deepcopy(body)
    sample = torch.randn(5, 6, device=device, requires_grad=True)
    graphed = graphs.make_graphed_callables(body, (sample,))
    for seed in range(3):
        value = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)).to(device)
        mine, its = value.clone().requires_grad_(), value.clone().requires_grad_()
        for net, x in ((graphed, mine), (twin, its)):
            net.zero_grad()
            net(x * 1).square().sum().backward()
        same(mine.grad, its.grad.cpu(), rtol=1e-5, atol=1e-6)
        for one, other in zip(body.parameters(), twin.parameters(), strict=True):
            same(one.grad, other.grad.cpu(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="captured as"):
        body(value[:2])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_of_graphed_callables_add_up(device, set_to_none):
    torch.manual_seed(0)
    twin = nn.Linear(4, 4)
    body = copy.deepcopy(twin).to(device)
    graphed = graphs.make_graphed_callables(body, (torch.randn(4, 4, device=device),))
    for seed in range(2):
        batches = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(seed))
        for net, there in ((graphed, device), (twin, torch.device("cpu"))):
            net.zero_grad(set_to_none=set_to_none)
            for batch in batches:
                net(batch.to(there)).square().sum().backward()
        for one, other in zip(body.parameters(), twin.parameters(), strict=True):
            same(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_what_graphed_callables_give_is_the_callers(device):
    torch.manual_seed(0)
    twin = nn.Linear(4, 4)
    sample = torch.randn(4, 4, device=device, requires_grad=True)
    before = sample.detach().cpu()
    graphed = graphs.make_graphed_callables(copy.deepcopy(twin).to(device), (sample,))
    given = []
    for batch in torch.randn(3, 4, 4):
        x, its = batch.to(device).requires_grad_(), batch.clone().requires_grad_()
        result, expected = graphed(x), twin(its)
        # The backward pass does not read what the caller changes.
        result.detach().zero_().add_(expected.detach().to(device))
        result.square().sum().backward()
        expected.square().sum().backward()
        given.append(((result.detach(), expected.detach()), (x.grad, its.grad)))
    for pairs in given:
        for one, other in pairs:
            same(one, other, rtol=1e-4, atol=1e-5)
    same(sample.detach(), before)


def test_a_graphed_callable_reads_its_arguments_as_they_are(device):
    """Not by their address: a view that begins where the sample does is another matrix."""
    sample = torch.arange(9.0).view(3, 3)
    weight = torch.ones(3, 3, device=device, requires_grad=True)
    there = sample.to(device)
    graphed = graphs.make_graphed_callables(lambda x: (x * 2 + weight).cumsum(0), (there,))
    for view in (sample, sample.t(), sample[:1].expand(3, 3)):
        moved = there.as_strided(view.shape, view.stride())
        same(graphed(moved).detach(), (view * 2 + 1).cumsum(0))
    pair = graphs.make_graphed_callables(lambda both: both["a"] - both["b"], ({"a": there, "b": there},))
    same(pair({"a": there * 2, "b": there}), sample)
    with pytest.raises(TypeError, match="captured with arguments"):
        pair({"b": there, "a": there * 2})
    with pytest.raises(ValueError, match="captured without requires_grad"):
        graphed(there.clone().requires_grad_())


def test_a_backward_pass_that_comes_too_late_is_refused(device):
    body = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(device)
    graphed = graphs.make_graphed_callables(body, (torch.randn(2, 3, device=device),))
    first, second = (graphed(torch.randn(2, 3, device=device)) for _ in range(2))
    with pytest.raises(RuntimeError, match="run backward before the next call"):
        first.sum().backward()
    second.sum().backward()


def test_graphed_callables_under_autocast_use_the_weights_of_now(device):
    body = nn.Linear(4, 4, bias=False).to(device)
    x = torch.ones(2, 4, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        graphed = graphs.make_graphed_callables(body, (x,))
    with torch.no_grad():
        body.weight.fill_(3.0)
    result = graphed(x)
    same(result.detach().float(), torch.full((2, 4), 12.0))
    result.float().sum().backward()
    same(body.weight.grad, torch.full((4, 4), 2.0))


def test_graphed_callables_say_when_they_run_without_their_graph(device):
    body = nn.Linear(3, 2).to(device)
    x = torch.randn(2, 3, device=device)
    expected = nn.functional.linear(x.cpu(), body.weight.detach().cpu(), body.bias.detach().cpu())
    graphed = graphs.make_graphed_callables(body, (x,))
    with pytest.warns(RuntimeWarning, match=r"Linear .* without its graph: .* keyword arguments \(input\)"):
        same(graphed(input=x).detach(), expected, rtol=1e-5, atol=1e-6)
    graphed.eval()
    with pytest.warns(RuntimeWarning, match="training is False, and was True at the capture"):
        same(graphed(x).detach(), expected, rtol=1e-5, atol=1e-6)
    graphed.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(graphed(x).detach(), expected, rtol=1e-5, atol=1e-6)
        graphed.eval()
        graphed(x)  # said before


def test_several_graphed_callables_share_one_pool(device):
    torch.manual_seed(0)
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    sample = torch.randn(3, 4, device=device, requires_grad=True)
    first, second = graphs.make_graphed_callables(
        (lambda x: torch.sort(x).values * 2, lambda x: {"y": x.exp(), "n": x.detach() + 1}), ((sample,), (sample,))
    )
    x = torch.randn(3, 4, device=device)
    result = second(first(x @ weight))
    assert result["y"].requires_grad and not result["n"].requires_grad
    (gradient,) = torch.autograd.grad(result["y"].sum(), weight)
    plain = x.cpu() @ weight.detach().cpu()
    leaf = weight.detach().cpu().requires_grad_()
    (torch.sort(x.cpu() @ leaf).values * 2).exp().sum().backward()
    same(result["n"], torch.sort(plain).values * 2 + 1, rtol=1e-5, atol=1e-6)
    same(gradient, leaf.grad, rtol=1e-4, atol=1e-5)


# ---- variants ---------------------------------------------------------------------------------------


def test_variants_serve_changing_shapes_within_their_bound(device):
    weight = torch.randn(8, 8, device=device)
    calls = []

    @graphs.variants(max_graphs=2)
    def function(x, scale=1.0):
        calls.append(tuple(x.shape))
        return (x @ weight).relu() * scale, x.shape[0]

    for _round in range(3):
        for rows in (1, 2, 3):
            for _ in range(3):
                x = torch.randn(rows, 8, device=device)
                got, count = function(x, scale=2.0)
                same(got, (x.cpu() @ weight.cpu()).relu() * 2, rtol=1e-5, atol=1e-5)
                assert count == rows
    report = function.report()
    assert len(report["graphs"]) == 2 and report["max_graphs"] == 2
    assert report["evictions"] == report["captures"] - 2 > 0
    assert report["eager"] + report["replays"] == 27
    assert len(calls) == report["eager"] + report["captures"], "replays do not call the function"
    function.reset()
    assert function.report()["graphs"] == []


def test_results_of_variants_are_the_callers_own(device):
    function = graphs.variants(lambda x: x + 1)
    x = torch.zeros(4, device=device)
    results = [function(x + value) for value in range(5)]
    for value, result in enumerate(results):
        same(result, torch.full((4,), value + 1.0))


def test_variants_work_on_their_arguments_in_place(device):
    function = graphs.variants(lambda x, y: (x.add_(y), x[1:]))
    for value in range(4):
        x, y = torch.full((3,), float(value), device=device), torch.ones(3, device=device)
        whole, part = function(x, y)
        assert whole is x
        same(x, torch.full((3,), value + 1.0))
        same(part, torch.full((2,), value + 1.0))


def test_variants_tell_apart_what_the_function_could(device):
    function = graphs.variants(lambda x, flag: x.double() if flag else x * 2)
    x = torch.ones(2, 3, device=device)
    for _ in range(3):
        assert function(x, True).dtype == torch.float64
        same(function(x, False), torch.full((2, 3), 2.0))
        same(function(x.t(), False), torch.full((3, 2), 2.0))
    with pytest.raises(TypeError, match="CPU tensor"):
        function(torch.ones(2, 3), True)
    with pytest.raises(TypeError, match="hashable"):
        function(x, {1, 2})


def test_variants_are_ordered_across_streams(device):
    function = graphs.variants(lambda x: (x * 2).cumsum(0) + torch.sort(x).values)
    sizes = (5, 9)
    expected = {n: (torch.ones(n) * 2).cumsum(0) + 1 for n in sizes}
    inputs = {n: torch.ones(n, device=device) for n in sizes}
    torch.accelerator.synchronize()
    results = []
    for _ in range(10):
        for n in sizes:
            with torch.Stream(device):
                results.append((n, function(inputs[n])))
    torch.accelerator.synchronize()
    for n, result in results:
        same(result, expected[n])


def test_a_training_step_as_variants(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).to(device)
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, twin))

    def step(net, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    captured = graphs.variants(lambda x, y: step(model, optimizer, x, y))
    for number in range(8):
        rows = 4 + number % 2
        x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(number)).to(device)
        y = torch.arange(rows, device=device) % 3
        got = captured(x, y)
        assert not got.requires_grad
        assert got.item() == pytest.approx(step(twin, other, x, y).item(), rel=1e-5)
    assert captured.report()["replays"] == 6
