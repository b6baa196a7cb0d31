"""Turns `as_cuda` on: checks that it may be, opens the doors, has the program's modules rewritten, also in other processes."""

from __future__ import annotations

import multiprocessing.spawn
import os
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import torch

from .. import _lifetime, load_error
from . import _doors
from ._rewrite import Finder

VARIABLE = "OUTRIGGER_AS_CUDA"
MODULE = __package__

_finder: Finder | None = None


def enter() -> None:
    """Turns `as_cuda` on, once. RuntimeError says why it cannot be; then nothing is changed.

    A script that runs already is started again by `python -m torch_outrigger.as_cuda`, in the same process, as its own lines
    have to be read differently.
    """
    if _finder is not None:
        return
    _check()
    kind, program = started_as()
    if kind == "module" and program[1] == MODULE:
        # `_run` knows the program.
        begin(None, [])
    elif threading.current_thread() is threading.main_thread() and _is_program(kind):
        _start_again(program)
    else:
        begin(None, [])


def begin(script: str | None, folders: list[str]) -> None:
    """Turns `as_cuda` on for a program whose modules lie in these folders, or tells where they lie."""
    global _finder
    if _finder is not None:
        _finder.script = script
        _finder.folders = [Path(folder).resolve() for folder in folders]
        return
    _check()
    _doors.open_all()
    _finder = Finder(script, folders)
    sys.meta_path.insert(0, _finder)
    os.environ[VARIABLE] = "1"
    _pass_on()


def _check() -> None:
    if load_error() is not None:
        raise RuntimeError(f"{MODULE} is off: torch_outrigger could not be loaded: {load_error()}")
    if _lifetime.device_type() == "mtia":
        raise RuntimeError(f"{MODULE} is off: it serves PrivateUse1 alone, and OUTRIGGER_TORCH=mtia chooses MTIA")
    if torch.cuda.is_available():
        raise RuntimeError(
            f"{MODULE} is off: there is a CUDA device ({torch.cuda.get_device_name(0)}), and the program runs on it without this"
        )
    if _lifetime.is_initialized():
        raise RuntimeError(f"{MODULE} is off: the device is in use already; import it before all else")


def started_as() -> tuple[str, list[str]]:
    """The start of Python: with a script, module, code or nothing, and the words from there on."""
    words = sys.orig_argv[1:]
    for number, word in enumerate(words):
        if number and words[number - 1] in ("-W", "-X", "--check-hash-based-pycs"):
            continue
        if word == "-c":
            return "code", words[number:]
        if word == "-m":
            return "module", words[number:]
        if word == "-" or not word.startswith("-"):
            return ("script" if word != "-" else "nothing"), words[number:]
    return "nothing", []


def _is_program(kind: str) -> bool:
    """Whether the main module is a program with lines to rewrite, and not a tool such as torchrun."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if kind not in ("script", "module") or file is None or getattr(sys, "ps1", None) is not None:
        return False
    folder = Path(file).resolve().parent
    return folder != Path(sysconfig.get_path("scripts")).resolve() and Finder(None, [str(folder)]).is_of_program(file)


def _start_again(program: list[str]) -> None:
    """The interpreter with its options, the command, and the program."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(program)]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, *options, "-m", MODULE, *program])


# ---- other processes -----------------------------------------------------------------------------


class _Child:
    """Turns `as_cuda` on in a process that multiprocessing has started, when that reads what it is told, which is before it imports."""

    def __init__(self, script: str | None, folders: list[str]) -> None:
        self.given = (script, folders)

    def __reduce__(self) -> Any:
        return begin, self.given


def _pass_on() -> None:
    """Has processes of multiprocessing begin with `as_cuda` turned on. Forked ones have it, and others read the variable."""
    told = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = told(name)
        data["outrigger_as_cuda"] = _Child(_finder.script, [str(folder) for folder in _finder.folders])
        if _finder.script is not None and data.pop("init_main_from_path", None) is not None:
            data["init_main_from_name"] = Finder.main
        return data

    multiprocessing.spawn.get_preparation_data = get_preparation_data
