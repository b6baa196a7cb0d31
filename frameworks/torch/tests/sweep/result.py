"""The findings of a sweep about one case, and their way between processes and into files.

Imports neither torch nor the device: the parent process must outlive whatever they do.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ERROR_LENGTH = 400


class Outcome(str, enum.Enum):
    """The outcome of a case in the sweep."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    NOT_APPLICABLE = "n/a"


@dataclass
class Result:
    """One case's outcome; the counts are of samples."""

    name: str
    outcome: Outcome
    dtype: str = ""
    samples: int = 0
    failed: int = 0
    refused_by_cpu: int = 0
    """Samples that CPU tensors cannot compute either, so that there is nothing to compare with."""
    random: int = 0
    """Samples that differ and draw random numbers: compared by shape, dtype and finiteness."""
    error: str = ""
    """The first failure, in one line."""
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    """Calls by place and operator: `device`, `compiled`, `host_kernel` or `framework`."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """The result that `to_json` wrote."""
        return cls(**{**values, "outcome": Outcome(values["outcome"])})


@dataclass
class Sweep:
    """The results of one sweep, with the device that they belong to."""

    device: str
    face: str
    torch: str
    results: list[Result]
    dtype: str = "float32"
    samples: int | None = None
    """The number of samples of each case; None for all."""

    def count(self) -> Counter[Outcome]:
        """The number of cases by outcome."""
        return Counter(result.outcome for result in self.results)

    def save(self, path: Path) -> None:
        """Writes the sweep as JSON."""
        values = {**vars(self), "results": [result.to_json() for result in self.results]}
        path.write_text(json.dumps(values, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Sweep:
        """Reads what `save` wrote."""
        values = json.loads(path.read_text())
        return cls(**{**values, "results": [Result.from_json(one) for one in values["results"]]})


def one_line(lines: Iterable[str]) -> str:
    """`lines` as one line of bounded length, for tables."""
    text = "; ".join(stripped for line in lines if (stripped := line.strip()))
    return text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 3] + "..."
