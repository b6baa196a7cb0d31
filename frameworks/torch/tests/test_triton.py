"""Kernels of Triton: launches, what is wrong with them, graphs, the store, torch.compile, and operators as libraries have them."""

from __future__ import annotations

import re
import runpy
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from support import run_python, same, sample, tested_triton

triton = tested_triton()

import triton_kernels as kernels  # noqa: E402
import triton_operators as operators  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles")


def pair(device: torch.device, n: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    return sample((n,), torch.float32, 1).to(device), sample((n,), torch.float32, 2).to(device)


# ---- launches ----


def test_a_kernel_computes(device):
    x, y = pair(device)
    same(kernels.sum_of(x, y), x.cpu() + y.cpu())
    # The second launch takes the short way.
    same(kernels.sum_of(y, y.clone()), 2 * y.cpu())


@pytest.mark.parametrize("page", ["README.md", "docs/triton.md"])
def test_the_kernel_of_a_page_runs(device, tmp_path, page):
    text = (Path(__file__).resolve().parents[3] / page).read_text()
    (code,) = re.findall(r"```python\n(import torch, triton.*?)```", text, re.S)
    script = tmp_path / "page.py"
    script.write_text(code.replace('"outrigger"', repr(device.type)))
    found = runpy.run_path(str(script))
    same(found["out"], found["x"].cpu() + found["y"].cpu())


def test_programs_are_numbered_in_three_dimensions(device):
    x, y, z = torch.arange(2), torch.arange(3), torch.arange(4)
    for _ in range(2):
        out = torch.zeros(4, 3, 2, dtype=torch.int32, device=device)
        kernels.places[(2, 3, 4)](out, BLOCK=1)
        same(out, (x + 100 * y[:, None] + 10000 * z[:, None, None]).int())


def test_numbers_have_their_types(device):
    out = torch.empty(4, dtype=torch.float64, device=device)
    for _ in range(2):
        kernels.numbers[(1,)](out, 2**40 + 1, -3, 0.5, True)
        same(out, torch.tensor([2**40 + 1, -3, 0.5, 1], dtype=torch.float64))
    kernels.numbers[(1,)](out, 2**63 + 2**32, 7, 1e30, False)
    same(out, torch.tensor([2**63 + 2**32, 7, float(torch.tensor(1e30)), 0], dtype=torch.float64))


def test_no_program_is_no_launch(device):
    x, y = pair(device)
    out = torch.zeros_like(x)
    for _ in range(2):
        kernels.add[(0,)](x, y, out, 100, BLOCK=64)
    same(out, torch.zeros(100))


def test_a_launch_waits_for_nothing_and_is_in_order(device, module, hold):
    x, y = pair(device)
    kernels.sum_of(x, y)
    side = torch.Stream(device=device)
    with side:
        with hold():
            x.fill_(2)
            out = kernels.sum_of(x, y)
            x.fill_(5)
    side.synchronize()
    same(out, 2 + y.cpu())


def test_a_stream_that_is_named_is_used(device, hold):
    x, y = pair(device)
    out = torch.zeros_like(x)
    kernel = kernels.add[(2,)](x, y, out, 100, BLOCK=64)
    torch.accelerator.synchronize()
    side = torch.Stream(device=device)
    with hold():
        # Not behind what holds the current stream.
        kernel[(2, 1, 1)](x, x, out, 100, 64, stream=side.stream_id)
        with side:
            found = out.cpu()
    same(out, 2 * x.cpu())
    assert torch.equal(found, out.cpu())


def test_a_graph_has_a_launch_with_its_tensors_by_name(device, module):
    from torch_outrigger import _graph

    x, y = pair(device)
    kernels.sum_of(x, y)
    graph = _graph.Graph()
    with _graph.graph(graph):
        graph.bind("x", x)
        out = kernels.sum_of(x, y)
    graph.replay()
    same(out, x.cpu() + y.cpu())
    graph.replay(x=y)
    same(out, 2 * y.cpu())


def test_an_argument_is_more_than_a_tensor(device):
    x, y = pair(device)
    out = torch.empty_like(x)
    for _ in range(2):
        kernels.with_bias[(1,)](x, None, out, 100, BLOCK=128)
        same(out, x.cpu())
        kernels.with_bias[(1,)](x, y, out, 100, BLOCK=128)
        same(out, x.cpu() + y.cpu())
        kernels.copy_pair[(1,)]((y, out), 100, BLOCK=128)
        same(out, y.cpu())
        # Bits of a tensor in another type.
        bits = torch.empty(100, dtype=torch.int32, device=device)
        kernel = kernels.copy_pair[(1,)]((triton.reinterpret(x, triton.language.int32), bits), 100, BLOCK=128)
        same(bits, x.cpu().view(torch.int32))
        assert kernel._run._overlapping is None


class Address:
    """An argument as some libraries pass it: no tensor, but an address and a dtype."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self) -> int:
        return self._tensor.data_ptr()


def test_an_argument_may_have_an_address_alone(device):
    x, y = pair(device)
    out = torch.empty_like(x)
    for _ in range(2):
        kernels.add[(2,)](Address(x), y, Address(out), 100, BLOCK=64)
        same(out, x.cpu() + y.cpu())
        out.zero_()


def test_a_descriptor_of_the_host_is_an_argument(device):
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = sample((16, 16), torch.float32).to(device)
    out = torch.empty_like(x)
    for _ in range(2):
        kernels.copy_described[(1,)](TensorDescriptor.from_tensor(x, [16, 16]), out, 16, BLOCK=16)
        same(out, x.cpu())
        out.zero_()


# ---- what is wrong ----


def test_a_tensor_of_the_cpu_is_refused(device):
    x, y = pair(device)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Pointer argument \(at 1\) cannot be accessed from Triton \(cpu tensor\?\): .*add.*on cpu"):
            kernels.add[(2,)](x, y.cpu(), x, 100, BLOCK=64)
        kernels.sum_of(x, y)


def test_a_tensor_of_another_device_is_refused(device, other_device):
    x, y = pair(device)
    with pytest.raises(ValueError, match=rf"argument 1 of .*add.* is a tensor on {other_device}, and the current device.* is {device}"):
        kernels.add[(2,)](x, y.to(other_device), torch.empty_like(x), 100, BLOCK=64)


def test_a_kernel_runs_on_the_current_device(device, other_device):
    x, y = pair(other_device)
    with torch.accelerator.device_index(other_device.index):
        same(kernels.sum_of(x, y), x.cpu() + y.cpu())


@pytest.mark.parametrize("grid", [(2**31,), (-1,), (1, 2**31), (1.5,)])
def test_a_grid_that_cannot_be_names_the_kernel(device, grid):
    x, y = pair(device)
    kernels.sum_of(x, y)
    with pytest.raises(ValueError, match=r"the grid .* of .*add.*: each dimension has 0 to 2147483647 programs"):
        kernels.add[grid](x, y, torch.empty_like(x), 100, BLOCK=64)


def test_an_argument_of_a_wrong_type_is_refused(device):
    x, y = pair(device)
    kernel = kernels.add[(2,)](x, y, torch.empty_like(x), 100, BLOCK=64)
    with pytest.raises(TypeError, match="argument 1 of .*add.* is a str, and it is to be a tensor"):
        kernel[(1, 1, 1)](x, "y", x.clone(), 100, 64)
    with pytest.raises(TypeError, match="argument 3 of .*add.* is a str, and it is to be a number"):
        kernel[(1, 1, 1)](x, y, x.clone(), "100", 64)


def test_debug_looks_at_each_access(device, module):
    base = torch.arange(20.0, device=device)
    x, out = base[5:15], torch.zeros(3, device=device)  # a view: what counts is what its storage has

    def gathered(*places, **options):
        kernels.gathered[(1,)](x, torch.tensor(places, device=device), out, 3, BLOCK=4, **options)
        module.synchronize()

    gathered(0, -5, 14, debug=True)
    assert out.tolist() == [5, 0, 19]
    for places in ((0, -6, 0), (0, 0, 15), (0, 1 << 40, 0)):
        with pytest.raises(IndexError, match="triton_gathered: an access outside of a tensor"):
            gathered(*places, debug=True)
    assert base.tolist() == list(range(20))
    counts = torch.zeros(4, dtype=torch.int32, device=device)
    kernels.scattered[(1,)](counts, torch.tensor([3, 4, 0], device=device), 3, BLOCK=4, debug=True)
    with pytest.raises(IndexError, match="triton_scattered: an access outside of a tensor"):
        module.synchronize()
    assert counts.tolist() == [1, 0, 0, 1]
    # `out` has three elements.
    kernels.gathered[(1,)](x, torch.zeros(4, dtype=torch.int64, device=device), out, 4, BLOCK=4, debug=True)
    with pytest.raises(IndexError, match="an access outside of a tensor"):
        module.synchronize()


def test_an_assert_fails_the_stream(device, module):
    x = torch.ones(100, device=device)
    for _ in range(2):
        kernels.checked[(1,)](x, 100, BLOCK=128, debug=True)
        # Without `debug` nothing is looked for.
        kernels.checked[(1,)](-x, 100, BLOCK=128)
        module.synchronize()
        with pytest.raises(RuntimeError, match="triton_checked.*: a number is negative"):
            kernels.checked[(1,)](-x, 100, BLOCK=128, debug=True)
            module.synchronize()


def test_arguments_that_overlap_are_seen(device, monkeypatch):
    x, y = pair(device)
    out = torch.empty_like(x)
    kernel = kernels.seen_again[(1,)](x, y, out, 100, BLOCK=128)
    seen, stock = [], type(kernel._run)._with_overlap

    def choose(self):
        compiled = stock(self)
        seen.append(compiled.metadata.overlap)
        return compiled

    monkeypatch.setattr(type(kernel._run), "_with_overlap", choose)
    for _ in range(2):
        before = x.cpu()
        kernels.seen_again[(1,)](x, x, out, 100, BLOCK=128)
        same(x, before + 1)
        same(out, before + 1)
        # The same kernel goes on as before where they do not.
        kernels.seen_again[(1,)](x, y, out, 100, BLOCK=128)
        same(out, x.cpu())
        same(y, x.cpu() + 1)
    assert seen == [True, True]
    assert not kernel.metadata.overlap
    # Tensors of one storage may meet.
    kernels.seen_again[(1,)](x[:50], x[50:], out, 50, BLOCK=128)
    assert len(seen) == 3


def test_a_kernel_is_timed(device, timestamps):
    x, y = pair(device)
    assert triton.testing.do_bench(lambda: kernels.sum_of(x, y), warmup=1, rep=1) > 0


def test_a_global_that_has_changed_is_told(device, monkeypatch):
    import triton.language as tl

    x, _ = pair(device)
    out = torch.empty_like(x)
    for _ in range(2):
        kernels.times_global[(1,)](x, out, 100, BLOCK=128)
        same(out, 3 * x.cpu())
    monkeypatch.setattr(kernels, "FACTOR", tl.constexpr(4))
    with pytest.raises(RuntimeError, match="Global variable FACTOR has changed"):
        kernels.times_global[(1,)](x, out, 100, BLOCK=128)


def test_hooks_hear_of_each_launch(device):
    from triton import knobs

    x, y = pair(device)
    kernels.sum_of(x, y)
    heard = []

    def hear(about):
        heard.append(about.get()["name"])

    knobs.runtime.launch_enter_hook.add(hear)
    try:
        kernels.sum_of(x, y)
        kernels.sum_of(x, y)
    finally:
        knobs.runtime.launch_enter_hook.remove(hear)
    kernels.sum_of(x, y)
    assert len(heard) == 2 and "add" in heard[0]


# ---- the process ----

START = """
import torch, triton
import triton_kernels as kernels
x = torch.arange(100.0, device="DEVICE")
"""


def fresh(code: str, device_type: str, **environment: str) -> str:
    """The output of code in a fresh process."""
    done = run_python(code.replace("DEVICE", device_type), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.takes_turns
def test_a_second_process_compiles_nothing(device, tmp_path):
    code = START + (
        "from triton import knobs\n"
        "hits = []\n"
        "knobs.compilation.listener = lambda **about: hits.append(about['cache_hit'])\n"
        "out = kernels.sum_of(x, x.clone())\n"
        "assert torch.equal(out.cpu(), 2 * x.cpu())\n"
        "from torch_outrigger.inductor import program\n"
        "print(hits, [one._key.hex() for one in program._parts.values() if hasattr(one, '_folder')])\n"
    )
    own = {"OUTRIGGER_CACHE": str(tmp_path / "store"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    first, second = fresh(code, device.type, **own), fresh(code, device.type, **own)
    assert first.startswith("[False]")
    assert second.strip() == "[True] []"
    # The store alone has the compiled form.
    own["TRITON_CACHE_DIR"] = str(tmp_path / "other")
    assert fresh(code, device.type, **own).strip() == "[False] []"


def test_triton_is_there_before_the_runtime_starts(device, once):
    code = """
        import torch
        from torch.utils._triton import has_triton
        assert has_triton()
        from triton.runtime.driver import driver
        from torch._inductor.runtime.autotune_cache import inductor_meta_from_config
        assert inductor_meta_from_config()["backend_hash"]
        assert driver.active.get_current_target().backend == "outrigger"
        module = torch.get_device_module("DEVICE")
        assert not module.is_initialized()
        torch.ones(1, device="DEVICE")
        assert module.is_initialized()
        print("done")
    """
    assert fresh(code, device.type).strip() == "done"


def chosen() -> object:
    """The driver that Triton chooses in a process that has none yet."""
    return triton.runtime.driver.__class__().active


def test_a_triton_that_was_not_tested_is_not_used(device, monkeypatch):
    from torch._dynamo.device_interface import get_interface_for_device
    from torch._dynamo.exc import TritonUnavailableError
    from torch.utils._triton import has_triton
    from torch_outrigger import _dynamo

    interface = get_interface_for_device(device.type)
    assert has_triton() and interface.is_triton_capable()
    interface.raise_if_triton_unavailable()
    monkeypatch.setattr(triton, "__version__", "3.7.1")
    has_triton.cache_clear()
    _dynamo.no_triton.cache_clear()
    try:
        assert not has_triton() and not interface.is_triton_capable()
        with pytest.raises(TritonUnavailableError, match="Triton 3.7.1 was not tested"):
            interface.raise_if_triton_unavailable()
        with (
            pytest.warns(RuntimeWarning, match="Triton 3.7.1 was not tested with Outrigger's devices"),
            pytest.raises(RuntimeError, match="0 active drivers"),
        ):
            chosen()
    finally:
        monkeypatch.undo()
        has_triton.cache_clear()
        _dynamo.no_triton.cache_clear()


def test_another_backend_with_a_device_goes_first(device, monkeypatch):
    from triton.backends import backends

    assert type(chosen()).__module__ == "torch_outrigger.triton.driver"
    its = backends["nvidia"].driver
    monkeypatch.setattr(its, "is_active", staticmethod(lambda: True))
    assert not backends["outrigger"].driver.is_active()
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "outrigger")
    assert type(chosen()).__module__ == "torch_outrigger.triton.driver"


def test_without_a_compiler_the_error_says_what_to_install(device, once, monkeypatch):
    from torch_outrigger.inductor import program

    x, y = pair(device)
    monkeypatch.setenv("CC", "no_such_compiler")
    program._compiler.cache_clear()
    with pytest.raises(RuntimeError, match="needs a C compiler for this device: no_such_compiler was not found. Install one"):
        kernels.add[(1,)](x, y, torch.empty_like(x), 100, BLOCK=256)
    monkeypatch.undo()
    # The kernel is not lost.
    out = torch.empty_like(x)
    kernels.add[(1,)](x, y, out, 100, BLOCK=256)
    same(out, x.cpu() + y.cpu())


@pytest.mark.takes_turns
def test_a_vendors_device_runs_kernels(once, tmp_path):
    (tmp_path / "zeta_device.py").write_text("from torch_outrigger import Vendor\nvendor = Vendor(name='zeta', driver='host')\n")
    metadata = tmp_path / "zeta-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: zeta\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch_outrigger.vendors]\nzeta = zeta_device:vendor\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{START}" + (
        "assert torch.equal(kernels.sum_of(x, x.clone()).cpu(), 2 * x.cpu())\n"
        "assert torch.equal(torch.compile(kernels.sum_of, fullgraph=True)(x, x.clone()).cpu(), 2 * x.cpu())\n"
        "print(triton.runtime.driver.active.get_active_torch_device())\n"
    )
    own = {"OUTRIGGER_DRIVER": "host", "OUTRIGGER_TORCH": ""}
    assert fresh(code, "zeta", **own).strip() == "zeta:0"


def test_steps_that_triton_does_not_keep_are_kept(device, once, tmp_path):
    code = START + (
        "from triton import knobs\n"
        "out, mine = torch.empty_like(x), x.clone()\n"
        "kernels.seen_again[(1,)](mine, mine, out, 100, BLOCK=128)\n"
        "assert torch.equal(out.cpu(), x.cpu() + 1)\n"
    )
    # As Helion asks for while it measures.
    fresh(code, device.type, TRITON_STORE_BINARY_ONLY="1", TRITON_CACHE_DIR=str(tmp_path))


PRINTED = """
idx (0) 100% of "x": 1.500000
idx (1) 100% of "x": -2.000000
idx () two: (operand 0) 1
idx (0, 0) two: (operand 1) 0
idx (0, 1) two: (operand 1) -2
idx (1, 0) two: (operand 1) 1
idx (1, 1) two: (operand 1) -1
idx (0) hex: (operand 0) 0xffff
idx (1) hex: (operand 0) 0x0000
idx (0) hex: (operand 1) 0x1.8p+0
idx (1) hex: (operand 1) -0x1p+1
idx (0) bits: (operand 0) 1
idx (1) bits: (operand 0) 0
idx (0) bits: (operand 1) 255
idx (1) bits: (operand 1) 0
idx (0) bits: (operand 2) 1.500000
idx (1) bits: (operand 2) -2.000000
idx (0) bits: (operand 3) 1.500000
idx (1) bits: (operand 3) -2.000000
here
"""


def test_a_kernel_prints(device):
    code = START + (
        "numbers = torch.tensor([1.5, -2], device='DEVICE')\n"
        "for _ in range(2): kernels.printed[(2,)](numbers, BLOCK=2)\n"
        "torch.accelerator.synchronize()\n"
        "print('behind', flush=True)\n"
    )
    *lines, last = fresh(code, device.type).splitlines()
    assert last == "behind"
    expected = [f" {one}" for one in PRINTED.split("\n") if one]
    for program in (0, 1):
        head = f"pid ({program}, 0, 0)"
        found = [one.removeprefix(head) for one in lines if one.startswith(head)]
        assert found == 2 * [one.replace("(operand 0) 1", f"(operand 0) {program}") if "two" in one else one for one in expected]


# ---- libraries of kernels ----


def test_a_copy_of_flaggems_that_cannot_be_is_refused(tmp_path, monkeypatch, capsys):
    from torch_outrigger.triton import flaggems

    def refused() -> str:
        assert flaggems.main([str(tmp_path)]) == 1
        return capsys.readouterr().err

    found = ModuleSpec("flag_gems", None, is_package=True)
    installed, number = tmp_path / "installed", "4.2.0"
    found.submodule_search_locations = [str(installed)]
    monkeypatch.setattr(flaggems, "find_spec", lambda name: None)
    assert refused() == "FlagGems is not installed: pip install flag_gems\n"
    monkeypatch.setattr(flaggems, "find_spec", lambda name: found)
    monkeypatch.setattr(flaggems, "version", lambda name: number)
    assert "FlagGems 4.2.0 is installed, and this was tried with 5.0" in refused()
    number = "5.0.7"
    (installed / "runtime/backend/_outrigger").mkdir(parents=True)
    assert f"{installed} is such a copy itself" in refused()
    (tmp_path / "flag_gems").mkdir()
    assert f"{tmp_path / 'flag_gems'} is there already: remove it, or name another folder" in refused()


# ---- torch.compile ----


def called(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return kernels.sum_of(x * 2, y).relu()


def tuned_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernels.tuned_add[lambda chosen: (triton.cdiv(x.numel(), chosen["BLOCK"]),)](x * 2, y, out, x.numel())
    return out.relu()


@torch.library.triton_op("outrigger_tests::sum_of", mutates_args={})
def operator_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(kernels.add)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


operator_sum.register_autograd(lambda context, grad: (grad, grad))


@pytest.fixture
def fresh_compiler():
    """No code of another test is used."""
    import torch._inductor.config

    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("function", [called, tuned_sum])
def test_a_kernel_is_used_in_compiled_code(device, fresh_compiler, function):
    x, y = pair(device)
    compiled = torch.compile(function, fullgraph=True)
    for _ in range(2):
        same(compiled(x, y), (2 * x.cpu() + y.cpu()).relu())


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_a_kernel_is_used_in_each_mode(device, fresh_compiler, mode):
    x, y = pair(device)
    compiled = torch.compile(called, fullgraph=True, mode=mode)
    for _ in range(4):
        x = x + 1
        same(compiled(x, y), (2 * x.cpu() + y.cpu()).relu())


def test_sizes_of_a_kernel_move(device, fresh_compiler):
    compiled = torch.compile(called, fullgraph=True, dynamic=True)
    for n in (100, 37, 512):
        x, y = pair(device, n)
        same(compiled(x, y), (2 * x.cpu() + y.cpu()).relu())


def test_a_kernel_is_an_operator(device, fresh_compiler):
    x, y = pair(device)
    same(operator_sum(x, y), x.cpu() + y.cpu())
    compiled = torch.compile(lambda x, y: operator_sum(x * 2, y).relu(), fullgraph=True)
    x.requires_grad_()
    result = compiled(x, y)
    same(result.detach(), (2 * x.detach().cpu() + y.cpu()).relu())
    result.sum().backward()
    same(x.grad, 2 * (result.detach().cpu() > 0).float())


def test_arguments_that_overlap_are_seen_in_compiled_code(device, fresh_compiler):
    @torch.compile(fullgraph=True)
    def again(x):
        out = torch.empty_like(x)
        kernels.seen_again[(1,)](x, x, out, x.numel(), BLOCK=128)
        return out

    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    # Also of a kernel that another process has compiled.
    with config.patch(compile_threads=2):
        AsyncCompile.wait_pool_ready()
        x, _ = pair(device)
        before = x.cpu()
        same(again(x), before + 1)
        same(x, before + 1)


@pytest.mark.only_with_all
def test_what_inductor_writes_to_be_run_again_runs(device, fresh_compiler, tmp_path):
    from torch._inductor import config

    x, y = pair(device)
    with config.patch({"trace.enabled": True, "trace.debug_dir": str(tmp_path)}):
        torch.compile(called, fullgraph=True)(x, y)
    (program,) = tmp_path.rglob("fx_graph_runnable.py")
    # The kernel of the program is in it.
    assert "def add_0(x, y, out, n, BLOCK: tl.constexpr)" in program.read_text()
    done = run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr


# ---- operators as libraries have them ----

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def close_with_gradients(device, ours, torchs, *values, fixed=()):
    """Asserts that results and gradients are those of torch on the CPU."""
    on_cpu = [one.clone().requires_grad_() for one in values]
    on_device = [one.to(device).requires_grad_() for one in values]
    expected, found = torchs(*on_cpu, *fixed), ours(*on_device, *(one.to(device) for one in fixed))
    same(found.detach(), expected.detach(), **CLOSE)
    grad = torch.randn(expected.shape)
    expected.backward(grad)
    found.backward(grad.to(device))
    for mine, its in zip(on_device, on_cpu, strict=True):
        same(mine.grad, its.grad, **CLOSE)


def test_rms_norm(device):
    def torchs(x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[1:], weight, 1e-6)

    close_with_gradients(device, lambda x, weight: operators.RmsNorm.apply(x, weight, 1e-6), torchs, torch.randn(37, 200), torch.rand(200))


@pytest.mark.parametrize("gelu", [False, True])
def test_a_gated_activation(device, gelu):
    def torchs(a, b):
        return (torch.nn.functional.gelu(a, approximate="tanh") if gelu else torch.nn.functional.silu(a)) * b

    close_with_gradients(device, lambda a, b: operators.Gated.apply(a, b, gelu), torchs, torch.randn(11, 100), torch.randn(11, 100))


def test_softmax(device):
    close_with_gradients(device, operators.Softmax.apply, lambda x: x.softmax(1), torch.randn(23, 150))


def test_cross_entropy(device):
    classes = torch.randint(0, 150, (23,))
    classes[::5] = -100
    close_with_gradients(
        device,
        lambda x, classes: operators.CrossEntropy.apply(x, classes, -100),
        torch.nn.functional.cross_entropy,
        torch.randn(23, 150),
        fixed=(classes,),
    )


def test_divergences(device):
    log_q, log_p = (torch.randn(9, 130).log_softmax(1) for _ in range(2))
    on_cpu = log_q.clone().requires_grad_()
    expected = torch.nn.functional.kl_div(on_cpu, log_p.exp(), reduction="batchmean")
    expected.backward()
    loss, grads = operators.divergence(operators.kl, log_q.to(device), log_p.exp().to(device))
    same(loss, expected.detach(), **CLOSE)
    same(grads, on_cpu.grad, **CLOSE)

    on_cpu.grad = None
    beta, p, q = 0.3, log_p.exp(), on_cpu.exp()
    middle = (beta * p + (1 - beta) * q).log()
    expected = (beta * p * (log_p - middle) + (1 - beta) * q * (on_cpu - middle)).sum() / 9
    expected.backward()
    loss, grads = operators.divergence(operators.js, log_q.to(device), log_p.to(device), beta)
    same(loss, expected.detach(), **CLOSE)
    same(grads, on_cpu.grad, **CLOSE)


def test_rms_norm_with_rotated_places(device):
    x, weight = torch.randn(7, 3, 64), torch.rand(64)
    angles = torch.arange(7.0)[:, None] * 0.1 ** torch.linspace(0, 1, 32)
    normal = torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)
    low, high = normal.chunk(2, -1)
    c, s = angles.cos()[:, None], angles.sin()[:, None]
    out = torch.empty_like(x, device=device)
    operators.rms_rope[(7, 3)](x.to(device), weight.to(device), c.to(device), s.to(device), out, 3, 1e-6, HALF=32)
    same(out, torch.cat([low * c - high * s, high * c + low * s], -1), **CLOSE)


def test_linear_attention(device):
    q, k, v = (torch.randn(3, 50, 32) for _ in range(3))
    out = torch.empty_like(q, device=device)
    operators.linear_attention[(3,)](q.to(device), k.to(device), v.to(device), out, 50, DEPTH=32, CHUNK=16)
    same(out, (q @ k.mT).tril() @ v, rtol=1e-3, atol=1e-3)


def test_a_product_with_weights_of_4_bits(device):
    m, n, k, group = 20, 50, 96, 32
    a, weights, scales = torch.randn(m, k), torch.randint(-8, 8, (k, n)), torch.rand(k // group, n)
    shifted = ((weights + 8).view(k // 8, 8, n) << (4 * torch.arange(8))[:, None]).sum(1)
    packed = (shifted - (shifted >= 2**31) * 2**32).int()
    out = torch.empty(m, n, device=device)
    operators.int4_product[(2, 2)](a.to(device), packed.to(device), scales.to(device), out, m, n, k, BM=16, BN=32, BK=32, GROUP=group)
    same(out, a @ (weights * scales.repeat_interleave(group, 0)), **CLOSE)
