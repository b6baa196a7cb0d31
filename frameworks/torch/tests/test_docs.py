"""docs/torch.md says what is true: its tests exist, its rows are full, and its list of what is left out is complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS.parents[2] / "docs" / "torch.md").read_text()


def table(title: str) -> list[list[str]]:
    """The rows of the first table below a title, without its head."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_feature_names_a_test_that_exists():
    rows = table("Features")
    assert len(rows) > 30
    for feature, *others, test in rows:
        assert len(others) == 4 and all(others), f"{feature}: a cell is empty"
        match = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", test)
        assert match, f"{feature}: {test!r} is no test"
        tree = ast.parse((TESTS / match[1]).read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert match[2] in defined, f"{feature}: {match[1]} has no {match[2]}"


def test_what_is_not_there_has_a_reason():
    for feature, cuda, xpu, openreg, ours, _test in table("Features"):
        for cell in (cuda, xpu, openreg, ours):
            assert re.match(r"(yes|no|part|not tried|-)\b|-$", cell), f"{feature}: {cell!r}"
        if not ours.startswith("yes"):
            assert re.match(r"(no|part): .", ours), f"{feature}: {ours!r} gives no reason"


def test_the_list_of_what_is_left_out_is_complete(module):
    reasons = {}
    for names, reason in table("What torch.outrigger leaves out"):
        assert reason, f"{names}: no reason"
        reasons.update(dict.fromkeys(re.findall(r"`(\w+)`", names), reason))
    theirs = {*torch.cuda.__all__, *torch.xpu.__all__}
    missing = {name for name in theirs if not hasattr(module, name)}
    # torch.mtia has some of them by itself.
    there = {name for name in reasons if module is torch.mtia and hasattr(module, name)}
    assert missing | there == set(reasons), f"undocumented {missing - set(reasons)}, not left out {set(reasons) - missing}"


def test_every_name_is_there_and_sensors_are_refused(module, device):
    from torch_outrigger import _device

    for name in {*module.__all__, *_device.__all__}:
        assert getattr(module, name) is not None
    free, total = module.mem_get_info(device)
    assert 0 <= module.device_memory_used(device) <= total
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"):
        with pytest.raises(NotImplementedError, match=f"{name} of .*: the driver contract has no sensors"):
            getattr(module, name)(device)


def test_every_reason_for_leaving_out_mtia_is_listed():
    listed = {reason for _what, reason in table("As torch.mtia")}
    given = set()
    for path in TESTS.glob("test_*.py"):
        given |= set(re.findall(r'not_on_mtia\("([^"]+)"\)', path.read_text()))
    assert given and given <= listed, given - listed
