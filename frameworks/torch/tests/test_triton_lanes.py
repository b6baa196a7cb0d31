"""Programs of Triton that a group of many items runs, as on a GPU: in plain C with a context for each item, whose order finds a barrier
that is missing."""

from __future__ import annotations

import ctypes
import glob
import re
import sysconfig
from pathlib import Path

import pytest
import torch
from support import groups_of, same, tested_triton

triton = tested_triton()
tl = triton.language

from torch_outrigger.inductor import program  # noqa: E402
from torch_outrigger.triton import compiler, emit, ttir  # noqa: E402
from torch_outrigger.triton.emit import lanes  # noqa: E402

pytestmark = pytest.mark.usefixtures("once", "compiles")

MODULES = Path(__file__).parent / "triton_modules"


@pytest.fixture
def launch(monkeypatch):
    """Launches a function as a kernel for groups of so many items, of which the first or the last one begins."""

    def launch(function, items, *args, grid=(1,), downwards=False, **constants):
        groups_of(items, monkeypatch.setattr, downwards)
        # Triton asks for the target once for each kernel and device.
        kernel = triton.jit(function)[grid](*args, **constants)
        monkeypatch.undo()
        assert kernel.metadata.items == items
        return kernel

    return launch


def rows(x, out, last, n, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + r[:, None] * N + c[None, :], mask=c[None, :] < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 1)[:, None])
    p = e / tl.sum(e, 1)[:, None]
    tl.store(out + r[:, None] * N + c[None, :], p, mask=c[None, :] < n)
    tl.store(last + c, tl.sum(tl.where(c[None, :] < n, v, 0), 0))
    tl.store(last + N + c, tl.zeros([N], tl.float32) + tl.max(v))


@pytest.mark.parametrize("items", [8, 32, 128])
@pytest.mark.parametrize(("m", "n"), [(4, 64), (64, 4)])
def test_rows_are_folded_over_slots_and_items(device, launch, items, m, n):
    x = torch.randn(m, n)
    out, last = torch.zeros(m, n, device=device), torch.zeros(2, n, device=device)
    launch(rows, items, x.to(device), out, last, n - 1, M=m, N=n)
    y = x[:, : n - 1]
    same(out[:, : n - 1], y.softmax(1), rtol=1e-5, atol=1e-6)
    assert out[:, n - 1].abs().max().item() == 0
    same(last[0, : n - 1], y.sum(0), rtol=1e-5, atol=1e-5)
    same(last[1], y.max().expand(n))


def tiles(x, y, out, steps, M: tl.constexpr, K: tl.constexpr):
    """Products of tiles in a loop, and what is carried from step to step in another layout."""
    r, k = tl.arange(0, M), tl.arange(0, K)
    a, b = x + r[:, None] * (steps * K) + k[None, :], y + k[:, None] * M + r[None, :]
    total, turned = tl.zeros([M, M], tl.float32), tl.zeros([M, M], tl.float32)
    for _ in range(steps):
        product = tl.dot(tl.load(a), tl.load(b))
        total += product
        turned = tl.trans(turned) + product
        a += K
        b += K * M
    at = r[:, None] * M + r[None, :]
    tl.store(out + at, total)
    tl.store(out + M * M + at, turned)
    tl.store(out + 2 * M * M + at, tl.cumsum(total, 1, reverse=True))


@pytest.mark.parametrize("items", [32, 128])
def test_products_and_layouts_in_a_loop(device, launch, items):
    x, y = torch.randn(16, 24), torch.randn(24, 16)
    out = torch.empty(3, 16, 16, device=device)
    launch(tiles, items, x.to(device), y.to(device), out, 3, M=16, K=8)
    turned = torch.zeros(16, 16)
    for step in range(3):
        turned = turned.T + x[:, 8 * step : 8 * step + 8] @ y[8 * step : 8 * step + 8]
    expected = torch.stack([x @ y, turned, (x @ y).flip(1).cumsum(1).flip(1)])
    same(out, expected, rtol=1e-4, atol=1e-4)


def memory(x, lock, numbers, seen, n, N: tl.constexpr):
    """Items of a program tell each other numbers by memory of the device."""
    i = tl.arange(0, N)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    for _ in range(n):
        count = tl.load(numbers)
        tl.store(numbers, count + 1)
        if count % 2 == 0:
            tl.store(x + i, tl.load(x + (i + 1) % N) + 1)
        else:
            tl.store(x + (i + 2) % N, tl.load(x + i))
    tl.atomic_xchg(lock, 0)
    tl.store(seen + tl.program_id(0), tl.atomic_add(numbers + 1, 2))
    tl.store(seen + tl.num_programs(0) + tl.program_id(0), tl.load(x + N // 2))


def test_what_one_item_stores_another_one_reads(device, launch):
    """Tensors of a program are read and written as a whole, one after the other."""
    x, lock = torch.arange(64), torch.zeros(1, dtype=torch.int32, device=device)
    given, numbers = x.to(device), torch.zeros(2, dtype=torch.int32, device=device)
    seen = torch.zeros(2, 3, dtype=torch.int64, device=device)
    launch(memory, 32, given, lock, numbers, seen, 5, grid=(3,), N=64)
    for count in range(15):
        x = x.roll(-1) + 1 if count % 2 == 0 else x.roll(2)
    same(given, x)
    same(numbers, torch.tensor([15, 6], dtype=torch.int32))
    assert sorted(seen[0].tolist()) == [0, 2, 4]
    assert x[32].item() in seen[1].tolist()


def everywhere(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    t = tl.trans(tl.load(x + i[:, None] * N + i[None, :]))
    s = tl.sum(t, 1)
    c = tl.cumsum(s, 0)
    tl.store(out + i[:, None] * N + i[None, :], t + s[None, :])
    tl.store(out + i, tl.load(out + N - 1 - i) + c)


def test_each_barrier_that_is_left_out_is_seen(device, launch, monkeypatch):
    x = torch.arange(256.0).reshape(16, 16)
    expected = x.T + x.sum(0)
    expected[0] = expected[0].flip(0) + x.sum(0).cumsum(0)
    found, barriers = lanes._Barriers.found, []

    def run(left_out, downwards=False):
        def some(self):
            barriers[:] = sorted(found(self).items())
            return dict(one for number, one in enumerate(barriers) if number != left_out)

        # Triton's cache has the text of each kernel, in which the barriers are not.
        with monkeypatch.context() as patched:
            patched.setattr(lanes._Barriers, "found", some)
            patched.setattr(compiler, "_version", lambda: f"without {left_out}")
            out = torch.zeros(16, 16, device=device)
            launch(everywhere, 32, x.to(device), out, downwards=downwards, N=16)
        return torch.equal(out.cpu(), expected)

    assert run(None) and run(None, True)
    assert len(barriers) > 8
    assert [number for number in range(len(barriers)) if run(number) and run(number, True)] == []


def turned(x, out, M: tl.constexpr):
    i = tl.arange(0, M)
    at = i[:, None] * M + i[None, :]
    tl.store(out + at, tl.trans(tl.load(x + at)))


def test_memory_of_a_group_that_does_not_suffice_is_out_of_resources(device, launch):
    from triton.runtime.errors import OutOfResources

    x = torch.zeros(512, 512, device=device)
    with pytest.raises(OutOfResources, match="memory of a group for a program's tensors, Required: 1048576, Hardware limit: 262144"):
        launch(turned, 32, x, torch.empty_like(x), M=512)


@pytest.mark.parametrize(("arch", "warps", "group"), [("", 4, (1, 0)), ("host", 4, (1, 0)), ("cuda:256:32:49152", 4, (128, 49152))])
def test_the_items_of_a_program_are_its_warps(arch, warps, group):
    assert compiler._group(compiler.Options(arch=arch, num_warps=warps)) == group


def test_a_group_has_no_more_items_than_the_device_allows():
    assert compiler._group(compiler.Options(arch="cuda:256:32:49152", num_warps=16))[0] == 256


def test_one_item_runs_what_the_others_cannot():
    """Addresses have no form in memory of a group."""
    text = (MODULES / "tt.gather.ttir").read_text()
    assert emit.write(text, "kernel", False, width=32).width == 32
    addresses = "tensor<4x!tt.ptr<f32>>"
    gathered = f"tt.gather %2[%0] {{axis = 0 : i32}} : ({addresses}, tensor<4xi32>) -> {addresses}"
    text = re.sub("%3 = .* loc", f"%3 = {gathered} loc", re.sub("%4 = .* loc", f"%4 = tt.load %3 : {addresses} loc", text))
    kernel = emit.write(text, "kernel", False, width=32)
    assert kernel.width == 1 and "lane" not in kernel.text


def nvrtc() -> ctypes.CDLL:
    found = sorted(glob.glob(f"{sysconfig.get_paths()['purelib']}/nvidia/**/libnvrtc.so.1?", recursive=True))
    if not found:
        pytest.skip("NVRTC is not installed")
    try:
        return ctypes.CDLL(found[0])
    except OSError as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")


SOME = ["tt.dot", "tt.scan", "tt.atomic_cas", "scf.while", "tt.histogram", "tt.assert"]


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("names", [SOME, pytest.param(sorted(ttir.RULES), marks=pytest.mark.only_with_all)], ids=["some", "all"])
def test_texts_are_cuda_c(arch, names):
    library, refused = nvrtc(), []
    for name in names:
        try:
            kernel = emit.write((MODULES / f"{name}.ttir").read_text(), "kernel", False, width=128)
        except ttir.Refused:
            continue
        source = f"#define OTR_GROUP_SIZE {kernel.width}\n#define __CUDACC__ 1\n{program._headers()}\n{kernel.text}"
        made = ctypes.c_void_p()
        assert library.nvrtcCreateProgram(ctypes.byref(made), source.encode(), b"kernel.cu", 0, None, None) == 0
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{arch}".encode())
        if library.nvrtcCompileProgram(made, 1, options) != 0:
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(made, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(made, log)
            refused.append(f"{name}: {log.value.decode()[:1000]}")
        library.nvrtcDestroyProgram(ctypes.byref(made))
    assert refused == []
