"""The parent of the workers: deals cases out, and outlives what they do.

A worker that dies or falls silent costs the case that it was at; another worker takes its place.
Imports neither torch nor the device.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .result import Outcome, Result, one_line

# Importing torch and databases takes 8 s on an idle machine.
START_SECONDS = 300.0
# The slowest single stage of a sample takes well under a second on an idle machine.
SILENCE_SECONDS = 60.0
CASE_SECONDS = 600.0
END_SECONDS = 10.0
LOG_LINES = 6
LOG_BYTES = 65536


class Unusable(RuntimeError):
    """No worker can be started, or none finds the device; the message says why."""


@dataclass
class Settings:
    """Settings of all workers of a sweep."""

    device: str
    jobs: int = 2
    catalog: str = "sweep.catalog"
    silence: float = SILENCE_SECONDS
    limit: float = CASE_SECONDS
    dtype: str = "float32"
    samples: int | None = None
    """The number of samples of a case; None for all."""
    environment: dict[str, str] = field(default_factory=dict)


class Worker:
    """One worker process, and what it was last heard of."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log: IO[bytes] = tempfile.TemporaryFile()
        options = ["--device", settings.device, "--catalog", settings.catalog, "--dtype", settings.dtype]
        if settings.samples is not None:
            options.append(f"--samples={settings.samples}")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweep.worker", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=Path(__file__).resolve().parent.parent,
            env={**os.environ, **settings.environment},
        )
        assert self.process.stdin is not None and self.process.stdout is not None, "both are pipes"
        self.requests, self.answers = self.process.stdin, self.process.stdout
        os.set_blocking(self.answers.fileno(), False)
        self.partial = b""
        self.ready = False
        self.case: str | None = None
        self.sample, self.stage = 0, "start"
        self.heard = self.started = time.monotonic()

    def give(self, case: str) -> bool:
        """Hands the worker its next case; false if it is gone already."""
        try:
            self.requests.write(f"{case}\n".encode())
            self.requests.flush()
        except BrokenPipeError:
            return False
        self.case = case
        self.sample, self.stage = 0, "samples"
        self.heard = self.started = time.monotonic()
        return True

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The answers that have come, and whether more can come."""
        try:
            read = os.read(self.answers.fileno(), 1 << 20)
        except BlockingIOError:
            return [], True
        *lines, self.partial = (self.partial + read).split(b"\n")
        self.heard = time.monotonic()
        return [json.loads(line) for line in lines], bool(read)

    def overdue(self) -> str:
        """The reason why the worker must be ended; empty if it is in time."""
        now = time.monotonic()
        if not self.ready:
            return f"did not start in {START_SECONDS:.0f} s" if now - self.started > START_SECONDS else ""
        if self.case is None:
            return ""
        if now - self.heard > self.settings.silence:
            return f"silent for {self.settings.silence:g} s"
        if now - self.started > self.settings.limit:
            return f"not done in {self.settings.limit:g} s"
        return ""

    def end(self) -> str:
        """Ends the process and says how it ended."""
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()
        code = self.process.returncode
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def last_words(self) -> str:
        """The end of the worker's log, in one line."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - LOG_BYTES))
        text = self.log.read().decode(errors="replace")
        # The frames of a C++ stack say nothing without symbols, and hide what was said above them.
        lines = [line for line in text.splitlines() if not line.startswith(("frame #", "<omitting", "Exception raised from"))]
        # Python's traceback after a signal comes innermost call first, below what C++ said.
        heads = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
        if heads:
            said, trace = lines[: heads[-1]], lines[heads[-1] + 1 :]
            calls = [re.sub(r'"[^"]*/', '"', line) for line in trace if line.strip().startswith("File ")]
            return one_line(said[-LOG_LINES:] + calls[:3])
        return one_line(lines[-LOG_LINES:])


class Pool:
    """Runs cases on several workers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.selector = selectors.DefaultSelector()
        self.workers: list[Worker] = []
        self.waiting: deque[str] = deque()
        self.done: deque[Result] = deque()
        self.torch = ""

    def run(self, cases: Iterable[str]) -> Iterator[Result]:
        """Checks `cases`; results come in the order in which they are had."""
        self.waiting.extend(cases)
        try:
            while self.waiting or self.busy():
                self.fill()
                for key, _ in self.selector.select(timeout=1.0):
                    self.listen(key.data)
                self.end_overdue()
                while self.done:
                    yield self.done.popleft()
        finally:
            for worker in self.workers[:]:
                self.retire(worker)
            self.selector.close()

    def busy(self) -> list[Worker]:
        """The workers that have a case."""
        return [worker for worker in self.workers if worker.case is not None]

    def fill(self) -> None:
        """Starts workers while there is work for them."""
        wanted = min(self.settings.jobs, len(self.waiting) + len(self.busy()))
        while len(self.workers) < wanted:
            worker = Worker(self.settings)
            self.workers.append(worker)
            self.selector.register(worker.answers, selectors.EVENT_READ, worker)

    def listen(self, worker: Worker) -> None:
        """Takes what a worker has sent."""
        answers, more = worker.read()
        for answer in answers:
            if "sample" in answer:
                worker.sample, worker.stage = answer["sample"], answer["stage"]
            elif "result" in answer:
                worker.case = None
                self.done.append(Result.from_json(answer["result"]))
                if answer["unwell"]:
                    # The state of the device would be blamed on the cases after this one.
                    self.retire(worker)
                    return
                self.deal(worker)
            elif "ready" in answer:
                worker.ready, self.torch = True, answer["torch"]
                self.deal(worker)
            else:
                raise Unusable(f"the device {self.settings.device!r} cannot be used: {answer['unusable']}")
        if not more:
            self.bury(worker)

    def deal(self, worker: Worker) -> None:
        """Gives a worker its next case."""
        if self.waiting and worker.give(self.waiting[0]):
            self.waiting.popleft()

    def bury(self, worker: Worker) -> None:
        """Accounts for a worker that ended by itself."""
        how = self.retire(worker)
        if not worker.ready:
            raise Unusable(f"a worker ended before it was ready ({how}): {worker.last_words()}")
        if worker.case is not None:
            self.lose(worker, Outcome.CRASH, how)

    def end_overdue(self) -> None:
        """Ends the workers that hang."""
        for worker in self.workers[:]:
            if reason := worker.overdue():
                # The signal makes it log where it is.
                worker.process.send_signal(signal.SIGABRT)
                self.retire(worker)
                if not worker.ready:
                    raise Unusable(f"a worker {reason}: {worker.last_words()}")
                self.lose(worker, Outcome.HANG, reason)

    def lose(self, worker: Worker, outcome: Outcome, how: str) -> None:
        """Notes the case that took a worker down."""
        assert worker.case is not None, "only a worker at work loses a case"
        error = f"sample {worker.sample} ({worker.stage}): {how}; {worker.last_words()}"
        seconds = round(time.monotonic() - worker.started, 3)
        samples = worker.sample + 1
        result = Result(worker.case, outcome, samples=samples, failed=1, error=error, seconds=seconds)
        self.done.append(result)

    def retire(self, worker: Worker) -> str:
        """Takes a worker out and ends it; says how it ended."""
        self.workers.remove(worker)
        self.selector.unregister(worker.answers)
        return worker.end()
