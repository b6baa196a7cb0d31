"""Operators without a kernel on the device are compiled: results, layouts and errors are those of the CPU, and what was
compiled once is compiled never again."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_outrigger
from support import run_python, same
from torch_outrigger import _C, _eager
from torch_outrigger.inductor import program

OFF, CACHED, ON = (_eager.MODES[one] for one in ("off", "cached", "on"))


@pytest.fixture
def at_first_call(compiles, tmp_path, monkeypatch):
    """Operators that are compiled at their first call, and no recipe of another test."""
    version = program.code_version()
    monkeypatch.setattr(program, "code_version", lambda: f"{version} in {tmp_path}")
    before = _C.set_compile_mode(ON)
    yield
    _C.set_compile_mode(before)


def recipes(store: str = "") -> list[Path]:
    """The files of recipes in a store; in that of this process if none is named."""
    entries = Path(store or os.environ["OUTRIGGER_CACHE"], "hosts").glob("*")
    return sorted(path for path in entries if b'{"operator": ' in path.read_bytes())


def draw(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 2
    return (values * 4).round().to(dtype) if not dtype.is_floating_point else values.to(dtype)


def compare(actual, expected, dtype=torch.float32):
    """Values, dtypes and strides."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}.get(dtype, 0)
    actual, expected = ([one] if isinstance(one, torch.Tensor) else list(one) for one in (actual, expected))
    for one, truth in zip(actual, expected, strict=True):
        same(one, truth, rtol=tolerance, atol=tolerance)
        assert one.stride() == truth.stride(), f"{one.shape}: {one.stride()} instead of {truth.stride()}"


def only_on_the_device(function, *arguments):
    """The result of a call of which nothing runs on the CPU."""
    torch_outrigger.reset_fallback_report()
    torch_outrigger.set_fallback_mode("framework:error")
    try:
        return function(*arguments)
    finally:
        torch_outrigger.set_fallback_mode("silent")
        assert torch_outrigger.fallback_report() == []


ELEMENTWISE = {
    "hypot": lambda x: torch.hypot(x, x + 1),
    "heaviside": lambda x: torch.heaviside(x, x * 2),
    "nan_to_num": lambda x: torch.nan_to_num((x / (x - x)), 2.0, 3.0, -4.0),
    "softshrink": lambda x: F.softshrink(x, 0.25),
    "logit": lambda x: torch.logit(x.sigmoid(), 1e-3),
    "broadcast": lambda x: torch.hypot(x, x[..., :1]),
    "row": lambda x: torch.logaddexp(x[:1], x),
    "number": lambda x: torch.hypot(x, x.sum()),
}
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "gaps": lambda x: x[:, ::2],
    "one row": lambda x: x[:1],
    "expanded": lambda x: x[:, :1].expand(-1, 5),
    "more dimensions": lambda x: x.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.reshape(2, 3, 4).permute(2, 0, 1),
}
OTHERS = {
    "std": lambda x: torch.std(x, 1),
    "var_mean of a real correction": lambda x: torch.var_mean(x, 0, correction=0.5, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "count_nonzero": lambda x: torch.count_nonzero(x > 0, 1),
    "tril": lambda x: torch.tril(x, 1),
    "roll": lambda x: torch.roll(x, (1, -2), (0, 1)),
    "flip": lambda x: torch.flip(x, (1,)),
    "glu": lambda x: F.glu(x[:, : x.shape[1] // 2 * 2], 1),
    "huber": lambda x: F.huber_loss(x, x * 2, delta=0.7),
    "interpolate": lambda x: F.interpolate(x[None], 7),
    "bilinear": lambda x: F.interpolate(x[None, None], (3, 9), mode="bilinear"),
    "mish's gradient": lambda x: torch.ops.aten.mish_backward(x, x + 1),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_operators(device, at_first_call, name):
    function = ELEMENTWISE[name]
    cases = [(one, torch.float32) for one in LAYOUTS] + [("transposed", torch.bfloat16), ("gaps", torch.float16)]
    for layout, dtype in cases:
        host = LAYOUTS[layout](draw((6, 4), dtype))
        there = LAYOUTS[layout](draw((6, 4), dtype).to(device))
        compare(function(there), function(host), dtype)
        compare(only_on_the_device(function, there), function(host), dtype)


@pytest.mark.parametrize("name", OTHERS)
def test_operators_that_fold_and_move(device, at_first_call, name):
    function = OTHERS[name]
    for layout in ("contiguous", "transposed", "gaps"):
        host = LAYOUTS[layout](draw((6, 8)))
        there = LAYOUTS[layout](draw((6, 8)).to(device))
        compare(function(there), function(host))
        compare(only_on_the_device(function, there), function(host))


def test_a_recipe_serves_all_sizes_and_layouts_of_its_class(device, at_first_call, monkeypatch):
    before = recipes()
    torch.fmax(*[draw((3, 5)).to(device)] * 2)
    torch.std_mean(draw((3, 5)).to(device), 1)
    assert len(recipes()) == len(before) + 2
    from torch_outrigger.inductor import eager

    monkeypatch.setattr(eager, "compile_call", lambda *arguments: pytest.fail("compiled again"))
    for shape in ((9,), (2, 7), (40, 300), (2, 3, 4, 5)):
        host = draw(shape)
        compare(only_on_the_device(torch.fmax, host.to(device), (host + 1).to(device)), torch.fmax(host, host + 1))
        host = host.t() if host.dim() == 2 else host
        into = torch.empty_like(host).to(device)
        compare(only_on_the_device(lambda a, b, out: torch.fmax(a, b, out=out), *[host.to(device)] * 2, into), torch.fmax(host, host))
    host = draw((64, 1000))
    compare(only_on_the_device(torch.std_mean, host.to(device), 1), torch.std_mean(host, 1))


def test_numbers_of_a_call_are_its_own(device, at_first_call):
    host = draw((5, 5))
    for beta in (0.1, 0.5, 0.1):
        compare(F.softshrink(host.to(device), beta), F.softshrink(host, beta))
    default = torch.get_default_dtype()
    whole = draw((4,), torch.int64)
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            compare(torch.logit(whole.to(device), 0.25), torch.logit(whole, 0.25))
    finally:
        torch.set_default_dtype(default)


def test_results_in_place_and_into_tensors(device, at_first_call):
    host, other = draw((6, 4)), draw((6, 4), seed=1)
    there = host.to(device)
    address = there.data_ptr()
    for _ in range(2):
        result = there.hypot_(other.to(device))
        assert result is there and there.data_ptr() == address
        same(there, host.hypot_(other), rtol=2e-5, atol=2e-5)
    # A result of other strides, one that an operand shares, and one of another dtype.
    for into in (torch.empty(4, 6).t(), other.clone(), torch.empty(6, 4, dtype=torch.float64)):
        given = into.to(device)
        assert given.stride() == into.stride()
        compare(torch.hypot(host.to(device), other.to(device), out=given), torch.hypot(host, other, out=into))
    shared, mine = other.clone(), other.to(device)
    compare(torch.hypot(mine, mine, out=mine), torch.hypot(shared, shared, out=shared))
    assert "hypot" not in {row["operator"] for row in torch_outrigger.fallback_report() if row["calls"] > 1}


def failure(function):
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as caught:
        function()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: torch.hypot(a, a[:, :3]),
        lambda a: torch.var(a, 5),
        lambda a: torch.heaviside(a, a.int()),
        lambda a: torch.hypot(a[:1], a[:1], out=a[0].expand(3, 4)),
        lambda a: a[0:4].hypot_(a[1:5]),
        lambda a: torch.hypot(a, a, out=torch.empty(6, 4, dtype=torch.int32, device=a.device)),
        lambda a: F.hardtanh(a.half(), -1e9, 1e9),
    ],
    ids=["sizes", "dimension", "types", "overlap in the result", "overlap", "dtype of the result", "number beyond the dtype"],
)
def test_errors_are_those_of_the_cpu_and_do_no_harm(device, at_first_call, wrong):
    there = draw((6, 4)).to(device)
    torch.hypot(there, there), torch.var(there, 1)
    assert failure(lambda: wrong(there)) == failure(lambda: wrong(draw((6, 4))))
    compare(only_on_the_device(torch.hypot, there, there), torch.hypot(draw((6, 4)), draw((6, 4))))


def test_a_recipe_adds_in_one_order():
    """A recipe that was made in another mode runs in deterministic mode, too."""
    from types import SimpleNamespace

    from torch_outrigger.inductor import eager

    writer = SimpleNamespace(_tape=SimpleNamespace(inputs=[]))
    for text, is_refused in (("out[i] = x;", False), ("otr_atomic_add_f32(&out[i], x);", True)):
        noted = eager.Noted("kernel", "aa", 1, None, False, [], text)
        if is_refused:
            with pytest.raises(eager.Refused):
                eager._Writer._kernel(writer, noted, "other")
        else:
            assert eager._Writer._kernel(writer, noted, "other")[-1] == text


def test_what_has_no_kernels_stays_on_the_cpu_and_is_asked_for_once(device, at_first_call, monkeypatch):
    host = draw((6, 4)).abs()
    # No text in the dialect, random numbers, a shape that depends on values, an index that may be wrong.
    left = {
        "digamma": lambda x: torch.digamma(x),
        "nonzero": lambda x: torch.nonzero(x),
        "take": lambda x: torch.take(x, torch.tensor([0, 3], device=x.device)),
    }
    for function in left.values():
        compare(function(host.to(device)), function(host))
    from torch_outrigger.inductor import eager

    monkeypatch.setattr(eager, "compile_call", lambda *arguments: pytest.fail("traced again"))
    torch_outrigger.reset_fallback_report()
    for function in left.values():
        compare(function(host.to(device)), function(host))
    assert set(left) <= {row["operator"] for row in torch_outrigger.fallback_report()}


PROGRAM = """
import sys, torch, torch_outrigger
from torch_outrigger import _C, _eager
from torch_outrigger.inductor import program

x = torch.arange(1.0, 25.0).reshape(6, 4)
y = x.to("{device}")
torch_outrigger.reset_fallback_report()
for function in (lambda a: torch.hypot(a, a), lambda a: torch.count_nonzero(a, 1), lambda a: torch.digamma(a)):
    torch.testing.assert_close(function(y).cpu(), function(x))
names = sorted(row["operator"] for row in torch_outrigger.fallback_report())
print(names, "torch._inductor" in sys.modules, "torch._dynamo" in sys.modules)
"""


EVERYTHING = "['count_nonzero', 'digamma', 'hypot'] False False"
"""The output of PROGRAM where nothing was compiled before."""


def run_program(device, mode: str, store: Path, **more: str) -> str:
    done = run_python(PROGRAM.format(device=device), OUTRIGGER_EAGER_COMPILE=mode, OUTRIGGER_CACHE=str(store), timeout=240, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.takes_turns
def test_another_process_compiles_nothing(device, compiles, tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    assert run_program(device, "cached", empty) == EVERYTHING and not (empty / "hosts").exists()
    assert run_program(device, "on", full) == "['digamma'] True True" and len(recipes(str(full))) == 3
    kept = files(full)
    assert run_program(device, "cached", full) == "['digamma'] False False" and files(full) == kept
    # Kernels that were swept, and whose recipes were not, are not compiled either.
    for path in set(files(full)) - set(recipes(str(full))):
        path.unlink()
    swept = files(full)
    assert run_program(device, "cached", full) == EVERYTHING and files(full) == swept
    # Entries that are spoilt or gone are of no use, and do no harm.
    for path in recipes(str(full)):
        path.write_bytes(b"{")
    assert run_program(device, "cached", full) == EVERYTHING


@pytest.mark.takes_turns
def test_code_comes_from_the_store_and_from_no_folder_that_others_may_write_to(device, compiles, tmp_path):
    """Neither recipes nor kernels lie in torch's cache folder, which is in /tmp by default."""
    store, theirs = tmp_path / "store", tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    folder = {"TORCHINDUCTOR_CACHE_DIR": str(theirs)}
    assert run_program(device, "on", store, **folder) == "['digamma'] True True"
    assert files(theirs) == {}
    assert run_program(device, "cached", store, **folder) == "['digamma'] False False"
    store.chmod(0o777)
    assert run_program(device, "cached", store, **folder) == EVERYTHING
    kept = files(store)
    assert run_program(device, "on", store, **folder) == "['digamma'] True True" and files(store) == kept


@pytest.mark.takes_turns
def test_a_command_compiles_ahead_of_time(device, compiles, tmp_path):
    command = ["--dtypes", "float32", "--operators", "hypot", "fmax"]
    code = f"import sys; from torch_outrigger.compile_eager import main; sys.exit(main({command}))"
    done = run_python(code, OUTRIGGER_CACHE=str(tmp_path), timeout=240)
    assert done.returncode == 0, done.stderr
    assert "float32: 2 of 2 operators on the device" in done.stdout and len(recipes(str(tmp_path))) == 4
    wrong = run_python(code.replace("fmax", "fmux"), OUTRIGGER_CACHE=str(tmp_path))
    assert wrong.returncode == 2 and "fmux is none of the operators: " in wrong.stderr
    off = run_python(code, OUTRIGGER_CACHE="off")
    assert off.returncode == 1 and "Nothing can be kept for other processes. OUTRIGGER_LOG=" in off.stderr


def test_numbers_that_never_come_again_are_forgotten(device, compiles, monkeypatch):
    """Of an operator that is called with ever other numbers, only so many are asked for and remembered."""
    asked = []
    monkeypatch.setattr(_eager, "find", lambda *about: asked.append(about[0]))
    before = _C.set_compile_mode(CACHED)
    try:
        x = draw((4, 6))
        there = x.to(device)
        for number in range(1000):
            F.threshold(there, number * 1e-3, 0.0)
        first = len(asked)
        for number in range(1000, 1100):
            same(F.threshold(there, number * 1e-3, 0.0), F.threshold(x, number * 1e-3, 0.0))
    finally:
        _C.set_compile_mode(before)
    assert 0 < first <= 256 and len(asked) == first


def test_dynamo_does_not_trace_the_search(device, compiles, monkeypatch):
    """A program may run under Dynamo where it calls such an operator: in a frame that Dynamo has given up."""
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    seen = []
    monkeypatch.setattr(_eager, "find", lambda *about: seen.append(get_eval_frame_callback()))

    def program_with_a_break(x):
        for _ in range(2):
            torch._dynamo.graph_break()
            during.append(get_eval_frame_callback())
            x = torch.special.airy_ai(x)
        return x

    during = []
    before = _C.set_compile_mode(CACHED)
    try:
        # An operator that no other test of the process has asked for.
        host = draw((3, 2)).abs() + 1
        same(torch.compile(program_with_a_break, backend="eager")(host.to(device)), program_with_a_break(host), rtol=1e-5, atol=1e-5)
    finally:
        _C.set_compile_mode(before)
    assert during[0] is not None and seen and set(seen) == {None}


def test_what_was_not_stored_is_compiled_where_the_mode_allows_it_later(device, at_first_call):
    host = draw((6, 4))
    _C.set_compile_mode(CACHED)
    for _ in range(2):
        torch.heaviside(host.to(device), host.to(device) + 7)
    _C.set_compile_mode(ON)
    torch.heaviside(host.to(device), host.to(device) + 7)
    compare(only_on_the_device(torch.heaviside, *[host.to(device)] * 2), torch.heaviside(host, host))


def test_threads_that_need_a_text_at_once_share_what_it_becomes(device, compiles, monkeypatch):
    """Else each compiles it, and one removes what the others read."""
    if program.language(device.index) is not None:
        pytest.skip("the driver compiles it, once for all")
    compilers = []

    class Popen(program.subprocess.Popen):
        def __init__(self, command, *rest, **more):
            compilers.append(command)
            super().__init__(command, *rest, **more)

    monkeypatch.setattr(program.subprocess, "Popen", Popen)
    text = "typedef struct { i64 chunk; } shared_numbers;\nOTR_KERNEL(shared)(OTR_ITEM OTR_GLOBAL u8* x, const shared_numbers n) {}"
    made = []
    for _ in range(3):
        one = program.Program(device.type, device.index)
        made.append(one.kernel("shared", "a", 1, 1, False, ["OTR_GLOBAL u8*"], text))
        one.begin()
    for kernel in made:
        kernel.load()
    assert sum("-shared" in command for command in compilers) == 1


def test_a_mode_that_there_is_not_is_named(compiles):
    code = "import torch, torch_outrigger; print(torch_outrigger.load_error())"
    done = run_python(code, OUTRIGGER_EAGER_COMPILE="maybe")
    assert "OUTRIGGER_EAGER_COMPILE=maybe is no mode of compiled operators; what is: off, cached (the default), on" in done.stdout


def test_the_report_tells_what_was_compiled(device, at_first_call):
    there = draw((6, 4)).to(device)
    torch_outrigger.reset_fallback_report()
    for _ in range(3):
        torch.hypot(there, there)
    there.hypot_(there + 1)
    calls = {row["place"]: row["calls"] for row in torch_outrigger.operator_report() if row["operator"] == "hypot"}
    assert calls == {"compiled": 4}
    torch_outrigger.reset_fallback_report()
    assert "hypot" not in {row["operator"] for row in torch_outrigger.operator_report()}


def test_a_capture_records_launches_and_compiles_nothing(device, at_first_call):
    from torch_outrigger import graphs

    host, there = draw((6, 4)), draw((6, 4)).to(device)
    torch.hypot(there, there)
    known = recipes()
    torch_outrigger.reset_fallback_report()
    graph = graphs.Graph()
    with graphs.graph(graph):
        result = torch.hypot(there, there)
        other = torch.atan2(there, there)
    assert recipes() == known
    assert [row["operator"] for row in torch_outrigger.fallback_report()] == ["atan2"]
    there.copy_(host * 3)
    graph.replay()
    same(result, torch.hypot(host * 3, host * 3), rtol=2e-5, atol=2e-5)
    same(other, torch.atan2(host * 3, host * 3), rtol=2e-5, atol=2e-5)


def test_threads_meet_a_class_at_once(device, at_first_call):
    host = draw((7, 5))
    there, failures = host.to(device), []
    begin = threading.Barrier(6)

    def work():
        try:
            begin.wait()
            for _ in range(50):
                compare(torch.logaddexp2(there, there), torch.logaddexp2(host, host))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures
    compare(only_on_the_device(torch.logaddexp2, there, there), torch.logaddexp2(host, host))
