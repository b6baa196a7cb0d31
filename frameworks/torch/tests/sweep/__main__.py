"""Runs the sweep: `python -m sweep`, in the folder that holds this package.

Exit status: 0 if everything is as expected, 1 if not, 2 if the device cannot be used.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from . import document
from .pool import Pool, Settings, Unusable
from .result import Outcome, Result, Sweep
from .verdict import DTYPES, FACES, Expectations, Verdict

PROGRESS_SECONDS = 2.0
LIST = """
import sys, torch
from sweep.catalog import operators
print(*operators(getattr(torch, sys.argv[1])), sep='\\n')
"""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sweep", description=__doc__)
    parser.add_argument("--device", default="outrigger", help="device type; cpu tries the sweep itself")
    parser.add_argument("--face", choices=FACES, default="unified", help="face of the host device")
    parser.add_argument("--driver", help="OUTRIGGER_DRIVER to use instead of the host device's face")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only operators whose name matches")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes, each with one thread")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="dtype of the samples")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of each operator; all if not given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to save the results")
    parser.add_argument(
        "--from",
        dest="saved",
        type=Path,
        action="append",
        metavar="FILE",
        help="take saved results instead of running; once per face",
    )
    parser.add_argument("--write-doc", action="store_true", help=f"write {document.DOCUMENT.name}")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.samples is not None and options.samples < 1:
        parser.error("--samples must be at least 1")
    if options.write_doc and (options.filter or options.samples or options.dtype != DTYPES[0]):
        parser.error("--write-doc needs all operators with all samples in float32: no --filter, --samples, --dtype")
    return options


def main() -> int:
    """The sweep from start to end."""
    options = arguments()
    expectations = Expectations.load()
    try:
        sweeps = [Sweep.load(path) for path in options.saved] if options.saved else [run(options)]
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json and not options.saved:
        sweeps[0].save(options.json)
    if options.write_doc:
        document.write(sweeps, expectations)
        print(f"wrote {document.DOCUMENT}")
    return 1 if report(sweeps, expectations) else 0


def run(options: argparse.Namespace) -> Sweep:
    """Runs the operators that `options` ask for."""
    driver = options.driver or f"host?face={options.face}"
    settings = Settings(
        options.device,
        options.jobs,
        environment={"OUTRIGGER_DRIVER": driver},
        dtype=options.dtype,
        samples=options.samples,
    )
    names = [name for name in all_operators(options.dtype) if re.search(options.filter, name)]
    pool = Pool(settings)
    sweep = Sweep(options.device, options.face, "", [], options.dtype)
    progress = Progress(len(names))
    for result in pool.run(names):
        sweep.results.append(result)
        progress.show(result)
    sweep.torch = pool.torch.split("+")[0]
    return sweep


def all_operators(dtype: str) -> list[str]:
    """The names of all operators that have the dtype, asked of another process: this one stays without torch."""
    folder = Path(__file__).resolve().parent.parent
    listed = subprocess.run([sys.executable, "-c", LIST, dtype], cwd=folder, text=True, capture_output=True)
    if listed.returncode != 0:
        raise Unusable(f"torch's operator database cannot be imported:\n{listed.stderr}")
    return listed.stdout.split("\n")[:-1]


class Progress:
    """Says now and then how far the sweep is, and at once what went wrong."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.bad = 0
        self.started = self.shown = time.monotonic()

    def show(self, result: Result) -> None:
        """Takes one more result."""
        self.done += 1
        if result.outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.HANG):
            self.bad += 1
            print(f"{result.outcome.value:5} {result.name}: {result.error}", flush=True)
        now = time.monotonic()
        if now - self.shown < PROGRESS_SECONDS and self.done < self.total:
            return
        self.shown = now
        left = (now - self.started) / self.done * (self.total - self.done)
        print(f"{self.done}/{self.total} operators, {self.bad} not passing, {left:.0f} s left", flush=True)


def report(sweeps: list[Sweep], expectations: Expectations) -> int:
    """Prints what is not as expected, then the counts; returns how many failed."""
    count = dict.fromkeys(Verdict, 0)
    for sweep in sweeps:
        print(f"\n{sweep.device}, {sweep.face}, {sweep.dtype}:", ", ".join(f"{n} {o.value}" for o, n in sweep.count().items()))
        for result in sweep.results:
            judgement = expectations.judge(result, sweep.face, sweep.dtype)
            count[judgement.verdict] += 1
            if judgement.verdict is Verdict.FAILED:
                print(f"FAILED {result.name}: {judgement.reason}")
    skipped = count[Verdict.SKIPPED] + count[Verdict.EXPECTED]
    print(f"{count[Verdict.PASSED]} passed, {count[Verdict.FAILED]} failed, {skipped} skipped")
    return count[Verdict.FAILED]


if __name__ == "__main__":
    sys.exit(main())
