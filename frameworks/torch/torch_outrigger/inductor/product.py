"""Products of matrices as kernels of a program: the text that the library's own products are made of, with another end.

The loops over what is fused behind a product run where its sums are, in registers. A product that is split along its sum
is a product of batches, and a sum of what they give. What kernels there are is said here; which of them a program
gets is measured (`choices.py`). It must never import Inductor: what measures kernels imports it too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import _C
from .program import Program, group_size, has_avx512, has_f64, product_text
from .types import MEMORY, REGISTER

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

NUMBERS = "tiles a_first b_first m n k groups a_row a_column b_row b_column a_batch0 a_batch1 b_batch0 b_batch1".split()
"""The numbers of a launch: that of groups, then words of `arguments_t` of the text, in their order."""

_OF_DIMENSIONS = "n_sizes k_sizes n_factor k_factor shift divisor limit place".split()
GATHERED = [
    *(f"{name}{d}" for name in _OF_DIMENSIONS for d in range(3)),
    *("n_first", "k_first"),
    *(f"a_k{d}" for d in range(4)),
    *(f"c_n{d}" for d in range(4)),
]
"""Further numbers of a launch for a convolution."""

_WORK = 1 << 16
"""Each group is said to do so much: it is one tile, and no thread gets less."""


class Tile(NamedTuple):
    """The part of the result that a group computes, and the part of it that an item has in registers at a time."""

    m: int
    n: int
    k: int
    rows: int
    columns: int
    lanes: int = 0
    """The columns of a vector; 0: all."""

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}x{self.k}, {self.rows}x{self.columns}"


def tiles(device: torch.device, dtype: torch.dtype, m: int) -> list[Tile]:
    """The tiles that come into question for a device, the best guess first."""
    index = device.index or 0
    if dtype not in DTYPES or (dtype == torch.float64 and not has_f64(index)):
        return []
    group = group_size(index)
    size = 8 if dtype == torch.float64 else 4
    if group == 1:
        # Rows of two vectors, and so many rows that sums fill the registers of a processor: 16, or 32 of AVX-512.
        lanes, rows = (64 // size, 12) if has_avx512() else (32 // size, 6)
        if m <= 16:
            return [Tile(4, 128, 256, 4, 2 * lanes, lanes), Tile(4, 512, 128, 4, 2 * lanes, lanes)]
        shapes = [(96, 128, 256), (48, 64, 256), (192, 128, 256), (24, 64, 256)]
        return [Tile(*shape, rows, 2 * lanes, lanes) for shape in shapes]
    if group >= 256:
        found = [Tile(64, 64, 16, 4, 4), Tile(64, 64, 32, 4, 4), Tile(128, 64, 16, 8, 4), Tile(128, 128, 8, 8, 8)]
    else:
        found = [Tile(32, 32, 16, 4, 4), Tile(32, 32, 32, 4, 4), Tile(64, 64, 16, 8, 4)]
    most = _C.device_info(index)["local_memory"]
    fits = [one for one in found if (one.m * (one.k + 1) + one.k * one.n) * size <= most]
    return [one for one in fits if (one.m // one.rows) * (one.n // one.columns) % group == 0]


def splits(m: int, n: int, k: int, dtype: torch.dtype) -> list[int]:
    """Into how many parts the sum may be split: where there are few results, and each takes long."""
    if dtype == torch.float64 or k < 4 * max(m, n) or k < 1024:
        return []
    return [count for count in (4, 16) if k % count == 0 and k // count >= 128]


@dataclass(frozen=True)
class Kernel:
    """One product as a kernel: its text apart from the end, and the words of a launch."""

    dtype: torch.dtype
    tile: Tile
    a_dense: bool
    b_dense: bool
    gathers: bool = False
    """Whether the kernel is a convolution: the second matrix is gathered from the input."""

    @classmethod
    def convolving(cls, dtype: torch.dtype, tile: Tile, x: Layout, weight: Layout, how: Convolution) -> Kernel:
        """For a convolution of these operands."""
        return cls(dtype, tile, bool(weight.strides[1] == 1), True, how.gathers(x, weight.sizes))

    @property
    def numbers(self) -> list[str]:
        return NUMBERS + GATHERED if self.gathers else NUMBERS

    def text(self, name: str, parameters: Sequence[str], numbers: Sequence[str], matrices: Sequence[str], end: str) -> str:
        """The kernel. `parameters` are declarations of addresses, and two of their names are the matrices; `numbers` are
        names of integers in front of NUMBERS; `end` are the statements for neighbours of a row."""
        register = REGISTER[self.dtype]
        m, n, k, rows, columns, lanes = self.tile
        lines = [f"i64 {one};" for one in ("chunk", *numbers, "tiles")]
        defined = {
            "NUMBERS": " ".join(lines),
            "EPILOGUE": end.strip().replace("\n", " \\\n"),
            "MATRIX_A": matrices[0],
            "MATRIX_B": matrices[1],
            "A": MEMORY[self.dtype],
            "T": register,
            "F(function)": f"otr_##function##_{register}",
            "FLOATS": 1,
            "TM": m,
            "TN": n,
            "TK": k,
            "RM": rows,
            "RN": columns,
            "LANES": lanes or columns,
            "A_DENSE": int(self.a_dense),
            "B_DENSE": int(self.b_dense),
            "GATHER": int(self.gathers),
            "DIVIDES": 0,
        }
        body = product_text()
        for here, there in (("arguments_t", f"{name}_numbers"), ("add_products", f"{name}_add"), ("matmul", name)):
            body = re.sub(rf"\b{here}\b", there, body)
        body = body.replace("(OTR_ITEM\n", f"(OTR_ITEM {', '.join(parameters)},\n", 1)
        head = "".join(f"#define {key} {value}\n" for key, value in defined.items())
        # Other texts of the program have the same names.
        known = dict.fromkeys(re.findall(r"^#define (\w+)", head + body, re.MULTILINE))
        return f"{head}{body}{''.join(f'#undef {one}{chr(10)}' for one in known)}"

    @property
    def work(self) -> int:
        return max(self.tile.m * self.tile.n * self.tile.k, _WORK)


def numbers(tile: Tile, sizes: Sequence[Any], a: Layout, b: Layout, parts: int = 1) -> list[Any]:
    """NUMBERS of a product: its sizes are up to two of batches, then m, n and k."""
    *batch, m, n, k = sizes
    first, second = (batch + [1, 1])[:2]
    found: dict[str, Any] = {"m": m, "n": n, "groups": second}
    for name, matrix in (("a", a), ("b", b)):
        *outer, found[f"{name}_row"], found[f"{name}_column"] = matrix.strides
        found[f"{name}_batch0"], found[f"{name}_batch1"] = (outer + [0, 0])[:2]
        found[f"{name}_first"] = matrix.offset
    if parts > 1:
        # The parts are batches, which begin one behind the other.
        first, k = parts, k // parts
        found |= {"a_batch0": k * found["a_column"], "b_batch0": k * found["b_row"]}
    found |= {"k": k, "tiles": _tiles(m, tile.m) * _tiles(n, tile.n) * first * second}
    return [found[one] for one in NUMBERS]


def convolved(kernel: Kernel, x: Layout, weight: Layout, how: Convolution) -> list[Any]:
    """The numbers of a convolution. Images and groups are batches."""
    (x_sizes, x_strides, x_first), (w_sizes, w_strides, w_first) = x, weight
    if not kernel.gathers:
        places = [x_sizes[0], w_sizes[0], math.prod(x_sizes[2:]), w_sizes[1]]
        a, b = weight._replace(strides=(0, *w_strides[:2])), x._replace(strides=(*x_strides[:2], 1))
        return numbers(kernel.tile, places, a, b)
    tile = kernel.tile
    missing = 5 - len(x_sizes)

    def three(values: Sequence[Any], other: int) -> list[Any]:
        return [other] * missing + list(values)

    places, window = three(how.places(x_sizes, w_sizes), 1), three(w_sizes[2:], 1)
    rows, depth = w_sizes[0] // how.groups, w_sizes[1]
    (n, k), channel = (math.prod(one) for one in (places, window)), x_strides[1]
    found: dict[str, Any] = dict.fromkeys([*NUMBERS, *GATHERED], 0)
    found |= {"a_first": w_first, "b_first": x_first, "k_first": channel, "groups": how.groups}
    found |= {"m": rows, "n": n, "k": k * depth, "a_row": w_strides[0]}
    found |= {"a_batch1": rows * w_strides[0], "b_batch0": x_strides[0], "b_batch1": depth * channel}
    found["tiles"] = _tiles(rows, tile.m) * _tiles(n, tile.n) * x_sizes[0] * how.groups
    of_dimensions = {
        "n_sizes": places,
        "k_sizes": window,
        "n_factor": three(how.stride, 1),
        "k_factor": three(how.dilation, 1),
        "shift": three([-one for one in how.padding], 0),
        "divisor": [1] * 3,
        "limit": three(x_sizes[2:], 1),
        "place": three(x_strides[2:], 0),
    }
    found |= {f"{name}{d}": one for name, values in of_dimensions.items() for d, one in enumerate(values)}
    found |= {f"a_k{d}": one for d, one in enumerate([w_strides[1], *three(w_strides[2:], 0)])}
    return [found[one] for one in (*NUMBERS, *GATHERED)]


class Layout(NamedTuple):
    """Sizes, strides and offset of an operand, in elements."""

    sizes: Sequence[Any]
    strides: Sequence[Any]
    offset: Any = 0


class Attention(NamedTuple):
    """The factor of scores before they become weights, and whether later positions are left out."""

    scale: float
    is_causal: bool


class Convolution(NamedTuple):
    """The parameters of a convolution, per dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def gathers(self, x: Layout, weight: Sequence[Any]) -> bool:
        """Whether the input has to be gathered: else each image is a matrix as it lies there."""
        sizes, strides = x.sizes[2:], x.strides[2:]
        dense = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        plain = {*self.stride, self.groups, *weight[2:]} == {1} and not any(self.padding)
        return not plain or list(strides) != dense

    def places(self, x: Sequence[Any], weight: Sequence[Any]) -> list[Any]:
        """The spatial sizes of the result."""
        each = zip(x[2:], weight[2:], *self[:3], strict=True)
        return [(wide + 2 * around - apart * (size - 1) - 1) // step + 1 for wide, size, step, around, apart in each]


def _tiles(size: Any, tile: int) -> Any:
    if isinstance(size, int):
        return -(-size // tile)
    from torch.utils._sympy.functions import CeilDiv

    return CeilDiv(size, tile)


def plain(kernel: Kernel, name: str, result: torch.dtype) -> tuple[str, list[str]]:
    """The text of a kernel that only stores its sums, row by row, and the types of its addresses."""
    memory = f"OTR_GLOBAL const OTR_MEMORY({MEMORY[kernel.dtype]})*"
    out = f"OTR_GLOBAL OTR_MEMORY({MEMORY[result]})*"
    end = (
        "OTR_PRODUCTS(RN) { "
        f"OTR_STORE({MEMORY[result]}, T, otr_result, otr_row * args.n + otr_column + otr_j, otr_sums[otr_j]); }}"
    )
    parameters = [f"{memory} otr_a", f"{memory} otr_b", f"{out} otr_result"]
    return kernel.text(name, parameters, (), ("otr_a", "otr_b"), end), [memory, memory, out]


def candidate_name(variant: str) -> str:
    """The name of the kernel of a variant, so that whoever compiles it has the same text."""
    return "otr_candidate_" + re.sub(r"\W+", "_", variant)


def begun(kernel: Kernel, name: str, device: torch.device, parts: int, is_ahead: bool = False) -> Any:
    """A kernel as `plain` has it, which is compiled in the background from here on, behind all else if `is_ahead`. Sums in parts are f32."""
    text, pointers = plain(kernel, name, torch.float32 if parts > 1 else kernel.dtype)
    program = Program(device.type, device.index or 0)
    kinds = "a" * len(pointers) + "i" * len(kernel.numbers)
    launch = program.kernel(name, kinds, (len(pointers),), kernel.work, True, pointers, text)
    program.begin(is_ahead=is_ahead)
    return launch
