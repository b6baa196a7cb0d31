"""Vendors' packages: examples/vendor-package as pip installs it, and what happens where two are installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY, Environment
from test_wheel import COMPILED, FIRST_STEPS, launched

EXAMPLE = REPOSITORY / "examples" / "vendor-package"

ZETA = """
from torch_outrigger import Vendor
vendor = Vendor(name="zeta", driver="/nowhere/libzeta.so")
"""


@pytest.fixture
def acme(copied: Environment, tmp_path: Path) -> Environment:
    """The example is installed."""
    copied.run("import ensurepip; ensurepip.bootstrap()")
    # A build leaves files beside its sources.
    for folder in ("vendor-package", "driver-c"):
        shutil.copytree(EXAMPLE.parent / folder, tmp_path / folder)
    copied.pip("install", "--no-index", "--no-build-isolation", tmp_path / "vendor-package")
    return copied


def add(environment: Environment, name: str, text: str, entry: str | None = None) -> None:
    """Installs a vendor's package of a single module."""
    (environment.packages / f"{name}_device.py").write_text(text)
    metadata = environment.packages / f"{name}_device-2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-device\nVersion: 2.0\n")
    entry = entry or f"{name} = {name}_device:vendor"
    (metadata / "entry_points.txt").write_text(f"[torch_outrigger.vendors]\n{entry}\n")


def test_the_example_is_short() -> None:
    """A vendor's package is a page."""
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in {".py", ".toml"}]
    assert len(files) == 3 and sum(len(path.read_text().splitlines()) for path in files) < 60


def test_a_vendors_device_has_the_vendors_name(acme: Environment) -> None:
    """Nothing is set in the environment: the package names driver, device, options and dtypes."""
    assert acme.run(FIRST_STEPS.format(name="acme")).splitlines()[0] == "acme:0"
    acme.run("""
import sys, torch, torch.acme
assert not torch.acme.is_initialized()
assert torch.acme is sys.modules["torch.acme"] and not hasattr(torch, "outrigger")
assert torch.acme.device_count() == 2 and torch.acme.is_available()
assert torch.acme.get_amp_supported_dtype() == [torch.bfloat16]
assert torch.ones(3).acme(1).device == torch.device("acme:1") and torch.ones(3, device="acme").is_acme
assert torch.accelerator.current_accelerator().type == "acme"
assert type(torch.ones(2, device="acme").storage()).__module__ == "torch.storage"
with torch.autocast("acme", dtype=torch.bfloat16):
    a = torch.ones(2, 2, device="acme")
    assert (a @ a).dtype == torch.bfloat16
torch.acme.manual_seed(3)
one = torch.randn(4, device="acme")
torch.acme.manual_seed(3)
assert torch.equal(one, torch.randn(4, device="acme"))
assert "acme:0" in torch.acme.memory_summary()
""")


def test_a_vendors_device_compiles(acme: Environment) -> None:
    """torch.compile knows the vendor's name, and so does the process that measures kernels."""
    told = acme.run(COMPILED.format(name="acme"), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert told.splitlines()[0] in ("5", "not served"), told


def test_a_vendors_device_runs_kernels_of_triton(acme: Environment, tmp_path: Path) -> None:
    """A kernel names no device, and finds the vendor's."""
    assert launched(acme, "acme", tmp_path) == "example"


def test_errors_speak_of_the_vendor(acme: Environment) -> None:
    """No message has the name of another device."""
    acme.run("""
import torch
for wrong in (
    lambda: torch.ones(3, device="acme:7"),
    lambda: torch.acme.get_device_name(7),
    lambda: torch.acme.synchronize("cpu"),
    lambda: torch.empty(1 << 50, device="acme"),
):
    try:
        wrong()
    except (RuntimeError, ValueError) as error:
        assert "acme" in str(error), error
        assert "outrigger:" not in str(error) and "privateuse" not in str(error).lower(), error
    else:
        raise AssertionError("no error")
""")


def test_a_driver_of_the_environment_comes_first(acme: Environment) -> None:
    """A user can have another driver behind the vendor's name."""
    acme.run(
        "import torch; assert torch.acme.get_device_properties().driver == 'host'", OUTRIGGER_DRIVER="host?devices=1"
    )


def test_of_two_vendors_one_is_chosen(acme: Environment) -> None:
    """Without a choice there is no device, and the warning names both; torch works."""
    add(acme, "zeta", ZETA)
    told = acme.run("import torch; print(torch.ones(3).sum().item(), hasattr(torch, 'acme'), hasattr(torch, 'zeta'))")
    assert "3.0 False False" in told, told
    assert "acme (of acme-outrigger 1.0.0), zeta (of zeta-device 2.0)" in told and "OUTRIGGER_VENDOR" in told, told
    assert acme.run(FIRST_STEPS.format(name="acme"), OUTRIGGER_VENDOR="acme").splitlines()[0] == "acme:0"
    told = acme.run("import torch; print(torch.zeta.is_available())", OUTRIGGER_VENDOR="zeta")
    assert "False" in told and "/nowhere/libzeta.so" in told, told
    told = acme.run("import torch; print(torch.ones(3).sum().item())", OUTRIGGER_VENDOR="beta")
    assert "3.0" in told and "OUTRIGGER_VENDOR=beta" in told and "zeta (of zeta-device 2.0)" in told, told


@pytest.mark.parametrize(
    ("text", "entry", "expected"),
    [
        ("vendor = 3", None, "leads to 3, which is no torch_outrigger.Vendor"),
        ("import nothing_of_this_name", None, "the entry point beta of torch_outrigger.vendors cannot be loaded"),
        (ZETA, None, "leads to a device of another name, zeta"),
        (ZETA.replace("zeta", "Be-ta"), "Be-ta = beta_device:vendor", "lower-case letters, digits and underscores"),
        (ZETA.replace("libzeta.so", "a?b.so"), "zeta = beta_device:vendor", "has a ',', a '?' or a '&'"),
        (ZETA.replace('so")', 'so", autocast=(3,))'), "zeta = beta_device:vendor", "not in 3"),
        (ZETA.replace("zeta", "cuda"), "cuda = beta_device:vendor", "torch has a device of that name"),
    ],
)
def test_a_package_that_is_wrong_is_a_warning(copied: Environment, text: str, entry: str | None, expected: str) -> None:
    """`import torch` works, and the text says what is wrong."""
    add(copied, "beta", text, entry)
    told = copied.run("import torch; print(torch.ones(3).sum().item())")
    assert "3.0" in told and "could not be loaded" in told and expected in told, told


def test_paths_with_blanks(copied: Environment, tmp_path: Path) -> None:
    """A package may be installed anywhere."""
    driver = tmp_path / "with blank" / "libnone.so"
    add(copied, "beta", ZETA.replace("zeta", "beta").replace("/nowhere/libbeta.so", str(driver)))
    told = copied.run("import torch; print(torch.beta.is_available())")
    assert str(driver) in told, told
