//! The driver over a stand-in for CUDA, in one program. The tests are serial: the stand-in is one for the whole process.

mod adopted;
mod bench;
mod code;
mod commands;
mod graphs;
mod nvrtc;
mod opening;
mod products;
mod refusals;
