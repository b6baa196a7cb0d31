"""The compiler that Triton finds: its own passes over TTIR, then the text of the dialect."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.runtime.errors import OutOfResources

from .._lifetime import is_served
from ..inductor import program
from . import emit
from .ttir import Refused

MOST_BYTES_OF_THREAD = 16 << 20
"""The most bytes of a program's arrays where threads have memory besides the stack: on the driver `host`."""

_LONGEST_NAME = 80


@dataclass(frozen=True)
class Options:
    """Options of a launch or of an autotuner's configuration. Most are for one vendor's devices, and of no effect here."""

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 1
    warp_size: int = 1
    maxnreg: int | None = None
    cluster_dims: tuple[int, ...] = (1, 1, 1)
    ir_override: str | None = None
    enable_fp_fusion: bool = False
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e5", "fp8e4nv")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: Any = None
    debug: bool = False
    """Whether assertions are looked at, and each access whether it lies in a tensor."""
    backend_name: str = "outrigger"
    sanitize_overflow: bool = False
    """Always False: with `debug` the frontend would write an assertion behind each operation on integers."""
    arch: str = ""
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    overlap: bool = False
    """Whether arguments have memory in common, so that no load moves behind a store of another argument."""

    def __post_init__(self) -> None:
        if self.num_warps <= 0 or self.num_warps & (self.num_warps - 1):
            raise ValueError(f"num_warps must be a power of 2, and is {self.num_warps}")

    def hash(self) -> str:
        """The part of the key of Triton's cache."""
        return hashlib.sha256(repr(sorted(self.__dict__.items())).encode()).hexdigest()


@functools.cache
def _version() -> str:
    """The version of this package's code, on which the text depends besides the module."""
    folder = Path(__file__).resolve().parent
    texts = [one.read_bytes() for one in (folder / "compiler.py", folder / "ttir.py", *sorted((folder / "emit").glob("*.py")))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def _group(options: Options) -> tuple[int, int]:
    """The number of items that run a program, and the most bytes of memory that they share."""
    _, *limits = options.arch.split(":")
    if not limits:
        return 1, 0
    largest, step, local = map(int, limits)
    return min(largest, options.num_warps * step), local


class Backend(BaseBackend):
    """Compiles for devices of Outrigger."""

    binary_ext = "otrc"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        # Inductor names the device as torch does.
        return target.backend == "outrigger" or is_served(target.backend)

    def hash(self) -> str:
        return f"outrigger {_version()}, {program.code_version()}, {self.target.arch}"

    def parse_options(self, options: dict[str, Any]) -> Options:
        given = {key: value for key, value in options.items() if key in Options.__dataclass_fields__ and value is not None}
        return Options(**{**given, "arch": str(self.target.arch), "sanitize_overflow": False})

    def get_codegen_implementation(self, options: Options) -> dict[str, Any]:
        return {"min_dot_size": lambda left, right: (1, 1, 1), "convert_custom_types": None}

    def get_module_map(self) -> dict[str, ModuleType]:
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def pack_metadata(self, metadata: Any) -> tuple[int, int, int]:
        return metadata.num_warps, metadata.num_ctas, metadata.shared

    def load_dialects(self, context: Any) -> None:
        pass

    def add_stages(self, stages: dict[str, Any], options: Options, language: Language) -> None:
        if language != Language.TRITON:
            raise Refused("Gluon is a language for one vendor's devices: write the kernel in triton.language")
        stages["ttir"] = lambda module, metadata: self.make_ttir(module, metadata, options)
        stages["otrc"] = lambda module, metadata: self.make_text(module, metadata, options)

    @staticmethod
    def make_ttir(module: Any, metadata: dict[str, Any], options: Options) -> Any:
        """Triton's passes that know of no device."""
        manager = ir.pass_manager(module.context)
        passes.common.add_inliner(manager)
        passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
        passes.common.add_canonicalizer(manager)
        passes.ttir.add_combine(manager)
        passes.ttir.add_reorder_broadcast(manager)
        passes.common.add_cse(manager)
        passes.ttir.add_triton_licm(manager)
        passes.common.add_symbol_dce(manager)
        passes.ttir.add_loop_unroll(manager)
        passes.common.add_canonicalizer(manager)
        passes.common.add_cse(manager)
        manager.run(module, "make_ttir")
        return module

    @staticmethod
    def make_text(module: Any, metadata: dict[str, Any], options: Options) -> str:
        """The dialect. OutOfResources if a program's arrays do not fit, so that an autotuner takes another configuration."""
        text = str(module)
        found = re.search(r'tt\.func public @"?([^"(]+)', text)
        if found is None:
            raise Refused("the module has no kernel")
        name = "triton_" + re.sub(r"\W", "_", found[1])[:_LONGEST_NAME]
        width, most_shared = _group(options)
        kernel = emit.write(text, name, options.overlap, options.debug, width)
        most = MOST_BYTES_OF_THREAD if options.arch == "host" else emit.MOST_ON_STACK
        if kernel.local_bytes > most:
            raise OutOfResources(kernel.local_bytes, most, "memory of a program's tensors")
        if kernel.shared_bytes > most_shared:
            raise OutOfResources(kernel.shared_bytes, most_shared, "memory of a group for a program's tensors")
        metadata.update(
            name=name,
            # Triton looks whether this fits, and the compiler has.
            shared=0,
            items=kernel.width,
            local_bytes=kernel.local_bytes,
            arguments=kernel.arguments,
            checks=kernel.has_checks,
            asserts=kernel.messages,
            looks=options.debug,
            tensordesc_meta=[],
        )
        return kernel.text
