"""The wheel as a user meets it: installed by pip, into an environment that has nothing else of the project."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from conftest import REPOSITORY, Environment, clean

FIRST_STEPS = """
import torch
x = torch.arange(6.0).reshape(2, 3)
y = x.to("{name}")
assert (y @ y.T).cpu().equal(x @ x.T)
y.requires_grad_()
(y.exp().sum()).backward()
torch.testing.assert_close(y.grad.cpu(), x.exp())
print(y.device)
"""


COMPILED = """
import torch
if not torch.__version__.startswith("2.15."):
    print("not served")
    raise SystemExit
a, b = torch.randn(80, 90), torch.randn(90, 70)
for mode in (None, "max-autotune"):
    torch._dynamo.reset()
    fast = torch.compile(lambda a, b: (a @ b).relu() + 1, mode=mode)
    for _ in range(3):
        made = fast(a.to("{name}"), b.to("{name}"))
        assert made.device.type == "{name}"
        torch.testing.assert_close(made.cpu(), (a @ b).relu() + 1)
from torch_outrigger.inductor import choices
(asked,) = choices._asked.values()
assert asked.answer.result() in ["library", *(one.name for one in asked.variants)]
print(len(asked.times))
"""

KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

x, y = torch.randn(1000), torch.randn(1000)
out = torch.empty(1000, device="{name}")
add[(4,)](x.to("{name}"), y.to("{name}"), out, 1000, BLOCK=256)
assert out.cpu().equal(x + y)
print(torch.{name}.get_device_properties().driver)
"""


def launched(environment: Environment, name: str, folder: Path, **variables: str) -> str:
    """The driver that a kernel of Triton ran on, which a program without a word about the project launches."""
    if environment.run("import triton; print(triton.__version__)").strip() != "3.9.0":
        pytest.skip("this torch comes with another Triton")
    program = folder / "program.py"  # Triton reads the source of a kernel
    program.write_text(KERNEL.format(name=name))
    caches = {"OUTRIGGER_CACHE": str(folder / "store"), "TRITON_CACHE_DIR": str(folder / "triton")}
    return environment.run(f"import runpy; runpy.run_path({str(program)!r})", **caches, **variables).strip()


def test_it_runs_without_a_checkout(installed: Environment) -> None:
    """Nothing is moved or set by hand, and what is loaded comes from the wheel."""
    assert installed.run(FIRST_STEPS.format(name="outrigger")).splitlines()[0] == "outrigger:0"
    loaded = installed.run(
        "import torch; torch.ones(3, device='outrigger')\n"
        "print(*{path for line in open('/proc/self/maps') for path in line.rstrip().split(maxsplit=5)[5:]}, sep='\\n')"
    )
    # By the names of files and of the package: a folder further up may have any name.
    libraries = {
        path
        for path in map(Path, loaded.splitlines())
        if ".so" in path.name and ("outrigger" in path.name or "torch_outrigger" in path.parts)
    }
    assert {path.name.split(".")[0] for path in libraries} == {"_C", "liboutrigger"}
    assert all(path.is_relative_to(installed.packages) for path in libraries), libraries


def test_it_refers_to_nothing_outside(wheel: Path, tmp_path: Path) -> None:
    """No path of the checkout is in a file, no search path but relative ones, no symbols for debuggers."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if str(REPOSITORY).encode() in path.read_bytes()]
    libraries = [path for path in files if ".so" in path.name]
    assert {"liboutrigger.so", "liboutrigger_opencl.so", "liboutrigger_cuda.so"} <= {path.name for path in libraries}
    for library in libraries:
        told = subprocess.run(["readelf", "-dS", "-W", library], capture_output=True, text=True, check=True).stdout
        paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", told)
        assert all(part.startswith("$ORIGIN") for path in paths for part in path.split(":")), (library, paths)
        assert ".debug_info" not in told, library


def test_it_compiles(installed: Environment) -> None:
    """torch.compile without options, and with kernels that a process of its own has measured."""
    told = installed.run(COMPILED.format(name="outrigger"), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert told.splitlines()[0] in ("5", "not served"), told


@pytest.mark.parametrize("driver", ["host", "opencl"])
def test_kernels_of_triton_run(installed: Environment, tmp_path: Path, driver: str) -> None:
    """Nothing is imported or set for them, where the installed Triton is one that is served."""
    assert launched(installed, "outrigger", tmp_path, OUTRIGGER_DRIVER=driver) == driver


def test_its_tag_is_what_auditwheel_says(wheel: Path, request: pytest.FixtureRequest) -> None:
    """pip refuses the wheel on a system that is too old for it, and only there."""
    tools = request.config.getoption("--tools")
    show = [tools / "python", "-m", "auditwheel", "show", "--json", wheel]
    told = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    assert wheel.stem.endswith(f"-{told['sym_tag']}") and told["sym_tag"].startswith("manylinux_"), told["sym_tag"]
    assert set(told["external_libs"]) == {"libc10.so", "libgomp.so.1", "libtorch_cpu.so", "libtorch_python.so"}, told


def test_the_import_starts_nothing(installed: Environment) -> None:
    """`import torch` loads no driver and starts no thread; a program for the CPU runs as without the package."""
    program = """
import os, torch
threads = len(os.listdir("/proc/self/task"))
x = torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum()
x.backward()
assert x.device.type == "cpu" and torch.get_default_device().type == "cpu"
if "torch_outrigger" in __import__("sys").modules:
    assert not torch.outrigger.is_initialized()
print(threads)
"""
    without = installed.run(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert installed.run(program) == without


def test_a_driver_that_is_missing_is_never_replaced(installed: Environment) -> None:
    """The device is not available, and the reason is at hand."""
    program = """
import torch, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert not torch.outrigger.is_available() and torch.outrigger.device_count() == 0
assert "/nowhere/libacme.so" in str(caught[0].message), caught
assert "/nowhere/libacme.so" in str(torch.outrigger.load_report())
try:
    torch.ones(3, device="outrigger")
except RuntimeError as error:
    assert "/nowhere/libacme.so" in str(error), error
else:
    raise AssertionError("a tensor without a device")
"""
    installed.run(program, OUTRIGGER_DRIVER="/nowhere/libacme.so")


def test_another_torch_is_refused(copied: Environment) -> None:
    """The text says which versions are served, and torch works without the device."""
    shims = copied.packages / "torch_outrigger" / "shims"
    for number, shim in enumerate(sorted(shims.iterdir())):
        shim.rename(shims / f"1.{number}")
    told = copied.run("import torch; print(torch.ones(3).sum().item())")
    assert "3.0" in told and "serves torch 1.0" in told and "python -m pip install 'torch==1.0.*'" in told, told


def test_the_demo_begins(installed: Environment, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The demo's first steps, over the installed package."""
    if request.config.getoption("--torch-from") is None:
        installed.pip("install", "--requirement", REPOSITORY / "demo" / "requirements.txt")
    command = [installed.python, "-m", "demo", "--steps=2", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=REPOSITORY, env=clean())
    told = done.stdout + done.stderr
    assert "device outrigger:0" in told and (tmp_path / "report.json").exists(), told
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["target"] == "outrigger:0" and report["digits"]["steps"] == 2, report
