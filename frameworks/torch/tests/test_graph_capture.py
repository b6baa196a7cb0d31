"""Captures of copies, operators that run on the CPU, random numbers. Work that a capture cannot take is refused by
name, and leaves everything usable."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from support import sample, same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch_outrigger import graphs

pytestmark = pytest.mark.of_driver


def capture(body):
    """A graph of what `body` does, and what it returns."""
    graph = graphs.Graph()
    with graphs.graph(graph):
        result = body()
    return graph, result


# ---- operators that run on the CPU ------------------------------------------------------------------

FALLBACKS = {
    "sort": lambda x: torch.sort(x, dim=-1),
    "topk": lambda x: torch.topk(x, 3),
    "cummax": lambda x: torch.cummax(x, 0),
    "conv": lambda x: F.conv2d(x.reshape(1, 1, 6, 8), torch.ones(2, 1, 3, 3, device=x.device), padding=1),
    "conv transposed": lambda x: F.conv_transpose2d(x.reshape(1, 2, 3, 8), torch.ones(2, 1, 2, 2, device=x.device)),
    "max_pool": lambda x: F.max_pool2d(x.reshape(1, 1, 6, 8), 2, return_indices=True),
    "avg_pool": lambda x: F.avg_pool2d(x.reshape(1, 1, 6, 8), 2),
    "interpolate": lambda x: F.interpolate(x.reshape(1, 1, 6, 8), scale_factor=2, mode="bilinear"),
    "attention": lambda x: F.scaled_dot_product_attention(*(x.reshape(1, 2, 3, 8),) * 3, is_causal=True),
    "masked attention": lambda x: F.scaled_dot_product_attention(
        *(x.reshape(1, 2, 3, 8),) * 3, attn_mask=torch.ones(3, 3, dtype=torch.bool, device=x.device).tril()
    ),
    "inverse": lambda x: torch.linalg.inv_ex(x[:, :6] + 20 * torch.eye(6, device=x.device)),
    "qr": lambda x: torch.linalg.qr(x),
    "index": lambda x: x[torch.tensor([2, 0, 5], device=x.device)],
    "index with the CPU's": lambda x: x[torch.tensor([2, 0, 5])],
    "index_put": lambda x: x.clone().index_put_((torch.tensor([1, 1], device=x.device),), x[0], accumulate=True),
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, torch.zeros_like(x, dtype=torch.int64), x),
    "smooth l1": lambda x: F.smooth_l1_loss(x, x * 2),
    "embedding bag": lambda x: F.embedding_bag(torch.zeros(2, 3, dtype=torch.int64, device=x.device), x),
    "histogram": lambda x: torch.histc(x, bins=5, min=-4, max=4),
    "complex": lambda x: torch.view_as_real(torch.fft.fft(x) * torch.fft.fft(x).conj()),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "transposed": lambda x: torch.sort(x.t(), dim=0).values,
    "median": lambda x: torch.median(x, dim=1),
    "gather rows": lambda x: torch.take_along_dim(x, torch.zeros(6, 1, dtype=torch.int64, device=x.device), 1),
    "int division": lambda x: x.to(torch.int64) // 3,
    "gru": lambda x: torch.gru_cell(
        x[:, :4], x[:, 4:], torch.ones(12, 4, device=x.device), torch.ones(12, 4, device=x.device)
    ),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_an_operator_on_the_cpu_is_replayed(device, name):
    function = FALLBACKS[name]
    x = torch.zeros(6, 8, device=device)
    graph, result = capture(lambda: function(x))
    for seed in range(2):
        value = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        x.copy_(value)
        graph.replay()
        got = result if isinstance(result, tuple) else (result,)
        expected = function(value)
        for one, other in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
            same(one, other, rtol=1e-5, atol=1e-5)


def test_out_and_inplace_variants_write_their_own_arguments(device):
    x = torch.zeros(5, device=device)
    values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    y = torch.zeros(5, device=device)

    def body():
        torch.sort(x, out=(values, indices))
        y.copy_(values)
        y.cumprod_(0)

    graph, _ = capture(body)
    assert values.shape == indices.shape == (5,), "resized at the capture"
    value = sample((5,), torch.float32, 3)
    x.copy_(value)
    graph.replay()
    expected = torch.sort(value)
    same(values, expected.values)
    same(indices, expected.indices)
    same(y, expected.values.cumprod(0))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_its_running_statistics(device, training):
    x = torch.zeros(4, 3, 5, 5, device=device)
    norm = torch.nn.BatchNorm2d(3).to(device).train(training)
    twin = torch.nn.BatchNorm2d(3).train(training)
    with torch.no_grad():
        graph, y = capture(lambda: norm(x))
        for seed in range(3):
            value = sample((4, 3, 5, 5), torch.float32, seed)
            x.copy_(value)
            graph.replay()
            same(y, twin(value), rtol=1e-5, atol=1e-5)
    same(norm.running_mean, twin.running_mean, rtol=1e-5, atol=1e-5)
    same(norm.running_var, twin.running_var, rtol=1e-5, atol=1e-5)
    same(norm.num_batches_tracked, twin.num_batches_tracked)


def test_a_failing_kernel_is_reported_and_the_graph_works_on(device):
    index = torch.zeros(3, dtype=torch.int64, device=device)
    x = torch.arange(4.0, device=device)
    graph, y = capture(lambda: x.index_add(0, index, torch.ones(3, device=device)))
    index.fill_(99)
    with pytest.raises((RuntimeError, IndexError)):
        graph.replay()
        torch.accelerator.synchronize()
    index.fill_(1)
    graph.replay()
    same(y, torch.tensor([0.0, 4.0, 2.0, 3.0]))


class Refuses(TorchDispatchMode):
    """Lets no operator through."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} belongs to a replay and was seen by the thread that waits")


def test_a_replay_ignores_the_modes_of_the_thread_that_waits(device):
    x, weight = torch.rand(1, 3, 6, 6, device=device), torch.rand(2, 3, 3, 3, device=device)
    with torch.no_grad():
        graph, y = capture(lambda: F.conv2d(x, weight))
    for mode in (torch.autocast("cpu"), torch.inference_mode(), Refuses()):
        y.zero_()
        with mode:
            graph.replay()
            torch.accelerator.synchronize()
        same(y, F.conv2d(x.cpu(), weight.cpu()), rtol=1e-5, atol=1e-5)


def test_the_fallback_mode_holds_in_a_capture(device):
    import torch_outrigger

    torch_outrigger.set_fallback_mode("framework:error")
    x = torch.rand(4, device=device)
    with pytest.raises(NotImplementedError, match="digamma"):
        capture(lambda: torch.digamma(x))


# ---- what cannot be captured ------------------------------------------------------------------------

REFUSED = {
    "item": ("item", lambda x: x.sum().item()),
    "bool": ("item", lambda x: bool(x.sum() > 0)),
    "cpu": ("copy_", lambda x: x.cpu()),
    "print": ("copy_|item|masked_select", lambda x: repr(x)),
    "pageable": ("copy_", lambda x: torch.empty(6, 8).copy_(x, non_blocking=True)),
    "nonzero": ("nonzero", lambda x: torch.nonzero(x)),
    "mask": ("index|nonzero", lambda x: x[x > 0]),
    "masked_select": ("masked_select", lambda x: torch.masked_select(x, x > 0)),
    "unique": ("unique", lambda x: torch.unique(x)),
    "equal": ("equal", lambda x: torch.equal(x, x + 1)),
    "synchronize": ("wait while the stream captures", lambda x: torch.accelerator.current_stream().synchronize()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_host_is_refused_by_name(device, name):
    pattern, body = REFUSED[name]
    x = torch.ones(6, 8, device=device)
    graph = graphs.Graph()
    with pytest.raises((RuntimeError, NotImplementedError), match=pattern), graphs.graph(graph):
        body(x)
    with pytest.raises(RuntimeError, match="its capture failed"):
        graph.replay()
    body(x)  # the same works outside
    again, y = capture(lambda: x + 1)
    again.replay()
    same(y, torch.full((6, 8), 2.0))


def test_a_kernel_in_python_is_refused(device):
    with torch.library._scoped_library("outrigger_test", "FRAGMENT") as library:
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: x * 3, "CPU")
        library.impl("thrice", lambda x: torch.empty_like(x), "Meta")
        x = torch.ones(3, device=device)
        same(torch.ops.outrigger_test.thrice(x), torch.full((3,), 3.0))
        with pytest.raises(NotImplementedError, match="thrice.*Python"):
            capture(lambda: torch.ops.outrigger_test.thrice(x))


def test_a_refusal_that_is_caught_fails_the_capture_all_the_same(device):
    x = torch.ones(3, device=device)

    def body():
        with pytest.raises(NotImplementedError, match="item"):
            x.sum().item()
        return x

    with pytest.raises((RuntimeError, NotImplementedError), match="item"):
        capture(body)
    assert x.sum().item() == 3


def test_the_text_says_what_to_do(device):
    x = torch.ones(3, device=device)
    with pytest.raises(NotImplementedError, match="_local_scalar_dense.*torch.where.*after the replay"):
        capture(lambda: x.sum().item())


# ---- copies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_from_the_cpu_reads_its_tensor_at_every_replay(device, pinned):
    host = torch.arange(5.0)
    if pinned:
        host = host.pin_memory()
    graph, y = capture(lambda: host.to(device, non_blocking=True) * 2)
    graph.replay()
    same(y, torch.arange(5.0) * 2)
    host.fill_(7)
    graph.replay()
    same(y, torch.full((5,), 14.0))
    # The graph keeps the memory when nobody else does.
    del host
    gc.collect()
    filler = [torch.full((5,), 99.0) for _ in range(64)]
    graph.replay()
    same(y, torch.full((5,), 14.0))
    del filler


def test_constants_are_part_of_the_graph(device):
    x = torch.ones(3, device=device)
    graph, y = capture(lambda: x * torch.tensor([1.0, 2.0, 3.0], device=device) + torch.tensor(4.0))
    gc.collect()
    graph.replay()
    same(y, torch.tensor([5.0, 6.0, 7.0]))


def test_a_copy_into_pinned_memory_is_done_by_every_replay(device):
    x = torch.zeros(4, device=device)
    host = torch.full((4,), -1.0).pin_memory()
    graph, _ = capture(lambda: host.copy_(x + 1, non_blocking=True))
    assert host.tolist() == [-1.0] * 4
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        torch.accelerator.synchronize()
        assert host.tolist() == [value + 1] * 4


def test_copies_between_layouts_and_dtypes(device):
    x = torch.zeros(3, 4, device=device)
    target = torch.zeros(4, 3, dtype=torch.float64, device=device)
    graph, _ = capture(lambda: target.copy_(x.t()))
    value = sample((3, 4), torch.float32)
    x.copy_(value)
    graph.replay()
    same(target, value.t().double())


@pytest.mark.parametrize("inside", [True, False])
def test_weights_under_autocast_are_cast_by_every_replay(device, inside):
    net = torch.nn.Linear(4, 4, bias=False).to(device)
    x = torch.ones(2, 4, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        if not inside:
            net(x)
        graph, y = capture(lambda: net(x))
        with torch.no_grad():
            net.weight.fill_(2.0)
        if inside:
            same(net(x).float().detach(), torch.full((2, 4), 8.0))
    graph.replay()
    same(y.float().detach(), torch.full((2, 4), 8.0))
    with torch.no_grad():
        net.weight.fill_(3.0)
    graph.replay()
    same(y.float().detach(), torch.full((2, 4), 12.0))


# ---- random numbers ---------------------------------------------------------------------------------


def test_dropout_differs_between_replays_and_equals_eager(device):
    x = torch.ones(64, 64, device=device)
    torch.manual_seed(9)
    eager = [F.dropout(x, 0.4) + torch.rand_like(x) for _ in range(3)]
    graph, y = capture(lambda: F.dropout(x, 0.4) + torch.rand_like(x))
    torch.manual_seed(9)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(y.clone())
    assert not torch.equal(replayed[0], replayed[1])
    for one, other in zip(replayed, eager, strict=True):
        assert torch.equal(one, other)


def test_numbers_of_a_replay_are_taken_from_the_generator(device):
    x = torch.empty(100, device=device)
    generator = torch.Generator(device).manual_seed(3)
    expected = [torch.rand(100, device=device, generator=generator) for _ in range(3)]
    generator.manual_seed(3)
    graph, _ = capture(lambda: x.uniform_(generator=generator))
    graph.replay()
    assert torch.equal(x, expected[0])
    assert torch.equal(torch.rand(100, device=device, generator=generator), expected[1]), "eager goes on behind it"
    graph.replay()
    assert torch.equal(x, expected[2])


def repeated(x):
    """Goes back to an earlier state."""
    module = torch.get_device_module(x.device)
    state = module.get_rng_state()
    first = torch.rand_like(x)
    module.set_rng_state(state)
    second = torch.rand_like(x)
    return first, second, torch.rand_like(x)


def forked(x):
    first = torch.rand_like(x)
    with torch.random.fork_rng([x.device.index], device_type=x.device.type):
        torch.manual_seed(99)
        second = torch.rand_like(x)
    return first, second, torch.rand_like(x)


def seeded(x):
    """Leaves the generator where it has put it."""
    first = torch.rand_like(x)
    torch.manual_seed(5)
    return first, torch.rand_like(x)


def cloned(x):
    """Another generator begins where this one is."""
    first = torch.rand_like(x)
    other = torch.get_device_module(x.device).default_generators[x.device.index].clone_state()
    return first, torch.rand(x.shape, device=x.device, generator=other), torch.rand_like(x)


def shared(x):
    """The default generator takes another one's state, and gives it back."""
    generator = torch.get_device_module(x.device).default_generators[x.device.index]
    own, other = generator.graphsafe_get_state(), generator.clone_state()
    first = torch.rand_like(x)
    generator.graphsafe_set_state(other)
    second = torch.rand_like(x)
    generator.graphsafe_set_state(own)
    return first, second, torch.rand_like(x)


def checkpointed(x):
    leaf = x.detach().requires_grad_()
    y = checkpoint(lambda x: F.dropout(x.sin(), 0.5), leaf, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), leaf)
    return y.detach(), gradient, torch.rand_like(x)


@pytest.mark.parametrize("body", [repeated, forked, seeded, cloned, shared, checkpointed], ids=lambda body: body.__name__)
def test_states_that_a_capture_sets_are_those_of_each_replay(device, module, body):
    if device.type == "mtia" and body in (cloned, shared):
        pytest.skip("torch.mtia has no default_generators")
    x = torch.ones(50, device=device)
    torch.manual_seed(9)
    eager = [(*body(x), module.get_rng_state(device)) for _ in range(3)]
    graph, results = capture(lambda: body(x))
    torch.manual_seed(9)
    for one in eager:
        graph.replay()
        for got, expected in zip((*results, module.get_rng_state(device)), one, strict=True):
            assert torch.equal(got, expected)
    if body is repeated:
        assert torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


def test_a_state_that_was_read_in_a_capture_is_refused_elsewhere(device, module):
    _, state = capture(lambda: module.get_rng_state(device))
    before = module.get_rng_state(device)
    with pytest.raises(RuntimeError, match="read within a capture"):
        module.set_rng_state(state, device)
    with pytest.raises(RuntimeError, match="read within a capture"):
        capture(lambda: module.set_rng_state(state, device))
    assert torch.equal(module.get_rng_state(device), before)


@pytest.mark.parametrize("ask", ["initial_seed", "seed"])
def test_a_seed_is_not_known_in_a_capture(device, ask):
    generator = torch.Generator(device)
    with pytest.raises(RuntimeError, match="each replay has a state of its own"):
        capture(lambda: getattr(generator, ask)())
    getattr(generator, ask)()


DRAWS = {
    "multinomial": lambda x: torch.multinomial(x, 3),
    "one of multinomial": lambda x: torch.multinomial(x, 1),
    "randperm": lambda x: torch.randperm(60, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x / 16),
    "exponential": lambda x: torch.empty_like(x).exponential_(),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_replay_draws_on_the_device_what_eager_draws(device, name):
    sizes = (2, 32) if "multinomial" in name else (2, 8, 16)
    x = torch.rand(sizes, device=device) + 0.5
    draw = DRAWS[name]
    torch.manual_seed(9)
    eager = [draw(x) for _ in range(3)]
    graph, y = capture(lambda: draw(x))
    torch.manual_seed(9)
    for one in eager:
        graph.replay()
        assert torch.equal(y, one)
    assert not torch.equal(eager[0], eager[1])
