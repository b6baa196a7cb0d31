"""The cases of ranks with models in test_distributed.py: several ranks train what one process trains.

Every function runs on all ranks of a group at once. The answers are losses, which the test compares with those of one
process.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ranks import device
from support import same

STEPS = 4
BATCH = 8


class Model(nn.Module):
    """Small, with all that is reduced in more than one way: shared sizes, a norm, a parameter without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def model() -> Model:
    """The same one in every process."""
    torch.manual_seed(0)
    return Model()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same ones in every process."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 8, generator=generator)) for _ in range(STEPS)]


def share(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch, on the device."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()].to(device())


def alone() -> list[float]:
    """The losses of one process on the CPU."""
    net = model()
    return train(net, [(x, y) for x, y in batches()], average=False)


def train(net: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]], average: bool = True) -> list[float]:
    """Steps of training, and the losses over all ranks."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        if average:
            loss = loss.detach().clone()
            dist.all_reduce(loss, dist.ReduceOp.AVG)
        losses.append(loss.item())
    return losses


def data_parallel() -> list[float]:
    """DistributedDataParallel; small buckets, so that several reductions are on the way at a time."""
    net = DistributedDataParallel(model().to(device()), bucket_cap_mb=0.0005)
    return train(net, [(share(x), share(y)) for x, y in batches()])


class Parts(nn.Module):
    """A model of which a step uses one part."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, part: int) -> torch.Tensor:
        return self.parts[part](x)


def unused_parameters() -> None:
    """DistributedDataParallel finds which parameters no rank has used: they have no gradient, those of others are averaged."""
    net = DistributedDataParallel(Parts().to(device()), find_unused_parameters=True)
    size = dist.get_world_size()
    for step in range(3):
        net.zero_grad()
        # All but the first rank use the same part.
        net(torch.ones(2, 4, device=device()), step if dist.get_rank() > 0 else 0).sum().backward()
        shares = [1 / size if step > 0 else 1.0, 0.0, 0.0]
        shares[step] = 1.0 - (shares[0] if step > 0 else 0.0)
        for part, share in zip(net.module.parts, shares, strict=True):
            if share == 0:
                assert part.weight.grad is None
            else:
                same(part.weight.grad, torch.full((4, 4), 2 * share))


def normalized() -> None:
    """SyncBatchNorm normalizes over all ranks' batches, which are of different sizes, as one process does over the whole batch."""
    plain, last = torch.contiguous_format, torch.channels_last
    cases = [(plain, torch.float32, 1), (last, torch.float32, 1), (plain, torch.bfloat16, 1), (plain, torch.float32, 0)]
    for layout, dtype, first in cases:
        # A rank without a batch takes part too.
        rows = [first, *range(2, 1 + dist.get_world_size())]
        close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
        torch.manual_seed(7)
        whole = (torch.randn(sum(rows), 3, 4, 2) * 3 + 1).to(dtype).float().requires_grad_()
        slopes = torch.randn(whole.shape).to(dtype).float()
        one = nn.BatchNorm2d(3)
        nn.init.normal_(one.weight)
        nn.init.normal_(one.bias)
        many = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(one)).to(device())
        expected = one(whole)
        expected.backward(slopes)
        x, slope = (tensor.detach().split(rows)[dist.get_rank()].to(device(), dtype) for tensor in (whole, slopes))
        x = x.contiguous(memory_format=layout).requires_grad_()
        made = many(x)
        made.backward(slope)
        same(made, expected.split(rows)[dist.get_rank()].to(dtype), **close)
        if x.numel() > 0:
            same(x.grad, whole.grad.split(rows)[dist.get_rank()].to(dtype), **close)
        same(many.running_mean, one.running_mean, **close)
        same(many.running_var, one.running_var, **close)
        for name in ("weight", "bias"):
            gradient = getattr(many, name).grad
            gradient = torch.zeros(3, device=device()) if gradient is None else gradient
            dist.all_reduce(gradient)
            same(gradient, getattr(one, name).grad, **close)


def sharded() -> list[float]:
    """fully_shard, of two layers and of the rest."""
    net = model().to(device())
    for layer in (net.first, net.second):
        fully_shard(layer, mesh=init_device_mesh(device().type, (dist.get_world_size(),)))
    fully_shard(net, mesh=init_device_mesh(device().type, (dist.get_world_size(),)))
    return train(net, [(share(x), share(y)) for x, y in batches()])


def tensor_parallel() -> list[float]:
    """The first layer by columns, the second by rows: every rank has the whole batch and a part of the layers."""
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    net = model().to(device())
    net.norm = nn.Identity()
    net = parallelize_module(net, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return train(net, [(x.to(device()), y.to(device())) for x, y in batches()])


def tensor_parallel_alone() -> list[float]:
    """The same model in one process on the CPU."""
    net = model()
    net.norm = nn.Identity()
    return train(net, batches(), average=False)


def distributed_tensors() -> None:
    """Placements of a tensor, from one to the other, and operators over them."""
    size = dist.get_world_size()
    mesh = init_device_mesh(device().type, (size,))
    whole = torch.arange(size * 6.0).view(size * 2, 3)
    tensor = distribute_tensor(whole.to(device()), mesh, [Shard(0)])
    same(tensor.to_local(), whole.chunk(size)[dist.get_rank()])
    same(tensor.redistribute(placements=[Replicate()]).to_local(), whole)
    same(tensor.redistribute(placements=[Shard(1)]).redistribute(placements=[Replicate()]).to_local(), whole)
    same((tensor @ tensor.T).full_tensor(), whole @ whole.T)
    same(tensor.sum(0).full_tensor(), whole.sum(0))


def saved_and_loaded() -> None:
    """A checkpoint of a sharded model, loaded into another one that is sharded."""
    folder = os.environ["RANK_FOLDER"]
    # Torch chooses a device by the number of the rank if none is in use.
    torch.get_device_module(device().type).init()
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    first = fully_shard(model().to(device()), mesh=mesh)
    train(first, [(share(x), share(y)) for x, y in batches()])
    checkpoint.save({"model": first.state_dict()}, checkpoint_id=folder)
    second = fully_shard(Model().to(device()), mesh=mesh)
    state = {"model": second.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    second.load_state_dict(state["model"])
    for name, expected in first.state_dict().items():
        actual = second.state_dict()[name]
        assert isinstance(actual, DTensor)
        same(actual.full_tensor(), expected.full_tensor().cpu())


class Exchange(torch.autograd.Function):
    """Rows to the ranks that want them; backward, their gradients to the ranks that have them."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, given: list[int], taken: list[int]) -> torch.Tensor:
        ctx.sizes = given, taken
        out = rows.new_empty(sum(taken), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), taken, given)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        given, taken = ctx.sizes
        out = gradient.new_empty(sum(given), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), given, taken)
        return out, None, None


ROWS = 10


def embedding_table() -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """A table, the rows that are looked up in each step, and what they should be."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(ROWS, 4, generator=generator)
    return table, [torch.randint(ROWS, (12,), generator=generator) for _ in range(STEPS)], torch.ones(12, 4)


def embedding_alone() -> list[float]:
    """One process with the whole table."""
    table, lookups, target = embedding_table()
    table.requires_grad_()
    losses = []
    for rows in lookups:
        loss = (nn.functional.embedding(rows, table) - target).square().sum()
        (gradient,) = torch.autograd.grad(loss, table)
        with torch.no_grad():
            table -= 0.05 * gradient
        losses.append(loss.item())
    return losses


def embedding() -> list[float]:
    """Rows of one table on all ranks: indices go to the ranks that have the rows, and the rows come back."""
    size, rank = dist.get_world_size(), dist.get_rank()
    table, lookups, target = embedding_table()
    own = table.chunk(size)[rank].to(device()).requires_grad_()
    per_rank = -(-ROWS // size)
    losses = []
    for step in lookups:
        wanted = step.chunk(size)[rank]
        owner = wanted // per_rank
        order = owner.argsort(stable=True)
        asks = torch.bincount(owner, minlength=size).to(device())
        asked = torch.empty_like(asks)
        dist.all_to_all_single(asked, asks)
        given, taken = asked.tolist(), asks.tolist()
        indices = torch.empty(sum(given), dtype=torch.int64, device=device())
        dist.all_to_all_single(indices, (wanted[order] % per_rank).to(device()), given, taken)
        rows = Exchange.apply(nn.functional.embedding(indices, own), given, taken)
        goal = target.chunk(size)[rank][order].to(device())
        loss = (rows - goal).square().sum()
        (gradient,) = torch.autograd.grad(loss, own)
        with torch.no_grad():
            own -= 0.05 * gradient
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses
