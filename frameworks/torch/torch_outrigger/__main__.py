"""`python -m torch_outrigger`: what there is to know of drivers and devices, to read or to send."""

from ._diagnose import diagnose

print(diagnose())
