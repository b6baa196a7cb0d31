"""All kernels of a compiled module as one program: compiled in the background, loaded at the first call.

A driver that takes source gets the text, and keeps its compiled form in the library's store. Where the driver runs
functions of the host, the system's C compiler makes a shared object, which is kept in the same store under all that it is
made of. It must never wait before a kernel is called, and never load code from anywhere else.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import torch

from .. import _C
from .._kernels import LANGUAGES

_HOST_FUNCTION = 1
"""Number of a format, OTR_CODE_HOST_FUNCTION."""

_F64, _ATOMIC_64 = 0x2, 0x8
"""OTR_FEATURE_*."""

_LARGEST_GROUP_OF_ACCELERATORS = 1024
_GROUP = 256

_LOCAL_OF_CUDA = 48 << 10
"""Bytes that arrays of a group may have in CUDA C, whatever the device has."""

_FLAGS = (
    "-std=gnu11 -O3 -march=native -fPIC -shared -w -fwrapv -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fno-semantic-interposition"
).split()
"""Options of the C compiler. NaN and infinities are kept (D14)."""

_KERNELS_OF_PART = 12
"""Kernels that are compiled together, at least, where several compilers run side by side."""


_TORCH = "2.15"


def check_torch() -> None:
    """NotImplementedError if torch is not the version whose Inductor this backend extends."""
    if not torch.__version__.startswith(f"{_TORCH}."):
        raise NotImplementedError(
            f"torch.compile makes kernels for this device with torch {_TORCH}, and this is torch {torch.__version__}. "
            "Use backend='aot_eager'"
        )


def has_f64(index: int) -> bool:
    """Whether kernels for a device may use f64."""
    info = _C.device_info(index)
    return language(index) is None or bool(info["features"] & _F64)


def has_atomic64(index: int) -> bool:
    """Whether kernels for a device may use atomics on 64 bits."""
    info = _C.device_info(index)
    return language(index) is None or bool(info["features"] & _ATOMIC_64)


def language(index: int) -> int | None:
    """The format of source that the driver of a device takes; None if its kernels are functions of the host."""
    info = _C.device_info(index)
    for number in LANGUAGES.values():
        if info["code_formats"] >> number & 1:
            return number
    if info["code_formats"] >> _HOST_FUNCTION & 1 or info["host_visible"]:
        return None
    raise NotImplementedError(
        f"torch.compile cannot make kernels for device {index} ({info['name']}): its driver takes neither source nor "
        "functions of the host. Use backend='aot_eager'"
    )


def group_size(index: int) -> int:
    """The work-items of a group; 1 where a thread runs a group."""
    info = _C.device_info(index)
    largest = info["largest_group"] or _GROUP
    if language(index) is None or info["sub_group"] == 1 or largest > _LARGEST_GROUP_OF_ACCELERATORS:
        return 1
    return 1 << (min(largest, _GROUP).bit_length() - 1)


def group_limits(index: int) -> tuple[int, int, int]:
    """Of groups of many items: how many they may have, in which steps, and bytes of their memory. Of others, 1 item."""
    largest, info = group_size(index), _C.device_info(index)
    if largest == 1:
        return 1, 1, 0
    local = info["local_memory"]
    if language(index) == LANGUAGES["cuda"]:
        local = min(local, _LOCAL_OF_CUDA)
    return largest, min(largest, info["sub_group"] or largest), local


@functools.cache
def _headers() -> str:
    """The dialect and the functions of programs, as one text."""
    here = Path(__file__).resolve().parent
    folders = (here.parent / "include", here.parents[3] / "include")
    folder = next(one for one in folders if (one / "outrigger" / "dialect.h").exists())
    files = (folder / "outrigger" / "dialect.h", folder / "outrigger" / "dialect_functions.h", here / "functions.h")
    return "\n".join(one.read_text() for one in files)


@functools.cache
def product_text() -> str:
    """The text of the library's own products, of which a wheel has a copy."""
    here = Path(__file__).resolve().parent
    places = (here / "matmul.c", here.parents[3] / "ops" / "device" / "kernels" / "matmul.c")
    return next(one for one in places if one.exists()).read_text()


@functools.cache
def code_version() -> str:
    """The version of what generated code depends on besides the graph: the dialect, and the modules that write code."""
    number = re.search(r"#define OTR_DIALECT_VERSION (\d+)", _headers())
    here = Path(__file__).resolve().parent
    writers = [*sorted(here.glob("*.py")), *(here.parent / one for one in ("_dynamo.py", "_eager.py", "_fake.py"))]
    text = "\0".join([_headers(), product_text(), *(one.read_text() for one in writers)])
    return f"dialect {number[1] if number else 0}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


_DEPENDS = (
    "driver driver_version name host_visible code_formats features largest_group sub_group argument_block_bytes local_memory"
).split()
"""Properties of a device by which this package writes code."""


def device_version(index: int) -> str:
    """The properties of a device and its driver that generated code depends on."""
    info = _C.device_info(index)
    return ", ".join(str(info[one]) for one in _DEPENDS)


@functools.cache
def _compiler() -> tuple[list[str], str]:
    """The C compiler's command, and what its results depend on."""
    named = os.environ.get("CC")
    command = shlex.split(named) if named else next(([one] for one in ("cc", "gcc", "clang") if shutil.which(one)), [])
    if not command or shutil.which(command[0]) is None:
        raise RuntimeError(
            f"a kernel of torch.compile or Triton needs a C compiler for this device: {named or 'cc, gcc or clang'} was not found. Install one "
            "(Debian and Ubuntu: `apt install gcc`), or name it in CC"
        )
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    return command, f"{version}{platform.machine()}{_processor()}"


def _processor() -> str:
    """The features of this processor."""
    try:
        return next(one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("flags"))
    except (OSError, StopIteration):
        return platform.processor()


@functools.cache
def has_avx512() -> bool:
    """Whether vectors of this processor have 64 bytes."""
    return " avx512f " in _processor()


class _Part:
    """A text that becomes a shared object: one for all programs of the process that have the text."""

    def __init__(self, key: bytes, text: str, may_compile: bool, is_ahead: bool) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._failure = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._compiled: bytes | None = _C.store_get(key)
        if self._compiled is not None:
            return
        if not may_compile:
            raise LookupError("the store does not have the kernels, and nothing is to be compiled")
        # Nobody else may write to a folder that is made so.
        self._folder = Path(tempfile.mkdtemp(prefix="outrigger-"))
        self._cleared = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        (self._folder / "kernels.c").write_text(text)
        self._process = subprocess.Popen(
            [*_compiler()[0], *_FLAGS, "-o", str(self._folder / "kernels.so"), str(self._folder / "kernels.c"), "-lm"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if is_ahead:
            # A compiler ahead of need has what measurements beside it leave. One that has ended needs nothing.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))

    def library(self) -> ctypes.CDLL:
        """The loaded object, for which it waits. RuntimeError if the compiler refused the text."""
        with self._lock:
            if self._process is not None:
                self._wait(self._process)
                self._process = None
            if self._failure:
                raise RuntimeError(self._failure)
            if self._library is None:
                assert self._compiled is not None
                self._library, self._compiled = _loaded(self._compiled), None
            return self._library

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Takes what the compiler makes, and keeps it for other processes."""
        _, log = process.communicate()
        if process.returncode != 0:
            # The text stays, to be looked at.
            self._cleared.detach()
            self._failure = (
                f"the C compiler refused a generated kernel:\n{log.decode(errors='replace')[:4000]}\nThe text is in "
                f"{self._folder / 'kernels.c'}"
            )
            with _lock:
                # A compiler that was killed may succeed the next time.
                del _parts[self._key]
            return
        self._compiled = (self._folder / "kernels.so").read_bytes()
        self._cleared()
        _C.store_put(self._key, self._compiled)


_loads = itertools.count(1)


def _loaded(compiled: bytes) -> ctypes.CDLL:
    """A shared object out of memory, so that what was checked is what is loaded."""
    file = os.memfd_create("outrigger-kernels")
    try:
        with open(file, "wb", closefd=False) as whole:
            whole.write(compiled)
        # The loader takes a path that it has seen for the same object, and numbers of files come again. So no two paths are
        # spelled alike: each has a number of its own, in slashes and dots.
        spelled = f"{next(_loads):b}".replace("0", "/").replace("1", "./")
        return ctypes.CDLL(f"/proc/self/fd/{spelled}{file}")
    finally:
        os.close(file)


_parts: dict[bytes, _Part] = {}
_lock = threading.Lock()


def _part(text: str, may_compile: bool, is_ahead: bool) -> _Part:
    """The part with a text, which is compiled once. LookupError if it is to be compiled, and must not."""
    command, about = _compiler()
    digest = hashlib.sha256("\0".join([*_FLAGS, *command, about, text]).encode())
    key = b"torch_outrigger kernels " + digest.digest()
    with _lock:
        if key not in _parts:
            _parts[key] = _Part(key, text, may_compile, is_ahead)
        return _parts[key]


class Program:
    """The kernels of one module for one device, in groups of a size that the device likes, or of `group` items."""

    def __init__(self, device_type: str, index: int, group: int | None = None) -> None:
        self.device = torch.device(device_type, index)
        self._index = index
        self._group = group_size(index) if group is None else group
        self._texts: dict[str, str] = {}
        self._parts: list[_Part] = []
        self._part_of: dict[str, int] = {}
        self._module: Any = None

    def kernel(
        self,
        name: str,
        kinds: str,
        items: Any,
        reduced: Any,
        by_row: bool,
        pointers: list[str],
        text: str,
        label: str | None = None,
    ) -> Any:
        """Adds a kernel. It can be called at once; its first call waits for the compiler. Failures call it by its label."""
        on_host = language(self._index) is None
        self._texts[name] = text + (_runner(name, pointers, "c" in kinds) if on_host else "")
        real = "d" if has_f64(self._index) else "f"
        return _C.ProgramKernel(
            self._load, self.device, name, kinds.replace("w", real), items, reduced, by_row, self._group, label
        )

    def begin(self, may_compile: bool = True, is_ahead: bool = False) -> None:
        """Begins to compile, in the background; `is_ahead`: behind all else that runs. An error if it must not, and what was compiled is
        not there."""
        if not self._texts:
            return
        taken = language(self._index)
        if taken is not None:
            source = f"#define OTR_GROUP_SIZE {self._group}\n{_headers()}\n" + "\n".join(self._texts.values())
            self._module = _C.program_load(self._index, taken, source.encode(), may_compile)
            return
        names = list(self._texts)
        count = max(1, min(os.cpu_count() or 1, len(names) // _KERNELS_OF_PART))
        for number in range(count):
            mine = names[number::count]
            self._part_of.update(dict.fromkeys(mine, number))
            self._parts.append(_part(_headers() + "\n" + "\n".join(self._texts[one] for one in mine), may_compile, is_ahead))

    def _load(self, kernel: Any) -> None:
        """Gives a kernel its code."""
        if self._module is not None:
            kernel.bind_module(self._module)
            return
        function = getattr(self._parts[self._part_of[kernel.name]].library(), f"{kernel.name}_run")
        kernel.bind_host(ctypes.cast(function, ctypes.c_void_p).value)


def _runner(name: str, pointers: list[str], has_checks: bool) -> str:
    """The function of the host that runs groups of a kernel, with its arguments as words."""
    given = "".join(f"({one})words[{number}], " for number, one in enumerate(pointers)) + "&failed, " * has_checks
    return f"""
i32 {name}_run(const u64* words, i64 first, i64 last) {{
  {name}_numbers numbers;
  otr_place_t place = {{{{0, 0, 0}}, {{(i32)last, 1, 1}}}};
  memcpy(&numbers, words + {len(pointers)}, sizeof numbers);
  i32 failed = 0;
  for (i64 group = first; group < last; group++) {{
    place.group[0] = (i32)group;
    {name}(&place, {given}numbers);
  }}
  return failed;
}}
"""
