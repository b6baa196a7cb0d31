"""Builds the compiled part of torch_outrigger, the shim: `torch_outrigger/shims/TORCH/_C`.

It compiles against the installed torch wheel and links `liboutrigger.so`; it needs a C++20 compiler
and nothing else (no CUDA toolkit, no CMake). It must never download anything.

In place (`build_ext --inplace`), the shim refers to the library where it was built. Else the package gets a
copy of the library, of the drivers beside it, and of the headers, and refers to nothing outside. A shim is good
for one minor version of torch, so a package can have several: `build` once for each, then `bdist_wheel`.

Environment:
  OUTRIGGER_LIB_DIR      folder with liboutrigger.so (default: target/release of this repository)
  OUTRIGGER_INCLUDE_DIR  folder with outrigger/outrigger.h (default: include of this repository)
  OUTRIGGER_TORCH_BUILDS the versions of torch, as 2.14 2.15, whose shims the package has (default: the installed one)
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
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SOURCES = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.cpp"))
PREFIX = "csrc/prefix.h"
LIBRARY = "liboutrigger.so"
# Files that the package carries besides, where it was built.
DRIVERS = ("liboutrigger_opencl.so", "liboutrigger_cuda.so")


def torch_folder() -> Path:
    """The folder of torch, which is not imported: of another version, its wheel may be there without what it needs."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("torch_outrigger: torch is not installed in this Python: python -m pip install torch")
    return Path(spec.submodule_search_locations[0])


TORCH = version("torch")
HEADERS, LIBRARIES = torch_folder() / "include", torch_folder() / "lib"


def minor(version: str) -> str:
    """The version that decides about the binary interface: 2.15 of 2.15.0+cpu."""
    return ".".join(version.split(".")[:2])


def requirement() -> str:
    """The versions of torch for which the package has shims."""
    builds = os.environ.get("OUTRIGGER_TORCH_BUILDS", minor(TORCH)).split()
    first, last = (min(builds, key=number), max(builds, key=number))
    major, behind = number(last)
    return f"torch>={first},<{major}.{behind + 1}"


def number(version: str) -> tuple[int, int]:
    """A version, to compare it with others."""
    major, minor = version.split(".")
    return int(major), int(minor)


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

    def finalize_options(self) -> None:
        super().finalize_options()
        # setuptools clears its own flag while it builds.
        self.in_place = bool(self.inplace)

    def copy_extensions_to_source(self) -> None:
        """Nothing to copy: what is built in place is linked there."""

    def build_extension(self, ext: Extension) -> None:
        command = compiler()
        include = folder("OUTRIGGER_INCLUDE_DIR", REPOSITORY / "include", "outrigger/outrigger.h")
        library = folder("OUTRIGGER_LIB_DIR", REPOSITORY / "target" / "release", LIBRARY)
        objects = Path(self.build_temp).resolve() / f"torch-{TORCH}"
        objects.mkdir(parents=True, exist_ok=True)
        includes = [str(include), str(HEADERS), str(HEADERS / "torch/csrc/api/include"), *self.include_dirs, *self.compiler.include_dirs]
        flags = [
            "-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter",
            "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-DAT_PER_OPERATOR_HEADERS",
            # Errors have names of files in them; a wheel has no path of the machine that built it.
            f"-ffile-prefix-map={HERE}=torch_outrigger",
            f"-ffile-prefix-map={include}=include",
            f"-ffile-prefix-map={HEADERS.parent}=torch",
        ]  # fmt: skip
        probe = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        gcc = "clang" not in probe.stdout
        if gcc:
            # Without OpenMP at::parallel_for is a plain loop. Only GCC's shares its threads with torch's:
            # beside another runtime, kernels stay on the library's own pool.
            flags += ["-fno-gnu-unique", "-fopenmp"]
        for path in includes:
            flags += ["-isystem" if path.startswith(str(HEADERS)) else "-I", path]
        flags += ["-MMD"]

        def compile_one(source: str, target: Path, *options: str) -> str:
            if not is_current(target):
                print(f"compiling {source}", flush=True)
                subprocess.run([*command, *flags, *options, "-c", str(HERE / source), "-o", str(target)], check=True)
            return str(target)

        def compile_source(source: str) -> str:
            return compile_one(source, objects / (Path(source).stem + ".o"), *prefix)

        jobs = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
        prefix: list[str] = []
        try:
            if gcc:
                # Half of the time went into the same headers of torch.
                compile_one(PREFIX, objects / "prefix.h.gch", "-x", "c++-header")
                prefix = ["-I", str(objects), "-I", str(HERE / "csrc"), "-include", "prefix.h"]
            with ThreadPoolExecutor(max_workers=jobs) as pool:
                compiled = list(pool.map(compile_source, ext.sources))
            name = Path(self.get_ext_filename(ext.name))
            package = (HERE if self.in_place else Path(self.build_lib).resolve()) / name.parent
            result = package / "shims" / minor(TORCH) / name.name
            result.parent.mkdir(parents=True, exist_ok=True)
            # Linked beside its place and then renamed: a process that has the old one open goes on.
            fresh = result.with_suffix(".new")
            openmp = [flag for flag in flags if flag == "-fopenmp"]
            link = [*command, "-shared", *openmp, *compiled, "-o", str(fresh), f"-L{library}", "-loutrigger"]
            link += [f"-L{LIBRARIES}", *([f"-Wl,-rpath,{LIBRARIES}"] if self.in_place else [])]
            link += ["-lc10", "-ltorch_cpu", "-ltorch_python", "-ltorch", "-Wl,--as-needed"]
            if self.in_place:
                link += [f"-Wl,-rpath,{library}"]
            else:
                # Torch's libraries are loaded already; its OpenMP is there for a system that has none.
                link += ["-Wl,-rpath,$ORIGIN/../../lib:$ORIGIN/../../../torch/lib", "-s"]
                carry(package, library, include)
            subprocess.run(link, check=True)
            fresh.replace(result)
        except subprocess.CalledProcessError as error:
            sys.exit(f"torch_outrigger: the compiler failed (exit status {error.returncode}); its messages stand above.")


def carry(package: Path, library: Path, include: Path) -> None:
    """Gives the package the library, drivers and headers."""
    for name in (LIBRARY, *DRIVERS):
        if name == LIBRARY or (library / name).exists():
            target = package / "lib" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library / name, target)
            # Symbols for debuggers are most of its size. A system without binutils' strip keeps them.
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-debug", str(target)], check=True)
    shutil.copytree(include / "outrigger", package / "include" / "outrigger", dirs_exist_ok=True)
    # Programs of torch.compile have products of the same text as the library.
    shutil.copyfile(REPOSITORY / "ops" / "device" / "kernels" / "matmul.c", package / "inductor" / "matmul.c")


setup(
    install_requires=[requirement()],
    ext_modules=[Extension("torch_outrigger._C", SOURCES)],
    cmdclass={"build_ext": BuildShim},
)
