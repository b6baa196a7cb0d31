"""FlagGems on the device: a copy of the installed package, with the device as one of its vendors.

    python -m torch_outrigger.triton.flaggems FOLDER

FlagGems finds vendors in its own package alone, and an installed package is not edited. So FOLDER gets a copy, and goes in front of
it: PYTHONPATH=FOLDER. `flag_gems.enable()` then makes its operators those of the device.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from .._lifetime import device_type

SEEN = ("5.0",)
"""The versions that it was tried with, as far as their second number."""

_VENDOR = '''"""Devices of Outrigger, written by torch_outrigger.triton.flaggems."""
import sys
from types import ModuleType

import torch_outrigger
from backend_utils import VendorInfoBase

# FlagGems imports a module of this name, and asks it nothing.
sys.modules.setdefault("torch.backends.{device}", ModuleType("torch.backends.{device}"))

vendor_info = VendorInfoBase(
    vendor_name="outrigger",
    device_name="{device}",
    device_query_cmd="true",
    dispatch_key="{key}",
    triton_extra_name="cuda",
)
CUSTOMIZED_UNUSED_OPS = ()
'''

_APPENDED = {
    # A member of an enumeration cannot be added from outside.
    "runtime/common.py": "\n\nos.environ.setdefault('GEMS_VENDOR', 'outrigger')\n",
    # Triton has no block pointers any more.
    "utils/codegen_config_utils.py": """

CODEGEN_COFIGS[vendors.OUTRIGGER] = CodeGenConfig(
    512, (65536, 65536, 65536), 32, prefer_block_pointer=False, prefer_1d_tile=False
)
""",
    # The device's own answer is a dictionary.
    "utils/device_info.py": """

def get_device_capability() -> tuple[int, int]:
    return (0, 0)
""",
}
"""Texts for the ends of the copy's files."""


def write(folder: Path) -> Path:
    """Writes the copy. RuntimeError, which says what is wrong, if it cannot be one that works."""
    found = find_spec("flag_gems")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("FlagGems is not installed: pip install flag_gems")
    number = version("flag_gems")
    if ".".join(number.split(".")[:2]) not in SEEN:
        raise RuntimeError(f"FlagGems {number} is installed, and this was tried with {' and '.join(SEEN)}")
    copy = folder / "flag_gems"
    if copy.exists():
        raise RuntimeError(f"{copy} is there already: remove it, or name another folder")
    source = Path(found.submodule_search_locations[0])
    if (source / "runtime/backend/_outrigger").exists():
        raise RuntimeError(f"{source} is such a copy itself: run this without it in PYTHONPATH")
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    _change(copy)
    return copy


def _change(copy: Path) -> None:
    device = device_type()
    key, kind = ("MTIA", "is_mtia") if device == "mtia" else ("PrivateUse1", "is_privateuseone")
    vendors = copy / "runtime/common.py"
    text = vendors.read_text()
    *_, last = re.finditer(r"^    [A-Z]+ = (\d+)\n", text, re.MULTILINE)
    member = f"    OUTRIGGER = {int(last[1]) + 1}\n"
    vendors.write_text(f"import os\n{text[: last.end()]}{member}{text[last.end() :]}")
    for name, more in _APPENDED.items():
        with (copy / name).open("a") as file:
            file.write(more)
    backend = copy / "runtime/backend"
    ours = backend / "_outrigger"
    ours.mkdir()
    (ours / "__init__.py").write_text(_VENDOR.format(device=device, key=key))
    for part in ("ops", "fused"):
        (ours / part).mkdir()
        (ours / part / "__init__.py").touch()
    shutil.copy(backend / "_nvidia/tune_configs.yaml", ours)
    heuristics = (backend / "_nvidia/heuristics_config_utils.py").read_text()
    (ours / "heuristics_config_utils.py").write_text(heuristics.replace("torch.cuda", f"torch.{device}"))
    for part in ("ops", "fused", "experimental_ops"):
        for file in (copy / part).rglob("*.py"):
            text = file.read_text()
            # The kernels ask whether a tensor is on the device.
            file.write_text(re.sub(r"(?<=[\w\])]\.)is_cuda\b", kind, text))


def main(arguments: list[str]) -> int:
    """The command. 1 if it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m torch_outrigger.triton.flaggems", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("folder", type=Path, help="where the copy goes; to be put into PYTHONPATH")
    folder = parser.parse_args(arguments).folder
    try:
        copy = write(folder)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{copy} is written. To use it: PYTHONPATH={folder.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
