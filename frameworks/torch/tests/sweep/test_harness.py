"""Tests of the sweep itself: it sees what is wrong, survives crashes and hangs, and keeps its list honest."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
import torch

from . import compare, document
from .cases import ELEMENTWISE
from .catalog import cases
from .check import spread
from .compare import Mismatch
from .page import Page, moved
from .pool import Pool, Settings, Unusable
from .result import Outcome, Result, Sweep
from .verdict import DEVICES, DTYPES, EVERY, FACES, MOST_THAT_CANNOT_APPLY, Expectations, Verdict, Where

BROKEN = [
    "good wrong wrong_gradient wrong_dtype writes_argument raises refused random",
    "random_infinite crash exit hang noisy imprecise precise last",
]
NAMES = " ".join(BROKEN).split()
KINDS = [
    "module good",
    "module wrong copy",
    "module wrong file",
    "module wrong layout",
    "module wrong gradient",
    "module refuses nothing",
    "optimizer good",
    "optimizer fast",
    "optimizer forgetful",
    "optimizer silent",
]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """The results of the cases that misbehave, with one worker so that each meets the next."""
    settings = Settings("cpu", jobs=1, catalog="sweep.broken", silence=3.0)
    return {result.name: result for result in Pool(settings).run(NAMES + KINDS)}


@pytest.mark.timeout(600)
def test_every_case_has_one_result(results: dict[str, Result]) -> None:
    assert sorted(results) == sorted(NAMES + KINDS)


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("module good", ""),
        ("module wrong copy", "sample 0 (forward): result"),
        ("module wrong file", "sample 0 (copies): state of a copy (file)['factor']"),
        ("module wrong layout", "sample 0 (non-contiguous): result"),
        ("module wrong gradient", "sample 0 (backward): gradient[0]"),
        ("module refuses nothing", "sample 0 (errors): not refused: RuntimeError never"),
        ("optimizer good", ""),
        ("optimizer fast", "sample 0 (forward): parameters after steps[0][0]"),
        ("optimizer forgetful", "sample 0 (state): parameters after one more step, state of a file"),
        ("optimizer silent", "sample 0 (closure): loss"),
    ],
)
def test_modules_and_optimizers_are_seen_through(results: dict[str, Result], name: str, words: str) -> None:
    assert results[name].outcome is (Outcome.FAIL if words else Outcome.PASS), results[name].error
    assert results[name].error.startswith(words)


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


def judge(outcome: Outcome, failing: dict[str, str], cannot_apply: dict[str, str]) -> Verdict:
    """The verdict on `op` with `outcome`."""
    expectations = Expectations({EVERY: failing, FACES[0]: {}}, {EVERY: cannot_apply})
    return expectations.judge(Result("op", outcome, samples=1), Where()).verdict


@pytest.mark.parametrize(
    ("failing", "cannot_apply", "excused"),
    [({"op": "a reason"}, {}, Verdict.EXPECTED), ({}, {"op": "refused by torch"}, Verdict.CANNOT_APPLY)],
)
def test_lists_excuse_failures_only(failing: dict[str, str], cannot_apply: dict[str, str], excused: Verdict) -> None:
    assert judge(Outcome.FAIL, {}, {}) is Verdict.FAILED
    assert judge(Outcome.PASS, {}, {}) is Verdict.PASSED
    assert judge(Outcome.FAIL, failing, cannot_apply) is excused
    for outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE, Outcome.CRASH, Outcome.HANG):
        assert judge(outcome, failing, cannot_apply) is Verdict.FAILED


def test_lists_hold_where_they_say() -> None:
    expectations = Expectations({"mtia": {"op": "why"}, "bool": {"op": "why"}}, {})
    failed = Result("op", Outcome.FAIL, samples=1)
    for where in (Where("mtia"), Where(dtype="bool")):
        assert expectations.judge(failed, where).verdict is Verdict.EXPECTED
    assert expectations.judge(failed, Where("outrigger", "discrete", "int64")).verdict is Verdict.FAILED


def test_lists_are_checked_when_read() -> None:
    with pytest.raises(ValueError, match="no reason"):
        Expectations({EVERY: {"op": " "}}, {})
    with pytest.raises(ValueError, match="for no device type, face or dtype"):
        Expectations({"unifed": {}}, {})
    with pytest.raises(ValueError, match=r"are none of .*names the CPU.*: \['it is hard'\]"):
        Expectations({}, {EVERY: {"op": "it is hard"}})


@pytest.mark.parametrize("device", DEVICES)
def test_little_cannot_apply(device: str) -> None:
    lists = Expectations.load().cannot_apply
    known = {dtype: cases(getattr(torch, dtype)) for dtype in DTYPES}
    for face in FACES:
        left_out = sum(len(lists.at(Where(device, face, dtype)).keys() & known[dtype]) for dtype in DTYPES)
        assert left_out <= MOST_THAT_CANNOT_APPLY * sum(map(len, known.values())), face


def test_lists_name_cases_that_exist() -> None:
    known = {dtype: set(cases(getattr(torch, dtype))) for dtype in DTYPES}
    for one in (Expectations.load().cannot_apply, Expectations.load().failing):
        for table, reasons in one.tables.items():
            unknown = reasons.keys() - known.get(table, set().union(*known.values()))
            assert not unknown, f"[{table}] of {one.file.name}: {sorted(unknown)}"


def pages() -> str:
    """A page of two sweeps."""
    results = [
        Result("a|b", Outcome.FAIL, "float32", samples=3, failed=1, error="x"),
        Result("c", Outcome.PASS, "float32", samples=2, places={"framework": {"c": 4}, "device": {"fill": 1}}),
        Result("d", Outcome.PASS, "float32", samples=2, places={"device": {"fill": 1}}),
        Result("e", Outcome.NOT_APPLICABLE, "float32"),
        Result("module m train", Outcome.PASS, "float32", samples=2),
        Result("optimizer o fused", Outcome.FAIL, "float32", samples=2, error="y"),
    ]
    sweeps = [Sweep(device, "unified", "2.15.0", results) for device in DEVICES]
    return document.render(sweeps, Expectations({EVERY: {"a|b": "why"}}, {EVERY: {"optimizer o fused": "random numbers"}}))


def test_a_page_is_read_as_it_was_written() -> None:
    page = Page(pages())
    assert page.torch == "2.15.0"
    assert page.counts() == {Where(device): (4, 1, 1) for device in DEVICES}
    assert page.failures() == {"a|b": {"why"}}
    assert page.cannot_apply() == {"optimizer o fused": {"random numbers"}}
    assert page.places() == {"c": {"c"}, "d": set()}
    assert page.names() == {"a|b", "c", "d", "e", "module m train", "optimizer o fused"}
    # Four operators of which one fails and one is refused, a module; what cannot apply is not counted.
    assert "| outrigger | unified | float32 | all | 4 | 1 | 1 | 3 | 1 | 0 | 0 | 1 | 1 | 75.00 % |" in pages()


def test_an_operator_that_moves_is_noticed() -> None:
    places = Page(pages()).places()
    on_cpu = {"framework": {"c": 1}}
    assert moved(Result("c", Outcome.PASS, places=on_cpu), places, True) == ""
    assert "ran c on the CPU" in moved(Result("d", Outcome.PASS, places=on_cpu), places, False)
    assert "ran c on the device" in moved(Result("c", Outcome.PASS), places, True)
    assert moved(Result("c", Outcome.PASS), places, False) == ""


def test_sweeps_survive_saving() -> None:
    sweep = Sweep("mtia", "discrete", "2.15.0", [Result("a", Outcome.PASS, places={"device": {"fill": 1}})], "bool", 2)
    with tempfile.TemporaryDirectory() as folder:
        sweep.save(Path(folder) / "sweep.json")
        assert Sweep.load(Path(folder) / "sweep.json") == sweep


def test_the_committed_page_is_of_the_installed_torch() -> None:
    page = Page.load()
    assert page.torch == torch.__version__.split("+")[0]
    assert page.names() == set(cases())
    for device, face, dtype in itertools.product(DEVICES, FACES, DTYPES):
        kinds = [document.kind(name) for name in cases(getattr(torch, dtype))]
        assert page.counts()[Where(device, face, dtype)] == tuple(map(kinds.count, document.KINDS))


def test_the_committed_page_lists_what_the_sweep_expects() -> None:
    """The sweep itself holds the lists true, so that the page is."""
    page, lists = Page.load(), Expectations.load()
    for listed, expected in ((page.failures(), lists.failing), (page.cannot_apply(), lists.cannot_apply)):
        wanted: dict[str, set[str]] = {}
        for reasons in expected.tables.values():
            for name, why in reasons.items():
                wanted.setdefault(name, set()).add(why)
        assert listed == wanted
