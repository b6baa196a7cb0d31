"""torch.cond, while_loop and switch through torch.compile: the host decides, or a node of a captured graph."""

from __future__ import annotations

import pytest
import torch
from support import same
from torch._higher_order_ops.switch import switch
from torch._higher_order_ops.while_loop import while_loop


@pytest.fixture(autouse=True)
def fresh(compiles):
    torch._dynamo.reset()


def test_branches_are_taken_by_numbers_of_the_device(once, device):
    def call(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,))

    compiled, x = torch.compile(call), torch.rand(5, 7)
    for one in (x, -x):
        same(compiled(one.to(device)), call(one), rtol=1e-5, atol=1e-6)
    given = x.to(device).requires_grad_()
    compiled(given).sum().backward()
    same(given.grad, 2 * x.cos(), rtol=1e-5, atol=1e-6)


def test_loops_end_by_numbers_of_the_device(once, device):
    def call(limit, x):
        return while_loop(lambda i, x: (i < limit) & (x.sum() < 100), lambda i, x: (i + 1, x * 1.5 + 1), (limit * 0, x))

    compiled, x = torch.compile(call), torch.rand(5, 7)
    for limit in (0, 3, 40):
        limit = torch.tensor(limit)
        for one, other in zip(compiled(limit.to(device), x.to(device)), call(limit, x), strict=True):
            same(one, other, rtol=1e-5, atol=1e-6)


def test_branches_and_loops_are_replayed(once, device):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: (x.sin() * 2).relu(), lambda x: x.cos() - 1, (x,)).exp()

    def loop(x):
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: (i < 9) & (x.sum() < 40), lambda i, x: (i + 1, x * 1.5 + i), (start, x))

    both = [torch.compile(one, mode="reduce-overhead") for one in (branch, loop)]
    for sign in (1, -1, 2, -2):
        x = torch.rand(8) * sign
        mine, ours = x.clone().requires_grad_(), x.to(device).requires_grad_()
        expected, result = branch(mine), both[0](ours)
        same(result.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
        expected.sum().backward()
        result.sum().backward()
        same(ours.grad, mine.grad, rtol=1e-5, atol=1e-6)
        for one, other in zip(both[1](x.to(device)), loop(x), strict=True):
            same(one, other, rtol=1e-5, atol=1e-5)


def branch(x):
    found, other = torch.cond(x.sum() > 0, lambda x: (x.sin() * 2, x @ x), lambda x: (x.cos() - 1, x + 1), (x,))
    return found.exp() + other


def loop(x):
    start = torch.zeros((), dtype=torch.int64, device=x.device)

    def body(i, x):
        return i + 1, torch.cond(i % 2 == 0, lambda x: x * 1.5 + 1, lambda x: x + x.mean(), (x,))

    return while_loop(lambda i, x: (i < 9) & (x.sum() < 300), body, (start, x))[1]


def choice(x):
    number = (x.sum() / 10).to(torch.int32)
    return switch(number, [lambda x: x.sin(), lambda x: x * 2, lambda x: x - 1], (x,))


@pytest.mark.parametrize("call", [branch, loop, choice])
def test_branches_and_loops_become_nodes_of_a_graph(call, device):
    compiled, x = torch.compile(call), torch.rand(4, 4).to(device)
    compiled(x)
    graph = torch.accelerator.Graph()
    with graph:
        result = compiled(x)
    # Memory that was freed in the capture is not the bodies' any more if they have let go of it.
    filled = [torch.full((4, 4), 7.0, device=device) for _ in range(50)]
    for scale in (1, -1, 4, 0.1, -3, 100, 2.5):
        given = torch.rand(4, 4) * scale
        x.copy_(given)
        graph.replay()
        same(result, call(given), rtol=1e-4, atol=1e-5)
    assert all((one == 7).all() for one in filled)


def test_a_branch_that_draws_is_not_captured(device):
    compiled = torch.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x * 2, (x,)))
    x = torch.ones(3, device=device)
    compiled(x)
    with pytest.raises(RuntimeError, match="random numbers in a body of a conditional node"), torch.accelerator.Graph():
        compiled(x)
    same(compiled(-x), torch.full((3,), -2.0))
