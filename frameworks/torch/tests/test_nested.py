"""Nested tensors of the strided layout, and what torch makes of them: the fast path of TransformerEncoder.

Every test compares with the same call on CPU tensors. torch has these tensors for PrivateUse1, not for MTIA.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support import same
from torch import nn

pytestmark = [
    pytest.mark.not_on_mtia("NestedTensorImpl of torch takes CPU, CUDA, XPU, HPU and PrivateUse1 alone"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

ROWS = [torch.arange(8.0).view(2, 4) / 8, torch.arange(12.0).view(3, 4) / -12]

OPERATIONS = {
    "to_padded_tensor": lambda n: torch.nested.to_padded_tensor(n * 2, -1.0),
    "arithmetic": lambda n: (n + n) * torch.tensor(3.0, device=n.device),
    "in place": lambda n: n.clone().relu_(),
    "softmax": lambda n: n.softmax(-1),
    "layer_norm": lambda n: nn.functional.layer_norm(n, (4,), *(torch.ones(4, device=n.device),) * 2),
    "linear": lambda n: nn.functional.linear(n, torch.ones(3, 4, device=n.device)),
    "matmul": lambda n: n @ n.transpose(1, 2),
    "contiguous": lambda n: n.transpose(1, 2).contiguous(),
    "reshape": lambda n: n.reshape(2, -1, 2, 2),
    "select": lambda n: n.select(0, 1),
    "to": lambda n: n.to(torch.float64),
    "there and back": lambda n: n.cpu().to(n.device),
    "as_nested_tensor": lambda n: torch.nested.as_nested_tensor(list(n.unbind())),
}


def rows(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors of a nested one."""
    return list(tensor.unbind()) if tensor.is_nested else [tensor]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_the_cpu(device, name):
    operation = OPERATIONS[name]
    expected = rows(operation(torch.nested.nested_tensor(ROWS)))
    result = operation(torch.nested.nested_tensor(ROWS, device=device))
    assert result.device == device
    for one, other in zip(rows(result), expected, strict=True):
        same(one, other, rtol=1e-6, atol=1e-6)


def test_rows_are_views_of_the_buffer(device):
    nested = torch.nested.nested_tensor(ROWS, device=device)
    nested.unbind()[1].fill_(7)
    assert nested.values().tolist() == [*ROWS[0].flatten().tolist(), *[7.0] * 12]


def test_gradients_reach_the_rows(device):
    leaves = [row.to(device).requires_grad_() for row in ROWS]
    nested = torch.nested.as_nested_tensor(leaves)
    torch.nested.to_padded_tensor(nested * nested, 0.0).sum().backward()
    for leaf, row in zip(leaves, ROWS, strict=True):
        same(leaf.grad, 2 * row)


@pytest.mark.parametrize("padded", [False, True], ids=["no mask", "padding mask"])
def test_transformer_encoder_takes_the_fast_path(device, module, padded):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 3, 8)
    mask = torch.tensor([[False] * 3, [False, False, True]]) if padded else None
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
        on_device = copy.deepcopy(encoder).to(device)
        module.reset_fallback_report()
        result = on_device(x.to(device), src_key_padding_mask=None if mask is None else mask.to(device))
    # The fast path leaves zeros where the mask is True, and the other path does not.
    same(result, expected, rtol=1e-5, atol=1e-6)
    ran = {entry["operator"] for entry in module.operator_report()}
    assert "_native_multi_head_attention" in ran, ran
    assert "_transformer_encoder_layer_fwd" not in ran, "the layer as a whole ran on the CPU"
