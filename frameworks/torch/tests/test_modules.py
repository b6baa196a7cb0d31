"""Modules that move between the CPU and a device: a parameter stays the object that it is, with all who hold it."""

from __future__ import annotations

import torch
from support import same
from torch import nn


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(*inputs).square().sum().backward()
    optimizer.step()


def test_tied_weights_stay_tied_and_optimizers_attached(device):
    torch.manual_seed(0)
    reference = tied()
    model = tied()
    model.load_state_dict(reference.state_dict())
    weight = model[0].weight
    optimizers = [torch.optim.Adam(each.parameters(), 0.1) for each in (model, reference)]
    assert model.to(device)[0].weight is model[1].weight is weight is optimizers[0].param_groups[0]["params"][0]
    assert weight.device == device and weight.is_leaf and len(list(model.parameters())) == 1
    indices = torch.tensor([0, 3, 3])
    for _ in range(3):
        step(model, optimizers[0], indices.to(device))
        step(reference, optimizers[1], indices)
    same(weight.detach(), reference[0].weight.detach(), rtol=1e-4, atol=1e-5)


def test_a_stay_on_the_cpu_midway_changes_nothing(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(1, 3)
    step(model, optimizer, x.to(device))
    model.cpu()
    assert model.weight.device.type == model.weight.grad.device.type == "cpu"
    step(model, optimizer, x)
    gradient = model.weight.grad
    model.to(device)
    assert model.weight.device == device and model.weight.grad is gradient and gradient.device == device
    before = model.weight.detach().clone()
    step(model, optimizer, x.to(device))
    assert not torch.equal(model.weight.detach().cpu(), before.cpu())


class OnlyMoves(torch.Tensor):
    """A wrapper that knows what moves a tensor, and nothing else."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnlyMoves:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, _context, _size, _stride):
        return OnlyMoves(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, operator, types, arguments=(), named=None):
        assert operator._schema.name in ("aten::_to_copy", "aten::detach"), f"{operator} was asked for"
        return cls(operator(arguments[0].inner, *arguments[1:], **(named or {})))


def test_parameters_of_a_class_of_their_own_move(device):
    """As on other devices, no subclass is asked whether a tensor can take another one's place."""
    model = nn.Linear(2, 3, bias=False)
    model.weight = nn.Parameter(OnlyMoves(torch.ones(3, 2)), requires_grad=False)
    model.to(device)
    assert isinstance(model.weight, OnlyMoves) and model.weight.device == device
    same(model.weight.inner, torch.ones(3, 2))
    model.cpu()
    assert model.weight.device.type == model.weight.inner.device.type == "cpu"


def test_data_can_be_of_another_device(device):
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = parameter.data.to(device)
    assert parameter.device == device
    (parameter * 3).sum().backward()
    same(parameter.grad, torch.full((2,), 3.0))
    parameter.data = torch.zeros(2)
    assert parameter.device.type == "cpu"


def test_lazy_modules_are_made_where_they_are_used(device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 8)
    model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(3)).to(device)
    result = model(x.to(device))
    assert all(parameter.device == device for parameter in model.parameters())
    same(result.detach(), model.cpu()(x).detach(), rtol=1e-4, atol=1e-5)


def test_only_tensors_alike_can_take_each_others_place(device):
    dense, host = torch.ones(2, 2, device=device), torch.ones(2, 2)
    compatible = torch._has_compatible_shallow_copy_type
    assert compatible(dense, host) and compatible(host, dense) and compatible(dense, dense)
    assert not compatible(dense, torch.ones(2, 2, device="meta")) and not compatible(dense, host.to_sparse())
    assert not compatible(dense, host.to_mkldnn())
    if device.type == "outrigger":
        assert compatible(dense.to_sparse(), host.to_sparse()) and not compatible(dense.to_sparse(), host)
