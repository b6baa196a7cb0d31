"""An environment with the wheel of torch-outrigger and nothing of the repository in it.

`--wheel` names the wheel. `--torch-from` names an environment whose torch is used as it is; without it the new
environment gets its own from PyPI, as a user's would. A test must never find a package of the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 900


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that name the packages to test."""
    parser.addoption("--wheel", type=Path, required=True, help="the wheel of torch-outrigger")
    parser.addoption("--torch-from", type=Path, metavar="SITE-PACKAGES", help="where torch is taken from")
    parser.addoption("--torch", default="2.15.0", metavar="VERSION", help="the version of torch that is installed")
    parser.addoption("--tools", type=Path, required=True, help="the folder with auditwheel's Python")


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder of the installed packages."""
        return next((self.folder / "lib").iterdir()) / "site-packages"

    def pip(self, *arguments: str | Path) -> None:
        """Runs pip, which must succeed."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=clean())
        assert done.returncode == 0, f"pip {arguments}:\n{done.stdout}\n{done.stderr}"

    def run(self, program: str, *, cwd: Path | None = None, fails: bool = False, **variables: str) -> str:
        """Runs a Python program with nothing but `variables` of Outrigger in its environment; what it prints."""
        command = [self.python, "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=cwd or self.folder, env=clean(**variables)
        )
        assert (done.returncode != 0) == fails, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


def clean(**variables: str) -> dict[str, str]:
    """The process's environment without what would lead to another Python, or to settings of Outrigger."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OUTRIGGER_", "PYTHON", "TORCH_", "VIRTUAL_ENV")) and name != "LD_LIBRARY_PATH"
    }
    return kept | variables


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    """The wheel under test."""
    return request.config.getoption("--wheel")


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment into which pip has installed the wheel."""
    return make(request.config, wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def copied(installed: Environment, tmp_path: Path) -> Environment:
    """An environment with the wheel that a test may change: it shares all but the package's files."""
    environment = Environment(tmp_path / "environment")
    venv.create(environment.folder, symlinks=True)
    for entry in installed.packages.iterdir():
        if entry.name.startswith("torch_outrigger"):
            shutil.copytree(entry, environment.packages / entry.name)
        elif not (environment.packages / entry.name).exists():
            (environment.packages / entry.name).symlink_to(entry)
    return environment


def make(config: pytest.Config, wheel: Path, folder: Path) -> Environment:
    """Makes an environment and has pip install the wheel."""
    venv.create(folder, with_pip=True, symlinks=True)
    environment = Environment(folder)
    source = config.getoption("--torch-from")
    if source is None:
        environment.pip("install", f"torch=={config.getoption('--torch')}", wheel)
    else:
        # A line of a .pth file adds the folder, but not what .pth files in it add: the repository's package stays out.
        (environment.packages / "torch.pth").write_text(f"{source}\n")
        # Some Pythons give a new environment a setuptools that is too old for torch.
        environment.pip("uninstall", "--yes", "setuptools")
        environment.pip("install", "--no-index", wheel)
    return environment


