"""Builds the compiled part of torch_outrigger: `torch_outrigger/_C`.

It compiles against the installed torch wheel and links `liboutrigger.so`; it needs a C++20 compiler
and nothing else (no CUDA toolkit, no CMake). It must never download anything.

Environment:
  OUTRIGGER_LIB_DIR      folder with liboutrigger.so (default: target/release of this repository)
  OUTRIGGER_INCLUDE_DIR  folder with outrigger/outrigger.h (default: include of this repository)
  CXX                    the C++ compiler (default: c++)
  MAX_JOBS               files compiled at a time (default: number of processors)
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SOURCES = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.cpp"))


def folder(variable: str, default: Path, needed: str) -> Path:
    """The folder that an environment variable names; it must contain what is needed from it."""
    path = Path(os.environ.get(variable, default)).resolve()
    if not (path / needed).exists():
        sys.exit(
            f"torch_outrigger: {path / needed} does not exist. "
            f"Build the library with `cargo build --release`, or set {variable}."
        )
    return path


def compiler() -> list[str]:
    """The C++ compiler's command line, or an error that says what to install."""
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or shutil.which(command[0]) is None:
        sys.exit(
            f"torch_outrigger: no C++ compiler: {' '.join(command)!r} was not found. Install one "
            "(Debian and Ubuntu: `apt install g++`; Fedora: `dnf install gcc-c++`), or name it in CXX."
        )
    return command


def is_current(target: Path) -> bool:
    """Whether an object file is newer than all of its sources, as the compiler listed them."""
    listing = target.with_suffix(".d")
    if not target.exists() or not listing.exists():
        return False
    needed = listing.read_text().replace("\\\n", " ").split(":", 1)[-1].split()
    made = target.stat().st_mtime
    return all(os.path.exists(path) and os.path.getmtime(path) <= made for path in [*needed, __file__])


class BuildShim(build_ext):
    """Compiles the sources in parallel, except those whose object files are up to date, then links."""

    def build_extension(self, ext: Extension) -> None:
        import torch
        import torch.utils.cpp_extension as cpp

        command = compiler()
        include = folder("OUTRIGGER_INCLUDE_DIR", REPOSITORY / "include", "outrigger/outrigger.h")
        library = folder("OUTRIGGER_LIB_DIR", REPOSITORY / "target" / "release", "liboutrigger.so")
        objects = Path(self.build_temp).resolve() / f"torch-{torch.__version__}"
        objects.mkdir(parents=True, exist_ok=True)
        includes = [str(include), *cpp.include_paths(), *self.include_dirs, *self.compiler.include_dirs]
        flags = [
            "-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter",
            "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-DAT_PER_OPERATOR_HEADERS",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        ]  # fmt: skip
        probe = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if "clang" not in probe.stdout:
            # Without OpenMP at::parallel_for is a plain loop. Only GCC's shares its threads with torch's:
            # beside another runtime, kernels stay on the library's own pool.
            flags += ["-fno-gnu-unique", "-fopenmp"]
        for path in includes:
            flags += ["-isystem" if "site-packages" in path else "-I", path]
        flags += ["-MMD"]

        def compile_one(source: str) -> str:
            target = objects / (Path(source).stem + ".o")
            if not is_current(target):
                print(f"compiling {source}", flush=True)
                subprocess.run([*command, *flags, "-c", str(HERE / source), "-o", str(target)], check=True)
            return str(target)

        jobs = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
        try:
            with ThreadPoolExecutor(max_workers=jobs) as pool:
                compiled = list(pool.map(compile_one, ext.sources))
            result = Path(self.get_ext_fullpath(ext.name)).resolve()
            result.parent.mkdir(parents=True, exist_ok=True)
            # Linked beside its place and then renamed: a process that has the old one open goes on.
            fresh = result.with_suffix(".new")
            openmp = [flag for flag in flags if flag == "-fopenmp"]
            link = [*command, "-shared", *openmp, *compiled, "-o", str(fresh), f"-L{library}", "-loutrigger"]
            for path in cpp.library_paths():
                link += [f"-L{path}", f"-Wl,-rpath,{path}"]
            link += ["-lc10", "-ltorch_cpu", "-ltorch_python", "-ltorch", "-Wl,--as-needed"]
            link += ["-Wl,-rpath,$ORIGIN", f"-Wl,-rpath,{library}"]
            subprocess.run(link, check=True)
            fresh.replace(result)
        except subprocess.CalledProcessError as error:
            sys.exit(f"torch_outrigger: the compiler failed (exit status {error.returncode}); its messages stand above.")


setup(
    ext_modules=[Extension("torch_outrigger._C", SOURCES)],
    cmdclass={"build_ext": BuildShim},
)
