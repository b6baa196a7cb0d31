#!/usr/bin/env python3
"""Tries Outrigger on a machine with an NVIDIA GPU: runs every step of the pack, and leaves what was found in one folder.

    python3 run.py --out FOLDER                  # on the device, in eight minutes
    python3 run.py --out FOLDER --stand-in FILE  # over the stand-in of libcuda, which computes nothing

Each step has a share of the whole limit and is stopped when it is over; the next one runs all the same. After each step
`results.json` and `results.html` are written anew, so that what was measured stays if the run is killed. It needs Python
alone; steps of PyTorch need the torch that the pack was built for, and some of them pytest or what the demo draws with. It
must never count as passed what did not run.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PACK = Path(__file__).resolve().parent
SMOKE = ["test_basics.py", "test_memory.py", "test_graphs.py", "test_stream_order.py"]
TORCH = "import torch, torch_outrigger as o, sys; e = o.load_error(); sys.exit(str(e) if e else 0)"
NOTHING_COMPUTED = "the stand-in computes nothing"
KEPT_OUTPUT = 20_000  # characters of a step in the JSON; the log has all
REFUSED = re.compile(r"outrigger::device: (?:a kernel does not compile|the program of a graph cannot be made)")


@dataclass
class Step:
    """One program, its share of the limit, and why it cannot run here."""

    name: str
    command: list[str]
    share: float
    reason: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    read: Callable[[], Any] | None = None


@dataclass
class Result:
    """The outcome of a step: passed, failed, stopped (it ran over its share), or skipped with the reason."""

    name: str
    status: str
    seconds: float = 0.0
    detail: str = ""
    figures: Any = None


class Run:
    """The folder of results, and what all steps share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out: Path = options.out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = self.out / "work"
        self.work.mkdir(exist_ok=True)
        self.limit: float = options.limit
        self.begun = time.monotonic()
        self.stand_in: Path | None = options.stand_in and options.stand_in.resolve()
        self.driver: str = options.driver or str(PACK / "lib" / "liboutrigger_cuda.so")
        libraries = self.work / "libraries"
        libraries.mkdir(exist_ok=True)
        for name in ("libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13") if self.stand_in else ():
            (libraries / name).unlink(missing_ok=True)
            (libraries / name).symlink_to(self.stand_in)
        self.has_cuda = options.driver is None
        self.results: list[Result] = []
        self.refusals: dict[str, None] = {}
        (self.out / "ptx-errors.txt").write_text("")
        self.meta = {
            "machine": platform.node() and platform.machine(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "driver": self.driver.replace(str(PACK), "."),
            "limit_s": self.limit,
            "stand_in": self.stand_in is not None,
        }
        self.environment = {
            **os.environ,
            "OUTRIGGER_DRIVER": self.driver,
            "OUTRIGGER_CACHE": str(self.work / "store"),
            "OUTRIGGER_LOG": "outrigger::device=warn",
            "NO_COLOR": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PACK / "python"), str(PACK), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH")])),
            **({"OUTRIGGER_DEVICE_OPERATORS": "0"} if self.stand_in is not None else {}),
        }

    def left(self) -> float:
        """Seconds until the limit of all."""
        return self.limit - (time.monotonic() - self.begun)

    def run(self, step: Step, shares: float) -> None:
        """Runs a step within its part of what is left, and writes the results."""
        limit = self.left() * step.share / shares
        if step.reason:
            result = Result(step.name, "skipped", detail=step.reason)
        elif limit < 1:
            result = Result(step.name, "skipped", detail="no time was left")
        else:
            print(f"{step.name} (at most {limit:.0f} s) ...", flush=True)
            result = self.start(step, limit)
        if step.read is not None and result.status != "skipped":
            try:
                result.figures = step.read()
            except (OSError, ValueError) as error:
                result.detail += f"\nno figures: {error}"
        self.results.append(result)
        said = result.detail if result.status == "skipped" else f"{result.seconds:.1f} s"
        print(f"{result.status:>8} {step.name}: {said}", flush=True)
        self.write()

    def start(self, step: Step, limit: float) -> Result:
        """The process of a step, with all that it starts."""
        began = time.monotonic()
        log = self.work / f"{re.sub(r'[^a-z0-9]+', '-', step.name.lower())}.log"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    step.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**self.environment, **step.environment},
                    cwd=self.work,
                    start_new_session=True,
                )
            except OSError as error:
                return Result(step.name, "failed", detail=str(error))
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            # Also what it has left behind.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        text = log.read_text(errors="replace")
        with (self.out / "log.txt").open("a") as whole:
            whole.write(f"===== {step.name}: {code}\n{text}\n")
        self.keep_refusals(text)
        status = "stopped" if code is None else "passed" if code == 0 else "failed"
        return Result(step.name, status, time.monotonic() - began, text[-KEPT_OUTPUT:])

    def keep_refusals(self, text: str) -> None:
        """Writes each kernel that the compiler refused to a file, with its log, once: several steps compile the same."""
        for line in text.splitlines():
            found = REFUSED.search(line)
            if found and line[found.start() :] not in self.refusals:
                self.refusals[line[found.start() :]] = None
                with (self.out / "ptx-errors.txt").open("a") as file:
                    # An event is one line, with the lines of its fields escaped.
                    file.write(line[found.start() :].replace("\\n", "\n    ").replace('\\"', '"') + "\n\n")

    def write(self) -> None:
        """Both files, each in one go: a reader never meets half of one."""
        seconds = round(time.monotonic() - self.begun, 1)
        steps = [asdict(one) for one in self.results]
        whole = {**self.meta, "seconds": seconds, "kernels_refused": len(self.refusals), "steps": steps}
        for name, text in (("results.json", json.dumps(whole, indent=1)), ("results.html", page(whole))):
            fresh = self.out / f"{name}.new"
            fresh.write_text(text)
            fresh.replace(self.out / name)


def page(whole: dict[str, Any]) -> str:
    """The results as one page that needs nothing else."""
    colours = {"passed": "#0a7d33", "failed": "#b3261e", "stopped": "#9a6700", "skipped": "#666"}
    parts = [
        "<!doctype html><meta charset=utf-8><title>Outrigger on a GPU</title><style>body{font:15px/1.5 sans-serif;margin:2em auto;"
        "max-width:70em;padding:0 1em}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid"
        " #ddd}pre{background:#f6f6f6;padding:.8em;overflow:auto;max-height:30em}</style><h1>Outrigger on a GPU</h1><table>"
    ]
    parts += [f"<tr><th>{html.escape(key)}<td>{html.escape(str(value))}" for key, value in whole.items() if key != "steps"]
    parts.append("</table><h2>Steps</h2><table><tr><th>step<th>outcome<th>seconds<th>reason")
    for step in whole["steps"]:
        reason = step["detail"] if step["status"] == "skipped" else ""
        parts.append(
            f"<tr><td>{html.escape(step['name'])}<td style='color:{colours[step['status']]}'>{step['status']}"
            f"<td>{step['seconds']:.1f}<td>{html.escape(reason)}"
        )
    parts.append("</table>")
    for step in whole["steps"]:
        if step["status"] != "skipped":
            figures = "" if step["figures"] is None else f"<pre>{html.escape(json.dumps(step['figures'], indent=1))}</pre>"
            parts.append(
                f"<details{' open' if step['status'] == 'failed' else ''}><summary>{html.escape(step['name'])}</summary>{figures}"
                f"<pre>{html.escape(step['detail'])}</pre></details>"
            )
    return "".join(parts)


def cannot_load(run: Run, probe: str) -> str:
    """The reason why a step that needs the imports of this program cannot run; empty if it can."""
    said = subprocess.run([sys.executable, "-c", probe], env=run.environment, capture_output=True, text=True, check=False)
    return "" if said.returncode == 0 else "what it needs does not load: " + (said.stderr.strip().splitlines() or ["?"])[-1]


def journal(path: Path) -> Callable[[], Any]:
    """The number of tests of a journal by outcome; the journal is complete up to where the run was stopped."""

    def read() -> Any:
        counts: dict[str, int] = {}
        for line in path.read_text().splitlines():
            status = re.search(r'"status":\s*"([\w-]+)"', line)
            if status:
                counts[status[1]] = counts.get(status[1], 0) + 1
        return counts

    return read


def figures(path: Path) -> Callable[[], Any]:
    """The content of a JSON file."""
    return lambda: json.loads(path.read_text())


def steps(run: Run) -> list[Step]:
    """All steps in their order: what is cheap and tells most comes first."""
    cli, work = str(PACK / "bin" / "outrigger"), run.work
    of_cuda = "" if run.has_cuda else "the driver is not CUDA's"
    nothing_computed = NOTHING_COMPUTED if run.stand_in is not None else ""
    needs_device = of_cuda or nothing_computed
    of_torch = nothing_computed or cannot_load(run, TORCH)
    subjects = work / "subjects.json"
    program = {"name": "driver_cuda", "command": [str(PACK / "bin" / "outrigger_cuda")], "environment": {}, "spins": False}
    subjects.write_text(json.dumps([program]))
    bench = [sys.executable, "-m", "benches", "driver", "--subjects", str(subjects), "--json", str(work / "driver.json")]
    expect = ["--expect", str(PACK / "expect-standin.toml")] if run.stand_in is not None else []

    def conformance(tier: str, share: float) -> Step:
        path = work / f"conformance-{tier}.journal"
        report = ["--journal", str(path), "--html", str(work / f"conformance-{tier}.html"), "--json", str(work / f"conformance-{tier}.json")]
        command = [cli, "conformance", "--driver", run.driver, "--tier", tier, "--jobs", "8", *report, *expect]
        return Step(f"conformance {tier}", command, share, read=journal(path))

    python = [sys.executable]
    pytest = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--maxfail=30", *(str(PACK / "tests" / name) for name in SMOKE)]
    return [
        Step("nvidia-smi", ["nvidia-smi"], 1, needs_device),
        Step("info", [cli, "info", "--driver", run.driver], 2),
        conformance("core", 10),
        conformance("stream", 8),
        Step("driver beside CUDA by hand", [*bench, "--rounds", "3" if run.stand_in else "15"], 12, of_cuda, read=figures(work / "driver.json")),
        conformance("memory", 8),
        conformance("graph", 8),
        Step("PyTorch smoke tests", pytest, 14, of_torch or cannot_load(run, "import numpy, pytest")),
        # A driver with graphs of its own has no persistent kernels: its graph, launched again and again, is what stays.
        Step(
            "replays: captured, and persistent as one launch of the driver's graph",
            [*python, str(PACK / "replays.py"), str(work / "replays.json")],
            6,
            of_torch,
            read=figures(work / "replays.json"),
        ),
        Step("kernels of the library, each compiled", [cli, "ops", "--driver", run.driver], 20, nothing_computed),
        Step(
            "demo",
            [*python, "-m", "demo", "--out", str(work / "demo")],
            14,
            of_torch or cannot_load(run, "import matplotlib, sklearn"),
            read=figures(work / "demo" / "report.json"),
        ),
        conformance("ops", 12),
        conformance("fault", 5),
        Step("soak", [str(PACK / "bin" / "outrigger-soak"), "--driver", run.driver, "--seconds", "8", "--seed", "7", "--patience", "20"], 6),
    ]


def main() -> int:
    """The command line. The status is 0 if every step ran to its end and none failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--limit", type=float, default=480, help="seconds for all steps together [default: 480]")
    parser.add_argument("--stand-in", type=Path, metavar="FILE", help="the stand-in for libcuda: steps that need results are skipped")
    parser.add_argument("--driver", metavar="SPEC", help="another driver, as OUTRIGGER_DRIVER names it: steps of CUDA are skipped")
    parser.add_argument("--only", help="the steps to run, by the beginnings of their names, separated by commas")
    options = parser.parse_args()
    run = Run(options)
    chosen = [step for step in steps(run) if not options.only or step.name.startswith(tuple(options.only.split(",")))]
    if not chosen:
        parser.error(f"no step begins with {options.only}: " + ", ".join(step.name for step in steps(run)))
    for at, step in enumerate(chosen):
        run.run(step, sum(one.share for one in chosen[at:] if not one.reason) or 1)
    with tarfile.open(run.out / "rest.tar.gz", "w:gz") as archive:
        archive.add(run.work, "rest", filter=lambda member: None if member.issym() or "/store" in member.name else member)
    shutil.rmtree(run.work)
    bad = [result.name for result in run.results if result.status in ("failed", "stopped")]
    print(f"{len(run.results)} steps in {time.monotonic() - run.begun:.0f} s; not well: {', '.join(bad) or 'none'}; see {run.out}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
