"""Helpers of the tests: comparing with the CPU, and running a piece of Python in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

NO_GRAPHS = None if hasattr(torch.accelerator, "Graph") else "torch.accelerator has no graphs before torch 2.12"
needs_graphs_of_torch = pytest.mark.skipif(NO_GRAPHS is not None, reason=str(NO_GRAPHS))

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
ALL_DTYPES = (*FLOATING, *INTEGRAL, torch.bool, *COMPLEX)


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A CPU tensor with small values that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    low = -8 if dtype.is_signed and dtype is not torch.bool else 0
    values = torch.randint(low, 9, shape, generator=generator)
    if dtype.is_complex:
        values = torch.complex(values.double(), torch.randint(-8, 9, shape, generator=generator).double())
    return values.to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor, **tolerance: float) -> None:
    """Asserts that a device tensor has the dtype, shape and values of a CPU tensor; exactly, unless told."""
    assert actual.device.type not in ("cpu", "meta"), f"{actual.device} is not a device"
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **tolerance)


def tested_triton() -> ModuleType:
    """Triton, for a file of tests that need the version whose kernels run on the device: without it the file is left out. That it
    has not found the device is no reason, and fails the tests."""
    triton = pytest.importorskip("triton")
    if not triton.__version__.startswith("3.9."):
        pytest.skip("kernels of Triton run with Triton 3.9", allow_module_level=True)
    return triton


# The name begins as that of a test does.
tested_triton.__test__ = False  # type: ignore[attr-defined]


ITEMS = r"""
#include <stdlib.h>
#include <ucontext.h>
static _Thread_local ucontext_t scheduler, items[ITEMS];
static _Thread_local int item, waits_at[ITEMS];
static _Thread_local void (*runs)(void);
static _Thread_local char stacks[ITEMS][STACK];
static void start(void) {
  runs();
  waits_at[item] = 0;
}
static __attribute__((noinline)) void await(int line) {
  waits_at[item] = line;
  swapcontext(&items[item], &scheduler);
}
/* Between barriers items run one after the other, upwards and downwards in turn: who reads what another one is to write finds what was there. */
static void run_items(void (*whole)(void)) {
  int line = -1;
  runs = whole;
  for (int n = 0; n < ITEMS; n++) {
    getcontext(&items[n]);
    items[n].uc_stack.ss_sp = stacks[n];
    items[n].uc_stack.ss_size = STACK;
    items[n].uc_link = &scheduler;
    makecontext(&items[n], start, 0);
  }
  for (int round = 0; line != 0; round++) {
    for (int n = 0; n < ITEMS; n++) {
      item = (round + DOWNWARDS) % 2 ? ITEMS - 1 - n : n;
      swapcontext(&scheduler, &items[item]);
      if (n > 0 && waits_at[item] != line) abort();
      line = waits_at[item];
    }
  }
}
#undef OTR_LANE
#undef OTR_BARRIER
#undef OTR_BARRIER_GLOBAL
#undef OTR_SHARED
#define OTR_LANE item
#define OTR_BARRIER() await(__LINE__)
#define OTR_BARRIER_GLOBAL() await(__LINE__)
#define OTR_SHARED(type, name, count) static _Thread_local type name[count]
"""
"""Groups of many items in plain C, which the dialect has not: each item is a context of its own, and a barrier that not all of them reach
ends the process."""


def groups_of(items: int, put: Callable[[object, str, object], None] = setattr, downwards: bool = False) -> None:
    """Gives kernels of Triton groups of so many items, as on a GPU: for ever, or as long as what a fixture puts is there."""
    from torch_outrigger import _C
    from torch_outrigger.inductor import program

    headers = program._headers
    text = f"#define ITEMS {items}\n#define DOWNWARDS {int(downwards)}\n#define STACK {(1 << 22) // items + (1 << 16)}\n{ITEMS}"
    put(program, "group_limits", lambda index: (items, items, _C.device_info(index)["local_memory"] or 1 << 18))
    if program.language(0) is not None:
        return

    def runner(name: str, pointers: list[str], has_checks: bool) -> str:
        given = [f"({one})words[{number}]" for number, one in enumerate(pointers)] + ["&failed"] * has_checks
        return f"""
typedef struct {{ const u64* words; otr_place_t place; i32 failed; {name}_numbers numbers; }} {name}_given;
static _Thread_local {name}_given {name}_now;
static void {name}_item(void) {{
  const u64* words = {name}_now.words;
  {name}(&{name}_now.place, {", ".join(given)}{", " * bool(given)}{name}_now.numbers);
}}
i32 {name}_run(const u64* words, i64 first, i64 last) {{
  {name}_now.words = words;
  {name}_now.place.count[0] = (i32)last;
  {name}_now.place.count[1] = {name}_now.place.count[2] = 1;
  {name}_now.failed = 0;
  memcpy(&{name}_now.numbers, words + {len(pointers)}, sizeof {name}_now.numbers);
  for (i64 group = first; group < last; group++) {{
    {name}_now.place.group[0] = (i32)group;
    run_items({name}_item);
  }}
  return {name}_now.failed;
}}
""".replace("&failed", f"&{name}_now.failed")

    put(program, "_headers", lambda: headers() + text)
    put(program, "_runner", runner)


def run_python(code: str, timeout: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds the same packages."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
