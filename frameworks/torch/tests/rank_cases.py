"""The cases of ranks in test_distributed.py: each collective against its definition, stream order, failures.

Every function runs on all ranks of a group at once, and compares with what torch computes on the CPU.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ranks import device
from support import ALL_DTYPES, FLOATING, INTEGRAL, sample, same

NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
OPERATIONS = {
    dist.ReduceOp.SUM: lambda values: values.sum(0),
    dist.ReduceOp.PRODUCT: lambda values: values.prod(0),
    dist.ReduceOp.MIN: lambda values: values.amin(0),
    dist.ReduceOp.MAX: lambda values: values.amax(0),
}
BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


class Here:
    """A group, and the ranks in it."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def values(self, dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> list[torch.Tensor]:
        """The values of all ranks, on the CPU; small, so that products are exact in every dtype."""
        return [sample(shape, dtype, seed=10 + rank) for rank in range(self.size)]

    def mine(self, dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> torch.Tensor:
        """The values of this rank, on the device."""
        return self.values(dtype, shape)[self.rank].to(device())


def groups() -> Iterator[Here]:
    """All ranks, and the last two of them."""
    yield Here(None)
    last = dist.new_group([1, 2])
    if dist.get_rank() > 0:
        yield Here(last)


def small(values: list[torch.Tensor]) -> torch.Tensor:
    """Values to combine as one tensor, of a type in which no result is rounded."""
    stacked = torch.stack(values)
    return stacked.double() if stacked.dtype.is_floating_point else stacked


def reductions() -> None:
    """Reductions of all dtypes that torch's Gloo or the driver knows."""
    for here in groups():
        for dtype in (*FLOATING, *INTEGRAL):
            for how, define in OPERATIONS.items():
                expected = define(small(here.values(dtype))).to(dtype)
                # 16 bits are rounded after each step.
                near = {"rtol": 2e-2, "atol": 0.5} if dtype.itemsize == 2 and dtype.is_floating_point else {}
                tensor = here.mine(dtype)
                dist.all_reduce(tensor, how, here.group)
                same(tensor, expected, **near)
                tensor = here.mine(dtype)
                dist.reduce(tensor, group_dst=1, op=how, group=here.group)
                if here.rank == 1:
                    same(tensor, expected, **near)
                parts = [torch.roll(value, step) for step in range(here.size) for value in [here.values(dtype)[here.rank]]]
                expected = define(small([torch.roll(value, here.rank) for value in here.values(dtype)])).to(dtype)
                out = torch.empty(3, 5, dtype=dtype, device=device())
                dist.reduce_scatter(out, [part.to(device()) for part in parts], how, here.group)
                same(out, expected, **near)
                out = torch.empty(3, 5, dtype=dtype, device=device())
                dist.reduce_scatter_tensor(out, torch.cat(parts).to(device()), how, here.group)
                same(out, expected, **near)
        for dtype in FLOATING:
            tensor = here.mine(dtype)
            dist.all_reduce(tensor, dist.ReduceOp.AVG, here.group)
            same(tensor, small(here.values(dtype)).mean(0).to(dtype), rtol=1e-2, atol=1e-2)
        factor = torch.distributed._make_nccl_premul_sum(0.5)
        tensor = here.mine(torch.float32)
        dist.all_reduce(tensor, factor, here.group)
        same(tensor, small(here.values(torch.float32)).sum(0).float() / 2)
        tensor = torch.tensor([True, here.rank == 0, False], device=device())
        dist.all_reduce(tensor, dist.ReduceOp.MAX, here.group)
        same(tensor, torch.tensor([True, True, False]))
        sums_of_complex_numbers(here)


def sums_of_complex_numbers(here: Here) -> None:
    """Each part by itself, also where the group is asked and not torch.distributed, which knows of the parts in some calls alone."""
    group = here.group or dist.group.WORLD
    values = here.values(torch.complex64)
    total = torch.stack(values).sum(0)
    for how, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / here.size)):
        options = dist.AllreduceOptions()
        options.reduceOp = how
        tensors = [here.mine(torch.complex64)]
        group.allreduce(tensors, options).wait()
        same(tensors[0], expected, rtol=1e-6, atol=1e-6)
        tensor = here.mine(torch.complex64)
        dist.reduce(tensor, group_dst=1, op=how, group=here.group)
        if here.rank == 1:
            same(tensor, expected, rtol=1e-6, atol=1e-6)
        out = torch.empty(3, 5, dtype=torch.complex64, device=device())
        dist.reduce_scatter_tensor(out, torch.cat([here.mine(torch.complex64)] * here.size), how, here.group)
        same(out, expected, rtol=1e-6, atol=1e-6)
    try:
        group.allreduce([here.mine(torch.complex64)], dist.ReduceOp.PRODUCT).wait()
    except NotImplementedError as error:
        assert "ComplexFloat" in str(error), str(error)
    else:
        raise AssertionError("a product of complex numbers was not refused")


def tensors_of_the_cpu() -> None:
    """A group that names the device's backend alone serves tensors of the CPU, and a barrier that names no device."""
    sums_on_both(None)
    dist.group.WORLD.barrier().wait()
    sums_on_both(dist.new_group([0, 1]))


def bitwise() -> None:
    """Reductions of bits, which no driver has, go over Gloo."""
    here = Here(None)
    for how, define in BITWISE.items():
        expected = here.values(torch.int32)[0]
        for value in here.values(torch.int32)[1:]:
            expected = define(expected, value)
        tensor = here.mine(torch.int32)
        dist.all_reduce(tensor, how)
        same(tensor, expected)


def bitwise_is_refused() -> str:
    """With the driver alone."""
    try:
        dist.all_reduce(Here(None).mine(torch.int32), dist.ReduceOp.BXOR)
    except NotImplementedError as error:
        # The group still works.
        reductions_of_one()
        return str(error)
    raise AssertionError("the driver has a bitwise reduction")


def reductions_of_one() -> None:
    """One reduction, to see that a group works."""
    tensor = torch.ones(4, device=device())
    dist.all_reduce(tensor)
    same(tensor, torch.full((4,), float(dist.get_world_size())))


def movements() -> None:
    """Everything that moves elements and does not look at them, in all dtypes."""
    for here in groups():
        for dtype in (*ALL_DTYPES, *NARROW):
            moves(here, dtype)
        uneven(here)


def moves(here: Here, dtype: torch.dtype) -> None:
    """Each collective once."""
    bits = dtype if dtype not in NARROW else torch.uint8
    values = [value.view(dtype) for value in here.values(bits)]
    mine = values[here.rank].to(device())

    def room(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=bits, device=device()).view(dtype)

    def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
        same(actual.view(bits), expected.view(bits))

    out = mine.clone()
    dist.broadcast(out, group_src=1, group=here.group)
    equal(out, values[1])
    outs = [room(3, 5) for _ in values]
    dist.all_gather(outs, mine, group=here.group)
    for actual, value in zip(outs, values, strict=True):
        equal(actual, value)
    out = room(3 * here.size, 5)
    dist.all_gather_into_tensor(out, mine, group=here.group)
    equal(out, torch.cat([value.view(bits) for value in values]).view(dtype))
    outs = [room(3, 5) for _ in values] if here.rank == 1 else None
    dist.gather(mine, outs, group_dst=1, group=here.group)
    for actual, value in zip(outs or [], values, strict=False):
        equal(actual, value)
    out = room(3, 5)
    dist.scatter(out, [value.to(device()) for value in values] if here.rank == 0 else None, group_src=0, group=here.group)
    equal(out, values[here.rank])
    outs = [room(3, 5) for _ in values]
    dist.all_to_all(outs, [torch.roll(mine.view(bits), peer).view(dtype) for peer in range(here.size)], group=here.group)
    for actual, value in zip(outs, values, strict=True):
        equal(actual, torch.roll(value.view(bits), here.rank).view(dtype))
    # In a circle, all at once.
    after, before = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    out = room(3, 5)
    pair = [
        dist.P2POp(dist.irecv, out, group=here.group, group_peer=before),
        dist.P2POp(dist.isend, mine, group=here.group, group_peer=after),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    equal(out, values[before])
    out = room(3, 5)
    if here.rank == 0:
        dist.send(mine, group_dst=1, group=here.group)
    elif here.rank == 1:
        assert dist.recv(out, group_src=0, group=here.group) == dist.get_global_rank(here.group or dist.group.WORLD, 0)
        equal(out, values[0])


def uneven(here: Here) -> None:
    """Parts of different sizes, some of them empty: rank r sends p rows to rank p, and one more if r is 0."""
    rows = [peer + (here.rank == 0) for peer in range(here.size)]
    given = torch.full((sum(rows), 2), float(here.rank), device=device())
    taken = [here.rank + (peer == 0) for peer in range(here.size)]
    out = torch.empty(sum(taken), 2, device=device())
    dist.all_to_all_single(out, given, taken, rows, group=here.group)
    same(out, torch.cat([torch.full((count, 2), float(peer)) for peer, count in enumerate(taken)]))
    even = torch.arange(here.size * 2.0).add(100 * here.rank).to(device())
    out = torch.empty_like(even)
    dist.all_to_all_single(out, even, group=here.group)
    same(out, torch.cat([torch.arange(2.0) + 2 * here.rank + 100 * peer for peer in range(here.size)]))
    nothing = torch.empty(0, device=device())
    dist.all_reduce(nothing, group=here.group)
    dist.all_gather_into_tensor(torch.empty(0, device=device()), nothing, group=here.group)


def batches() -> None:
    """Several calls as one: coalesced collectives, functional ones, objects, large tensors both ways."""
    for here in groups():
        ones = [torch.full((4,), float(here.rank + step), device=device()) for step in range(3)]
        with dist._coalescing_manager(here.group, async_ops=True) as batch:
            for tensor in ones:
                dist.all_reduce(tensor, group=here.group)
        batch.wait()
        total = sum(range(here.size))
        for step, tensor in enumerate(ones):
            same(tensor, torch.full((4,), float(total + step * here.size)))
        gathered = [torch.empty(2 * here.size, device=device()) for _ in range(2)]
        with dist._coalescing_manager(here.group):
            for out in gathered:
                dist.all_gather_into_tensor(out, torch.full((2,), float(here.rank), device=device()), group=here.group)
        for out in gathered:
            same(out, torch.arange(float(here.size)).repeat_interleave(2))
        shares = [torch.empty(2, device=device()) for _ in range(2)]
        with dist._coalescing_manager(here.group):
            for out in shares:
                dist.reduce_scatter_tensor(out, torch.ones(2 * here.size, device=device()), group=here.group)
        for out in shares:
            same(out, torch.full((2,), float(here.size)))

        group = here.group or dist.group.WORLD
        mine = torch.full((2,), float(here.rank), device=device())
        same(functional.all_reduce(mine, "sum", group) + 1, torch.full((2,), float(total + 1)))
        same(functional.all_reduce(mine, "avg", group), torch.full((2,), total / here.size))
        same(functional.all_gather_tensor(mine, 0, group) * 2, torch.arange(float(here.size)).repeat_interleave(2) * 2)
        same(functional.reduce_scatter_tensor(mine.repeat(here.size), "sum", 0, group), torch.full((2,), float(total)))
        same(functional.broadcast(mine, 1, group) + 0, torch.ones(2))
        same(
            functional.all_to_all_single(mine.repeat(here.size), None, None, group) + 0,
            torch.arange(float(here.size)).repeat_interleave(2),
        )

        objects: list[object] = [None] * here.size
        dist.all_gather_object(objects, {"rank": here.rank, "text": "x" * 100 * here.rank}, group=here.group)
        assert objects == [{"rank": rank, "text": "x" * 100 * rank} for rank in range(here.size)]
        shared: list[object] = [("a", here.rank)]
        dist.broadcast_object_list(shared, group_src=1, group=here.group)
        assert shared == [("a", 1)]

        # More than any buffer of a connection holds, in both directions.
        large = torch.full((1 << 20,), float(here.rank), device=device())
        out = torch.empty_like(large)
        peer = 1 - here.rank
        if here.rank < 2:
            pair = [dist.P2POp(dist.isend, large, group=here.group, group_peer=peer),
                    dist.P2POp(dist.irecv, out, group=here.group, group_peer=peer)]  # fmt: skip
            for work in dist.batch_isend_irecv(pair):
                work.wait()
            same(out[-4:], torch.full((4,), float(peer)))
        dist.barrier(here.group)


def any_source() -> None:
    """A receive that takes what comes first, and tells from whom; large sends cross without a batch."""
    here = Here(None)
    if here.rank == 0:
        seen = []
        for _ in range(here.size - 1):
            out = torch.empty(2, device=device())
            seen.append(dist.recv(out))
            same(out, torch.full((2,), float(seen[-1])))
        assert sorted(seen) == list(range(1, here.size))
    else:
        dist.send(torch.full((2,), float(here.rank), device=device()), 0)
    if here.rank < 2:
        large = torch.full((1 << 20,), float(here.rank), device=device())
        out = torch.empty_like(large)
        # Without a tag of its own it could come to rank 0 while that one still takes from any rank.
        works = [dist.isend(large, 1 - here.rank, tag=1), dist.irecv(out, 1 - here.rank, tag=1)]
        for work in works:
            work.wait()
        same(out[-4:], torch.full((4,), float(1 - here.rank)))


def stream_order() -> None:
    """No call waits for the device: all of them are behind a task that the host ends afterwards."""
    from torch_outrigger import _C

    here = Here(None)
    module = torch.get_device_module(device().type)
    # Streams and communicators are made at the first use, which waits for the other ranks.
    reductions_of_one()
    side = torch.Stream(device())
    tensor = torch.zeros(1000, device=device())
    held = _C._hold_stream(0, 20_000)
    tensor.fill_(here.rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed()
    gathered = torch.empty(here.size * 1000, device=device())
    second = dist.all_gather_into_tensor(gathered, tensor, async_op=True)
    work.wait()
    second.wait()
    tensor.mul_(2)
    with side:
        # Another stream that waits for the work sees it, too.
        second.wait()
        copy = gathered.clone()
    follow = work.get_future().then(lambda done: done.value()[0] * 0 + 7)
    # Freed here, used by work that has not begun.
    scratch = torch.full((1000,), 3.0, device=device())
    late = torch.empty(here.size * 1000, device=device())
    third = dist.all_gather_into_tensor(late, scratch, async_op=True)
    del scratch
    other = torch.full((1000,), -1.0, device=device())
    assert not work.is_completed()
    assert _C._release_stream(held), "something waited for the stream that this case held"
    total = float(sum(range(1, here.size + 1)))
    same(tensor, torch.full((1000,), 2 * total))
    # The gathering came behind the reduction and before the product.
    same(gathered, torch.full((here.size * 1000,), total))
    side.synchronize()
    same(copy, torch.full((here.size * 1000,), total))
    third.wait()
    module.synchronize()
    same(other, torch.full((1000,), -1.0))
    same(late, torch.full((here.size * 1000,), 3.0))
    same(follow.wait(), torch.full((1000,), 7.0))
    assert work.is_completed()
    assert work.exception() is None
    assert dist.all_reduce(tensor, async_op=True).wait(timeout=dist.default_pg_timeout)


def futures() -> None:
    """Waiters for a future come behind the work, be it a batch or a call without a result on this rank."""
    from torch_outrigger import _C

    here = Here(None)
    reductions_of_one()
    ones = torch.ones(1000, device=device())
    gathered = [torch.zeros(here.size * 1000, device=device()) for _ in range(2)]
    received = torch.zeros(1000, device=device())
    lists = [torch.zeros(1000, device=device()) for _ in range(here.size)] if here.rank == 0 else None
    after, before = (here.rank + 1) % here.size, (here.rank - 1) % here.size
    pair = [dist.P2POp(dist.isend, ones, after), dist.P2POp(dist.irecv, received, before)]
    torch.get_device_module(device().type).synchronize()
    held = _C._hold_stream(0, 20_000)
    with dist._coalescing_manager(async_ops=True) as batch:
        for out in gathered:
            dist.all_gather_into_tensor(out, ones)
    works = {
        "a batch": batch.works[0],
        "sends and receives": dist.batch_isend_irecv(pair)[-1],
        "a gathering": dist.gather(ones, lists, async_op=True),
    }
    sides = {name: torch.Stream(device()) for name in works}
    for name, work in works.items():
        with sides[name]:
            work.get_future().wait()
        assert not sides[name].query(), f"a stream that waits for the future of {name} is not behind it"
    with sides["a batch"]:
        seen = torch.cat(works["a batch"].get_future().value())
    with sides["sends and receives"]:
        came = received.clone()
    assert _C._release_stream(held), "something waited for the stream that this case held"
    for side in sides.values():
        side.synchronize()
    same(seen, torch.ones(2 * here.size * 1000))
    same(came, torch.ones(1000))


def errors() -> None:
    """Calls that cannot be are refused before anything is sent, so that the group still works."""
    here = Here(None)
    ones = torch.ones(4, device=device())

    def refused(kind: type[Exception], part: str, call: object, *arguments: object, **named: object) -> None:
        try:
            call(*arguments, **named)
        except kind as error:
            assert part in str(error), str(error)
        else:
            raise AssertionError(f"{call} was not refused")

    refused(RuntimeError, "are not those of", dist.all_gather_into_tensor, torch.empty(5, device=device()), ones)
    refused(NotImplementedError, "only dense tensors", dist.all_reduce, ones[::2])
    refused(RuntimeError, "not contiguous", dist.all_gather_into_tensor, torch.empty(here.size * 3, 4, device=device()),
            torch.empty(4, 3, device=device()).t())  # fmt: skip
    refused(RuntimeError, "do not fit", dist.all_to_all_single, ones, ones, [1] * here.size, [9] * here.size)
    refused(RuntimeError, "one for each", dist.all_gather, [ones], ones)
    if os.environ["OUTRIGGER_DISTRIBUTED"] == "gloo":
        whole = torch.ones(4, dtype=torch.int64, device=device())
        refused(NotImplementedError, "Sum them and divide", dist.all_reduce, whole, dist.ReduceOp.AVG)
    reductions_of_one()


def capture_is_refused() -> None:
    """A collective in a graph is refused by its name, and stream and group go on."""
    ones = torch.ones(4, device=device())
    reductions_of_one()
    graph = torch.accelerator.Graph()
    try:
        with graph:
            ones.add_(1)
            dist.all_reduce(ones)
    except NotImplementedError as error:
        assert "all_reduce cannot be captured" in str(error), str(error)
    else:
        raise AssertionError("a collective was captured")
    reductions_of_one()


def fork_is_refused() -> None:
    """A child of a rank has no device, and is told so."""
    ones = torch.ones(4, device=device())
    reductions_of_one()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(ones)
            text = "nothing was refused"
        except RuntimeError as error:
            text = str(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert "fork" in text, text
    dist.barrier()


def a_rank_dies() -> tuple[str, str]:
    """The last rank ends in the middle: the others get an error, at the wait and at the next call."""
    here = Here(None)
    reductions_of_one()
    if here.rank == here.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(4, device=device())
    texts = []
    try:
        dist.all_reduce(tensor)
        tensor.cpu()
    except dist.DistBackendError as error:
        texts.append(str(error))
    deadline = time.monotonic() + 30
    while len(texts) < 2 and time.monotonic() < deadline:
        try:
            dist.all_reduce(tensor)
            tensor.cpu()
        except dist.DistBackendError as error:
            texts.append(str(error))
    # A new group of those that are left would work; this one is given back without waiting for the lost one.
    dist.destroy_process_group()
    # Work that needs no other rank goes on.
    same(torch.ones(4, device=device()) + 1, torch.full((4,), 2.0))
    return texts[0], texts[1]


def a_rank_is_late() -> str:
    """A rank that does not come within the timeout of a group is an error; the other groups go on."""
    here = Here(None)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    tensor = torch.ones(4, device=device())
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((4,), 2.0))
    text = ""
    if here.rank == 0:
        try:
            dist.all_reduce(tensor, group=group)
            tensor.cpu()
        except dist.DistBackendError as error:
            text = str(error)
    dist.barrier()
    reductions_of_one()
    return text


def groups_come_and_go() -> None:
    """Memory and handles of groups go with them."""
    module = torch.get_device_module(device().type)
    reductions_of_one()
    module.synchronize()
    before = module.memory_allocated(), len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        group = dist.new_group(list(range(dist.get_world_size())))
        tensor = torch.ones(1000, device=device())
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        outs = [torch.empty(1000, device=device()) for _ in range(dist.get_world_size())]
        dist.all_gather(outs, tensor, group=group)
        dist.destroy_process_group(group)
        del tensor, outs, work, group
    module.synchronize()
    assert module.memory_allocated() == before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1] + 2, "files of groups are still open"


def mixed_backends() -> None:
    """A group for tensors of the CPU and of the device, bound to a device; and a mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind = device().type
    dist.init_process_group(
        f"cpu:gloo,{kind}:outrigger", init_method=f"file://{os.environ['RANK_STORE']}", rank=rank, world_size=size,
        device_id=device(),
    )  # fmt: skip
    sums_on_both(None)
    assert dist.get_default_backend_for_device(kind) == "outrigger"
    mesh = init_device_mesh(kind, (size,), mesh_dim_names=("all",))
    sums_on_both(mesh["all"].get_group())


def sums_on_both(group: dist.ProcessGroup | None) -> None:
    """Reductions of the CPU's and of the device's tensors, by turns."""
    size = float(dist.get_world_size(group))
    for _ in range(2):
        for where in ("cpu", device()):
            tensor = torch.ones(2, device=where)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [size] * 2


def groups_of_gloo() -> None:
    """Groups of Gloo, and torch's own use of them, serve tensors of the device."""
    here = Here(None)
    sums_on_both(None)
    assert dist.get_backend() == os.environ["RANK_BACKEND"]
    # A call for the device begins when its stream comes to it, one for the CPU at once: Gloo must not mix them.
    tensor = torch.ones(4, device=device())
    works = [dist.all_reduce(where, async_op=True) for _ in range(20) for where in (tensor, torch.ones(4))]
    for work in works:
        work.wait()
    same(tensor, torch.full((4,), float(here.size) ** 20))
    if here.rank == 0:
        out = torch.zeros(1, device=device())
        assert sorted(dist.recv(out) for _ in range(here.size - 1)) == list(range(1, here.size))
        same(out, torch.ones(1))
    else:
        dist.send(torch.ones(1, device=device()), 0)
    dist.monitored_barrier()
    pair = dist.new_group([1, 2])
    if here.rank > 0:
        sums_on_both(pair)
    # The ranks of a part are in the order of the list.
    part = dist.split_group(split_ranks=[[2, 0], [1]])
    sums_on_both(part)
    outs = [torch.zeros(1, device=device()) for _ in range(dist.get_world_size(part))]
    dist.all_gather(outs, torch.full((1,), float(here.rank), device=device()), group=part)
    same(torch.cat(outs), torch.tensor([1.0] if here.rank == 1 else [2.0, 0.0]))
