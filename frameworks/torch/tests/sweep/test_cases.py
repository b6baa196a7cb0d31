"""The sweep as tests: one for each operator, module and optimizer of torch's databases.

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

from .catalog import cases
from .page import Page, moved
from .pool import Pool, Settings
from .result import Result
from .verdict import DEVICES, FACES, Expectations, Verdict, Where

MARGIN_SECONDS = 3600


class Runner:
    """A sweep in the background, whose results can be waited for one by one."""

    def __init__(self, names: list[str], settings: Settings) -> None:
        self.futures: dict[str, Future[Result]] = {name: Future() for name in names}
        # A daemon, so that an interrupted pytest ends; the workers end with their standard input.
        threading.Thread(target=self.sweep, args=(names, settings), daemon=True).start()

    def sweep(self, names: list[str], settings: Settings) -> None:
        """Runs all cases; an error of the sweep itself is every waiting test's."""
        try:
            for result in Pool(settings).run(names):
                self.futures[result.name].set_result(result)
        except Exception as error:
            for future in self.futures.values():
                if not future.done():
                    future.set_exception(error)


def place(dtype: str) -> Where:
    """The device, face and dtype of this sweep, for the list of expectations."""
    driver = os.environ.get("OUTRIGGER_DRIVER", "")
    match = re.search(r"\bface=(\w+)", driver)
    return Where(DEVICES[os.environ.get("OUTRIGGER_TORCH") == "mtia"], match[1] if match else FACES[0], dtype)


def is_of_the_page(where: Where) -> bool:
    """Whether this sweep is the one whose operators the page has with their places."""
    driver = os.environ.get("OUTRIGGER_DRIVER", "host")
    return where == Where() and driver in ("host", f"host?face={FACES[0]}")


@pytest.fixture(scope="module")
def where(request: pytest.FixtureRequest) -> Where:
    """The device, face and dtype of this sweep."""
    return place(request.config.option.sweep_dtype)


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, where: Where) -> Iterator[Runner]:
    """The sweep over those cases whose tests were selected."""
    selected = [item.callspec.params["name"] for item in request.session.items if item.function is test_case]
    samples = request.config.option.sweep_samples
    yield Runner(selected, Settings(where.device, jobs=os.cpu_count() or 1, dtype=where.dtype, samples=samples))


@pytest.fixture(scope="module")
def expectations() -> Expectations:
    """The committed expectations."""
    return Expectations.load()


@pytest.fixture(scope="module")
def places(where: Where) -> dict[str, set[str]]:
    """The places where operators ran, as the committed page has it; nothing for a sweep that it does not tell of."""
    return Page.load().places() if is_of_the_page(where) else {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case that has the dtype."""
    if metafunc.function is test_case:
        metafunc.parametrize("name", cases(getattr(torch, metafunc.config.option.sweep_dtype)))


@pytest.mark.timeout(MARGIN_SECONDS)
def test_case(
    name: str, runner: Runner, expectations: Expectations, where: Where, places: dict[str, set[str]], request: pytest.FixtureRequest
) -> None:
    result = runner.futures[name].result(MARGIN_SECONDS)
    judgement = expectations.judge(result, where)
    if judgement.verdict in (Verdict.SKIPPED, Verdict.CANNOT_APPLY):
        pytest.skip(judgement.reason)
    if judgement.verdict is Verdict.EXPECTED:
        pytest.xfail(judgement.reason)
    assert judgement.verdict is Verdict.PASSED, judgement.reason
    assert not (told := moved(result, places, request.config.option.sweep_samples is None)), told
