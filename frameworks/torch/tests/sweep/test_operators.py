"""The sweep as tests: one for each operator of torch's operator database.

Workers run ahead while pytest reports, in the order in which pytest asks. The device is that of
`OUTRIGGER_DRIVER` and `OUTRIGGER_TORCH`, as for all tests beside; `--sweep-dtype` and `--sweep-samples` choose the samples.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import torch

from .catalog import operators
from .pool import Pool, Settings
from .result import Result
from .verdict import Expectations, Verdict

MARGIN_SECONDS = 3600


class Runner:
    """A sweep in the background, whose results can be waited for one by one."""

    def __init__(self, names: list[str], settings: Settings) -> None:
        self.futures: dict[str, Future[Result]] = {name: Future() for name in names}
        # A daemon, so that an interrupted pytest ends; the workers end with their standard input.
        threading.Thread(target=self.sweep, args=(names, settings), daemon=True).start()

    def sweep(self, names: list[str], settings: Settings) -> None:
        """Runs all operators; an error of the sweep itself is every waiting test's."""
        try:
            for result in Pool(settings).run(names):
                self.futures[result.name].set_result(result)
        except Exception as error:
            for future in self.futures.values():
                if not future.done():
                    future.set_exception(error)


def face() -> str:
    """The face of the host device under test, as its name in the list of expectations."""
    match = re.search(r"\bface=(\w+)", os.environ.get("OUTRIGGER_DRIVER", ""))
    return match[1] if match else "unified"


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """The sweep over those operators whose tests were selected."""
    selected = [item.callspec.params["name"] for item in request.session.items if item.function is test_operator]
    options = request.config.option
    yield Runner(
        selected,
        Settings(
            "mtia" if os.environ.get("OUTRIGGER_TORCH") == "mtia" else "outrigger",
            jobs=os.cpu_count() or 1,
            dtype=options.sweep_dtype,
            samples=options.sweep_samples,
        ),
    )


@pytest.fixture(scope="module")
def expectations() -> Expectations:
    """The committed expectations."""
    return Expectations.load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operator that has the dtype."""
    if metafunc.function is test_operator:
        metafunc.parametrize("name", operators(getattr(torch, metafunc.config.option.sweep_dtype)))


@pytest.mark.timeout(MARGIN_SECONDS)
def test_operator(name: str, runner: Runner, expectations: Expectations, request: pytest.FixtureRequest) -> None:
    result = runner.futures[name].result(MARGIN_SECONDS)
    judgement = expectations.judge(result, face(), request.config.option.sweep_dtype)
    if judgement.verdict is Verdict.SKIPPED:
        pytest.skip(judgement.reason)
    if judgement.verdict is Verdict.EXPECTED:
        pytest.xfail(judgement.reason)
    assert judgement.verdict is Verdict.PASSED, judgement.reason
