"""Tests of the sweep itself: it sees what is wrong, survives crashes and hangs, and keeps its list honest."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from . import compare, document
from .compare import Mismatch
from .operator import ELEMENTWISE, spread
from .pool import Pool, Settings, Unusable
from .result import Outcome, Result, Sweep
from .verdict import EVERY_FACE, Expectations, Verdict

BROKEN = [
    "good wrong wrong_gradient wrong_dtype writes_argument raises refused random",
    "random_infinite crash exit hang noisy imprecise precise last",
]
NAMES = " ".join(BROKEN).split()


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """What the sweep says of the operators that misbehave, with one worker so that each meets the next."""
    settings = Settings("cpu", jobs=1, catalog="sweep.broken", silence=3.0)
    return {result.name: result for result in Pool(settings).run(NAMES)}


@pytest.mark.timeout(600)
def test_every_operator_has_one_result(results: dict[str, Result]) -> None:
    assert sorted(results) == sorted(NAMES)


@pytest.mark.parametrize("name", ["good", "random", "noisy", "precise", "last"])
def test_right_operators_pass(results: dict[str, Result], name: str) -> None:
    assert (results[name].outcome, results[name].error) == (Outcome.PASS, "")
    assert results[name].samples == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong", "sample 0 (forward): result: Tensor-likes are not close!"),
        ("wrong_gradient", "sample 0 (backward): gradient[0]: Tensor-likes are not close!"),
        ("wrong_dtype", "result has dtype torch.float64, not torch.float32"),
        ("writes_argument", "argument[0]: Tensor-likes are not close!"),
        ("raises", "sample 0 (forward): RuntimeError: not for 1 dimensions; nor others"),
        ("random_infinite", "result is not finite"),
        # The same on both sides, so that only the reference tells.
        ("imprecise", "sample 0 (forward): result against float64: Tensor-likes are not close!"),
    ],
)
def test_wrong_operators_fail(results: dict[str, Result], name: str, words: str) -> None:
    result = results[name]
    assert (result.outcome, result.failed, result.samples) == (Outcome.FAIL, 2, 2)
    assert words in result.error


def test_random_operators_are_compared_by_form(results: dict[str, Result]) -> None:
    assert results["random"].random == 2
    assert results["good"].random == 0


def test_fewer_samples_are_the_first_and_the_last() -> None:
    assert spread([1, 2, 3, 4, 5], 2) == [1, 5]
    assert spread([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert spread([1, 2, 3], 1) == [1]
    assert spread([1, 2], 7) == [1, 2]
    settings = Settings("cpu", jobs=1, catalog="sweep.broken", samples=1)
    assert [result.samples for result in Pool(settings).run(["good", "last"])] == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_element_by_element(dtype: torch.dtype) -> None:
    reference = torch.linspace(1, 2, 70001, dtype=torch.float64)
    right = reference.to(dtype)
    compare.near("result", reference, right, ELEMENTWISE)
    for wrong in (right.clone().index_fill_(0, torch.arange(35), 0), right * 1.1):
        with pytest.raises(Mismatch, match="against float64"):
            compare.near("result", reference, wrong, ELEMENTWISE)
    too_large = torch.tensor([1e5, -1e5], dtype=torch.float64)
    compare.near("result", too_large, too_large.to(dtype), ELEMENTWISE)


def test_what_cpu_tensors_refuse_is_not_applicable(results: dict[str, Result]) -> None:
    assert (results["refused"].outcome, results["refused"].refused_by_cpu) == (Outcome.NOT_APPLICABLE, 2)


@pytest.mark.parametrize(
    ("name", "outcome", "how"),
    [
        ("crash", Outcome.CRASH, "SIGABRT"),
        ("exit", Outcome.CRASH, "exit status 7"),
        ("hang", Outcome.HANG, "silent for 3 s"),
    ],
)
def test_crashes_and_hangs_cost_one_operator(
    results: dict[str, Result], name: str, outcome: Outcome, how: str
) -> None:
    assert results[name].outcome is outcome
    assert results[name].error.startswith(f"sample 0 (forward): {how}")
    # The worker says where it was when it ended, if it could.
    assert name == "exit" or "broken.py" in results[name].error


@pytest.mark.timeout(600)
def test_a_missing_device_is_no_failure_of_operators() -> None:
    with pytest.raises(Unusable, match="cannot be used"):
        list(Pool(Settings("vulkan", jobs=1, catalog="sweep.broken")).run(["good"]))


def judge(outcome: Outcome, reasons: dict[str, str]) -> Verdict:
    """The verdict on `op` with `outcome`."""
    expectations = Expectations({EVERY_FACE: reasons, "unified": {}})
    return expectations.judge(Result("op", outcome, samples=1), "unified").verdict


def test_expectations_excuse_failures_only() -> None:
    reasons = {"op": "a reason"}
    assert judge(Outcome.FAIL, {}) is Verdict.FAILED
    assert judge(Outcome.FAIL, reasons) is Verdict.EXPECTED
    assert judge(Outcome.PASS, {}) is Verdict.PASSED
    assert judge(Outcome.PASS, reasons) is Verdict.FAILED
    assert judge(Outcome.NOT_APPLICABLE, reasons) is Verdict.FAILED
    assert judge(Outcome.CRASH, reasons) is Verdict.FAILED
    assert judge(Outcome.HANG, reasons) is Verdict.FAILED


def test_expectations_are_checked_when_read() -> None:
    with pytest.raises(ValueError, match="no reason"):
        Expectations({EVERY_FACE: {"op": " "}})
    with pytest.raises(ValueError, match="faces and dtypes that do not exist"):
        Expectations({"unifed": {}})


def test_the_page_survives_saving_and_names_every_failure() -> None:
    results = [
        Result("a|b", Outcome.FAIL, "float32", samples=3, failed=1, error="x"),
        Result("c", Outcome.PASS, "float32", samples=2, places={"framework": {"aten::c": 4}, "device": {"fill": 1}}),
    ]
    sweep = Sweep("outrigger", "unified", "2.15.0", results)
    with tempfile.TemporaryDirectory() as folder:
        sweep.save(Path(folder) / "sweep.json")
        assert Sweep.load(Path(folder) / "sweep.json") == sweep
    page = document.render([sweep], Expectations({EVERY_FACE: {"a|b": "why"}}))
    assert "| `a\\|b` | unified | 1 of 3 | why | `x` |" in page
    assert "| `c` | `fill` | `aten::c` |" in page
    assert "On the device only, forward and backward (0)" in page


def test_the_committed_page_lists_what_is_expected_to_fail() -> None:
    expectations = Expectations.load()
    page = document.DOCUMENT.read_text()
    listed = document.listed_failures(page)
    for face in document.listed_faces(page):
        assert listed.get(face, {}) == expectations.reasons(face)
