"""Small calls whose outcome must be the CPU's: the same values and shapes, the same kind of error, the same
warnings. Each was once a crash, wrong data without a word, or a check that only the CPU made."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_outrigger

pytestmark = pytest.mark.of_driver


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def every_warning() -> Iterator[list[warnings.WarningMessage]]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(before)


def plain(value: Any) -> Any:
    """A result without its device, so that two can be compared."""
    if isinstance(value, torch.Tensor):
        numbers = [str(number) for number in value.cpu().flatten().tolist()]
        return value.dtype, tuple(value.shape), value.stride(), numbers
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def outcome(case: Callable[[torch.device], Any], device: torch.device) -> Any:
    """The result of a case on a device, or the kind of its error."""
    try:
        return plain(case(device))
    except Exception as error:  # noqa: BLE001: which one it is, is what is compared
        return type(error)


def range_into(shape: tuple[int, ...], *numbers: float, dtype: torch.dtype = torch.float32) -> Callable[[torch.device], Any]:
    """arange into the right part of a larger tensor: where else it writes shows too."""

    def case(device: torch.device) -> Any:
        whole = torch.full((*shape[:-1], shape[-1] + 1), -1, dtype=dtype, device=device)
        part = whole.narrow(-1, 1, shape[-1])
        torch.arange(*numbers, out=part)
        return whole, part

    return case


def overlapping_copy(device: torch.device) -> Any:
    x = torch.arange(8.0, device=device)
    return x[1:].copy_(x[:-1])


def copy_to_itself(device: torch.device) -> Any:
    x = torch.arange(4.0, device=device)
    return x[1:].copy_(x[1:].view(3)), x.copy_(x)


def overlapping_mask(device: torch.device) -> Any:
    mask = torch.tensor([True, False, True, True], device=device)
    return mask[1:].masked_fill_(mask[:-1], False)


def resized(dtype: torch.dtype, *, first: int = 2) -> Callable[[torch.device], Any]:
    """Memory that nobody has written, as deterministic mode leaves it."""

    def case(device: torch.device) -> Any:
        with deterministic():
            grown = torch.zeros(first, dtype=dtype, device=device).resize_(3, 3)
            part = torch.zeros(6, dtype=dtype, device=device)[1:3].resize_(7)
            made = torch.empty(3, dtype=dtype, device=device)
        return grown, part, made

    return case


CASES: dict[str, Callable[[torch.device], Any]] = {
    "item of no element": lambda d: torch.ops.aten._local_scalar_dense(torch.empty(0, device=d)),
    **{
        f"item of {dtype}": lambda d, dtype=dtype: torch.empty(1, dtype=dtype, device=d).item()
        for dtype in (torch.bits8, torch.bits16, torch.uint1, torch.uint7, torch.int4, torch.float4_e2m1fn_x2)
    },
    "item of uint64": lambda d: torch.tensor([2**64 - 1], dtype=torch.uint64).to(d).item(),
    "fill with bits of the CPU": lambda d: torch.zeros(2, device=d).fill_(torch.empty((), dtype=torch.bits8)),
    "arange into columns": range_into((2, 2), 0, 4),
    "arange into part of a vector": range_into((5,), 2, 12, 2, dtype=torch.int64),
    "arange into a matrix": lambda d: torch.arange(6, out=torch.zeros(2, 3, device=d)),
    "arange into a transposed matrix": lambda d: torch.arange(6, out=torch.zeros(3, 2, device=d).t()),
    "arange into too few": lambda d: torch.arange(6, out=torch.zeros(0, device=d)),
    "copy to overlapping memory": overlapping_copy,
    "copy to itself": copy_to_itself,
    "copy to an expanded tensor": lambda d: torch.zeros(1, device=d).expand(6).copy_(torch.ones(6, device=d)),
    "copy from the CPU to an expanded tensor": lambda d: torch.zeros(1, device=d).expand(6).copy_(torch.ones(6)),
    "fill of an expanded tensor": lambda d: torch.zeros(1, device=d).expand(6).fill_(2),
    "masked_fill_ by an overlapping mask": overlapping_mask,
    **{
        f"{dtype} in deterministic mode": resized(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.uint8, torch.int64, torch.uint64,
                      torch.bool)
    },
    "bits in deterministic mode": resized(torch.bits8),
    "gradient of dropout of whole numbers": lambda d: torch.ops.aten.native_dropout_backward(
        torch.ones(4, dtype=torch.int64, device=d), torch.tensor([True, False, True, True], device=d), 2.0
    ),
    "gradient of dropout": lambda d: torch.ops.aten.native_dropout_backward(
        torch.ones(4, device=d), torch.tensor([True, False, True, True], device=d), 2.0
    ),
    "metadata": lambda d: torch._utils.get_tensor_metadata(torch.ones(2, device=d)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_outcome(name, device):
    assert outcome(CASES[name], device) == outcome(CASES[name], torch.device("cpu"))


RANGES = [
    (0, 7, 2), (5, 0, -2), (0, 3.2, 1), (0.5, 3.2, 1), (0, -3.2, -1), (2**53 + 1, 2**53 + 4, 1), (-(2**53) - 3, -(2**53), 1),
    (2**62, 2**62 + 5, 1), (0, 4, 0), (0, 4, -1), (0, float("inf"), 1), (0, 300, 100),
]  # fmt: skip


@pytest.mark.parametrize("numbers", RANGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16])
def test_ranges_have_the_elements_of_the_cpus(dtype, numbers, device):
    def case(d: torch.device) -> Any:
        return torch.arange(*numbers, dtype=dtype, device=d)

    assert outcome(case, device) == outcome(case, torch.device("cpu"))


NUMBERS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "add of a multiple": lambda x, v: torch.add(x, x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "addmm": lambda x, v: torch.addmm(x[:2], x.view(2, 2), x.view(2, 2), beta=v),
    "addr": lambda x, v: torch.addr(x.view(2, 2), x[:2], x[:2], alpha=v),
    "lerp": lambda x, v: torch.lerp(x, x + 1, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "clamp_min_": lambda x, v: x.clamp_min_(v),
    "clamp_max": lambda x, v: torch.clamp_max(x, v),
    "leaky_relu": lambda x, v: torch.nn.functional.leaky_relu(-x, v),
    "threshold": lambda x, v: torch.nn.functional.threshold(x, 1, v),
    "full": lambda x, v: torch.full((3,), v, dtype=x.dtype, device=x.device),
    "fill_": lambda x, v: x.fill_(v),
    "fill_ of a column": lambda x, v: x.view(2, 2)[:, 1].fill_(v),
    "masked_fill": lambda x, v: x.masked_fill(x > 1, v),
    "masked_fill with a tensor": lambda x, v: x.masked_fill(x > 1, torch.tensor(v)),
    "where": lambda x, v: torch.where(x > 1, x, v),
    "pad": lambda x, v: torch.nn.functional.pad(x, (0, 1), value=v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([1], device=x.device), v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([1], device=x.device), v),
    "setitem": lambda x, v: (x.__setitem__(1, v), x)[1],
    "normal_": lambda x, v: x.normal_(v, 0),
    "sum": lambda x, v: x + v,
    "product": lambda x, v: x * v,
    "remainder": lambda x, v: torch.remainder(x, v),
    "fmod": lambda x, v: torch.fmod(x, v),
    "maximum": lambda x, v: torch.maximum(x, torch.tensor(v)),
    **{
        name: lambda x, v, name=name: getattr(torch, name)(x, v)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_xor")
    },
    "lt of a scalar": lambda x, v: torch.lt(torch.tensor(v), x),
}
BEYOND = [
    (torch.float16, 1e9), (torch.float16, -7e4), (torch.float16, 0.1), (torch.bfloat16, 1e39), (torch.float32, 1e40),
    (torch.float32, 16777217), (torch.uint8, 300), (torch.uint8, -1), (torch.int8, -200), (torch.int16, 70000),
    (torch.int32, 2**40), (torch.int32, 2.5), (torch.int64, 1e20), (torch.int64, 2**53 + 1), (torch.int32, float("nan")),
]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_a_dtype_cannot_hold(name, device):
    """Such numbers are errors, wrap, or are rounded, as on the CPU."""
    for dtype, value in BEYOND:

        def case(d: torch.device, dtype: torch.dtype = dtype, value: Any = value) -> Any:
            return NUMBERS[name](torch.tensor([1, 2, 0, 100], dtype=dtype).to(d), value)

        here, there = outcome(case, device), outcome(case, torch.device("cpu"))
        assert here == there, (dtype, value)


def ones(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), device=device).view(shape)


INTO: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any], Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    # The shape of the operand, what comes in, and the operator with a result.
    **{
        name: ((4,), lambda x: x, lambda x, out, name=name: getattr(torch, name)(x, out=out))
        for name in ("abs", "neg", "sqrt", "erfinv", "sgn")
    },
    "logical_not": ((4,), lambda x: x > 2, lambda x, out: torch.logical_not(x, out=out)),
    "logical_and": ((4,), lambda x: x > 2, lambda x, out: torch.logical_and(x, x, out=out)),
    "add": ((4,), lambda x: x, lambda x, out: torch.add(x, x, out=out)),
    "clamp": ((4,), lambda x: x, lambda x, out: torch.clamp(x, 2, 3, out=out)),
    "where": ((4,), lambda x: x, lambda x, out: torch.where(x > 2, x, x * 2, out=out)),
    "cumsum": ((4,), lambda x: x, lambda x, out: torch.cumsum(x, 0, out=out)),
    "mm": ((2, 2), lambda x: x, lambda x, out: torch.mm(x, x, out=out)),
    "addmm": ((2, 2), lambda x: x, lambda x, out: torch.addmm(x, x, x, out=out)),
    "addmv": ((2,), lambda x: x, lambda x, out: torch.addmv(x, ones(2, 2, device=x.device), x, out=out)),
    "gather": ((4,), lambda x: x, lambda x, out: torch.gather(x, 0, torch.arange(3, -1, -1, device=x.device), out=out)),
    "index_select": (
        (4,), lambda x: x, lambda x, out: torch.index_select(x, 0, torch.arange(3, -1, -1, device=x.device), out=out)
    ),
    "index_copy": (
        (4,), lambda x: x, lambda x, out: torch.index_copy(x, 0, torch.arange(3, -1, -1, device=x.device), x, out=out)
    ),
    "cat": ((4,), lambda x: x, lambda x, out: torch.cat([x[:2], x[2:]], out=out)),
    "amax": ((4, 1), lambda x: x, lambda x, out: torch.amax(x, 1, keepdim=True, out=out)),
    "arange": ((4, 1), lambda x: x, lambda x, out: torch.arange(4, out=out)),
}  # fmt: skip


@pytest.mark.parametrize("way", ["expanded", "shifted"])
@pytest.mark.parametrize("name", INTO)
def test_results_that_share_memory(name, way, device):
    """Such results are refused where the CPU refuses them, and else what the CPU gives."""
    shape, prepare, call = INTO[name]

    def case(d: torch.device) -> Any:
        count = torch.Size(shape).numel()
        memory = prepare(ones(count + 1, device=d))
        x = memory[:-1].view(shape)
        out = memory[1:].view(shape) if way == "shifted" else memory[:1].expand(count).as_strided(shape, (0,) * len(shape))
        result = call(x.clone() if way == "expanded" else x, out)
        return result, memory

    assert outcome(case, device) == outcome(case, torch.device("cpu"))


IN_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_ of a shifted self": lambda x: x[1:].add_(x[:-1]),
    "lerp_ of a shifted self": lambda x: x[1:].lerp_(x[:-1], 0.5),
    "addmm_ of itself": lambda x: x.view(3, 3).addmm_(x.view(3, 3), x.view(3, 3)),
    "addmm_ of an expanded tensor": lambda x: x[:1].expand(3, 3).addmm_(x.view(3, 3), x.view(3, 3)),
    "cumsum_ of an expanded tensor": lambda x: x[:1].expand(4).cumsum_(0),
    "cumsum_": lambda x: x.cumsum_(0),
    "relu_ of an expanded tensor": lambda x: x[:1].expand(4).relu_(),
    "hypot_ of a shifted self": lambda x: x[1:].hypot_(x[:-1]),
    "index_add_ of itself": lambda x: x.index_add_(0, torch.arange(9, device=x.device), x),
    "index_copy_ of itself": lambda x: x.index_copy_(0, torch.arange(8, -1, -1, device=x.device), x),
    "index_put_ of itself": lambda x: x.index_put_((torch.arange(8, -1, -1, device=x.device),), x),
    "scatter_ of itself": lambda x: x.scatter_(0, torch.arange(8, -1, -1, device=x.device), x),
    "masked_fill_ of an expanded tensor": lambda x: x[:1].expand(9).masked_fill_(x > 2, 1.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_operands_that_share_memory(name, device):
    def case(d: torch.device) -> Any:
        x = ones(9, device=d)
        return IN_PLACE[name](x), x

    assert outcome(case, device) == outcome(case, torch.device("cpu"))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:, :, :1].expand(x.shape),
}
LAID_OUT: dict[str, Callable[[torch.Tensor], Any]] = {
    "where": lambda x: torch.where(x > 2, x, x * 2),
    "where with a number": lambda x: torch.where(x > 2, x, 0.0),
    "where of a row": lambda x: torch.where(x > 2, x, x[:1, :, :1, :1]),
    "mse_loss": lambda x: torch.nn.functional.mse_loss(x, x + 1, reduction="none"),
    "logical_not": lambda x: torch.logical_not(x),
    "logical_and": lambda x: torch.logical_and(x, x > 1),
    "isnan": lambda x: torch.isnan(x),
    "relu": lambda x: torch.relu(x),
    "masked_fill": lambda x: x.masked_fill(x > 2, 1.0),
    "lerp": lambda x: torch.lerp(x, x + 2, 0.5),
    "cumsum": lambda x: torch.cumsum(x, 1),
    "sum": lambda x: x.sum(1, keepdim=True),
    "amax": lambda x: x.amax(1, keepdim=True),
    "cat": lambda x: torch.cat([x, x], 1),
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2], device=x.device)),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, 2, 4, dtype=torch.int64, device=x.device)),
    "pixel_shuffle": lambda x: torch.nn.functional.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: torch.nn.functional.pixel_unshuffle(x, 2),
    "max_pool2d": lambda x: torch.nn.functional.max_pool2d(x, 2),
    "to another dtype": lambda x: x.to(torch.float16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAID_OUT)
def test_layouts_of_results(name, layout, device):
    def case(d: torch.device) -> Any:
        return LAID_OUT[name](LAYOUTS[layout](ones(2, 4, 2, 4, device=d)))

    assert outcome(case, device) == outcome(case, torch.device("cpu"))


IN_ONE_ORDER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_add": lambda x, at: torch.zeros(2, device=x.device).index_add(0, at, x),
    "index_put": lambda x, at: torch.zeros(2, device=x.device).index_put((at,), x, accumulate=True),
    "index_copy": lambda x, at: torch.zeros(2, device=x.device).index_copy(0, at, x),
    "scatter": lambda x, at: torch.zeros(2, device=x.device).scatter(0, at, x),
    "scatter_add": lambda x, at: torch.zeros(2, device=x.device).scatter_add(0, at, x),
    "scatter_reduce": lambda x, at: torch.zeros(2, device=x.device).scatter_reduce(0, at, x, "sum"),
    "embedding_dense_backward": lambda x, at: torch.ops.aten.embedding_dense_backward(x.view(-1, 1), at, 2, -1, False),
}


@pytest.mark.parametrize("name", IN_ONE_ORDER)
def test_deterministic_mode_is_obeyed(name, device):
    """Sums that drivers add up in any order do not run there."""

    def case(d: torch.device) -> Any:
        return IN_ONE_ORDER[name](ones(64, device=d), torch.arange(64, device=d) % 2)

    torch_outrigger.reset_fallback_report()
    with deterministic():
        assert outcome(case, device) == outcome(case, torch.device("cpu"))
    places = {row["place"] for row in torch_outrigger.operator_report() if name in row["operator"]}
    # On `host` the device is the CPU.
    assert os.environ.get("OUTRIGGER_DRIVER", "host").split("?")[0] == "host" or "device" not in places


def numbers_beyond(dtype: torch.dtype) -> tuple[float, float]:
    """Bounds that are finite, and whose difference is not."""
    largest = torch.finfo(dtype).max
    return -largest, largest


FILLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "uniform_": lambda x: x.uniform_(2, 3),
    "uniform_ wide": lambda x: x.uniform_(*numbers_beyond(torch.float32)),
    "uniform_ double": lambda x: x.uniform_(0, 1e300),
    "normal_": lambda x: x.normal_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "random_": lambda x: x.random_(),
    "random_ below": lambda x: x.random_(2),
    "random_ below nothing": lambda x: x.random_(0),
    "random_ signed": lambda x: x.random_(-1, 1),
    "random_ far": lambda x: x.random_(-42, 10),
    "random_ high": lambda x: x.random_(0, 1000),
    "exponential_": lambda x: x.exponential_(),
    "log_normal_": lambda x: x.log_normal_(),
    "cauchy_": lambda x: x.cauchy_(),
    "geometric_": lambda x: x.geometric_(0.5),
}
FILLED = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int16, torch.uint16,
    torch.int32, torch.int64, torch.uint64, torch.bool, torch.complex64,
)  # fmt: skip
SHAPES: dict[str, Callable[[torch.dtype, torch.device], torch.Tensor]] = {
    "empty": lambda dtype, d: torch.empty(0, dtype=dtype, device=d),
    "dense": lambda dtype, d: torch.zeros(64, dtype=dtype, device=d),
    "strided": lambda dtype, d: torch.zeros(64, 2, dtype=dtype, device=d)[:, 1],
    "expanded": lambda dtype, d: torch.zeros(1, dtype=dtype, device=d).expand(6),
}


def most_of(dtype: torch.dtype) -> float:
    """The largest whole number up to which a dtype has all of them: `random_` draws up to here."""
    if dtype == torch.bool:
        return 1
    return 2 / torch.finfo(dtype).eps if dtype.is_floating_point else float(torch.iinfo(dtype).max)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fill", FILLS)
def test_random_fills_take_and_refuse_what_the_cpus_do(fill, shape, device):
    """Random numbers differ, but not what is an error, and never the range."""

    def case(dtype: torch.dtype, on: torch.device) -> Any:
        x = SHAPES[shape](dtype, on)
        try:
            FILLS[fill](x)
        except Exception as error:  # noqa: BLE001: which one it is, is what is compared
            return type(error)
        return x.cpu()

    for dtype in FILLED:
        here, there = case(dtype, device), case(dtype, torch.device("cpu"))
        if not isinstance(there, torch.Tensor):
            assert here is there, (dtype, here, there)
            continue
        assert isinstance(here, torch.Tensor), (dtype, here)
        assert here.dtype == there.dtype and here.shape == there.shape
        if fill in ("uniform_", "bernoulli_", "random_", "random_ below", "random_ signed", "random_ far", "random_ high"):
            low, high = {"uniform_": (2, 3), "random_ signed": (-1, 1), "random_ far": (-42, 10),
                         "random_ high": (0, 1000)}.get(fill, (0, 1))  # fmt: skip
            if fill == "random_" and here.numel():
                high = most_of(dtype)
            values = torch.view_as_real(here).flatten() if here.is_complex() else here
            assert all(low <= value <= high for value in values.double().tolist()), (dtype, values)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: torch.nonzero(x, out=out.long()),
        lambda x, out: torch.cumsum(x[0], 0, out=out),
        lambda x, out: torch.prod(x, 0, out=out),
        lambda x, out: torch.addcmul(x[0], x[0], x[0], out=out),
        lambda x, out: torch.sum(x, 0, out=out),
    ],
    ids=["nonzero", "cumsum", "prod", "addcmul", "sum"],
)
def test_a_result_is_not_put_into_a_tensor_of_the_cpu(call, device):
    out = torch.tensor(7.0)
    with pytest.raises(RuntimeError, match="device"):
        call(torch.tensor([1.0, 0.0, 2.0], device=device), out)
    assert out.item() == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_group_norm_is_as_exact_as_on_the_cpu(dtype, device):
    x = (torch.randn(5, 6, 5) * 9).to(dtype)
    weight, bias = torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    expected = torch.nn.functional.group_norm(x, 3, weight, bias)
    result = torch.nn.functional.group_norm(x.to(device), 3, weight.to(device), bias.to(device))
    truth = torch.nn.functional.group_norm(x.double(), 3, weight.double(), bias.double())
    error = (result.cpu().double() - truth).abs().max()
    # Numbers of 32 bits may be rounded in another order; halves are rounded once, at the end.
    factor = 2 if dtype == torch.float32 else 1
    assert error <= factor * (expected.double() - truth).abs().max()


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.empty(3, dtype=torch.chalf, device=d),
        lambda d: torch.empty_strided((3,), (1,), dtype=torch.chalf, device=d),
        lambda d: torch.randn(2).to(d)[torch.tensor([1, 0], dtype=torch.uint8, device=d)],
        lambda d: torch.arange(5, out=torch.zeros(3, device=d)),
    ],
    ids=["complex halves", "strided complex halves", "a mask of bytes", "resized by arange"],
)
def test_warnings(call, device):
    with every_warning() as here:
        call(device)
    with every_warning() as there:
        call(torch.device("cpu"))
    assert [warning.category for warning in here] == [warning.category for warning in there], here
    assert len(there) > 0


def test_supported_dtypes_are_those_that_can_be_converted_to(device):
    supported = torch.accelerator.get_device_capability(device)["supported_dtypes"]
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        result = outcome(lambda d, dtype=dtype: torch.zeros(2, device=d).to(dtype).dtype, device)
        assert (dtype in supported) == (result is dtype), (dtype, result)
