"""Parts of all tests: the device under test, a store of its own, a held stream, a clean state after each.

Any driver and face can be under test: OUTRIGGER_DRIVER chooses the driver, --device the torch device type. Operators run where they
do for a user: with a store that is empty, or one that --store names, as `python -m torch_outrigger.compile_eager` has filled it.
A test must never wait without a limit; what holds a stream lets go by itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

HELD_MILLISECONDS = 20_000

ONE_ACCELERATOR = (
    "torch takes gradients of one accelerator",
    "doesn't match the current accelerator",
    "does not match blocking stream's device type",
)
"""Messages of torch about a device type that is not its accelerator."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that choose the device type, the store and the tests."""
    default = "mtia" if os.environ.get("OUTRIGGER_TORCH") == "mtia" else "outrigger"
    parser.addoption("--device", choices=("outrigger", "mtia"), default=default, help="the torch device type to test")
    parser.addoption("--store", type=Path, metavar="FOLDER", help="the store that the tests begin with a copy of; else an empty one")
    parser.addoption("--of-driver", metavar="SEED", help="what depends on the driver, and a tenth of the rest, which the seed draws")
    parser.addoption("--turn", metavar="SEED", help="of the tests that take turns, a quarter, which the seed draws; else all")
    parser.addoption("--items", type=int, metavar="N", help="kernels of Triton get groups of so many items, as on a GPU")
    parser.addoption("--sweep-dtype", default="float32", metavar="DTYPE", help="dtype of the sweep's samples")
    parser.addoption("--all", action="store_true", help="also the tests marked only_with_all, and all models on any driver")
    parser.addoption("--compile-share", metavar="K/N", help="a part of the operators that torch.compile is tested with")
    parser.addoption("--sweep-samples", type=int, metavar="N", help="samples of each operator in the sweep; all if not given")


def pytest_configure(config: pytest.Config) -> None:
    """torch reads the choices at its import, which is later than this."""
    # A store of another program must not decide which operators run on the CPU, and nothing is left for another one.
    folder = tempfile.mkdtemp(prefix="outrigger-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    store = Path(folder, "store")
    if config.getoption("--store") is not None:
        shutil.copytree(config.getoption("--store"), store)
    os.environ["OUTRIGGER_CACHE"] = str(store)
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
    config.addinivalue_line("markers", "not_on_mtia(reason): what torch or a standard has for PrivateUse1 and not for MTIA")
    config.addinivalue_line("markers", "of_driver: its result depends on what the driver has")
    config.addinivalue_line("markers", "only_with_all: takes long, or needs a library that only the suite of libraries has")
    config.addinivalue_line("markers", "takes_turns: takes many seconds; most runs have a quarter of these")
    config.addinivalue_line("markers", "of_the_accelerator: torch or a library chooses the device by itself")
    if config.getoption("--device") == "mtia":
        os.environ.setdefault("OUTRIGGER_TORCH", "mtia")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what was not asked for, and what the chosen device type has no interface for."""
    seed = config.getoption("--of-driver")
    if seed is not None:
        keep(config, items, lambda item: item.get_closest_marker("of_driver") or is_drawn(item, seed, 10))
    turn = config.getoption("--turn")
    if turn is not None:
        keep(config, items, lambda item: not item.get_closest_marker("takes_turns") or is_drawn(item, turn, 4))
    if not config.getoption("--all"):
        keep(config, items, lambda item: not item.get_closest_marker("only_with_all"))
    if is_second(config):
        skip = pytest.mark.skip(reason="torch has one accelerator in a process, and it is outrigger: a test of the accelerator")
        for item in items:
            if item.get_closest_marker("of_the_accelerator"):
                item.add_marker(skip)
    if config.getoption("--device") == "mtia":
        for item in items:
            marker = item.get_closest_marker("not_on_mtia")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))


def keep(config: pytest.Config, items: list[pytest.Item], is_kept: Callable[[pytest.Item], object]) -> None:
    """Leaves out the other tests, and counts them as deselected."""
    config.hook.pytest_deselected(items=[item for item in items if not is_kept(item)])
    items[:] = [item for item in items if is_kept(item)]


def is_drawn(item: pytest.Item, seed: str, of: int) -> bool:
    """Whether a test belongs to the part of a seed, one of so many, which is the same in every process."""
    return zlib.crc32(f"{seed} {item.nodeid}".encode()) % of == 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> object:
    """Leaves out what torch does for its one accelerator alone, where that is the other device type."""
    try:
        return (yield)
    except Exception as error:
        found = [rule for rule in ONE_ACCELERATOR if rule in str(error)]
        if not found or not is_second(item.config):
            raise
        pytest.skip(f"torch has one accelerator in a process, and it is outrigger: {found[0]}")


def is_second(config: pytest.Config) -> bool:
    """Whether torch's accelerator is the other one of two device types."""
    return config.getoption("--device") == "mtia" and os.environ.get("OUTRIGGER_TORCH") == "both"


@pytest.fixture(scope="session")
def device_type(request: pytest.FixtureRequest) -> str:
    """The torch device type under test, which must be there."""
    import torch
    import torch_outrigger

    name = request.config.getoption("--device")
    if torch_outrigger.load_error() is not None:
        pytest.exit(f"torch_outrigger did not load: {torch_outrigger.load_error()}", returncode=2)
    if torch.get_device_module(name).device_count() == 0:
        pytest.exit(f"there is no {name} device: {torch_outrigger.load_report()}", returncode=2)
    if request.config.getoption("--items") is not None:
        from support import groups_of

        groups_of(request.config.getoption("--items"))
    return name


@pytest.fixture
def device(device_type):
    """The first device."""
    import torch

    return torch.device(device_type, 0)


@pytest.fixture
def module(device_type):
    """The device type's module, such as torch.outrigger."""
    import torch

    return torch.get_device_module(device_type)


@pytest.fixture
def other_device(device_type, module):
    """The second device."""
    import torch

    if module.device_count() < 2:
        pytest.skip("the driver has one device")
    return torch.device(device_type, 1)


@pytest.fixture
def host_visible(device):
    """Whether the CPU sees the memory of the device."""
    from torch_outrigger import _C

    return _C.device_info(device.index)["host_visible"]


@pytest.fixture
def once(host_visible):
    """For what does not depend on the driver: it runs on one of them."""
    driver = os.environ.get("OUTRIGGER_DRIVER", "host")
    if driver.split("?")[0] != "host" or "native" in driver or not host_visible:
        pytest.skip("runs on the built-in driver, unified")


@pytest.fixture
def compiles(device):
    """Skips a test where torch.compile cannot make kernels."""
    from torch_outrigger.inductor.program import language

    try:
        language(device.index)
    except NotImplementedError as error:
        assert "its driver takes neither source nor functions of the host" in str(error)
        pytest.skip("the driver takes no code that torch.compile makes")


@pytest.fixture
def timestamps(device):
    """Skips a test where the driver cannot tell when work ran."""
    import torch

    try:
        torch.Event(device.type, enable_timing=True).record()
    except NotImplementedError as error:
        assert "no timestamps" in str(error)
        pytest.skip("the driver has no timestamps")


@pytest.fixture
def hold(device):
    """A context that keeps the current stream of the device busy until it ends."""
    from torch_outrigger import _C

    @contextlib.contextmanager
    def hold(index: int = device.index):
        task = _C._hold_stream(index, HELD_MILLISECONDS)
        try:
            yield
        except BaseException as error:
            if not _C._release_stream(task):
                raise AssertionError("something waited for the stream that this test held") from error
            raise
        assert _C._release_stream(task), "something waited for the stream that this test held"

    return hold


@pytest.fixture(autouse=True)
def clean(device_type, module):
    """Every test starts with the same settings and leaves no work behind."""
    import torch
    import torch_outrigger

    torch.manual_seed(1234)
    torch_outrigger.set_fallback_mode("silent")
    torch_outrigger.reset_fallback_report()
    yield
    torch_outrigger.set_fallback_mode("silent")
    for index in range(module.device_count()):
        module.synchronize(torch.device(device_type, index))
