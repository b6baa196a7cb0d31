"""Random numbers: a state that is seed and offset, the same numbers for any number of threads."""

from __future__ import annotations

import pytest
import torch
import torch_outrigger
from support import run_python
from torch_outrigger import graphs

pytestmark = pytest.mark.of_driver

DRAWS = {
    "rand": lambda d, g: torch.rand(1000, device=d, generator=g),
    "randn": lambda d, g: torch.randn(1001, device=d, generator=g),
    "randint": lambda d, g: torch.randint(0, 100, (1000,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(500, device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((1000,), 0.3, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(50, device=d), 20, generator=g),
    "multinomial with replacement": lambda d, g: torch.multinomial(torch.ones(50, device=d), 20, True, generator=g),
    "exponential": lambda d, g: torch.empty(1000, device=d).exponential_(generator=g),
    "cauchy": lambda d, g: torch.empty(1000, device=d, dtype=torch.float64).cauchy_(generator=g),
    "log_normal": lambda d, g: torch.empty(1000, device=d, dtype=torch.bfloat16).log_normal_(generator=g),
    "geometric": lambda d, g: torch.empty(1000, device=d, dtype=torch.int64).geometric_(0.1, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_decides_the_numbers(device, name):
    draw = DRAWS[name]
    generator = torch.Generator(device=device).manual_seed(42)
    first, second = draw(device, generator), draw(device, generator)
    assert not torch.equal(first, second), "numbers are not repeated"
    generator.manual_seed(42)
    assert torch.equal(draw(device, generator), first) and torch.equal(draw(device, generator), second)
    assert not torch.equal(draw(device, generator.manual_seed(43)), first)


def test_default_generator_follows_torch_manual_seed(device, module):
    torch.manual_seed(5)
    first = torch.rand(64, device=device)
    host = torch.rand(4)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(64, device=device), first)
    assert torch.equal(torch.rand(4), host), "the device's numbers do not come from the CPU's generator"
    module.manual_seed_all(5)
    assert torch.equal(torch.rand(64, device=device), first)


def test_state_round_trip(device, module):
    torch.rand(10, device=device)
    state = module.get_rng_state(device)
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = torch.randn(33, device=device)
    module.set_rng_state(state, device)
    assert torch.equal(torch.randn(33, device=device), first)
    generator = torch.Generator(device=device)
    generator.set_state(state)
    assert torch.equal(torch.randn(33, device=device, generator=generator), first)
    with pytest.raises((RuntimeError, TypeError)):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    assert generator.device == device


def test_fork_rng_restores(device):
    torch.manual_seed(1)
    expected = torch.rand(8, device=device)
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[device.index], device_type=device.type):
        torch.manual_seed(99)
        torch.rand(100, device=device)
    assert torch.equal(torch.rand(8, device=device), expected)


def test_generators_are_independent(device):
    a, b = torch.Generator(device=device).manual_seed(1), torch.Generator(device=device).manual_seed(1)
    first = torch.rand(100, device=device, generator=a)
    torch.rand(17, device=device, generator=a)
    assert torch.equal(torch.rand(100, device=device, generator=b), first)
    torch.rand(5, device=device)  # the default generator moves neither
    assert torch.equal(torch.rand(10, device=device, generator=a.clone_state()), torch.rand(10, device=device, generator=a))


def test_a_cpu_generator_is_refused(device):
    with pytest.raises((RuntimeError, ValueError), match="[Ee]xpected a"):
        torch.rand(3, device=device, generator=torch.Generator())


def test_default_generators_one_per_device(device, module):
    generators = module.default_generators
    assert [g.device.index for g in generators] == list(range(module.device_count()))
    torch.manual_seed(77)
    assert all(g.initial_seed() == 77 for g in generators) and module.initial_seed() == 77
    states = module.get_rng_state_all()
    first = torch.rand(5, device=device)
    module.set_rng_state_all(states)
    assert torch.equal(torch.rand(5, device=device), first)
    assert module.seed() != 77


def test_numbers_do_not_depend_on_threads(device_type):
    code = f"""
        import torch
        torch.set_num_threads(%d)
        torch.manual_seed(3)
        d = "{device_type}"
        x = [torch.rand(100_003, device=d), torch.randn(100_003, device=d),
             torch.nn.functional.dropout(torch.ones(100_003, device=d), 0.4)]
        weights = torch.arange(1, 100_004)
        print([(t.cpu().view(torch.int32).long() * weights).sum().item() for t in x])  # of every bit, exactly
        """
    outputs = [run_python(code % threads) for threads in (1, 2)]
    assert outputs[0].returncode == 0, outputs[0].stderr
    assert outputs[0].stdout == outputs[1].stdout


def test_distributions(device):
    count = 400_000  # the bounds are about 6 standard deviations of the estimate
    uniform = torch.rand(count, device=device).cpu()
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.003
    assert abs(uniform.var() - 1 / 12) < 0.001
    normal = torch.randn(count, device=device).cpu()
    assert abs(normal.mean()) < 0.01 and abs(normal.var() - 1) < 0.014
    assert abs((normal.abs() < 1).float().mean() - 0.6827) < 0.005
    pairs = torch.corrcoef(torch.stack([normal[:-1], normal[1:]]))[0, 1]
    assert abs(pairs) < 0.01, "neighbours are independent"
    integers = torch.randint(-3, 5, (count,), device=device).cpu()
    assert integers.unique().tolist() == list(range(-3, 5))
    shares = torch.bincount(integers + 3).float() / count
    assert (shares - 1 / 8).abs().max() < 0.004


def test_distributions_that_are_made_of_others(device):
    count = 400_000  # the bounds are about 6 standard deviations of the estimate
    empty = torch.empty(count, device=device)
    exponential = empty.exponential_(2.0).cpu()
    assert exponential.min() > 0 and abs(exponential.mean() - 0.5) < 0.005 and abs(exponential.var() - 0.25) < 0.007
    geometric = empty.geometric_(0.25).cpu()
    assert geometric.min() == 1 and torch.equal(geometric, geometric.floor()) and abs(geometric.mean() - 4) < 0.035
    assert abs((geometric == 1).float().mean() - 0.25) < 0.005
    cauchy = empty.cauchy_(3.0, 2.0).cpu()
    assert cauchy.isfinite().all() and abs((cauchy < 3).float().mean() - 0.5) < 0.005
    assert abs((cauchy < 1).float().mean() - 0.25) < 0.005, "the quartiles are one sigma off"
    normal = empty.log_normal_(0.5, 0.25).log_()
    assert abs(normal.mean() - 0.5) < 0.003 and abs(normal.std() - 0.25) < 0.002
    chances = torch.tensor([[0.0], [0.25], [1.0]], device=device)
    drawn = torch.empty(3, count, device=device).bernoulli_(chances).cpu().mean(1)
    assert drawn[0] == 0 and abs(drawn[1] - 0.25) < 0.005 and drawn[2] == 1


def test_multinomial(device, module):
    weights = torch.tensor([[1.0, 0.0, 3.0, 4.0], [0.0, 5.0, 0.0, 0.0]], device=device)
    for replacement, count in ((True, 4), (False, 1)):
        draws = torch.multinomial(weights.repeat(50_000, 1), count, replacement).cpu().view(50_000, 2, count)
        shares = torch.bincount(draws[:, 0].flatten(), minlength=4) / draws[:, 0].numel()
        assert (shares - torch.tensor([1 / 8, 0, 3 / 8, 1 / 2])).abs().max() < 0.015 and shares[1] == 0
        assert (draws[:, 1] == 1).all()
    all_ = torch.multinomial(torch.rand(20, 300, device=device) + 0.01, 300).cpu()
    assert torch.equal(all_.sort().values, torch.arange(300).expand(20, 300))
    firsts = torch.multinomial(weights[0].expand(50_000, 4), 2).cpu()
    assert not (firsts == 1).any() and (firsts[:, 0] != firsts[:, 1]).all()
    assert abs((firsts[:, 0] == 3).float().mean() - 0.5) < 0.015
    for wrong, text in (([1.0, -1.0], "inf`, `nan` or element < 0"), ([0.0, 0.0], "sum of probabilities <= 0"),
                        ([1.0, float("nan")], "inf`, `nan` or element < 0")):
        torch.multinomial(torch.tensor(wrong, device=device), 1)
        with pytest.raises(RuntimeError, match=text):
            module.synchronize()
    with pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(weights, 5)


def test_permutations(device):
    for dtype in (torch.int64, torch.int32, torch.float32, torch.uint8):
        drawn = torch.randperm(200, device=device, dtype=dtype)
        assert drawn.dtype == dtype and torch.equal(drawn.long().sort().values.cpu(), torch.arange(200))
    firsts = torch.stack([torch.randperm(4, device=device)[0] for _ in range(2000)]).cpu()
    assert (torch.bincount(firsts, minlength=4) / 2000 - 0.25).abs().max() < 0.06
    assert torch.randperm(0, device=device).numel() == 0
    with pytest.raises(RuntimeError, match="too large"):
        torch.randperm(257, device=device, dtype=torch.uint8)


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout(device, p):
    ones = torch.ones(200_000, device=device, requires_grad=True)
    result = torch.nn.functional.dropout(ones, p)
    result.sum().backward()
    kept = (result != 0).cpu()
    assert abs(kept.float().mean() - (1 - p)) < 0.007
    if p < 1:
        expected = kept.float() / (1 - p)
        torch.testing.assert_close(result.detach().cpu(), expected)
        torch.testing.assert_close(ones.grad.cpu(), expected)  # the mask of the forward pass
    assert torch.equal(torch.nn.functional.dropout(ones, p, training=False), ones)


def test_numbers_with_a_parameter_each(device, device_type):
    """Poisson, binomial, gamma and Dirichlet numbers: of the device, right in the mean, by the seed alone, at every layout."""
    rate = torch.tensor([0.5, 3.0, 20.0, 500.0], device=device).expand(20_000, 4)
    chance = torch.full((4,), 0.3, device=device)
    draws = {
        "poisson": (lambda: torch.poisson(rate), rate[0]),
        "binomial": (lambda: torch.binomial(rate.ceil(), chance), rate[0].ceil() * 0.3),
        "standard_gamma": (lambda: torch._standard_gamma(rate), rate[0]),
        "dirichlet": (lambda: torch._sample_dirichlet(rate), rate[0] / rate[0].sum()),
    }
    for name, (draw, mean) in draws.items():
        torch_outrigger.reset_fallback_report()
        torch.manual_seed(5)
        first, second = draw(), draw()
        ran = {entry["operator"]: entry["place"] for entry in torch_outrigger.operator_report()}
        torch.manual_seed(5)
        assert torch.equal(draw(), first) and not torch.equal(first, second), name
        assert ran.get(name.replace("dirichlet", "standard_gamma")) in ("device", "host_kernel"), ran
        assert "framework" not in ran.values(), ran
        assert first.device == device and first.shape == rate.shape
        torch.testing.assert_close(first.mean(0).cpu(), mean.cpu(), rtol=0.05, atol=0.02, msg=lambda text, name=name: f"{name}: {text}")
    half = torch.poisson(torch.full((3, 5), 4.0, dtype=torch.float16, device=device).t())
    assert half.shape == (5, 3) and half.dtype == torch.float16 and torch.equal(half, half.round())
    rates = torch.distributions.Gamma(torch.tensor([2.0], device=device, requires_grad=True), torch.ones(1, device=device))
    assert rates.rsample((3,)).device == device
    torch.poisson(torch.tensor([-1.0], device=device))
    with pytest.raises(RuntimeError, match="expected rate to be non-negative|`poisson` failed: invalid argument"):
        torch.accelerator.synchronize()


def test_numbers_with_a_parameter_each_are_replayed(device):
    rate = torch.full((1000,), 7.0, device=device)
    torch.manual_seed(11)
    eager = [torch.poisson(rate).cpu() for _ in range(3)]
    graph = graphs.Graph()
    torch.manual_seed(11)
    with graphs.graph(graph):
        drawn = torch.poisson(rate)
    for expected in eager:
        graph.replay()
        assert torch.equal(drawn.cpu(), expected)
