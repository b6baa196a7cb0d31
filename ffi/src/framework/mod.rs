//! The functions that frameworks alone need: `include/outrigger/framework.h`. An export that stands in this folder is
//! declared there, and any other in `outrigger.h`.

mod fallback;
mod threads;
mod tuning;

pub use fallback::*;
pub use threads::*;
pub use tuning::*;
