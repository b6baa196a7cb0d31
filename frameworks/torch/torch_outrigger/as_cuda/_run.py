"""Runs a program as its main module, with its lines rewritten."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import CodeType
from typing import Any

from . import _start
from ._rewrite import compiled

_USAGE = f"usage: python -m {_start.MODULE} (SCRIPT | -m MODULE | -c CODE) [ARGUMENT ...]"


def run() -> None:
    """Takes the program from the command line."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE)
        sys.exit(0 if words else 2)
    if words[0] in ("-m", "-c") and len(words) < 2:
        sys.exit(f"{words[0]} needs {'a module' if words[0] == '-m' else 'code'}\n{_USAGE}")
    if words[0] == "-m":
        code, names = _module(words[1])
        sys.argv = [names["__file__"], *words[2:]]
    elif words[0] == "-c":
        _start.begin(None, [os.getcwd()])
        code, names = compiled(words[1], "<string>"), {}
        sys.argv = ["-c", *words[2:]]
    else:
        code, names = _script(words[0])
        sys.argv = words
    main = sys.modules["__main__"].__dict__
    kept = {name: main[name] for name in ("__name__", "__builtins__")}
    main.clear()
    main.update({"__doc__": None, "__package__": None, "__loader__": None, "__spec__": None}, **kept, **names)
    exec(code, main)


def _script(path: str) -> tuple[CodeType, dict[str, Any]]:
    full = os.path.abspath(path)
    folder = os.path.dirname(os.path.realpath(path))
    _start.begin(full, [folder])
    if not getattr(sys.flags, "safe_path", False):
        # As Python does for a script; for `-m` it was the current folder.
        sys.path[0] = folder
    try:
        with open(path, "rb") as opened:
            source = opened.read()
    except OSError as error:
        sys.exit(f"cannot open {path}: {error.strerror}")
    return compiled(source, full), {"__file__": full}


def _module(name: str) -> tuple[CodeType, dict[str, Any]]:
    _start.begin(None, [os.getcwd()])
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    code = spec.loader.get_code(name) if spec is not None and spec.loader is not None else None
    if code is None:
        sys.exit(f"there is no module {name} to run")
    return code, {"__file__": spec.origin, "__package__": spec.parent, "__loader__": spec.loader, "__spec__": spec}
