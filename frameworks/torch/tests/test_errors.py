"""Bad input: each gives an error that names what was wrong, and leaves the process usable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
import torch_outrigger
from support import run_python, same
from torch_outrigger import _C, memory


def usable(device) -> None:
    """Asserts that the device still works."""
    same(torch.ones(3, device=device) + 1, torch.full((3,), 2.0))


def test_invalid_device_index(device, device_type, module):
    count = module.device_count()
    for use in (
        lambda: torch.empty(1, device=torch.device(device_type, count)),
        lambda: torch.ones(1).to(f"{device_type}:{count + 5}"),
        lambda: module.synchronize(torch.device(device_type, count)),
        lambda: module.get_device_properties(torch.device(device_type, count)),
        lambda: torch.Stream(torch.device(device_type, count)),
    ):
        with pytest.raises(RuntimeError, match=rf"invalid device index {count}|invalid device index {count + 5}") as caught:
            use()
        assert f"there are {count} devices" in str(caught.value) or count == 1
    usable(device)


def test_arguments_that_are_no_device(device, module):
    for call in (module.mem_get_info, module.memory_summary, module.get_device_name):
        with pytest.raises(RuntimeError, match="invalid device index 300"):
            call(300)
    with pytest.raises(RuntimeError, match="invalid device index -2"):
        module.get_device_properties(-2)
    # torch.mtia.set_device is torch's own.
    words = "Expected a non cpu device" if device.type == "mtia" else "of type outrigger.*, got cpu"
    with pytest.raises(ValueError, match=words):
        module.set_device("cpu")
    with pytest.raises(TypeError, match="expected a torch.device"):
        module.mem_get_info(1.5)
    with pytest.raises(ValueError, match="from 0 to 1"):
        module.set_per_process_memory_fraction(1.5)
    with pytest.raises(ValueError, match="telepathy"):
        module.observe(print, ("telepathy",))
    with pytest.raises(TypeError, match="callable"):
        module.observe(None)
    usable(device)


def test_destroyed_stream(device, module):
    kind = torch.ones(0, device=device).device.type
    number = {"outrigger": torch._C._autograd.DeviceType.PrivateUse1, "mtia": torch._C._autograd.DeviceType.MTIA}
    handle = _C.new_stream(device.index, 0)
    stream = torch.Stream(stream_id=handle, device_index=device.index, device_type=number[kind].value)
    with stream:
        kept = torch.ones(3, device=device) * 2  # allocated on the stream, and alive beyond it
    stream.synchronize()
    _C._destroy_stream(handle)
    for use in (stream.synchronize, stream.query, stream.record_event, stream.__enter__):
        with pytest.raises(RuntimeError, match="stream"):
            use()
    with pytest.raises(RuntimeError, match="stream"):
        _C._destroy_stream(handle)
    same(kept + 1, torch.full((3,), 3.0))
    del kept
    usable(device)


def test_wrong_sizes(device):
    with pytest.raises(RuntimeError, match="size|broadcast"):
        torch.empty(3, device=device).copy_(torch.ones(4))
    with pytest.raises(RuntimeError, match="size|broadcast"):
        torch.empty(3).copy_(torch.ones(4, device=device))
    with pytest.raises(RuntimeError, match="size|broadcast"):
        torch.empty(3, device=device).copy_(torch.ones(4, device=device))
    with pytest.raises(RuntimeError, match="negative"):
        torch.empty(-1, device=device)
    with pytest.raises(RuntimeError, match="shape|size|multiplied"):
        torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
    with pytest.raises(RuntimeError):
        torch.ones(4, device=device).view(3)
    with pytest.raises((RuntimeError, IndexError)):
        torch.ones(4, device=device)[7]
    usable(device)


# By the operator: a call with an index that does not exist, and the words of the error.
WRONG_INDICES = {
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), "index 7 is out of bounds for dimension 0 with size 5"),
    "index": (lambda x, i: x[i], "index 7 is out of bounds for dimension 0 with size 5"),
    "index_select": (lambda x, i: x.index_select(1, i), "index 7 is out of bounds for dimension 1 with size 4"),
    "gather": (lambda x, i: x.gather(1, i.view(1, 2)), "index 7 is out of bounds for dimension 1 with size 4"),
    "scatter": (lambda x, i: x.scatter(1, i.view(1, 2), 0.0), "index 7 is out of bounds for dimension 1 with size 4"),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), "index 7 is out of bounds for dimension 0 with size 5"),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), "index 7 is out of bounds for dimension 0 with size 5"),
    "cross_entropy": (lambda x, i: torch.nn.functional.cross_entropy(x[:2], i), "arget 7 is out of bounds"),
}


@pytest.mark.parametrize("name", WRONG_INDICES)
def test_index_out_of_range(device, name):
    call, words = WRONG_INDICES[name]
    if os.environ.get("OUTRIGGER_DRIVER", "host").split("?")[0] != "host":
        # A driver's own operator fails with a code, which has no index in it.
        words += "|index or address out of range"
    x, index = torch.ones(5, 4, device=device), torch.tensor([1, 7], device=device)
    with pytest.raises((RuntimeError, IndexError), match=words):
        call(x, index)
        torch.get_device_module(device).synchronize(device)
    usable(device)


def test_out_of_memory_says_how_much_and_is_recovered_from(device, module):
    if device.type == "outrigger":
        total = module.mem_get_info(device)[1]
    else:
        total = module.get_device_properties(device)["total_memory"]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(total * 2, dtype=torch.uint8, device=device)
    text = str(caught.value)
    assert str(device.index) in text and "bytes" in text.lower() or "iB" in text, text
    usable(device)


def test_a_memory_limit_holds_and_is_lifted(device):
    memory.empty_cache()
    total = memory.mem_get_info(device)[1]
    # Other tests of the process may have left something: caches of compiled code keep tensors.
    limit = memory.memory_reserved(device) + 64 * 2**20
    memory.set_per_process_memory_fraction(limit / total, device)
    try:
        kept = torch.ones(2**20, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(128 * 2**20, device=device)
        same(kept[:2], torch.ones(2))
        assert memory.memory_stats(device)["num_ooms"] >= 1
        assert memory.memory_reserved(device) <= limit
    finally:
        memory.set_per_process_memory_fraction(1.0, device)
    assert torch.ones(128 * 2**20 // 4, device=device).numel() == 2**25
    memory.empty_cache()


def test_memory_figures_add_up(device):
    torch.accelerator.synchronize()
    before = memory.memory_allocated(device)
    memory.reset_peak_memory_stats(device)
    tensor = torch.empty(3 * 2**20, dtype=torch.uint8, device=device)
    address = tensor.data_ptr()
    stats = memory.memory_stats(device)
    assert stats["allocated_bytes.all.current"] == memory.memory_allocated(device) >= before + 3 * 2**20
    assert memory.memory_reserved(device) >= memory.memory_allocated(device)
    blocks = [block for segment in memory.memory_snapshot(device) for block in segment["blocks"]]
    assert any(block["address"] <= address < block["address"] + block["size"] for block in blocks)
    del tensor
    assert memory.memory_allocated(device) == before
    assert memory.max_memory_allocated(device) >= before + 3 * 2**20
    memory.reset_peak_memory_stats(device)
    assert memory.max_memory_allocated(device) == before
    memory.empty_cache()
    free, total = memory.mem_get_info(device)
    assert 0 < free <= total
    with pytest.raises(RuntimeError, match="unknown|Unknown|not|Invalid|invalid"):
        torch_outrigger.load_driver("/nowhere/libnothing.so")


def test_use_after_fork_in_the_child(device_type):
    result = run_python(
        f"""
        import os, torch
        torch.ones(2, device="{device_type}")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.manual_seed(1)  # must not need the device
                torch.ones(2, device="{device_type}") + 1
                text = "it worked"
            except RuntimeError as error:
                text = str(error)
            os.write(write, text.encode())
            os._exit(0)
        os.close(write)
        print(os.read(read, 4096).decode())
        os.waitpid(child, 0)
        print((torch.ones(2, device="{device_type}") + 1).tolist())
        """
    )
    assert result.returncode == 0, result.stderr
    assert "fork" in result.stdout and "spawn" in result.stdout, result.stdout
    assert "[2.0, 2.0]" in result.stdout, "the parent goes on"


@pytest.mark.usefixtures("once")
def test_a_driver_that_is_not_there(device_type):
    result = run_python(
        f"""
        import warnings; warnings.simplefilter("ignore")
        import torch, torch_outrigger
        print(torch_outrigger.load_error(), torch.ones(2).sum().item())
        print("count", torch.get_device_module("{device_type}").device_count())
        try:
            torch.ones(2, device="{device_type}")
        except RuntimeError as error:
            print("error:", error)
        print(torch_outrigger.load_report())
        """,
        OUTRIGGER_DRIVER="/nowhere/libacme.so",
    )
    assert result.returncode == 0, result.stderr
    assert "None 2.0" in result.stdout and "count 0" in result.stdout
    message = result.stdout.split("error:")[1].split("{")[0]
    assert "no device" in message and "/nowhere/libacme.so" in message, message


@pytest.mark.usefixtures("once")
def test_no_device_is_warned_of():
    result = run_python(
        "import torch; print(torch.outrigger.is_available())",
        OUTRIGGER_DRIVER="/nowhere/libacme.so",
        OUTRIGGER_TORCH="outrigger",
    )
    assert result.stdout.strip() == "False" and "/nowhere/libacme.so" in result.stderr


def copy_of_the_package(folder: Path) -> Path:
    """The Python part alone, as after a checkout without a build."""
    package = Path(torch_outrigger.__file__).parent
    shutil.copytree(package, folder / "torch_outrigger", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    info = folder / "torch_outrigger-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_outrigger\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\noutrigger = torch_outrigger:autoload\n")
    return folder


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("broken", [False, True], ids=["not built", "does not load"])
def test_import_without_the_compiled_part(tmp_path, broken):
    folder = copy_of_the_package(tmp_path)
    if broken:
        package = Path(torch_outrigger.__file__).parent
        shim = next(package.glob("shims/*/_C*.so")).relative_to(package)
        (folder / "torch_outrigger" / shim).parent.mkdir(parents=True, exist_ok=True)
        (folder / "torch_outrigger" / shim).write_bytes(b"not a library")
    result = run_python(
        f"""
        import sys; sys.path[:] = [{str(folder)!r}] + [p for p in sys.path if not p.endswith({Path(torch_outrigger.__file__).parent.parent.name!r})]
        import torch, torch_outrigger
        print(torch.ones(2).sum().item(), type(torch_outrigger.load_error()).__name__, hasattr(torch, "outrigger"))
        try:
            torch_outrigger.fallback_report()
        except AttributeError as error:
            print(error)
        """,
        PYTHONPATH=str(folder),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2.0 "), result.stdout
    assert "Error False" in result.stdout, result.stdout
    advice = "cargo build --release\n    python -m pip install --no-build-isolation --no-deps frameworks/torch"
    assert advice in result.stderr and advice in result.stdout, result.stderr
    assert ("does not load" if broken else "not built") in result.stderr


@pytest.mark.usefixtures("once")
def test_import_when_warnings_are_errors(tmp_path):
    folder = copy_of_the_package(tmp_path)
    result = run_python(
        """
        import warnings; warnings.filterwarnings("error", category=RuntimeWarning)
        import torch; print(torch.ones(2).sum().item())
        """,
        PYTHONPATH=str(folder),
    )
    assert result.stdout.strip() == "2.0", result.stderr


@pytest.mark.usefixtures("once")
def test_a_bad_choice_of_device_types():
    result = run_python(
        "import torch, torch_outrigger; print(torch.ones(2).sum().item(), repr(torch_outrigger.load_error()))",
        OUTRIGGER_TORCH="tpu",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2.0 ValueError"), result.stdout
    assert "OUTRIGGER_TORCH=tpu" in result.stderr and "both" in result.stderr


@pytest.mark.usefixtures("once")
def test_nothing_starts_before_the_first_use(tmp_path):
    result = run_python(
        """
        import os, torch, torch_outrigger
        torch.manual_seed(7)
        print(torch.outrigger.is_initialized())
        pid = os.fork()  # allowed, as no driver is loaded
        if pid == 0:
            seed = torch.outrigger.initial_seed()
            os._exit(0 if torch.ones(2, device="outrigger").sum().item() == 2 and seed == 7 else 1)
        print(os.waitpid(pid, 0)[1])
        """,
        OUTRIGGER_TORCH="outrigger",
    )
    assert result.stdout.split() == ["False", "0"], result.stdout + result.stderr


@pytest.mark.usefixtures("once")
def test_modules_of_the_device_are_imported_at_their_first_use():
    """A program that holds the placeholder sees the module through it, and changes the module."""
    result = run_python(
        """
        import sys, torch
        held = torch.outrigger
        assert not hasattr(held, "__file__")
        assert not {"torch_outrigger._device", "torch_outrigger._runtime", "torch_outrigger.graphs"} & set(sys.modules)
        import torch.outrigger.memory as memory
        from torch.outrigger.amp import autocast
        assert torch.outrigger is sys.modules["torch.outrigger"] is not held
        assert memory.memory_stats is torch.outrigger.memory_stats and autocast is torch.outrigger.amp.autocast
        held.marker = 1
        assert torch.outrigger.marker == 1 and dir(held) == dir(torch.outrigger)
        del held.marker
        assert not hasattr(torch.outrigger, "marker") and not hasattr(held, "nonsense")
        """,
        OUTRIGGER_TORCH="outrigger",
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.usefixtures("once")
def test_both_device_types_share_one_process():
    result = run_python(
        """
        import torch
        a = torch.ones(3, device="outrigger") + 1
        b = torch.ones(3, device="mtia") * 3
        print((a.cpu() + b.cpu()).tolist(), torch.accelerator.current_accelerator().type, b.to("outrigger").device)
        print((a + b.to("outrigger")).tolist())
        """,
        OUTRIGGER_TORCH="both",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["[5.0, 5.0, 5.0] outrigger outrigger:0", "[5.0, 5.0, 5.0]"]


def test_a_diagnosis_has_versions_drivers_and_devices(device, module):
    torch.ones(3, device=device).erfinv()
    text = module.diagnose()
    assert f"torch {torch.__version__}" in text and _C.device_info(0)["name"] in text
    assert f"driver {_C.device_info(0)['driver']} " in text and "cannot be found out" not in text


@pytest.mark.usefixtures("once")
def test_a_diagnosis_tells_what_is_missing():
    finished = run_python(
        """
        import torch_outrigger
        text = torch_outrigger.diagnose()
        assert "OUTRIGGER_DRIVER=/nowhere/libacme.so" in text, text
        assert "/nowhere/libacme.so: refused: " in text and "Devices\\n  none" in text, text
        """,
        OUTRIGGER_DRIVER="/nowhere/libacme.so",
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    finished = run_python(
        """
        import torch_outrigger
        assert torch_outrigger.load_error() is not None
        assert "not loaded: " in torch_outrigger.diagnose() and "OUTRIGGER_TORCH=moon" in torch_outrigger.diagnose()
        """,
        OUTRIGGER_TORCH="moon",
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
