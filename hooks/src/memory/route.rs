//! Pool uses: for a time, what a thread allocates on a device comes from a pool that the host chose.
//!
//! A use concerns its own thread only. It costs the allocations of other threads one load.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_device::Code;
use outrigger_graph::PoolRef;

use crate::pool::pool;
use crate::stream::stream;
use crate::{Error, Result};

/// The number of pool uses of all threads.
static ROUTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STACK: RefCell<Vec<PoolUse>> = const { RefCell::new(Vec::new()) };
}

/// A pool use: allocations on the stream come from the pool. Keeps the pool alive.
struct PoolUse {
    handle: u64,
    memory: Arc<PoolRef>,
    stream: u64, // 0: on any
}

impl Drop for PoolUse {
    fn drop(&mut self) {
        ROUTES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Begins a pool use: until [`end_pool_use`], what the calling thread allocates on the pool's device comes from this
/// pool. If `only_stream` is not 0, that holds for allocations on that stream only. Uses nest, and the innermost one
/// that fits an allocation decides. A stream that captures allocates from the pool of its graph in any case. The use
/// keeps the pool alive.
///
/// # Errors
/// `INVALID_HANDLE`; `INVALID_ARGUMENT` for a stream of another device.
pub fn begin_pool_use(handle: u64, only_stream: u64) -> Result<()> {
    let memory = Arc::clone(pool(handle)?.memory());
    if only_stream != 0 {
        let (ours, theirs) = (
            memory.device().index(),
            stream(only_stream)?.device().index(),
        );
        if ours != theirs {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("a pool of device {ours} cannot serve a stream of device {theirs}"),
            ));
        }
    }
    ROUTES.fetch_add(1, Ordering::Relaxed);
    let route = PoolUse {
        handle,
        memory,
        stream: only_stream,
    };
    STACK.with_borrow_mut(|stack| stack.push(route));
    Ok(())
}

/// Ends the last pool use that the calling thread began, which must be of this pool. Memory that was allocated in it
/// stays in the pool.
///
/// # Errors
/// `INVALID_ARGUMENT` if the thread uses no pool, or has begun to use another one since; `INVALID_HANDLE` if the id is
/// neither of a live pool nor of one that the thread uses.
pub fn end_pool_use(handle: u64) -> Result<()> {
    if !STACK.with_borrow(|stack| stack.iter().any(|route| route.handle == handle)) {
        pool(handle)?;
    }
    let ended = STACK.with_borrow_mut(|stack| match stack.last() {
        Some(route) if route.handle == handle => Ok(stack.pop()),
        Some(other) => Err(format!(
            "pool {handle:#x} is not the one whose use this thread has begun last, which is {:#x}: \
             uses end in the reverse order, on their thread",
            other.handle
        )),
        None => Err(format!(
            "this thread uses no pool: the use of pool {handle:#x} ends on the thread that began it"
        )),
    });
    // The pool use is dropped after the borrow: dropping the last reference to a pool gives memory back.
    ended
        .map(drop)
        .map_err(|text| Error::new(Code::INVALID_ARGUMENT, text))
}

/// The pool that the calling thread uses for allocations on this stream, if any.
#[inline]
pub(super) fn chosen(device: u32, stream: u64) -> Option<Arc<PoolRef>> {
    if ROUTES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    innermost(device, stream)
}

#[cold]
fn innermost(device: u32, stream: u64) -> Option<Arc<PoolRef>> {
    let fits = |route: &&PoolUse| {
        route.memory.device().index() == device && (route.stream == 0 || route.stream == stream)
    };
    // At the end of a thread it may still allocate after its stack of uses is gone.
    STACK
        .try_with(|stack| {
            let stack = stack.borrow();
            let route = stack.iter().rev().find(fits)?;
            Some(Arc::clone(&route.memory))
        })
        .ok()
        .flatten()
}
