//! Handles of a layered driver. Each stands for a handle of the driver below and knows its layer, so an
//! entry finds the layer without a search. Of a handle that is not ours, only the first word is read.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::sys;
use parking_lot::Mutex;

use crate::table::Layered;

/// The kinds of objects that have handles.
pub(crate) trait Object {
    /// Marks a live handle of the kind.
    const TAG: u64;
    /// For messages.
    const NAME: &'static str;
}

macro_rules! objects {
    ($($type:ident $name:literal $tag:literal)*) => {
        $(
            impl Object for sys::$type {
                const TAG: u64 = 0x6f74_724c_6179_0000 | $tag;
                const NAME: &'static str = $name;
            }

            impl Argument for *mut sys::$type {
                fn below(self) -> Self {
                    // SAFETY: an argument of a call, which the host keeps alive through it.
                    match unsafe { Handle::find(self) } {
                        Some(handle) => handle.below().cast(),
                        // The driver's own check answers for it.
                        None => self,
                    }
                }
            }
        )*
    };
}

/// An argument of an entry, as the driver below is to see it.
pub(crate) trait Argument: Sized {
    /// The handle below, for a handle; anything else as it is.
    fn below(self) -> Self {
        self
    }
}

macro_rules! plain {
    ($($type:ty)*) => { $(impl Argument for $type {})* };
}

objects! {
    otr_driver "driver" 1
    otr_queue "queue" 2
    otr_drv_event "event" 3
    otr_drv_module "module" 4
    otr_drv_kernel "kernel" 5
    otr_operator "operator" 6
    otr_drv_graph "graph" 7
    otr_physical "physical memory" 8
    otr_drv_comm "communicator" 9
    otr_drv_semaphore "semaphore" 10
}

plain! { u32 u64 usize sys::otr_host_fn }

impl<T> Argument for *const T {}
impl Argument for *mut u32 {}
impl Argument for *mut u64 {}
impl Argument for *mut c_void {}
impl Argument for *mut *mut c_void {}
impl Argument for *mut *const *const c_char {}
impl Argument for *mut sys::otr_operator_answer {}
impl Argument for *mut sys::otr_outcome {}
impl Argument for *mut sys::otr_device_properties {}
impl Argument for *mut sys::otr_ipc_handle {}
impl Argument for *mut sys::otr_imported {}
impl Argument for *mut sys::otr_fd {}

/// One handle. Its memory is never given back, only used again, so a stale handle can be read safely.
#[repr(C)]
pub(crate) struct Handle {
    /// The tag of the kind, mixed with the address; 0 while the handle stands for nothing.
    tag: AtomicU64,
    /// Written while the tag is 0 only.
    content: UnsafeCell<Option<Content>>,
}

struct Content {
    below: *mut c_void,
    layered: Arc<Layered>,
    /// The kernels of a module, which go with it: their handles below, and here.
    kernels: Mutex<Vec<(usize, &'static Handle)>>,
}

// SAFETY: the content is written before the tag is published and after it was taken back, by one thread;
// R8 leaves it to the host that no call uses a handle that is being destroyed. What it holds is shared
// by R8 too.
unsafe impl Sync for Handle {}
// SAFETY: as above.
unsafe impl Send for Handle {}

/// Handles that stand for nothing, oldest first.
static SPARE: Mutex<VecDeque<&'static Handle>> = Mutex::new(VecDeque::new());
/// As many free handles are kept back, so that a handle that was just given up does not soon mean
/// another object.
const KEPT_BACK: usize = 256;

impl Handle {
    /// A handle for one of the driver below.
    pub(crate) fn make<T: Object>(below: *mut T, layered: Arc<Layered>) -> *mut T {
        Self::new::<T>(below, layered).outside()
    }

    fn new<T: Object>(below: *mut T, layered: Arc<Layered>) -> &'static Self {
        let spare = {
            let mut spare = SPARE.lock();
            (spare.len() > KEPT_BACK)
                .then(|| spare.pop_front())
                .flatten()
        };
        let handle = spare.unwrap_or_else(|| {
            Box::leak(Box::new(Self {
                tag: AtomicU64::new(0),
                content: UnsafeCell::new(None),
            }))
        });
        let content = Content {
            below: below.cast(),
            layered,
            kernels: Mutex::new(Vec::new()),
        };
        // SAFETY: the tag is 0 and the handle was spare or new: nobody else reads it.
        unsafe { *handle.content.get() = Some(content) };
        handle.tag.store(handle.mixed(T::TAG), Ordering::Release);
        handle
    }

    fn mixed(&self, tag: u64) -> u64 {
        tag ^ (std::ptr::from_ref(self).addr() as u64)
    }

    fn outside<T>(&'static self) -> *mut T {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The handle behind a pointer; `None` for NULL, and for a pointer that is not a handle of this
    /// kind.
    ///
    /// # Safety
    /// It is NULL, or at least 8 bytes can be read there, and nobody destroys it meanwhile.
    pub(crate) unsafe fn find<T: Object>(pointer: *mut T) -> Option<&'static Self> {
        let place = pointer.cast::<Self>();
        if place.is_null() || !place.is_aligned() {
            return None;
        }
        // SAFETY: aligned and not NULL, so readable. The rest of a handle is looked at only
        // if this word says that it is one.
        let tag = unsafe { &*place.cast::<AtomicU64>() }.load(Ordering::Acquire);
        if tag != T::TAG ^ (place.addr() as u64) {
            return None;
        }
        // SAFETY: only handles of this module carry this tag at this address, and they live for ever.
        Some(unsafe { &*place })
    }

    fn content(&self) -> &Content {
        // SAFETY: the tag was seen, so the content was written before, and is until the host destroys
        // the object, during which it makes no other call with it (R8).
        match unsafe { &*self.content.get() } {
            Some(content) => content,
            None => unreachable!("a live handle has its content until it is taken back"),
        }
    }

    pub(crate) fn below(&self) -> *mut c_void {
        self.content().below
    }

    pub(crate) fn layered(&self) -> &Arc<Layered> {
        &self.content().layered
    }

    /// The handle of a kernel of this module; the same for the same kernel below.
    pub(crate) fn kernel(&self, below: *mut sys::otr_drv_kernel) -> *mut sys::otr_drv_kernel {
        let content = self.content();
        let mut kernels = content.kernels.lock();
        let known = kernels
            .iter()
            .find(|(address, _)| *address == below.addr())
            .map(|(_, handle)| *handle);
        known
            .unwrap_or_else(|| {
                let handle = Self::new(below, Arc::clone(&content.layered));
                kernels.push((below.addr(), handle));
                handle
            })
            .outside()
    }

    /// Frees the handle after its object was destroyed.
    pub(crate) fn retire(&'static self) {
        self.tag.store(0, Ordering::Release);
        // SAFETY: the tag is gone, and the host makes no other call with an object that it destroyed.
        let content = unsafe { (*self.content.get()).take() };
        for (_, kernel) in content
            .iter()
            .flat_map(|c| std::mem::take(&mut *c.kernels.lock()))
        {
            kernel.retire();
        }
        SPARE.lock().push_back(self);
        // Last: this may be the driver itself, and close it.
        drop(content);
    }
}
