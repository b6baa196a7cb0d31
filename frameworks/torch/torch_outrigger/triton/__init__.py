"""Triton's backend for devices of Outrigger: a kernel of `triton.jit` becomes a text of the project's dialect of C.

Triton finds it by the entry point `triton.backends`, and imports `compiler` and `driver`. Nothing else of the project imports
Triton. docs/triton.md tells the whole.
"""
