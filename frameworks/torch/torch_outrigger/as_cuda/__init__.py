"""Has a program that was written for CUDA run on the device.

    python -m torch_outrigger.as_cuda train.py --batch-size 64

`import torch_outrigger.as_cuda` before all else, and OUTRIGGER_AS_CUDA=1, do the same. Without one of them nothing here is
imported. docs/as-cuda.md has what is served, and what is not.

`_doors` lists the places of torch that are changed, `_names` what each name of `torch.cuda` becomes, `_rewrite` what is read
differently in the program's own modules. All of it is done, or nothing is and an error says why. Modules of torch and of libraries are
never rewritten, and torch itself is never told that there is CUDA.
"""

from . import _start

_start.enter()
