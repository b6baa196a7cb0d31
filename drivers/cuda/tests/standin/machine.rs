//! Devices and their contexts.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::calls::misuse;

pub(crate) const DEVICES: usize = 2;

/// The primary context of a device.
pub(crate) struct Context {
    pub(crate) device: usize,
    retained: AtomicU32,
    /// An error that took the context with it; 0: none.
    lost: AtomicI32,
    peers: Mutex<Vec<usize>>,
}

static CONTEXTS: [Context; DEVICES] = [Context::new(0), Context::new(1)];

thread_local! {
    static STACK: RefCell<Vec<&'static Context>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    const fn new(device: usize) -> Self {
        Self {
            device,
            retained: AtomicU32::new(0),
            lost: AtomicI32::new(0),
            peers: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn retain(&self) {
        self.retained.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        if self.retained.fetch_sub(1, Ordering::SeqCst) == 0 {
            misuse("a context is released more often than retained".to_owned());
        }
    }

    pub(crate) fn lost(&self) -> c_int {
        self.lost.load(Ordering::SeqCst)
    }
}

pub(crate) fn context(device: usize) -> &'static Context {
    &CONTEXTS[device]
}

pub(crate) fn lose(device: usize, code: c_int) {
    CONTEXTS[device].lost.store(code, Ordering::SeqCst);
}

pub(crate) fn enable_peer(context: &Context, peer: *const Context) -> bool {
    let mut peers = context.peers.lock().unwrap();
    let new = !peers.contains(&peer.addr());
    peers.push(peer.addr());
    new
}

/// The current context of the thread.
pub(crate) fn current() -> Option<&'static Context> {
    STACK.with_borrow(|stack| stack.last().copied())
}

pub(crate) fn push(context: &'static Context) -> c_int {
    if context.retained.load(Ordering::SeqCst) == 0 {
        return misuse("a context is pushed that nobody retains".to_owned());
    }
    STACK.with_borrow_mut(|stack| stack.push(context));
    0
}

pub(crate) fn pop(place: &mut *const Context) -> c_int {
    match STACK.with_borrow_mut(Vec::pop) {
        Some(context) => {
            *place = context;
            0
        }
        None => misuse("a context is popped that nobody pushed".to_owned()),
    }
}

/// The current context, if it still works; else what a call has to answer.
pub(crate) fn working() -> Result<&'static Context, c_int> {
    let context = current().ok_or(crate::calls::NO_CONTEXT)?;
    match context.lost() {
        0 => Ok(context),
        code => Err(code),
    }
}

/// The number of times that contexts are retained, of all devices together.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_retained() -> u32 {
    CONTEXTS
        .iter()
        .map(|context| context.retained.load(Ordering::SeqCst))
        .sum()
}
