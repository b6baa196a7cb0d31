//! Contexts: what a host wants to remember of the place where memory was allocated, such as a stack.
//!
//! The host's functions may take its own locks, such as an interpreter's, which other threads hold
//! while they allocate. So these functions must never be called under a lock of the allocator.

use std::fmt;
use std::sync::Arc;

/// A host that captures contexts.
pub trait ContextSource: Send + Sync {
    /// Captures where the calling thread is, as a number that means something to the host. 0 is
    /// nothing, and is not released.
    fn capture(&self) -> u64;

    /// Nothing refers to this context any more. Called once for each that was captured, on any thread.
    fn release(&self, token: u64);

    /// Tells the frames of a context, the innermost first.
    fn frames(&self, token: u64, frame: &mut dyn FnMut(Frame<'_>)) {
        let _ = (token, frame);
    }
}

/// One call of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The source file.
    pub file: &'a str,
    /// The line in it, from 1; 0 if unknown.
    pub line: u32,
    /// The function.
    pub name: &'a str,
}

/// A captured context, shared by all that refer to it.
#[derive(Clone)]
pub struct Context(Arc<Captured>);

/// The host's number of a context, and the host's functions for it.
struct Captured {
    token: u64,
    source: Arc<dyn ContextSource>,
}

impl Context {
    /// Captures one; `None` if the host has nothing to remember.
    pub(super) fn capture(source: &Arc<dyn ContextSource>) -> Option<Self> {
        match source.capture() {
            0 => None,
            token => Some(Self(Arc::new(Captured {
                token,
                source: Arc::clone(source),
            }))),
        }
    }

    /// The host's number.
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// A key: equal for contexts of one source with the same number, and different for all others that
    /// are alive.
    pub fn identity(&self) -> (usize, u64) {
        (Arc::as_ptr(&self.0.source).addr(), self.0.token)
    }

    /// Tells the frames, the innermost first.
    pub fn frames(&self, frame: &mut dyn FnMut(Frame<'_>)) {
        self.0.source.frames(self.0.token, frame);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.token).finish()
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.source.release(self.token);
    }
}
