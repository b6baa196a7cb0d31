"""The programs that are measured: Outrigger's own and the peers', each in a process of its own.

`cargo xtask bench` builds and installs them and names what it could not, in a file that `read` takes. They
speak the lines of native/wire.h. All run on the same two CPUs. A program starts when it is first needed and
stays; one that fails or falls silent is ended, and takes no further part.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .harness import Missing, Parts, SubjectFailure

CPUS = sorted(os.sched_getaffinity(0))[:2]  # the two CPUs that all programs run on
START_SECONDS = 300.0  # for the first line of a program: some compile their kernels first
ANSWER_SECONDS = 60.0  # for any other line
PAUSE_SECONDS = 0.001  # after a turn: threads of a program that still look for work have gone to sleep by then


class Subject:
    """One program."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("w") as errors, pinned(CPUS):
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                text=True,
                bufsize=1,
            )
        try:
            hello = self.read(START_SECONDS)
        except SubjectFailure:
            self.end()
            raise
        self.version: str = hello["version"]
        self.measures: set[str] = set(hello["measures"])

    def timer(self, measure: str) -> Callable[[int], float]:
        """Has the program run `measure` so many times; the seconds that it says it took."""
        return partial(self.ask, measure)

    def ask(self, measure: str, repetitions: int) -> float:
        """One question and its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{measure} {repetitions}\n")
            self.process.stdin.flush()
        except OSError as error:
            raise SubjectFailure(self.last_words()) from error
        seconds = self.read(ANSWER_SECONDS)["ns"] / 1e9
        time.sleep(PAUSE_SECONDS)
        return float(seconds)

    def read(self, limit: float) -> dict[str, Any]:
        """The next line, within `limit` seconds."""
        stdout = self.process.stdout
        assert stdout is not None
        # One line answers one question, so that nothing can wait unseen in the reader's buffer.
        ready, _, _ = select.select([stdout], [], [], limit)
        if not ready:
            self.end()
            raise SubjectFailure(f"it gave no answer within {limit:g} s")
        line = stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            raise SubjectFailure(self.last_words(line)) from None
        if "error" in answer:
            raise SubjectFailure(answer["error"])
        return answer  # type: ignore[no-any-return]

    def last_words(self, line: str = "") -> str:
        """The reason why there is no answer."""
        errors = self.log.read_text(errors="replace").strip().splitlines()
        words = line.strip() or (errors[-1] if errors else "")
        return words or f"it ended with status {self.process.wait()}"

    def end(self) -> None:
        """Ends the program."""
        self.process.kill()
        self.process.wait()


class Subjects:
    """All programs that there could be, and those that run."""

    def __init__(self, entries: list[dict[str, Any]], folder: Path) -> None:
        self.entries = {entry["name"]: entry for entry in entries}
        self.folder = folder
        self.running: dict[str, Subject | Missing] = {}
        self.calibrated = 0

    def get(self, name: str) -> Subject | Missing:
        """The running program of that name, or why there is none."""
        if name not in self.running:
            self.running[name] = self.start(name)
        return self.running[name]

    def start(self, name: str) -> Subject | Missing:
        """Starts a program. Those that can spin are told how long."""
        entry = self.entries.get(name)
        if entry is None:
            return Missing("it was not prepared")
        if "missing" in entry:
            return Missing(entry["missing"])
        command = [*entry["command"], str(self.passes())] if entry["spins"] else entry["command"]
        try:
            return Subject(name, command, entry["environment"], self.folder / f"{name}.log")
        except (SubjectFailure, OSError) as failure:
            return Missing(str(failure))

    def passes(self) -> int:
        """The passes of a node that lasts 1.4 us on this machine."""
        if self.calibrated == 0:
            entry = self.entries["c_loop"]
            if "missing" in entry:
                raise SystemExit(f"error: the plain C loop is missing: {entry['missing']}")
            ruler = Subject("ruler", [*entry["command"], "1"], entry["environment"], self.folder / "ruler.log")
            many = 100_000
            # The fastest of some: the others were disturbed.
            seconds = min(ruler.ask("passes", many) for _ in range(15)) / many
            ruler.end()
            self.calibrated = max(1, round(1.4e-6 / seconds))
        return self.calibrated

    def parts(self, name: str, **measures: str) -> Parts | Missing:
        """The parts of a subject's figure, by the program's names of them."""
        subject = self.get(name)
        if isinstance(subject, Missing):
            return subject
        return {part: subject.timer(measure) for part, measure in measures.items()}

    def contest(self, names: list[str], **measures: str) -> dict[str, Parts | Missing]:
        """The same parts of several subjects."""
        return {name: self.parts(name, **measures) for name in names}

    def versions(self) -> dict[str, str]:
        """The versions of all that runs, as each program names itself."""
        return {name: it.version for name, it in self.running.items() if isinstance(it, Subject)}

    def end(self) -> None:
        """Ends all programs."""
        for subject in self.running.values():
            if isinstance(subject, Subject):
                subject.end()


def read(file: Path) -> Subjects:
    """The programs that `cargo xtask bench` has prepared."""
    return Subjects(json.loads(file.read_text()), file.parent)


@contextmanager
def pinned(cpus: list[int]) -> Iterator[None]:
    """Processes that are started within run on these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_cpus() -> Iterator[None]:
    """Keeps each of the two CPUs busy with a process of its own."""
    loads = []
    try:
        for cpu in CPUS:
            with pinned([cpu]):
                loads.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()
