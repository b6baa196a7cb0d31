"""Libraries of kernels of Triton, as PyPI has them: results and gradients are those of torch on the CPU."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from support import run_python, same, tested_triton

triton = tested_triton()

pytestmark = [pytest.mark.only_with_all, pytest.mark.usefixtures("compiles")]

CLOSE = {"rtol": 1e-3, "atol": 1e-4}
SUMMED = {"rtol": 1e-2, "atol": 2e-3}
"""For long sums in another order."""


def close_with_gradients(
    device: torch.device, ours: Callable[..., object], expected: Callable[..., object], values: Sequence[torch.Tensor], **tolerance: float
) -> None:
    """Asserts that what a function gives on the device, and the gradients of its values, are those of another one on the CPU."""
    on_cpu = [one.clone().requires_grad_() for one in values]
    on_device = [one.to(device).requires_grad_() for one in values]
    found, its = ours(*on_device), expected(*on_cpu)
    found, its = (one if isinstance(one, tuple) else (one,) for one in (found, its))
    for mine, other in zip(found, its, strict=True):
        same(mine.detach(), other.detach(), **(tolerance or CLOSE))
    grads = [torch.randn(one.shape) for one in its]
    torch.autograd.backward(its, grads)
    torch.autograd.backward(found, [one.to(device) for one in grads])
    for mine, other in zip(on_device, on_cpu, strict=True):
        same(mine.grad, other.grad, **(tolerance or CLOSE))


# ---- Liger ----


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def angles(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(float(length))[:, None] * 0.1 ** torch.linspace(0, 1, size // 2)
    at = torch.cat([at, at], -1)[None]
    return at.cos(), at.sin()


@pytest.fixture
def liger():
    return pytest.importorskip("liger_kernel.transformers.functional")


def test_liger_rms_norm(device, liger):
    close_with_gradients(
        device,
        lambda x, weight: liger.liger_rms_norm(x, weight, 1e-6),
        lambda x, weight: torch.nn.functional.rms_norm(x, (200,), weight, 1e-6),
        [torch.randn(37, 200), torch.rand(200)],
    )


def test_liger_layer_norm(device, liger):
    close_with_gradients(
        device,
        lambda x, weight, bias: liger.liger_layer_norm(x, weight, bias, 1e-6),
        lambda x, weight, bias: torch.nn.functional.layer_norm(x, (200,), weight, bias, 1e-6),
        [torch.randn(37, 200), torch.rand(200), torch.randn(200)],
    )


def test_liger_swiglu(device, liger):
    values = [torch.randn(11, 300), torch.randn(11, 300)]
    close_with_gradients(device, liger.liger_swiglu, lambda a, b: torch.nn.functional.silu(a) * b, values)


def test_liger_geglu(device, liger):
    values = [torch.randn(11, 300), torch.randn(11, 300)]
    close_with_gradients(device, liger.liger_geglu, lambda a, b: torch.nn.functional.gelu(a, approximate="tanh") * b, values)


def test_liger_cross_entropy(device, liger):
    classes = torch.randint(0, 150, (23,))
    classes[::5] = -100
    close_with_gradients(
        device,
        # Liger writes gradients in the place of its input.
        lambda x: liger.liger_cross_entropy(x * 1, classes.to(device)),
        lambda x: torch.nn.functional.cross_entropy(x, classes),
        [torch.randn(23, 150)],
    )


def test_liger_fused_linear_cross_entropy(device, liger):
    classes = torch.randint(0, 150, (23,))
    close_with_gradients(
        device,
        lambda x, weight: liger.liger_fused_linear_cross_entropy(x, weight, classes.to(device)),
        lambda x, weight: torch.nn.functional.cross_entropy(x @ weight.T, classes),
        [torch.randn(23, 64), torch.randn(150, 64)],
    )


def test_liger_softmax(device, liger):
    close_with_gradients(device, liger.liger_softmax, lambda x: x.softmax(-1), [torch.randn(23, 150)])


def test_liger_group_norm(device, liger):
    close_with_gradients(
        device,
        lambda x, weight, bias: liger.liger_group_norm(x, weight, bias, 12, 3, 1e-6),
        lambda x, weight, bias: torch.nn.functional.group_norm(x, 3, weight, bias, 1e-6),
        [torch.randn(4, 12, 30), torch.rand(12), torch.randn(12)],
    )


def test_liger_kl_divergence(device, liger):
    target = torch.randn(9, 130).softmax(-1)
    close_with_gradients(
        device,
        lambda x: liger.liger_kl_div(x.log_softmax(-1), target.to(device), reduction="batchmean"),
        lambda x: torch.nn.functional.kl_div(x.log_softmax(-1), target, reduction="batchmean"),
        [torch.randn(9, 130)],
    )


def test_liger_js_divergence(device, liger):
    other = torch.randn(9, 130).log_softmax(-1)

    def divergence(x: torch.Tensor) -> torch.Tensor:
        log_q = x.log_softmax(-1)
        middle = (0.5 * other.exp() + 0.5 * log_q.exp()).log()
        return 0.5 * (other.exp() * (other - middle) + log_q.exp() * (log_q - middle)).sum() / 9

    close_with_gradients(device, lambda x: liger.liger_jsd(x.log_softmax(-1), other.to(device)), divergence, [torch.randn(9, 130)])


def test_liger_rope(device, liger):
    cos, sin = angles(17, 32)
    close_with_gradients(
        device,
        lambda q, k: liger.liger_rope(q * 1, k * 1, cos.to(device), sin.to(device)),
        lambda q, k: (rotated(q, cos[:, None], sin[:, None]), rotated(k, cos[:, None], sin[:, None])),
        [torch.randn(2, 4, 17, 32), torch.randn(2, 2, 17, 32)],
    )


# ---- flash-linear-attention ----


@pytest.fixture
def of_fla():
    """Queries, keys, values, gates of each element and of each place, and how much of a value is written."""
    pytest.importorskip("fla")
    q, k, v = (torch.randn(1, 100, 2, 32) for _ in range(3))
    gates = torch.nn.functional.logsigmoid(torch.randn(1, 100, 2, 32))
    return q, torch.nn.functional.normalize(k, dim=-1), v, gates, gates[..., 0].contiguous(), torch.rand(1, 100, 2)


def first(function: Callable[..., object]) -> Callable[..., object]:
    """A function without its other results."""

    def called(*given: torch.Tensor) -> object:
        made = function(*given)
        return made[0] if isinstance(made, tuple) else made

    return called


@pytest.mark.parametrize("kind", ["chunk_linear_attn", "fused_recurrent_linear_attn"])
def test_fla_linear_attention(device, of_fla, kind):
    from fla.ops import linear_attn
    from fla.ops.linear_attn import naive

    ours = first(lambda q, k, v: getattr(linear_attn, kind)(q, k, v, normalize=False))
    close_with_gradients(device, ours, first(naive.naive_recurrent_linear_attn), of_fla[:3], **SUMMED)


@pytest.mark.parametrize("kind", ["chunk_gla", "fused_recurrent_gla"])
def test_fla_gated_linear_attention(device, of_fla, kind):
    from fla.ops import gla
    from fla.ops.gla import naive

    ours = first(getattr(gla, kind))
    close_with_gradients(device, ours, first(naive.naive_recurrent_gla), of_fla[:4], **SUMMED)


@pytest.mark.parametrize("kind", ["chunk_simple_gla", "parallel_simple_gla"])
def test_fla_linear_attention_with_one_gate(device, of_fla, kind):
    from fla.ops import simple_gla
    from fla.ops.simple_gla import naive

    q, k, v, _, gate, _ = of_fla
    ours = first(getattr(simple_gla, kind))
    close_with_gradients(device, ours, first(naive.naive_recurrent_simple_gla), [q, k, v, gate], **SUMMED)


def test_fla_delta_rule(device, of_fla):
    from fla.ops import delta_rule
    from fla.ops.delta_rule import naive

    def step_by_step(*given: torch.Tensor) -> torch.Tensor:
        return naive.delta_rule_recurrence(*(one.transpose(1, 2) for one in given))[0].transpose(1, 2)

    q, k, v, *_, beta = of_fla
    close_with_gradients(device, first(delta_rule.fused_recurrent_delta_rule), step_by_step, [q, k, v, beta], **SUMMED)


def test_fla_gated_delta_rule(device, of_fla):
    from fla.ops import gated_delta_rule
    from fla.ops.gated_delta_rule import naive

    q, k, v, _, gate, beta = of_fla
    close_with_gradients(
        device,
        first(gated_delta_rule.chunk_gated_delta_rule),
        first(lambda q, k, v, gate, beta: naive.naive_recurrent_gated_delta_rule(q, k, v, beta, gate)),
        [q, k, v, gate, beta],
        **SUMMED,
    )


def test_fla_retention(device, of_fla):
    from fla.ops import retention
    from fla.ops.retention import naive

    def step_by_step(*given: torch.Tensor) -> torch.Tensor:
        return naive.naive_retention(*(one.transpose(1, 2) for one in given)).transpose(1, 2)

    close_with_gradients(device, first(retention.parallel_retention), step_by_step, of_fla[:3], **SUMMED)


def test_fla_forgetting_attention(device, of_fla):
    from fla.ops import forgetting_attn
    from fla.ops.forgetting_attn import naive

    q, k, v, _, gate, _ = of_fla
    ours = first(forgetting_attn.parallel_forgetting_attn)
    close_with_gradients(device, ours, first(naive.naive_forgetting_attn), [q, k, v, gate], **SUMMED)


@pytest.mark.parametrize("name", ["GatedLinearAttention", "HGRN2Attention"])
def test_fla_layer(device, name):
    """A layer in training: by chunks, and step by step with other kernels."""
    layers = pytest.importorskip("fla.layers")
    sizes = {"expand_ratio": 32} if name == "HGRN2Attention" else {"num_heads": 2}
    by_chunks, by_steps = (getattr(layers, name)(mode=mode, hidden_size=64, **sizes) for mode in ("chunk", "fused_recurrent"))
    by_steps.load_state_dict(by_chunks.state_dict())
    x, grad = torch.randn(1, 100, 64), torch.randn(1, 100, 64).to(device)
    found = []
    for layer in (by_chunks.to(device), by_steps.to(device)):
        given = x.to(device).requires_grad_()
        result = layer(given)[0]
        result.backward(grad)
        found.append([result, given.grad, *(one.grad for one in layer.parameters())])
    for mine, other in zip(*found, strict=True):
        same(mine.detach(), other.detach().cpu(), rtol=1e-2, atol=1e-3 * float(other.detach().abs().max()))


# ---- Helion ----


@pytest.fixture
def helion_kernels(monkeypatch, tmp_path):
    pytest.importorskip("helion")
    # No choice of an earlier run.
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    import helion_kernels

    return helion_kernels


def test_helion_sums(device, helion_kernels):
    x, y = torch.randn(100, 130), torch.randn(100, 130)
    same(helion_kernels.add(x.to(device), y.to(device)), x + y)


def test_helion_softmax(device, helion_kernels):
    x = torch.randn(100, 130)
    same(helion_kernels.softmax(x.to(device)), x.softmax(1), **CLOSE)


def test_helion_product(device, helion_kernels):
    x, y = torch.randn(100, 130), torch.randn(130, 70)
    same(helion_kernels.product(x.to(device), y.to(device)), x @ y, **CLOSE)


def test_helions_autotuner_measures_and_keeps_a_choice(device, helion_kernels, tmp_path, capfd):
    x, y = torch.randn(100, 130), torch.randn(130, 70)
    for _ in range(2):
        same(helion_kernels.tuned_product()(x.to(device), y.to(device)), x @ y, **CLOSE)
    heard = capfd.readouterr().err
    assert "Autotuning complete" in heard and " failed" not in heard, heard
    # The second kernel found what the first one has kept.
    assert heard.count("Starting autotuning process") == 1
    (kept,) = tmp_path.rglob("*.best_config")
    assert f"{device.type}, " in kept.read_text()


@pytest.mark.parametrize(
    ("place", "name", "text"),
    [
        ("helion.autotuner.local_cache", "extract_device", 2524845275),
        ("helion.autotuner.local_cache", "get_device_name", 2465890981),
        ("helion.autotuner.local_cache", "LocalAutotuneCache._generate_key", 4030945229),
        ("helion.runtime", "get_num_sm", 2213016668),
    ],
)
def test_what_is_changed_in_helion_is_what_was_seen(helion_kernels, place, name, text):
    """As in test_libraries.py: another sum of a text means that somebody has to look. The key is not changed, but what it asks."""
    found = functools.reduce(getattr, name.split("."), importlib.import_module(place))
    assert (inspect.unwrap(found) is not found) == ("." not in name)
    assert zlib.crc32(inspect.getsource(inspect.unwrap(found)).encode()) == text


# ---- FlagGems ----


def test_flaggems_operators_are_those_of_the_device(device, once, tmp_path):
    if importlib.util.find_spec("flag_gems") is None:
        pytest.skip("needs flag_gems, which cannot be imported where no device is one of its vendors'")
    from torch_outrigger.triton import flaggems

    assert flaggems.main([str(tmp_path)]) == 0
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import flaggems_program
        flaggems_program.main({device.type!r})
    """
    done = run_python(code, timeout=540, FLAGGEMS_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "86 operators"
    # A copy that is there already is not written again.
    assert flaggems.main([str(tmp_path)]) == 1
