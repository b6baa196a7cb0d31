"""`packaging/gpu/run.py`: how it runs steps, with programs that only pretend to be Outrigger's, and with real ones over the stand-in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, clean

TARGET = REPOSITORY / "target"
REAL = {
    "bin/outrigger": TARGET / "debug" / "outrigger",
    "lib/liboutrigger_cuda.so": TARGET / "release" / "liboutrigger_cuda.so",
}
STAND_IN = TARGET / "debug" / "examples" / "libcuda_standin.so"

# A program in the place of the pack's: it says what the results of earlier steps are, and behaves as its arguments say.
PRETENDER = """#!{python}
import os, subprocess, sys, time
results = open("../results.json").read()
print("so far:", results.count('"status"'), "in HTML:", open("../results.html").read().count("<details"))
if "core" in sys.argv:
    child = subprocess.Popen(["sleep", "1000"])
    open(sys.argv[sys.argv.index("--journal") + 1], "w").write('{{"status": "pass"}}\\n{{"status": "pass"}}\\n{{"status": "fail"}}\\n')
    open("../child", "w").write(str(child.pid))
    time.sleep(1000)
if "ops" in sys.argv:
    assert os.environ["OUTRIGGER_LOG"] == "outrigger::device=warn"
    for _ in range(2):
        print(r'2026 WARN outrigger::device: a kernel does not compile label=sum log="kernel.cu(7): error: \\"x\\"\\n  ^"', file=sys.stderr)
sys.exit("fault" in sys.argv)
"""


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A folder like that of `cargo xtask gpu-pack`, without programs. Its torch cannot be loaded."""
    folder = tmp_path / "pack"
    for part in ("bin", "lib", "python"):
        (folder / part).mkdir(parents=True)
    shutil.copy(REPOSITORY / "packaging" / "gpu" / "run.py", folder)
    (folder / "python" / "torch.py").write_text("raise ImportError('no torch here')\n")
    return folder


def run(pack: Path, *arguments: str | Path) -> tuple[int, dict[str, dict[str, Any]], Path]:
    """The exit status, the steps by their names, and the folder of the results."""
    out = pack.parent / "out"
    command = [sys.executable, pack / "run.py", "--out", out, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False, env=clean())
    assert done.returncode in (0, 1), done.stdout + done.stderr
    steps = json.loads((out / "results.json").read_text())["steps"]
    return done.returncode, {step["name"]: step for step in steps}, out


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie, which nobody may have waited for yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_step_that_hangs_or_fails_ends_no_run(pack: Path) -> None:
    """Of programs that pretend: the share, what is kept, what was refused, and why a step was skipped."""
    program = pack / "bin" / "outrigger"
    program.write_text(PRETENDER.format(python=sys.executable))
    program.chmod(0o755)
    only = "nvidia,info,conformance core,conformance stream,driver,PyTorch,demo,kernels,conformance fault"
    code, steps, out = run(pack, "--driver", "pretended", "--only", only, "--limit", "24")
    assert code == 1
    status = {name: step["status"] for name, step in steps.items()}
    assert status.pop("conformance core") == "stopped" and status.pop("conformance fault") == "failed"
    skipped = {name for name in status if status[name] == "skipped"}
    assert {status[name] for name in status.keys() - skipped} == {"passed"}
    assert steps["nvidia-smi"]["detail"] == steps["driver beside CUDA by hand"]["detail"] == "the driver is not CUDA's"
    assert "no torch here" in steps["demo"]["detail"] and "PyTorch smoke tests" in skipped and len(skipped) == 4
    # A step that ran over its share keeps the figures that it had, and leaves no process.
    assert steps["conformance core"]["figures"] == {"pass": 2, "fail": 1}
    child = int((out / "child").read_text())
    if is_running(child):
        os.kill(child, signal.SIGKILL)
        pytest.fail("a child of the stopped step runs on")
    # Each step found the results of all before it.
    for at, step in enumerate(steps.values()):
        if step["status"] == "passed":
            before = [one["status"] for one in list(steps.values())[:at]]
            shown = len(before) - before.count("skipped")
            assert f"so far: {len(before)} in HTML: {shown}" in step["detail"]
    # Each refusal once, as its compiler wrote it.
    assert json.loads((out / "results.json").read_text())["kernels_refused"] == 1
    refusals = (out / "ptx-errors.txt").read_text()
    assert refusals.count("label=sum") == 1 and 'kernel.cu(7): error: "x"\n      ^' in refusals
    assert "conformance stream" in (out / "results.html").read_text()
    assert not (out / "work").exists() and (out / "rest.tar.gz").stat().st_size > 0


def test_what_a_step_lacks_is_its_reason(pack: Path) -> None:
    """Of a machine that has torch, and not what the demo draws with."""
    (pack / "python" / "torch.py").write_text("")
    (pack / "python" / "torch_outrigger.py").write_text("def load_error():\n    return None\n")
    (pack / "python" / "matplotlib.py").write_text("raise ImportError('nothing to draw with')\n")
    _, steps, _ = run(pack, "--driver", "pretended", "--only", "PyTorch,demo", "--limit", "100")
    assert steps["demo"]["status"] == "skipped" and "nothing to draw with" in steps["demo"]["detail"]
    # The pack has no tests, which is a failure of that step and no reason to skip it.
    assert steps["PyTorch smoke tests"]["status"] == "failed"


def test_a_run_over_the_stand_in(pack: Path) -> None:
    """Of the real programs, where other suites have built them."""
    missing = [str(path) for path in (*REAL.values(), STAND_IN) if not path.exists()]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}")
    for name, path in REAL.items():
        (pack / name).symlink_to(path)
    shutil.copy(REPOSITORY / "drivers" / "cuda" / "expect-standin.toml", pack)
    code, steps, _ = run(pack, "--stand-in", STAND_IN, "--only", "nvidia-smi,info,kernels,conformance stream", "--limit", "1000")
    assert code == 0, steps
    assert steps["nvidia-smi"]["detail"] == steps["kernels of the library, each compiled"]["detail"] == "the stand-in computes nothing"
    assert steps["info"]["status"] == "passed" and steps["info"]["detail"].split()[:2] == ["driver", "cuda"]
    assert steps["conformance stream"]["figures"]["pass"] > 100
