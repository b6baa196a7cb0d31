"""The project's main job, run by `cargo xtask demo`: two real models trained on an Outrigger device.

Each model is trained twice in lockstep, on the device and on CPU tensors, from the same weights and on
the same batches, so that every step's loss can be compared. Nothing here may know how the device works:
it uses stock PyTorch and the public interface of `torch_outrigger`.
"""
