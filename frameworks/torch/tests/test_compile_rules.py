"""Rules for compiled code: limits of its kernels, caches, errors, and what a user may choose."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import run_python, same
from torch._dynamo.exc import BackendCompilerFailed


@pytest.fixture(autouse=True)
def fresh(compiles):
    """No graph of another test is used."""
    torch._dynamo.reset()


def code_of(function, *arguments, **options):
    """The result of a compiled function, and the text that it was made of."""
    from torch._inductor.utils import run_and_get_code

    with torch._inductor.config.patch(force_disable_caches=True):
        result, code = run_and_get_code(torch.compile(function, options=options), *arguments)
    return result, "\n".join(code)


def buffers(code):
    """The number of buffers of each kernel."""
    return [line.count("OTR_GLOBAL") for line in code.splitlines() if line.startswith("OTR_KERNEL")]


def many(*tensors):
    x = tensors[0]
    for one in tensors[1:]:
        x = torch.where(one > 0, x + one.sin(), x * one)
    return x.sum(-1), x.relu(), torch.cat([one * 2 for one in tensors])


@pytest.mark.parametrize("count", [2, 3, 8, 30])
def test_a_kernel_has_no_more_buffers_than_it_may(device, count):
    given = [torch.randn(8, 16) for _ in range(count)]
    there = [one.to(device) for one in given]
    unlimited = max(buffers(code_of(many, *there)[1]))
    option = f"{device.type}.max_kernel_buffers"
    most, name = (6, "max_fusion_unique_io_buffers") if count == 8 else (4, option)
    torch._dynamo.reset()
    result, code = code_of(many, *there, **{name: most})
    assert 0 < max(buffers(code)) <= most
    for one, other in zip(result, many(*given), strict=True):
        same(one, other, rtol=1e-4, atol=1e-4)
    assert unlimited > most or count == 2


@pytest.mark.parametrize("what", ["driver", "driver_version", "name", "features", "argument_block_bytes"])
def test_code_of_another_device_is_not_taken(device, monkeypatch, what):
    from torch_outrigger import _C
    from torch_outrigger.inductor.program import device_version

    here, info = device_version(device.index), _C.device_info(device.index)
    assert here == device_version(device.index)
    other = f"{info[what]}'" if isinstance(info[what], str) else info[what] + 2
    monkeypatch.setattr(_C, "device_info", lambda _: {**info, what: other})
    assert here != device_version(device.index)


def test_a_limit_below_the_operands_of_an_operator_is_refused(device):
    with pytest.raises(BackendCompilerFailed, match="max_kernel_buffers is 3, and a kernel has at least 4 buffers"):
        code_of(many, *[torch.ones(4, device=device)] * 2, **{f"{device.type}.max_kernel_buffers": 3})


def test_the_number_of_fused_loops_is_limited(device):
    def chain(x):
        for _ in range(3):
            x = x.softmax(-1) * 2
        return x

    x = torch.randn(16, 64, device=device)
    assert len(buffers(code_of(chain, x)[1])) < len(buffers(code_of(chain, x, max_fusion_size=1)[1]))


@pytest.mark.not_on_mtia("torch keeps layer norm whole for MTIA by itself")
def test_an_operator_stays_whole_if_asked(device):
    def normed(x):
        return F.layer_norm(x * 2, (16,)).relu()

    x = torch.randn(4, 16)
    whole, code = code_of(normed, x.to(device), **{f"{device.type}.whole_operators": "native_layer_norm"})
    assert "aten.native_layer_norm.default(" in code
    torch._dynamo.reset()
    taken_apart, other = code_of(normed, x.to(device))
    assert "aten.native_layer_norm.default(" not in other
    for one in (whole, taken_apart):
        same(one, normed(x), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="names 'no_such', and torch.ops.aten has no such operator"):
        code_of(normed, x.to(device), **{f"{device.type}.whole_operators": "no_such"})


def test_sizes_are_no_part_of_a_kernel_that_is_for_all(device):
    result, code = code_of(lambda x: x.softmax(-1).sum(0), torch.randn(7, 100, device=device))
    assert "100" in code
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.softmax(-1).sum(0), x[:, 1:] + 1), dynamic=True)
    torch._dynamo.utils.counters.clear()
    for rows, columns in ((7, 100), (300, 3), (2, 4097)):
        x = torch.randn(rows, columns)
        for one, other in zip(compiled(x.to(device)), (x.softmax(-1).sum(0), x[:, 1:] + 1), strict=True):
            same(one, other, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_an_index_out_of_bounds_fails_the_stream(device, module):
    from torch_outrigger.inductor import program

    compiled = torch.compile(lambda x, places: x[places] * 2)
    x = torch.randn(5, 3, device=device)
    good, bad = (torch.tensor(places, device=device) for places in ([4, -5], [0, 9]))
    driver = Path(os.environ.get("OUTRIGGER_DRIVER", "host").split("?")[0]).stem
    if program.language(device.index) is not None:
        told = r"answered 12 \(operator otr_.*index"
    elif driver == "liboutrigger_example":
        # The driver's words for a kernel that failed on the CPU do not name it; Outrigger adds the name.
        told = r"returned 12 \(operator otr_.*index"
    else:
        told = "otr_.*index.* failed: index or address out of range"
    with pytest.raises(IndexError, match=told):
        compiled(x, bad)
        module.synchronize()
    same(compiled(x, good), x.cpu()[[4, 0]] * 2)
    places = good.clone()
    graph = torch.accelerator.Graph()
    with graph:
        result = compiled(x, places)
    graph.replay()
    same(result, x.cpu()[[4, 0]] * 2)
    places.copy_(bad)
    with pytest.raises(IndexError):
        graph.replay()
        module.synchronize()


def test_indices_can_go_unchecked(device, module):
    x, bad = torch.randn(5, 3), torch.tensor([4, 9])
    given = x.to(device), bad.to(device)
    with torch._inductor.config.patch(assert_indirect_indexing=False):
        result, code = code_of(lambda x, places: x[places] * 2, *given)
    assert "otr_failed" not in code
    module.synchronize()
    same(result, x[[4, 0]] * 2)


def test_an_assert_fails_the_stream(device, module):
    def positive(x):
        torch._assert_async((x > 0).all(), "x is positive")
        return x + 1

    compiled = torch.compile(positive)
    x = torch.ones(3, device=device)
    same(compiled(x), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="otr_.*assert.*: x is positive"):
        compiled(-x)
        module.synchronize()


def test_a_kernel_refuses_what_it_was_not_made_for(once, device):
    from torch_outrigger import _C

    kernel = _C.ProgramKernel(lambda kernel: kernel.bind_host(1), device, "made_up", "ai", 0, 1, False, 1)
    with pytest.raises(TypeError, match="made_up takes 2 arguments, and was given 1"):
        kernel(torch.ones(1, device=device))
    kernel = _C.ProgramKernel(lambda kernel: None, device, "made_up", "a", 1, 1, False, 1)
    with pytest.raises(RuntimeError, match="the loader of made_up has not given it its code"):
        kernel(torch.ones(1, device=device))
    kernel = _C.ProgramKernel(lambda kernel: kernel.bind_host(1), device, "made_up", "a", 1, 1, False, 1)
    with pytest.raises(ValueError, match="argument 0 of made_up is a tensor on cpu"):
        kernel(torch.ones(1))
    with pytest.raises(TypeError, match="argument 0 of made_up is a str, and it is to be a tensor, an address or None"):
        kernel("x")


SCRIPT = """
import subprocess, sys, torch
compilers = []
class Popen(subprocess.Popen):
    def __init__(self, command, *rest, **more):
        compilers.append(command)
        super().__init__(command, *rest, **more)
subprocess.Popen = Popen
x = torch.randn(64, 32, device={device!r}, requires_grad=True)
x = (x + 1).detach().requires_grad_()
assert not [name for name in sys.modules if "torch_outrigger.inductor" in name or name == "torch._inductor.compile_fx"]
torch.compile(lambda x: (x.softmax(-1) * 3).tanh().sum())(x).backward()
made = sum("-shared" in command for command in compilers)
from torch._dynamo.utils import counters
print("made", made, "hits", counters["inductor"]["fxgraph_cache_hit"], "misses", counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.takes_turns
def test_a_second_process_compiles_nothing(once, device, tmp_path):
    """Nor does a process import anything of this before it compiles."""
    script = SCRIPT.format(device=device.type)
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), "OUTRIGGER_CACHE": str(tmp_path / "store")}
    runs = [run_python(script, **folders) for _ in range(2)]
    first, second = (re.search(r"made (\d+) hits (\d+) misses (\d+)", run.stdout) for run in runs)
    assert first and second, runs[0].stderr + runs[1].stderr
    assert int(first[1]) == 2 and int(first[3]) == 2
    assert int(second[1]) == 0 and int(second[3]) == 0


KEYS = """
import torch
from torch_outrigger.inductor import config, program

program.device_version = lambda index: f"driver of {index}"
begin, seen = program.Program.begin, []
program.Program.begin = lambda *given: seen.append(config.code_version.split("; ")[2:]) or begin(*given)
one, other = (torch.arange(8.0, device=f"DEVICE:{index}") for index in range(2))
for given in ([other], [one], [one, other]):
    results = torch.compile(lambda given: [x * 3 + 1 for x in given], dynamic=False)(given)
    assert all(result.tolist() == [3 * x + 1 for x in range(8)] for result in results)
print(seen[0], seen[1], seen[2:])
"""


@pytest.mark.takes_turns
def test_keys_of_caches_name_the_drivers_of_the_devices_of_a_graph(once, device, tmp_path):
    """Devices of a process may have drivers that need different code."""
    done = run_python(
        KEYS.replace("DEVICE", device.type), TORCHINDUCTOR_CACHE_DIR=str(tmp_path), OUTRIGGER_DRIVER="host?devices=2"
    )
    both = ["0: driver of 0", "1: driver of 1"]
    assert done.stdout == f"{both[1:]} {both[:1]} {[both, both]}\n", done.stderr


PLACES = """
import torch
from torch._dynamo.utils import counters

side = torch.Stream("DEVICE")

def placed(x):
    with side:
        return x * 2 + 1

def plain(x):
    return x * 2 + 1

x = torch.arange(3.0, device="DEVICE")
torch.accelerator.synchronize()
for function in (placed, plain, placed):
    torch._dynamo.reset()
    y = torch.compile(function)(x)
    torch.accelerator.synchronize()
    assert y.tolist() == [1.0, 3.0, 5.0]
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.takes_turns
def test_keys_of_caches_tell_on_which_streams_a_graph_computes(once, device, tmp_path):
    """Else a graph is taken from the cache that asks for a stream which its program has not."""
    done = run_python(PLACES.replace("DEVICE", device.type), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    misses, hits = map(int, done.stdout.split() or (0, 0))
    assert misses == 2 and hits <= 1, (done.stdout, done.stderr)


@pytest.mark.takes_turns
def test_without_a_compiler_the_error_says_what_to_install(once, device, tmp_path):
    finished = run_python(
        f"import torch; torch.compile(lambda x: x + 1)(torch.ones(2, device={device.type!r}))",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        CC="no_such_compiler",
    )
    assert finished.returncode != 0
    assert "needs a C compiler for this device: no_such_compiler was not found" in finished.stderr


def test_texts_are_the_languages_of_all_devices(once, device):
    """NVRTC, if it is installed, takes as CUDA C what runs here as C."""
    import ctypes
    import glob
    import sysconfig

    from torch_outrigger.inductor import product, program

    found = sorted(glob.glob(f"{sysconfig.get_paths()['purelib']}/nvidia/**/libnvrtc.so.1?", recursive=True))
    if not found:
        pytest.skip("NVRTC is not installed")
    try:
        nvrtc = ctypes.CDLL(found[0])
    except OSError as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")

    def everything(x, places):
        held = torch.zeros_like(x).index_add(0, places, x)
        return x.softmax(-1), x.var(0), x.argmax(1), held.tanh().bfloat16(), (x > 0).any(1), x.half().sum(), x.prod(1)

    _, code = code_of(everything, torch.randn(40, 70, device=device), torch.randint(0, 40, (40,), device=device))
    texts = re.findall(r"r'''(.*?)'''", code, re.S)
    for number, (dtype, gathers) in enumerate(((torch.float32, False), (torch.bfloat16, True), (torch.float64, True))):
        kernel = product.Kernel(dtype, product.Tile(64, 64, 16, 4, 4), True, False, gathers)
        texts.append(product.plain(kernel, f"product{number}", dtype)[0])
    source = "#define OTR_GROUP_SIZE 128\n#define __CUDACC__ 1\n" + program._headers() + "\n".join(texts)
    made = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(made), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    if nvrtc.nvrtcCompileProgram(made, 1, options) != 0:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(made, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(made, log)
        raise AssertionError(log.value.decode()[:3000])


def test_checks_for_nan_are_made_and_captured(device, module):
    with torch._inductor.config.patch(nan_asserts=True):
        compiled = torch.compile(lambda x: (x.log() * 2).sum(1))
        x = torch.ones(3, 4, device=device)
        same(compiled(x), torch.zeros(3))
        with pytest.raises(RuntimeError, match="argument 1 of otr_.*log.* has NaN or an infinity"):
            compiled(-x)
            module.synchronize()
        graph = torch.accelerator.Graph()
        with graph:
            result = compiled(x)
        graph.replay()
        same(result, torch.zeros(3))
        x.neg_()
        with pytest.raises(RuntimeError, match="_assert_async|a host call answered"):
            graph.replay()
            module.synchronize()


def test_a_quotient_of_sizes_is_a_real_number(device):
    def scaled(x):
        return F.interpolate(x, 7), torch.var(x, 2, correction=0.5)

    compiled = torch.compile(scaled, dynamic=True)
    for length in (4, 5, 11):
        x = torch.randn(2, 3, length)
        for one, other in zip(compiled(x.to(device)), scaled(x), strict=True):
            same(one, other, rtol=1e-5, atol=1e-5)
