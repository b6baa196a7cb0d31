"""torch.compile without options on the device: generated kernels against eager execution on the CPU.

Kernels are counted in the text that Inductor writes. Limits, caches and errors are in test_compile_rules.py.
"""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from support import same
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def fresh(compiles):
    """No graph of another test is used."""
    torch._dynamo.reset()


def agree(function, *arguments, device, rtol=1e-4, atol=1e-5, **options):
    """Asserts that a function gives on the device, compiled, what it gives on the CPU."""
    there = [one.to(device) if isinstance(one, torch.Tensor) and one.dim() else one for one in arguments]
    compiled = pytree.tree_leaves(torch.compile(function, **options)(*there))
    expected = pytree.tree_leaves(function(*arguments))
    assert len(compiled) == len(expected)
    for one, other in zip(compiled, expected, strict=True):
        same(one, other, rtol=rtol, atol=atol)


class Program:
    """A random program over tensors: what it does follows from its seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def inputs(self) -> list[torch.Tensor]:
        torch.manual_seed(self.seed)
        dtype = (torch.float32, torch.float32, torch.float64, torch.int64)[self.seed % 4]
        shape = ((6, 17), (40, 96), (5, 130), (129, 8))[self.seed % 4]
        values = [torch.randint(-9, 10, shape).to(dtype) / (2 if dtype.is_floating_point else 1) for _ in range(3)]
        return [one.to(dtype) for one in values] + [torch.randint(0, shape[0], (shape[0],)), torch.rand(shape) < 0.4]

    def __call__(self, x, y, z, rows, mask):
        choose = random.Random(self.seed)
        full, results = [x, y, z], []
        floating = x.dtype.is_floating_point

        def any_full():
            return choose.choice(full)

        for _ in range(14):
            what, a, b = choose.randrange(15), any_full(), any_full()
            if what == 0:
                new = a + b * 2
            elif what == 1:
                new = torch.where(mask, a, b.abs())
            elif what == 2:
                new = torch.maximum(a, b) - torch.minimum(a, -b)
            elif what == 3:
                new = a - (a.sum(1, keepdim=True) if not floating else a.mean(1, keepdim=True))
            elif what == 4:
                new = b + a.amax(0)
            elif what == 5:
                new = a.masked_fill(mask, 3)
            elif what == 6:
                new = a[rows]
            elif what == 7:
                new = torch.zeros_like(a).index_add(0, rows, b.clamp(-4, 4))
            elif what == 8:
                new = torch.cat((a[:, 1:], b[:, :1]), 1)
            elif what == 9:
                new = a.t().contiguous().t() + a.argmax(1, keepdim=True)
            elif what == 10:
                new = a.softmax(1) if floating else (a // 3) % 7
            elif what == 11:
                new = (a * 0.1).tanh().exp() if floating else a.bitwise_xor(b) >> 1
            elif what == 12:
                new = b + (a > b).any(1, keepdim=True).to(b.dtype) + (a.var(0) if floating else a.prod(0).clamp(-5, 5))
            elif what == 13:
                new = a.flip(0).clone()
                new[:, 0] += b[:, 1]
            else:
                new = a.cumsum(0).clamp(-20, 20)
            full.append(new.clamp(-50, 50))
            if choose.random() < 0.3:
                results.append(any_full().sum(choose.randrange(2)))
        return (*full[-3:], *results)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_of_any_layout(device, order, dtype):
    def causal(*inputs):
        return F.scaled_dot_product_attention(*inputs, is_causal=True)

    def with_gradients(function, inputs):
        inputs = [one.requires_grad_() for one in inputs]
        out = function(*inputs)
        return (out, *torch.autograd.grad(out.pow(3).sum(), inputs))

    sizes = [(2, 4, 6, 8)[one] for one in order]
    given = [torch.randn(sizes, dtype=dtype).permute(order) for _ in range(3)]
    agree(lambda *inputs: causal(*inputs).transpose(1, 2).flatten(2) * 2, *given, device=device)
    found = with_gradients(torch.compile(causal), [one.to(device) for one in given])
    for one, other in zip(found, with_gradients(causal, given), strict=True):
        same(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(device, seed):
    program = Program(seed)
    agree(program, *program.inputs(), device=device, rtol=1e-3, atol=1e-3)


class Transformer(nn.Module):
    """A small language model with everything that a large one has."""

    def __init__(self, width: int = 32, heads: int = 4, words: int = 50, length: int = 40) -> None:
        super().__init__()
        self.heads = heads
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.first, self.second, self.last = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, words)

    def forward(self, words, following):
        batch, length = words.shape
        x = self.word(words) + self.place(torch.arange(length, device=words.device))
        q, k, v = self.mix(self.first(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(length, length, device=x.device).tril() == 0
        weights = weights.masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.join((weights @ v).transpose(1, 2).reshape(batch, length, -1))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        return F.cross_entropy(self.out(self.last(x)).flatten(0, 1), following.flatten())


class Convolutions(nn.Module):
    """A small network for images, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 12, 3, stride=2)
        self.out = nn.Linear(12, 5)

    def forward(self, images, classes):
        x = F.max_pool2d(F.silu(self.two(F.relu(self.norm(self.one(images))))), 2)
        return F.cross_entropy(self.out(x.mean((2, 3))), classes)


def train(model, function, batches):
    """Losses of some steps."""
    steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        steps.zero_grad()
        loss = function(*batch)
        loss.backward()
        steps.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses)


def test_layouts_are_those_of_eager_execution(device):
    weights = torch.randn(4, 3, 3, 3, device=device)
    for layout in (torch.contiguous_format, torch.channels_last):
        images = torch.randn(1, 3, 6, 6, device=device).contiguous(memory_format=layout)
        compiled = torch.compile(F.conv2d)(images, weights)
        assert compiled.stride() == F.conv2d(images, weights).stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(200, 100), (100, 200), (1024, 67), (3, 200, 65)])
def test_rows_of_one_operand_are_columns_of_another(device, sizes, dynamic):
    x, y = torch.randn(sizes), torch.randn(*sizes[:-2], sizes[-1], sizes[-2])
    agree(lambda x, y: x.transpose(-1, -2) * 2 + y, x, y, device=device, dynamic=dynamic)


def words_and_following(*shapes):
    return [tuple(torch.randint(0, 50, shape) for _ in range(2)) for shape in shapes]


def test_steps_of_a_convolutional_network(device):
    model = Convolutions()
    twin = copy.deepcopy(model).to(device)
    images = [torch.randn(4, 3, 12, 12).contiguous(memory_format=torch.channels_last) for _ in range(3)]
    batches = [(one, torch.randint(0, 5, (4,))) for one in images]
    expected = train(model, model, batches)
    moved = [tuple(one.to(device) for one in batch) for batch in batches]
    torch.testing.assert_close(train(twin, torch.compile(twin), moved), expected, rtol=1e-3, atol=1e-4)
    for mine, other in zip(twin.state_dict().values(), model.state_dict().values(), strict=True):
        same(mine, other, rtol=5e-3, atol=1e-3)


def test_steps_of_a_transformer_with_lengths_that_change(device):
    model = Transformer()
    twin = copy.deepcopy(model).to(device)
    batches = words_and_following((3, 20), (2, 11), (5, 33))
    expected = train(model, model, batches)
    moved = [tuple(one.to(device) for one in batch) for batch in batches]
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(twin, dynamic=True)
    torch.testing.assert_close(train(twin, compiled, moved), expected, rtol=1e-4, atol=1e-5)
    for mine, other in zip(twin.parameters(), model.parameters(), strict=True):
        same(mine, other, rtol=1e-3, atol=1e-4)
    # One graph for all lengths.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_integers_wrap_and_divide_as_in_eager_execution(device):
    def integers(a, b):
        return a + b, a * b, a // b, a % b, -a, a << 3, a >> 1, a.abs(), (a - b) // 2, a.sum(), a.cumsum(0), a.amax(), ~a

    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        bounds = torch.iinfo(dtype)
        a = torch.randint(bounds.min // 2, bounds.max // 2, (300,)).to(dtype) * 2
        b = torch.randint(1, 100, (300,)).to(dtype) * (-1 if bounds.min < 0 else 1)
        agree(integers, a, b, device=device, rtol=0, atol=0)
        torch._dynamo.reset()


def test_nan_and_ties(device):
    def extremes(x):
        return x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), x.max(1), torch.maximum(x, x.flip(0)), x.relu(), x.isnan().any(1)

    inf, nan = float("inf"), float("nan")
    agree(extremes, torch.tensor([[1.0, nan, 3, nan], [2, 2, 1, 2], [-inf] * 4, [inf, 1, inf, -0.0]]), device=device)
    wide = torch.randint(0, 3, (4, 500)).float()
    wide[1, 300] = nan
    torch._dynamo.reset()
    agree(extremes, wide, device=device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floating_point_types(device, dtype):
    def floats(x):
        return (x.softmax(1) * x.std(1, keepdim=True)).sum(0), F.gelu(x).mean(), x.exp().log1p(), x.to(torch.float32) * 3

    limit = 1e-9 if dtype is torch.float64 else 3e-2
    agree(floats, torch.randn(20, 133).to(dtype), device=device, rtol=limit, atol=limit)


def test_sums_at_places_that_meet(device):
    def scattered(places, values):
        held = torch.zeros(7, 4, dtype=values.dtype, device=values.device)
        return held.index_put((places,), values, accumulate=True), held.scatter_add(0, places[:, None] * torch.ones_like(values).long(), values)

    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8):
        agree(scattered, torch.randint(0, 7, (640,)), torch.randint(0, 3, (640, 4)).to(dtype), device=device, rtol=0, atol=0)
        torch._dynamo.reset()


def test_what_has_no_text_stays_a_call(device):
    def others(x, z):
        return (
            x.cumsum(1).sin(), x.sort(1)[0] * 2, x.topk(3)[1], x.digamma() + 1, x.frexp()[0], x.logcumsumexp(0),
            torch.bucketize(x, x[0].sort()[0]), (z * 2 + 1).abs().sum() + (z @ z).real.sum(), x.erfinv().nan_to_num(),
        )  # fmt: skip

    agree(others, torch.randn(6, 50), torch.randn(4, 4, dtype=torch.complex64), device=device, rtol=1e-3)


def test_changes_in_place_reach_the_arguments(device):
    def change(x, sums):
        part = x[1:3]
        part.mul_(2)
        x[:, 0].add_(1)
        sums.add_(x.sum(0))
        return part.t().contiguous()

    x, sums = torch.randn(6, 5), torch.zeros(5)
    there = x.to(device), sums.to(device)
    same(torch.compile(change)(*there), change(x, sums), rtol=1e-6, atol=1e-6)
    same(there[0], x, rtol=1e-6, atol=1e-6)
    same(there[1], sums, rtol=1e-5, atol=1e-6)


def test_numbers_of_the_host_go_by_value(device):
    def scale(x, by, shift):
        return x * by + shift

    compiled = torch.compile(scale)
    x = torch.randn(9)
    for by in (2.5, -1.0):
        same(compiled(x.to(device), torch.tensor(by), torch.tensor(3)), x * by + 3)


def test_random_numbers_are_those_of_eager_execution(device, module):
    def noisy(x):
        dropped = F.dropout(x, 0.3)
        return dropped + torch.rand_like(x) + torch.randn(x.shape, device=x.device), torch.randint(0, 9, (50,), device=x.device)

    x = torch.randn(50, 40, device=device)
    torch.manual_seed(3)
    expected, state = noisy(x), torch.rand(3, device=device)
    torch.manual_seed(3)
    got = torch.compile(noisy)(x)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(torch.rand(3, device=device), state), "the generator went another way"


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_checkpoint_draws_the_same_numbers_twice(device, module, backend):
    if device.type == "mtia" and backend == "aot_eager":
        pytest.skip("torch.mtia has no default_generators, from which torch makes states beside Inductor")

    def block(x):
        return checkpoint(lambda x: F.dropout(x * 2, 0.5) * torch.rand(x.shape, device=x.device), x, use_reentrant=False)

    def run(function):
        """Two passes forward before the passes back, and the numbers that come next."""
        torch.manual_seed(3)
        inputs = [torch.ones(20, 8, device=device, requires_grad=True) for _ in range(2)]
        results = [function(x) for x in inputs]
        for one in results:
            one.sum().backward()
        return [one.detach() for one in results], [x.grad for x in inputs], torch.rand(3, device=device)

    results, gradients, following = run(torch.compile(block, backend=backend))
    # The block is linear, and its argument is one.
    for one, other in zip(results, gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.equal(*results)
    if backend == "inductor":
        eager, _, expected = run(block)
        torch.testing.assert_close(results, eager)
        assert torch.equal(following, expected)


def test_streams_and_events_in_compiled_code(device):
    def forked(x):
        side, main = torch.Stream(x.device), torch.accelerator.current_stream()
        side.wait_stream(main)
        with side:
            y = x * x
        main.wait_stream(side)
        return (y + 1).cumsum(0)

    def marked(x):
        event, main = torch.Event(x.device), torch.accelerator.current_stream()
        side = torch.Stream(x.device)
        y = x * 3
        event.record(main)
        side.wait_event(event)
        with side:
            z = y.sin()
            event.record(side)
        main.wait_event(event)
        return z + y

    for function in (forked, marked):
        compiled = torch.compile(function)
        for _ in range(3):
            x = torch.randn(50, 40)
            expected = (x * x + 1).cumsum(0) if function is forked else (x * 3).sin() + x * 3
            same(compiled(x.to(device)), expected, rtol=1e-4, atol=1e-4)


def test_a_compiled_step_is_captured_and_replayed(device):
    model = Transformer().to(device)
    compiled = torch.compile(model)
    words, following = (one.to(device) for one in words_and_following((2, 16))[0])
    with torch.no_grad():
        compiled(words, following)
        graph = torch.accelerator.Graph()
        with graph:
            loss = compiled(words, following)
        for other in words_and_following((2, 16), (2, 16)):
            words.copy_(other[0])
            following.copy_(other[1])
            graph.replay()
            torch.testing.assert_close(loss, model(words, following), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode, device):
    """Results of the operator besides the sums, which its gradient reads, have the sizes that torch was told."""
    torch.manual_seed(0)
    table, rows, offsets = torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 4])

    def gradient(table, rows, offsets, apply=lambda one: one):
        table = table.clone().requires_grad_()
        apply(lambda table: F.embedding_bag(rows, table, offsets, mode=mode).square())(table).sum().backward()
        return table.grad

    there = gradient(*(one.to(device) for one in (table, rows, offsets)), apply=torch.compile)
    same(there, gradient(table, rows, offsets), rtol=1e-5, atol=1e-5)
