"""Reads `docs/torch-coverage.md`: what it says of cases, counts and places, for the checks that it is true.

Must not know more than the page: a check that takes anything from elsewhere would not notice an old page.
"""

from __future__ import annotations

import re
from pathlib import Path

from .document import DOCUMENT
from .places import ON_DEVICE
from .result import Result
from .verdict import Where

CODE = re.compile(r"`([^`]+)`")
COUNTS = ("operators", "modules", "optimizers")


class Page:
    """The page, by its headings."""

    def __init__(self, text: str) -> None:
        head, *sections = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
        self.sections = dict(zip(sections[::2], sections[1::2], strict=True))
        release = re.search(r"PyTorch ([\d.]+)'s", head)
        self.torch = release[1] if release else ""

    @classmethod
    def load(cls, path: Path = DOCUMENT) -> Page:
        """The committed page."""
        return cls(path.read_text())

    def table(self, section: str) -> list[list[str]]:
        """The rows of a section's tables, without their heads."""
        rows = []
        for line in self.sections[section].splitlines():
            if line.startswith("| "):
                rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        return rows[1:]

    def counts(self) -> dict[Where, tuple[int, ...]]:
        """The numbers of operators, modules and optimizers of each sweep."""
        return {Where(*row[:3]): tuple(map(int, row[4:7])) for row in self.table("Totals")}

    def failures(self) -> dict[str, set[str]]:
        """The reasons of what fails, by case."""
        return reasons(self.table("What fails"))

    def cannot_apply(self) -> dict[str, set[str]]:
        """The reasons of what cannot apply, by case."""
        return reasons(self.table("What cannot apply"))

    def places(self) -> dict[str, set[str]]:
        """For each operator of the first sweep those that ran on the CPU; an empty set for what ran on the device only."""
        text = self.sections["Where operators ran"].split("\nOn `")[0]
        native, _, mixed = text.partition("With operators on")
        found: dict[str, set[str]] = {name: set() for name in CODE.findall(native.split(":\n", 1)[1])}
        for line in mixed.splitlines():
            if line.startswith("| `"):
                name, others = line.split("|")[1:3]
                found[CODE.findall(name)[0]] = set(CODE.findall(others))
        return found

    def names(self) -> set[str]:
        """All cases that the page knows."""
        listed = set(self.places()) | set(CODE.findall(next(text for head, text in self.sections.items() if "Refused" in head)))
        for kind in COUNTS[1:]:
            listed |= {f"{kind[:-1]} {name}" for name in CODE.findall(self.sections[f"All {kind}"])}
        return listed | {name for name in (*self.failures(), *self.cannot_apply()) if name not in listed}


def reasons(rows: list[list[str]]) -> dict[str, set[str]]:
    """The third cells of a table by the first."""
    found: dict[str, set[str]] = {}
    for name, _, reason, *_ in rows:
        found.setdefault(name.strip("`"), set()).add(reason)
    return found


def moved(result: Result, places: dict[str, set[str]], all_samples: bool) -> str:
    """The calls of an operator that ran elsewhere than the page says, if any. `all_samples` says that each sample has run."""
    known = places.get(result.name)
    if known is None:
        return ""
    ran = {name for place, calls in result.places.items() if place not in ON_DEVICE for name in calls}
    if ran - known:
        return f"ran {', '.join(sorted(ran - known))} on the CPU, of which {DOCUMENT.name} knows nothing"
    if all_samples and known - ran:
        return f"ran {', '.join(sorted(known - ran))} on the device, but {DOCUMENT.name} says on the CPU: write it anew"
    return ""
