//! The allocator against a simulated device that watches every byte: random use compared with a model,
//! failures at every call of the device, and threads.

mod faults;
mod graphs;
mod model;
mod options;
mod replays;
mod sim;
mod sleep;
mod threads;
mod views;
