"""The page of `outrigger conformance --html`, as someone uses it who sees it for the first time.

The driver under test loses its device in one test; the page must lead there, and to the same failure again.
"""

import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VICTIM = "core.null.fill_pattern"


@pytest.fixture(scope="module")
def report(tmp_path_factory, request):
    """The page of a run on a faulty driver."""
    folder = tmp_path_factory.mktemp("conformance")
    # The driver's name is text that must not become markup.
    driver = folder / "lib<i>faulty.so"
    subprocess.run(
        ["cc", "-fPIC", "-pthread", "-shared", "-fvisibility=hidden", "-DFAULT=LOSES_DEVICE",
         "-I", ROOT / "include", "-I", ROOT / "examples/driver-c", "-o", driver,
         ROOT / "cli/tests/drivers/faulty.c"],
        check=True, timeout=120,
    )
    page = folder / "report.html"
    done = subprocess.run(
        [request.config.getoption("--outrigger"), "conformance", "--driver", f"{driver}?devices=1",
         "--filter", "core.null", "--filter", "core.open", "--html", page],
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return page


def ids(page):
    return page.locator("#list .id").all_inner_texts()


def test_the_failure_comes_first_with_its_rule_and_the_way_to_see_it_again(opened, report):
    page = opened(report)
    assert page.inner_text("#sentence") == "The driver is not conformant."
    assert ids(page)[0] == VICTIM
    # Shown without a click: what was found, the text of the rule, the command.
    detail = page.inner_text("#detail")
    assert VICTIM in detail and "DEVICE_LOST" in detail
    assert "is checked, and answered with the code that base.h documents" in detail
    assert "lib<i>faulty.so" in page.inner_text("#driver")
    command = page.inner_text("#again")
    # As it stands there.
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and VICTIM in done.stdout, done.stdout + done.stderr
    assert "of the suite's" in done.stdout and "1 device-lost" in done.stdout, done.stdout


def test_tests_are_found_by_status_and_by_words(opened, report):
    page = opened(report)
    every = ids(page)
    page.click("#chips [data-status=device-lost]")
    assert ids(page) == [VICTIM]
    page.click("#chips [data-status=pass]")
    assert len(ids(page)) > 10
    page.click("#chips [data-status=device-lost]")
    assert VICTIM not in ids(page)
    page.click("#chips [data-status=pass]")
    assert ids(page) == every
    page.fill("#search", "R7 fill_pattern")
    assert ids(page) == [VICTIM]
    page.fill("#search", "no such words")
    assert ids(page) == [] and "0 of" in page.inner_text("#shown")
    page.fill("#search", "core.open")
    assert ids(page) and all(name.startswith("core.open.") for name in ids(page))
    page.locator("#list button").first.click()
    chosen = ids(page)[0]
    assert chosen in page.inner_text("#detail")
    # The address leads there again.
    assert page.url.endswith(f"#{chosen}")
    assert chosen in opened(Path(report)).inner_text("#list")


def test_the_rules_that_failed_most_lead_to_their_tests(opened, report):
    page = opened(report)
    suspects = page.locator("#suspects button")
    rule, share = suspects.first.inner_text().split(": ")
    failed, judged = share.split(" of ")
    assert int(failed) == 1 and int(judged) > 1
    suspects.first.click()
    assert page.input_value("#search") == rule
    assert ids(page)[0] == VICTIM
    statuses = page.locator("#list .status").all_inner_texts()
    assert len([status for status in statuses if status != "unsupported"]) == int(judged)
    suspects.first.click()
    assert page.input_value("#search") == "" and len(ids(page)) > int(judged)


def test_it_is_used_with_the_keyboard_and_reads_well_when_narrow(opened, report):
    page = opened(report, scheme="dark")
    page.focus("#search")
    page.keyboard.type("core.open")
    page.keyboard.press("Tab")
    while page.evaluate("() => document.activeElement.closest('#list') === null"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.inner_text("#detail h2").split(" ")[1].startswith("core.open.")
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
