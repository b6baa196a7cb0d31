//! Hosts of a driver with a complete operator library, in one program. Nextest gives each test a process of its own.

mod compositions;
mod graphs;
mod guard;
