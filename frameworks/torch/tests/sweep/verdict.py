"""Judges results by the expectations in `expected.toml` and by the list of what cannot apply, `cannot_apply.toml`.

Must not excuse a crash or a hang, nor an expectation that no longer holds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same module under its older name.
    import tomli as tomllib

from .result import Outcome, Result

EXPECTED = Path(__file__).with_name("expected.toml")
CANNOT_APPLY = Path(__file__).with_name("cannot_apply.toml")
EVERY = "every"
DEVICES = ("outrigger", "mtia")
FACES = ("unified", "discrete")
# The first is what a sweep is of unless it is told otherwise.
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64")

REASONS = {
    "names the CPU": "The case names a class, a layout or an error that CPU tensors alone have.",
    "choice of another device": "The case asks for a choice that another device type alone offers, such as a library of CUDA.",
    "refused by torch": "torch itself refuses the device type: by its name, or because it has no dispatch key for it.",
    "random numbers": "The numbers decide the outcome, and a device draws others than the CPU.",
    "rounded elsewhere": "The CPU has a fused kernel that keeps more digits than the dtype, and these decide the result.",
}
# Of all cases of a device type in all dtypes, what cannot apply is no more.
MOST_THAT_CANNOT_APPLY = 0.025


class Verdict(str, enum.Enum):
    """The meaning of a result for the sweep."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "expected failure"
    CANNOT_APPLY = "cannot apply"
    SKIPPED = "refused by the CPU too"


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason, which is empty for what passed."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Where:
    """The device type, face and dtype of a sweep, each with a table in the lists that hold for it."""

    device: str = DEVICES[0]
    face: str = FACES[0]
    dtype: str = DTYPES[0]

    def tables(self) -> tuple[str, ...]:
        """The names of the tables."""
        return (EVERY, self.device, self.face, self.dtype)


class Reasons:
    """Reasons by case, in tables for a device type, a face or a dtype, as one file has them."""

    def __init__(self, tables: dict[str, dict[str, str]], file: Path, allowed: Iterable[str] = ()) -> None:
        if unknown := tables.keys() - {EVERY, *DEVICES, *FACES, *DTYPES}:
            raise ValueError(f"{file.name} has tables that are for no device type, face or dtype: {sorted(unknown)}")
        for table, reasons in tables.items():
            if empty := [name for name, reason in reasons.items() if not reason.strip()]:
                raise ValueError(f"{file.name} gives no reason for {empty} in [{table}]")
            if wrong := sorted(set(reasons.values()) - set(allowed)) if allowed else []:
                raise ValueError(f"{file.name} has reasons in [{table}] that are none of {list(allowed)}: {wrong}")
        self.tables = tables
        self.file = file

    def at(self, where: Where) -> dict[str, str]:
        """The reasons that hold there."""
        return {name: why for table in where.tables() for name, why in self.tables.get(table, {}).items()}


class Expectations:
    """Both lists."""

    def __init__(self, failing: dict[str, dict[str, str]], cannot_apply: dict[str, dict[str, str]]) -> None:
        self.failing = Reasons(failing, EXPECTED)
        self.cannot_apply = Reasons(cannot_apply, CANNOT_APPLY, REASONS)

    @classmethod
    def load(cls) -> Expectations:
        """Reads the committed files."""
        return cls(tomllib.loads(EXPECTED.read_text()), tomllib.loads(CANNOT_APPLY.read_text()))

    def judge(self, result: Result, where: Where) -> Judgement:
        """The verdict on `result` there."""
        if result.outcome in (Outcome.CRASH, Outcome.HANG):
            return Judgement(Verdict.FAILED, f"{result.outcome.value}: {result.error}")
        for reasons, verdict in ((self.cannot_apply, Verdict.CANNOT_APPLY), (self.failing, Verdict.EXPECTED)):
            reason = reasons.at(where).get(result.name)
            if reason is not None:
                if result.outcome is Outcome.FAIL:
                    return Judgement(verdict, reason)
                return Judgement(Verdict.FAILED, f"{result.outcome.value}, but {reasons.file.name} says that it fails: {reason}")
        if result.outcome is Outcome.FAIL:
            return Judgement(Verdict.FAILED, f"{result.failed} of {result.samples} samples: {result.error}")
        if result.outcome is Outcome.NOT_APPLICABLE:
            return Judgement(Verdict.SKIPPED, "CPU tensors refuse all samples" if result.samples else "no samples")
        return Judgement(Verdict.PASSED)
