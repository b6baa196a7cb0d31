"""A headless browser, and pages made by the command line under test.

Every page is watched: an error on its console, an exception or a request to a network fails the test. No
test may look at a page in another way than through the browser.
"""

import shutil
import subprocess

import pytest
from playwright.sync_api import sync_playwright

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
MISSING = (
    "no browser: install Chromium (Debian: apt-get install chromium) or "
    "`python -m playwright install chromium`"
)


def pytest_addoption(parser):
    parser.addoption("--outrigger", required=True, help="the command line under test")


@pytest.fixture(scope="session")
def outrigger(request):
    """Runs the command line; returns what it printed."""

    def run(*arguments, fails=False):
        done = subprocess.run(
            [request.config.getoption("--outrigger"), *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture(scope="session")
def browser():
    """The system's browser, else playwright's own."""
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        try:
            # Without its sandbox, which containers do not allow: it opens nothing but our own pages.
            yielded = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Exception as error:
            pytest.fail(f"{MISSING}\n{error}" if found is None else f"{found} does not start: {error}")
        yield yielded
        yielded.close()


@pytest.fixture
def opened(browser):
    """Opens a page and waits until it is ready."""
    pages = []

    def open_page(path, scheme="light"):
        page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        wrong = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") or
                request.url.startswith("data:") else wrong.append(request.url))
        pages.append((page, wrong))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", state="attached", timeout=60_000)
        return page

    yield open_page
    for page, wrong in pages:
        page.close()
        assert not wrong, wrong
