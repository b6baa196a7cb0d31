"""Judges results by the expectations in `expected.toml`.

Must not excuse a crash or a hang, nor an expectation that no longer holds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same module under its older name.
    import tomli as tomllib

from .result import Outcome, Result

EXPECTED = Path(__file__).with_name("expected.toml")
EVERY_FACE = "every"
FACES = ("unified", "discrete")
# The first is what a sweep is of unless it is told otherwise.
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64")


class Verdict(str, enum.Enum):
    """What a result means for the sweep."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "expected failure"
    SKIPPED = "not applicable"


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason, which is empty for what passed."""

    verdict: Verdict
    reason: str = ""


class Expectations:
    """Reasons why operators fail, by operator, in tables for a face or a dtype."""

    def __init__(self, tables: dict[str, dict[str, str]]) -> None:
        if unknown := tables.keys() - {EVERY_FACE, *FACES, *DTYPES}:
            raise ValueError(f"{EXPECTED.name} has tables for faces and dtypes that do not exist: {sorted(unknown)}")
        for table, reasons in tables.items():
            if empty := [name for name, reason in reasons.items() if not reason.strip()]:
                raise ValueError(f"{EXPECTED.name} gives no reason for {empty} in [{table}]")
        self.tables = tables

    @classmethod
    def load(cls, path: Path = EXPECTED) -> Expectations:
        """Reads the committed file."""
        return cls(tomllib.loads(path.read_text()))

    def reasons(self, face: str, dtype: str = DTYPES[0]) -> dict[str, str]:
        """The reasons that hold for `dtype` on `face`."""
        return {name: why for table in (EVERY_FACE, face, dtype) for name, why in self.tables.get(table, {}).items()}

    def judge(self, result: Result, face: str, dtype: str = DTYPES[0]) -> Judgement:
        """What `result` of a sweep of `dtype` means on `face`."""
        reason = self.reasons(face, dtype).get(result.name)
        if result.outcome in (Outcome.CRASH, Outcome.HANG):
            return Judgement(Verdict.FAILED, f"{result.outcome.value}: {result.error}")
        if result.outcome is Outcome.FAIL:
            if reason is not None:
                return Judgement(Verdict.EXPECTED, reason)
            share = f"{result.failed} of {result.samples} samples"
            return Judgement(Verdict.FAILED, f"{share}: {result.error}")
        if reason is not None:
            stale = f"{result.outcome.value}, but {EXPECTED.name} says that it fails: {reason}"
            return Judgement(Verdict.FAILED, stale)
        if result.outcome is Outcome.NOT_APPLICABLE:
            why = "CPU tensors refuse all samples" if result.samples else "no samples"
            return Judgement(Verdict.SKIPPED, why)
        return Judgement(Verdict.PASSED)
