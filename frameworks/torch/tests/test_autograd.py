"""Forward and backward of what networks are made of, against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import same

pytestmark = pytest.mark.of_driver

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def compare(function, *inputs: torch.Tensor, device, tolerance=None, seed: int = 0) -> None:
    """Runs `function` on CPU and device with the same inputs; outputs and all gradients must agree.

    Gradients are taken of a random projection, so that no element of an output can be wrong unseen.
    """
    tolerance = tolerance or CLOSE
    results = []
    for where in ("cpu", device):
        given = [t.detach().to(where).requires_grad_(t.is_floating_point() or t.is_complex()) for t in inputs]
        outputs = function(*given)
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        outputs = [t for t in outputs if t.requires_grad]
        generator = torch.Generator().manual_seed(seed)
        weights = [torch.randn(t.shape, dtype=t.dtype, generator=generator).to(where) for t in outputs]
        wanted = [t for t in given if t.requires_grad]
        gradients = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
        results.append(([t.detach() for t in outputs], gradients))
    (expected, expected_gradients), (actual, gradients) = results
    for result, truth in zip(actual, expected, strict=True):
        same(result, truth, **tolerance)
    for gradient, truth in zip(gradients, expected_gradients, strict=True):
        assert (gradient is None) == (truth is None)
        if truth is not None:
            same(gradient, truth, **tolerance)


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers on the CPU, the same at every call."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


FUNCTIONS = {
    "arithmetic": (lambda a, b: (a * b + a / (b.abs() + 1) - b).pow(2), normal(5, 7), normal(7, seed=2)),
    "activations": (lambda a: torch.stack([a.relu(), F.gelu(a), F.silu(a), a.tanh(), a.sigmoid(), a.exp(), F.softplus(a)]), normal(9, 11)),
    "reductions": (lambda a: (a.sum(0), a.mean((0, 2)), a.amax(1), a.var(2), a.norm(), a.logsumexp(1)), normal(4, 5, 6)),
    "matmul": (lambda a, b: a @ b, normal(3, 17, 9), normal(9, 5, seed=2)),
    "bmm of transposed": (lambda a, b: a.transpose(1, 2) @ b, normal(4, 9, 17), normal(4, 9, 5, seed=2)),
    "linear": (F.linear, normal(6, 10), normal(3, 10, seed=2), normal(3, seed=3)),
    "softmax": (lambda a: (a.softmax(-1), a.log_softmax(0), a.t().softmax(0)), normal(6, 33)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (24,), w, b), normal(3, 5, 24), normal(24, seed=2), normal(24, seed=3)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), normal(3, 6, 5), normal(6, seed=2), normal(6, seed=3)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), normal(6, 4, 5), normal(4, seed=2), normal(4, seed=3)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 4, 1], [0, 2, 4]], device=w.device), w), normal(5, 8)),
    "embedding with padding": (lambda w: F.embedding(torch.tensor([[1, 4], [0, 1]], device=w.device), w, padding_idx=1), normal(5, 8)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3, -100], device=x.device), label_smoothing=0.1), normal(4, 5)),
    "cross_entropy weighted": (lambda x, w: F.cross_entropy(x, torch.tensor([1, 0, 3], device=x.device), w.detach()), normal(3, 5), normal(5, seed=2).abs()),
    "mse and huber": (lambda a, b: (F.mse_loss(a, b), F.huber_loss(a, b)), normal(4, 5), normal(4, 5, seed=2)),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2, dilation=2), normal(2, 4, 19), normal(6, 4, 3, seed=2)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), normal(3, 4, 9, 11), normal(6, 4, 3, 3, seed=2), normal(6, seed=3)),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=2, padding="same"), normal(2, 4, 7, 7), normal(6, 2, 3, 3, seed=2)),
    "conv3d": (lambda x, w: F.conv3d(x, w), normal(1, 2, 5, 5, 5), normal(3, 2, 2, 3, 2, seed=2)),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1), normal(2, 4, 5, 5), normal(4, 3, 3, 3, seed=2), normal(3, seed=3)),
    "conv channels last": (lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w), normal(2, 4, 7, 7), normal(6, 4, 3, 3, seed=2)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), normal(2, 3, 8, 8)),
    "max_pool2d overlapping": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1), normal(2, 3, 9, 9)),
    "avg_pool2d": (lambda x: F.adaptive_avg_pool2d(F.avg_pool2d(x, 2), 2), normal(2, 3, 8, 8)),
    "indexing": (lambda x: (x[:, [2, 0, 2]], x[x > 0], x.gather(1, torch.tensor([[0, 1]], device=x.device).expand(4, 2))), normal(4, 5)),
    "shapes": (lambda x: torch.cat([x.t(), x.flip(0).t()], 1).roll(2, 1).repeat(2, 1).reshape(-1)[3:50:3], normal(4, 5)),
    "where and clamp": (lambda x: torch.where(x > 0, x * 2, -x).clamp(-1, 1.5), normal(6, 6)),
    "cumsum and sort": (lambda x: (x.cumsum(1), x.sort(1).values, x.topk(2, 0).values), normal(6, 6)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normal(2, 3, 4, 5)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), normal(2, 3, 4), normal(2, 5, 4, seed=2)),
    "linalg": (lambda a: torch.linalg.inv(a @ a.mT + 3 * torch.eye(4, device=a.device)), normal(2, 4, 4)),
    "complex": (lambda a: (a * a.conj() + a.imag * 2j, a.conj().abs(), a.angle(), -a.conj().imag), normal(4, 5, dtype=torch.complex64)),
    "fft": (lambda a: torch.fft.ifft(torch.fft.fft(a) * 2).real, normal(4, 16)),
    "ctc": (lambda a: F.ctc_loss(a.log_softmax(2), torch.tensor([[1, 2], [2, 1]], device=a.device), (6, 6), (2, 2)), normal(6, 2, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_backward(device, name):
    function, *inputs = FUNCTIONS[name]
    compare(function, *inputs, device=device)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
def test_attention(device, causal, masked):
    if causal and masked:
        pytest.skip("torch takes one of the two")
    mask = (normal(1, 1, 12, 12, seed=9) > -1) if masked else None
    compare(
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, attn_mask=None if mask is None else mask.to(q.device)
        ),
        normal(2, 3, 12, 8), normal(2, 3, 12, 8, seed=2), normal(2, 3, 12, 8, seed=3), device=device,
    )  # fmt: skip


def test_attention_of_long_sequences_in_half_precision(device):
    q, k, v = (normal(1, 2, 150, 16, seed=s).to(torch.bfloat16) for s in (1, 2, 3))
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    actual = F.scaled_dot_product_attention(q.to(device), k.to(device), v.to(device), is_causal=True)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float().cpu(), expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU], ids=["lstm", "gru"])
def test_recurrent_networks(device, kind):
    torch.manual_seed(0)
    host = kind(5, 7, num_layers=2, batch_first=True)
    there = kind(5, 7, num_layers=2, batch_first=True).to(device)
    there.load_state_dict(host.state_dict())
    data = normal(3, 6, 5)
    expected, actual = host(data)[0], there(data.to(device))[0]
    same(actual.detach(), expected.detach(), **CLOSE)
    expected.sum().backward(), actual.sum().backward()
    for a, b in zip(there.parameters(), host.parameters(), strict=True):
        same(a.grad, b.grad, **CLOSE)


def test_gradcheck(device):
    x = normal(3, 4, dtype=torch.float64).to(device).requires_grad_()
    w = normal(5, 4, seed=2, dtype=torch.float64).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: F.layer_norm(F.linear(x, w).tanh(), (5,)), (x, w))


def test_gradcheck_of_attention(device):
    """Also of gradients that are undefined."""
    inputs = [normal(1, 2, 4, 8, seed=seed, dtype=torch.float64).to(device).requires_grad_() for seed in range(3)]
    assert torch.autograd.gradcheck(F.scaled_dot_product_attention, inputs)


def test_double_backward(device):
    compare(
        lambda x: torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)[0], normal(4, 5), device=device
    )


def test_sparse(device):
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
    host = torch.sparse_coo_tensor(indices, values, (2, 3))
    there = torch.sparse_coo_tensor(indices.to(device), values.to(device), (2, 3))
    assert there.is_sparse and there.device == device
    same(there.to_dense(), host.to_dense())
    same(host.to(device).to_dense(), host.to_dense())
    torch.testing.assert_close(there.cpu().coalesce(), host.coalesce())
    doubled = torch.cat([indices, indices], 1)
    again = torch.sparse_coo_tensor(doubled.to(device), torch.cat([values, values]).to(device), (2, 3)).coalesce()
    assert again._nnz() == 3
    same(again.values(), values * 2)
    compare(lambda d: torch.sparse.mm(torch.sparse_coo_tensor(indices.to(d.device), values.to(d.device), (2, 3)), d), normal(3, 4), device=device)
    same((there @ normal(3, 4).to(device)), host @ normal(3, 4), **CLOSE)
    csr = host.to_sparse_csr()
    if device.type == "mtia":
        with pytest.raises(NotImplementedError, match="no sparse tensors of the layout SparseCsr for mtia: use .*sparse_coo"):
            host.to_dense().to(device).to_sparse_csr()
    else:
        same(csr.to(device).to_dense(), host.to_dense())
        same(csr.to(device) @ normal(3, 4).to(device), csr @ normal(3, 4), **CLOSE)
    weight = torch.nn.Embedding(6, 3, sparse=True).to(device)
    weight(torch.tensor([1, 4], device=device)).sum().backward()
    assert weight.weight.grad.is_sparse
    same(weight.weight.grad.to_dense().sum(1), torch.tensor([0.0, 3, 0, 0, 3, 0]))


def test_autocast(device):
    layer = torch.nn.Linear(16, 8).to(device)
    data = normal(4, 16).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        product = layer(data)
        assert product.dtype == torch.bfloat16
        assert product.softmax(1).dtype == torch.float32, "softmax is one of those that autocast keeps wide"
        filled = torch.zeros(3, device=device).fill_(2) + 1
        loss = F.cross_entropy(product, torch.zeros(4, dtype=torch.int64, device=device))
    assert filled.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(product.float(), layer(data), rtol=2e-2, atol=2e-2)
        assert layer(data).dtype == torch.float32


def test_grad_scaler(device):
    layer = torch.nn.Linear(4, 1, bias=False).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    before = layer.weight.detach().clone()
    scaler.scale(layer(torch.ones(2, 4, device=device)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    same(layer.weight.detach(), (before - 0.2).cpu(), rtol=1e-5, atol=1e-6)
    layer.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    same(layer.weight.detach(), (before - 0.2).cpu(), rtol=1e-5, atol=1e-6)
    assert scaler.get_scale() == 2.0, "an infinite gradient is skipped and halves the scale"


def test_checkpoint_repeats_dropout(device):
    from torch.utils.checkpoint import checkpoint

    def block(x):
        return F.dropout(x * 2, 0.5)

    x = torch.ones(1000, device=device, requires_grad=True)
    result = checkpoint(block, x, use_reentrant=False)
    result.sum().backward()
    torch.testing.assert_close(x.grad, result.detach())
