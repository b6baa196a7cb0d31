"""`python -m benches SUITE... --json FILE`: measures suites one after the other, and prints their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import page
from .harness import ROUNDS, Metric, line, measure, report
from .subjects import Subjects, read

SUITES = ("eager", "models", "compile", "triton", "stream", "graph", "ops", "driver")
HEAD = ["metric", "outrigger", "ratio", "bar", "", "peers"]


def metrics(suite: str, subjects: Subjects | None) -> Iterable[Metric]:
    """The metrics of a suite. Only the suite that is run is imported: one needs PyTorch, others do not."""
    if suite == "eager":
        from . import eager

        return eager.metrics()
    if suite == "models":
        from . import models

        return models.metrics()
    if suite == "compile":
        from . import compile

        return compile.metrics()
    if suite == "triton":
        from . import triton

        return triton.metrics()
    if subjects is None:
        raise SystemExit(f"error: the suite {suite} needs --subjects")
    if suite == "stream":
        from . import stream

        return stream.metrics(subjects)
    if suite == "ops":
        from . import ops

        return ops.metrics(subjects)
    if suite == "driver":
        from . import driver

        return driver.metrics(subjects)
    from . import graph

    return graph.metrics(subjects)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benches", description=__doc__)
    parser.add_argument("suites", nargs="+", choices=SUITES)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--page", type=Path, help="also write the results to this page, with machine and date")
    parser.add_argument("--only", default="", help="metrics to measure, separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="blocks per subject that count")
    parser.add_argument("--subjects", type=Path, help="the programs that cargo xtask bench has prepared")
    options = parser.parse_args()

    subjects = None if options.subjects is None else read(options.subjects)
    try:
        only = {name for name in options.only.split(",") if name}
        results = run(options.suites, subjects, only, options.rounds)
    finally:
        if subjects is not None:
            subjects.end()
    if options.page is not None:
        options.page.write_text(page.of(results, options.suites, options.rounds))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def run(suites: list[str], subjects: Subjects | None, only: set[str], rounds: int) -> list[dict[str, Any]]:
    """Measures the chosen metrics; the results in the form of the JSON file."""
    chosen = {suite: list(metrics(suite, subjects)) for suite in suites}
    if unknown := only - {metric.name for suite in chosen.values() for metric in suite}:
        raise SystemExit(f"error: no such metric: {', '.join(sorted(unknown))}")
    results: list[dict[str, Any]] = []
    programs: list[str | None] = []
    for suite, its_metrics in chosen.items():
        print(f"\n{suite}", flush=True)
        print(line(HEAD), flush=True)
        for metric in its_metrics:
            if not only or metric.name in only:
                outcome = measure(metric, rounds)
                report(outcome)
                results.append(outcome.to_json(suite))
                programs.append(metric.program)
    versions = {} if subjects is None else subjects.versions()
    for name, version in versions.items():
        print(f"    {name}: {version}", flush=True)
    for result, program in zip(results, programs, strict=True):
        names = [*result["peers"], program]
        result["versions"] = {name: versions[name] for name in names if name in versions}
    return results


if __name__ == "__main__":
    main()
