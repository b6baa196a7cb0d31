"""Runs the sweep: `python -m sweep`, in the folder that holds this package.

Exit status: 0 if everything is as expected, 1 if not, 2 if the device cannot be used.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from . import document
from .pool import Pool, Settings, Unusable
from .result import Outcome, Result, Sweep
from .verdict import DEVICES, DTYPES, FACES, Expectations, Verdict, Where

PROGRESS_SECONDS = 2.0
WHOLE = Where()
"""The sweep that the page has with all samples."""
SAMPLES_OF_OTHERS = 2
LIST = """
import sys, torch
from sweep.catalog import cases
print(*cases(getattr(torch, sys.argv[1])), sep='\\n')
"""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sweep", description=__doc__)
    parser.add_argument("--device", default=DEVICES[0], help="device type; cpu tries the sweep itself")
    parser.add_argument("--face", choices=FACES, default=FACES[0], help="face of the host device")
    parser.add_argument("--driver", help="OUTRIGGER_DRIVER to use instead of the host device's face")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes, each with one thread")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="dtype of the samples")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of each case; all if not given")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where to save results; --write-doc takes those that are there"
    )
    parser.add_argument(
        "--write-doc",
        action="store_true",
        help=f"write {document.DOCUMENT.name}: every device type, face and dtype; all samples in {WHOLE.dtype} on "
        f"{WHOLE.device}, {WHOLE.face}, else {SAMPLES_OF_OTHERS} of each case",
    )
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.samples is not None and options.samples < 1:
        parser.error("--samples must be at least 1")
    if options.write_doc and (options.filter or options.samples or options.driver):
        parser.error("--write-doc runs all cases on the host device: no --filter, --samples, --driver")
    return options


def main() -> int:
    """The sweep from start to end."""
    options = arguments()
    expectations = Expectations.load()
    try:
        if options.write_doc:
            sweeps = list(everything(options))
            document.write(sweeps, expectations)
            print(f"wrote {document.DOCUMENT}")
        else:
            sweeps = [run(options, Where(options.device, options.face, options.dtype), options.samples)]
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if report(sweeps, expectations) else 0


def everything(options: argparse.Namespace) -> Iterator[Sweep]:
    """The sweeps that the page is made of."""
    for device, face, dtype in itertools.product(DEVICES, FACES, DTYPES):
        where = Where(device, face, dtype)
        saved = path_of(options.results, where) if options.results else None
        if saved is not None and saved.exists():
            yield Sweep.load(saved)
        else:
            print(f"{device}, {face}, {dtype}", flush=True)
            yield run(options, where, None if where == WHOLE else SAMPLES_OF_OTHERS)


def path_of(folder: Path, where: Where) -> Path:
    """The file with the results of a sweep."""
    return folder / f"{where.device}-{where.face}-{where.dtype}.json"


def run(options: argparse.Namespace, where: Where, samples: int | None) -> Sweep:
    """Runs the cases that `options` ask for."""
    driver = options.driver or f"host?face={where.face}"
    environment = {"OUTRIGGER_DRIVER": driver}
    if where.device in DEVICES:
        environment["OUTRIGGER_TORCH"] = where.device
    settings = Settings(where.device, options.jobs, environment=environment, dtype=where.dtype, samples=samples)
    names = [name for name in all_cases(where.dtype) if re.search(options.filter, name)]
    pool = Pool(settings)
    sweep = Sweep(where.device, where.face, "", [], where.dtype, samples)
    progress = Progress(len(names))
    for result in pool.run(names):
        sweep.results.append(result)
        progress.show(result)
    sweep.torch = pool.torch.split("+")[0]
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        sweep.save(path_of(options.results, where))
    return sweep


def all_cases(dtype: str) -> list[str]:
    """The names of all cases that have the dtype, asked of another process: this one stays without torch."""
    folder = Path(__file__).resolve().parent.parent
    listed = subprocess.run([sys.executable, "-c", LIST, dtype], cwd=folder, text=True, capture_output=True)
    if listed.returncode != 0:
        raise Unusable(f"torch's databases cannot be imported:\n{listed.stderr}")
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
        print(f"{self.done}/{self.total} cases, {self.bad} not passing, {left:.0f} s left", flush=True)


def report(sweeps: list[Sweep], expectations: Expectations) -> int:
    """Prints what is not as expected, then the counts; returns how many failed."""
    count = dict.fromkeys(Verdict, 0)
    for sweep in sweeps:
        print(f"\n{sweep.device}, {sweep.face}, {sweep.dtype}:", ", ".join(f"{n} {o.value}" for o, n in sweep.count().items()))
        for result in sweep.results:
            judgement = expectations.judge(result, document.where(sweep))
            count[judgement.verdict] += 1
            if judgement.verdict is Verdict.FAILED:
                print(f"FAILED {result.name}: {judgement.reason}")
    skipped = sum(count[one] for one in (Verdict.SKIPPED, Verdict.CANNOT_APPLY, Verdict.EXPECTED))
    print(f"{count[Verdict.PASSED]} passed, {count[Verdict.FAILED]} failed, {skipped} skipped")
    return count[Verdict.FAILED]


if __name__ == "__main__":
    sys.exit(main())
