"""Programs that were written for CUDA run on the device by `torch_outrigger.as_cuda`, and nothing of it is there without it.

Each runs in a process of its own, as its users start it. tests/cuda_programs has the programs.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from support import run_python

PROGRAMS = Path(__file__).resolve().parent / "cuda_programs"
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "as-cuda.md").read_text()
AS_CUDA = ("-m", "torch_outrigger.as_cuda")
SUMS = 1e-4
"""The distance of losses that are sums of sums, added up in another order."""


@pytest.fixture(autouse=True)
def _here(once, device_type):
    """The behaviour under test does not depend on the driver."""
    if device_type == "mtia":
        pytest.skip("as_cuda serves PrivateUse1 alone")


def start(*words: Any, folder: Path = PROGRAMS, timeout: int = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry) != Path(__file__).resolve().parent)
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def result(*words: Any, **options: Any) -> Any:
    """The last line that a program prints, as JSON."""
    ended = start(*words, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def needs_cudart(folder: Path) -> None:
    """An extension module that needs a library of the name of CUDA's."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (folder / "module.c").write_text("void *PyInit_needs_cudart(void) { return 0; }\n")
    compiler = os.environ.get("CC", "cc")
    shared = [compiler, "-shared", "-fPIC", "-x", "c"]
    subprocess.run([*shared, "/dev/null", "-Wl,-soname,libcudart.so.99", "-o", folder / "libcudart.so"], check=True)
    link = ["-x", "none", "-Wl,--no-as-needed", folder / "libcudart.so"]
    subprocess.run([*shared, folder / "module.c", *link, "-o", folder / f"needs_cudart{suffix}"], check=True)


@pytest.mark.takes_turns
def test_every_way_to_name_cuda(tmp_path):
    needs_cudart(tmp_path)
    found = result(*AS_CUDA, "doors.py", tmp_path)
    assert not found["failed"], "\n".join(found["failed"].values())
    assert found["checked"] > 20


def test_a_training_in_a_graph(capsys, monkeypatch):
    # On the CPU, which needs no process of its own.
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.setattr(sys, "argv", ["graph_training.py"])
    runpy.run_path(str(PROGRAMS / "graph_training.py"), run_name="__main__")
    expected, found = json.loads(capsys.readouterr().out), result(*AS_CUDA, "graph_training.py")
    assert (expected["device"], found["device"]) == ("cpu", "cuda:0")
    assert found["losses"] == pytest.approx(expected["losses"], rel=SUMS)


# ---- on, off, and neither in part --------------------------------------------------------------------

TELL = """
import os
{first}
import sys
import torch
from helper import kind
from library import kind_of_library

class Own:
    pass

x = torch.ones(2, device="cuda")

if __name__ == "__main__":
    import json, multiprocessing, pickle
    from child import tell

    assert pickle.loads(pickle.dumps(Own())).__class__ is Own
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        child = pool.apply(tell, (Own(),))
    print(json.dumps({{
        "main": x.device.type, "helper": kind(x), "library": kind_of_library(x), "child": child,
        "arguments": sys.argv[1:], "file": os.path.basename(__file__), "pid": os.getpid() }}))
"""


@pytest.mark.parametrize("way", ["variable", "import", "module"])
@pytest.mark.takes_turns
def test_each_way_of_turning_it_on(tmp_path, way):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "library.py").write_text("def kind_of_library(x):\n    return x.device.type\n")
    (tmp_path / "helper.py").write_text('"""A module."""\nfrom __future__ import annotations\n\ndef kind(x):\n    return x.device.type\n')
    (tmp_path / "child.py").write_text(
        "import sys, torch, helper\n\ndef tell(own):\n"
        "    main = sys.modules['__main__']\n"
        "    return [type(own).__name__, main.x.device.type, helper.kind(torch.ones(1, device='cuda'))]\n"
    )
    program = tmp_path / "my-program.py" if way != "module" else tmp_path / "program.py"
    program.write_text(TELL.format(first="import torch_outrigger.as_cuda" if way == "import" else ""))
    words, environment = {
        "variable": ([program.name, "--a", "1"], {"OUTRIGGER_AS_CUDA": "1"}),
        "import": (["-u", program.name, "--a", "1"], {}),
        "module": ([*AS_CUDA, "-m", "program", "--a", "1"], {}),
    }[way]
    environment["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), str(library)])
    found = result(*words, folder=tmp_path, **environment)
    ours = torch.accelerator.current_accelerator().type
    assert found.pop("pid") > 0
    assert found == {
        "main": "cuda",
        "helper": "cuda",
        "library": ours,
        "child": ["Own", "cuda", "cuda"],
        "arguments": ["--a", "1"],
        "file": program.name,
    }


def test_it_is_off_unless_asked_for():
    ended = run_python(
        """
        import sys, torch
        assert not [name for name in sys.modules if name.startswith("torch_outrigger.as_cuda")]
        assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
        assert type(torch.Tensor.cuda).__name__ == "method_descriptor"
        try:
            torch.ones(2, device="cuda")
        except (AssertionError, RuntimeError):
            pass
        else:
            raise SystemExit("there is CUDA")
        """
    )
    assert ended.returncode == 0, ended.stderr


def test_it_is_refused_as_a_whole():
    ended = run_python(
        """
        import importlib, sys, torch, torch_outrigger

        def state():
            owners = (torch, torch.cuda, torch.cuda.memory, torch.cuda.graphs, torch.Tensor, torch.UntypedStorage, torch.autocast,
                      torch.amp, torch.amp.GradScaler, torch.distributed, torch.distributed.distributed_c10d)
            return [dict(vars(owner)) for owner in owners], list(torch.serialization._package_registry)

        def refused():
            for name in [name for name in sys.modules if name.startswith("torch_outrigger.as_cuda")]:
                del sys.modules[name]
            vars(torch_outrigger).pop("as_cuda", None)
            try:
                importlib.import_module("torch_outrigger.as_cuda")
            except RuntimeError as error:
                return str(error)
            raise SystemExit("not refused")

        real = torch.cuda.is_available
        torch.cuda.is_available, torch.cuda.get_device_name = lambda: True, lambda index: "a real one"
        assert "is off: there is a CUDA device (a real one)" in refused()
        torch.cuda.is_available = real

        # Among the last doors, so that others have been opened.
        import torch.profiler.profiler
        import torch._subclasses.fake_tensor
        for owner, name in ((torch.profiler.profiler, "_KinetoProfile"), (torch.distributed.distributed_c10d, "new_group"),
                            (torch._subclasses.fake_tensor, "FakeTensorMode")):
            kept = getattr(owner, name)
            delattr(owner, name)
            before = state()
            text = refused()
            assert "is off, and nothing is changed" in text and name in text, text
            assert state() == before
            for door in (torch.ones, torch.Generator, torch.ops.aten.empty.memory_format):
                try:
                    door(device="cuda") if door is torch.Generator else door([2], device="cuda")
                except (AssertionError, RuntimeError, NotImplementedError):
                    pass
                else:
                    raise SystemExit(f"{door} was left open")
            setattr(owner, name, kept)

        import os
        os.environ["OUTRIGGER_AS_CUDA"] = "yes"
        try:
            torch_outrigger._activate.as_cuda()
        except ValueError as error:
            assert "OUTRIGGER_AS_CUDA=yes makes no sense" in str(error)
        else:
            raise SystemExit("taken")

        torch.ones(2, device=torch_outrigger._lifetime.device_type())
        assert "the device is in use already; import it before all else" in refused()
        """
    )
    assert ended.returncode == 0, ended.stderr
    ended = start(*AS_CUDA, "decode.py", OUTRIGGER_TORCH="mtia")
    assert ended.returncode == 1 and "it serves PrivateUse1 alone" in ended.stderr


# ---- the page --------------------------------------------------------------------------------------


def rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_has_every_name_of_torch_cuda():
    found = result(
        *AS_CUDA,
        "-c",
        "import json, inspect, torch\n"
        "from torch_outrigger.as_cuda import _names\n"
        "split = lambda table: {name: why for names, why in table.items() for name in names.split()}\n"
        "theirs = set(torch.cuda.__all__)\n"
        "for name, value in vars(torch.cuda).items():\n"
        "    at = getattr(value, '__module__', None) or getattr(value, '__name__', '')\n"
        "    at = value.__name__ if inspect.ismodule(value) else at\n"
        "    if not name.startswith('_') and str(at).startswith('torch.cuda') and not isinstance(value, str):\n"
        "        theirs.add(name)\n"
        "print(json.dumps({'theirs': sorted(theirs), 'ours': _names.OURS, 'parts': _names.PARTS, 'kept': split(_names.KEPT),\n"
        "    'refused': split(_names.REFUSED), 'made': sorted(_names.MADE)}))\n",
    )
    theirs = set(found["theirs"])
    known = [*found["ours"], *found["parts"], *found["kept"], *found["refused"], *found["made"]]
    assert len(known) == len(set(known)), "a name stands in two lists"
    assert theirs <= set(known), f"forgotten: {sorted(theirs - set(known))}"
    assert set(known) <= theirs, f"torch has no longer: {sorted(set(known) - theirs)}"
    listed = {}
    for names, becomes in rows("Names of torch.cuda"):
        assert becomes
        for name in re.findall(r"`(\w+)`", names):
            assert name not in listed, f"{name} has two rows"
            listed[name] = becomes
    assert set(listed) == set(known), f"the page: {set(known) ^ set(listed)}"
    for name, becomes in listed.items():
        group = {"the same name of": "ours", "torch's own": "kept", "refused": "refused"}
        group = next((value for key, value in group.items() if becomes.startswith(key)), "made")
        assert name in found[group] or (group == "ours" and name in found["parts"]), f"{name}: {becomes}"


# ---- whole programs ----------------------------------------------------------------------------------


@pytest.mark.only_with_all
def test_a_gpt(tmp_path):
    program = ["gpt.py", f"--out_dir={tmp_path}"]
    expected = result(*program)
    found = result(*AS_CUDA, *program)
    assert found["device"] == "cuda:0" and found["losses"] == pytest.approx(expected["losses"], rel=SUMS)
    compiled = result(*AS_CUDA, *program, "--compile=True", timeout=600)
    assert compiled["losses"] == pytest.approx(expected["losses"], rel=SUMS)
    half = result(*AS_CUDA, *program, "--dtype=float16")
    assert half["losses"] == pytest.approx(expected["losses"], rel=1e-2)
    resumed = result(*AS_CUDA, *program, "--init_from=resume", "--max_iters=10", "--dtype=float16")
    assert len(resumed["losses"]) == 2


@pytest.mark.only_with_all
def test_a_gpt_in_two_processes(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "gpt.py"]
    expected = result(*torchrun, f"--out_dir={tmp_path / 'cpu'}")
    found = result(*torchrun, f"--out_dir={tmp_path / 'cuda'}", OUTRIGGER_AS_CUDA="1")
    by_command = result(*AS_CUDA, *torchrun, f"--out_dir={tmp_path / 'command'}")
    for each in (found, by_command):
        assert each["device"] == "cuda:0" and each["losses"] == pytest.approx(expected["losses"], rel=SUMS)
        assert each["total"] == pytest.approx(expected["total"], rel=SUMS)


@pytest.mark.only_with_all
def test_two_networks_against_each_other():
    expected, found = result("dcgan.py"), result(*AS_CUDA, "dcgan.py", "--cuda")
    assert found["device"] == "cuda:0" and found["losses"] == pytest.approx(expected["losses"], rel=SUMS)


@pytest.mark.only_with_all
def test_a_process_for_each_device(tmp_path):
    totals = {}
    for name, words in (("cpu", []), ("cuda", AS_CUDA)):
        folder = tmp_path / name
        folder.mkdir()
        ended = start(*words, "imagenet.py", folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        totals[name] = json.loads((folder / "result.json").read_text())
    assert totals["cuda"]["device"] == "cuda:0" and totals["cuda"]["world"] == torch.accelerator.device_count()
    assert totals["cuda"]["total"] == pytest.approx(totals["cpu"]["total"], rel=SUMS)


@pytest.mark.only_with_all
def test_a_decoder_in_a_graph():
    found = result(*AS_CUDA, "decode.py")
    assert found["replayed"] == found["eager"] and found["ms"] > 0


@pytest.mark.only_with_all
def test_trainer_uses_one_of_several_devices_and_says_so():
    pytest.importorskip("transformers")
    expected = result("trained.py")
    ended = start(*AS_CUDA, "trained.py", PYTHONWARNINGS="default")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["device"], found["used"]) == ("cuda:0", 1) and found["devices"] > 1
    assert f"Trainer uses the first of {found['devices']} devices" in ended.stderr and "torchrun --nproc-per-node=" in ended.stderr
    assert found["losses"] == pytest.approx(expected["losses"], rel=SUMS) and len(found["losses"]) == 3


@pytest.mark.only_with_all
def test_accelerate_in_two_processes():
    pytest.importorskip("accelerate")
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "accelerated.py"]
    found = result(*launch, OUTRIGGER_AS_CUDA="1")
    assert (found["device"], found["processes"], found["steps"]) == ("cuda:0", 2, 4)
    assert len(found["totals"]) == 2 and found["totals"][0] == found["totals"][1]


@pytest.mark.only_with_all
def test_kernels_of_triton_run():
    pytest.importorskip("triton")
    found = result(*AS_CUDA, "triton_sum.py")
    assert found == {"differences": [0, 0], "backend": "outrigger"}
