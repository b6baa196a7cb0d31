"""The operator sweep: torch's own operator database, every sample, on the device against CPU tensors.

`python -m sweep --help`, run in the folder above, or `pytest sweep`. A parent process deals the operators
out to workers, so that a crash or a hang costs one operator and not the sweep. What fails must stand in
`expected.toml` with its reason, what stands there must fail, and a crash or a hang is never expected.
The package must not know how the device works: it uses stock PyTorch and `torch.<device>` only.
"""
