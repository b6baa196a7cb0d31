//! The kernels of operators, and where they are compiled, in one program.

mod functions;
mod graphs;
mod nvrtc;
mod plain_c;
mod processes;
mod samples;
