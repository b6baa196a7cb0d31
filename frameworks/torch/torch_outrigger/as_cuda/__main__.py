"""`python -m torch_outrigger.as_cuda SCRIPT ...`, `-m MODULE ...` or `-c CODE ...`: runs a program for CUDA on the device."""

from ._run import run

run()
