"""Rewrites the program's own modules as they are imported, so that they see the device under CUDA's name.

The program is the script or module that was started, and what lies in its folder. It must never rewrite torch or an installed library.
It also refuses what only CUDA can run: compiled modules that need CUDA's runtime library.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any

from .._lifetime import device_type
from ._elf import needed_by

_NAME = "__as_cuda__"
_INSTALLED = ("site-packages", "dist-packages")
_CUDAS = ("libcudart.", "libtorch_cuda.", "libc10_cuda.", "libcuda.", "libcublas", "libcudnn", "libnccl")


class _Rewriter(ast.NodeTransformer):
    """Puts calls of `_seen` where a program asks what a device is called."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and node.attr == "type":
            return _call("type_of", node, node.value)
        if isinstance(node.ctx, ast.Load) and node.attr == "is_cuda":
            return _call("is_cuda", node, node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and name == "type":
            if not node.args and not node.keywords:
                return _call("type_name", node, self.visit(function.value))
            # `x.type(dtype)` converts.
            function.value = self.visit(function.value)
            node.args = [self.visit(each) for each in node.args]
            node.keywords = [self.visit(each) for each in node.keywords]
            return node
        self.generic_visit(node)
        if name == "str" and len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred):
            return _call("text", node, node.func, *node.args)
        if name in _THROUGH:
            return _call(_THROUGH[name], node, node.func, *node.args, keywords=node.keywords)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.generic_visit(node)
        if node.conversion in (-1, ord("s")):
            node.value = _call("shown", node.value, node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        of_device = any(isinstance(side, ast.Attribute) and side.attr == "device" for side in (node.left, *node.comparators))
        self.generic_visit(node)
        if of_device:
            node.left = _call("compared", node.left, node.left)
            node.comparators = [_call("compared", side, side) for side in node.comparators]
        return node


_THROUGH = {"device": "made", "get_backend": "backend"}


def _call(name: str, at: ast.AST, *arguments: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.expr:
    function = ast.Attribute(ast.Name(_NAME, ast.Load()), name, ast.Load())
    call = ast.copy_location(ast.Call(function, list(arguments), keywords or []), at)
    for new in (call, function, function.value):
        ast.copy_location(new, at)
    return call


def compiled(source: bytes | str, path: str) -> CodeType:
    """The code of a module of the program."""
    tree = _Rewriter().visit(ast.parse(source, path))
    places = (number for number, node in enumerate(tree.body) if not _is_first(node, number))
    first = next(places, len(tree.body))
    line = ast.parse(f"from {__package__} import _seen as {_NAME}").body[0]
    for node in ast.walk(line):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = 1
    tree.body.insert(first, line)
    return compile(tree, path, "exec", dont_inherit=True)


def _is_first(node: ast.stmt, number: int) -> bool:
    """Whether Python wants a statement before all others: the documentation and `from __future__`."""
    if isinstance(node, ast.Expr):
        return number == 0 and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the program. Python's cache of bytecode is for the module as it is written, so it is not used."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compiled(self.get_data(path), path)


class _Refused(importlib.abc.Loader):
    """Stands for a compiled module that needs CUDA."""

    def __init__(self, name: str, file: str, library: str) -> None:
        self.name, self.file, self.library = name, file, library

    def create_module(self, spec: Any) -> Any:
        raise ImportError(
            f"{self.name} is an extension for CUDA, which cannot run on {device_type()}: {self.file} needs {self.library}",
            name=self.name,
            path=self.file,
        )

    def exec_module(self, module: Any) -> None:
        """Never called: there is no module."""


class Finder(importlib.abc.MetaPathFinder):
    """Gives the program's modules their loader; others are found as ever, and refused if they need CUDA."""

    main = "torch_outrigger_as_cuda_main"
    """The name by which a process that multiprocessing started imports the script."""

    def __init__(self, script: str | None, folders: list[str]) -> None:
        self.script = script
        self.folders = [Path(folder).resolve() for folder in folders]
        self._libraries = [Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")]

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname == self.main and self.script is not None:
            return importlib.util.spec_from_file_location(fullname, self.script, loader=_Loader(fullname, self.script))
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        if isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
            library = _of_cuda(fullname, spec.origin)
            if library is not None:
                # A program that only looks whether it is there finds it.
                spec.loader = _Refused(fullname, spec.origin, library)
                return spec
        elif type(spec.loader) is importlib.machinery.SourceFileLoader and self.is_of_program(spec.origin):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            return spec
        return None

    def is_of_program(self, file: str) -> bool:
        """Whether a file is part of the program, and not of a library."""
        path = Path(file).resolve()
        if any(part in _INSTALLED for part in path.parts) or any(path.is_relative_to(each) for each in self._libraries):
            return False
        if path.is_relative_to(Path(__file__).resolve().parents[1]):
            return False
        return any(path.is_relative_to(folder) for folder in self.folders)


def _of_cuda(name: str, file: str) -> str | None:
    """The library of CUDA that a compiled module needs."""
    if name.partition(".")[0] in ("torch", "functorch", "torch_outrigger", "triton", "nvidia"):
        return None
    return next((library for library in needed_by(file) if library.startswith(_CUDAS)), None)
