//! The functions of a layered table. Each finds the layer by its first handle, and turns handles into
//! those of the driver below. It wraps new objects of the driver below into handles of the layer. No
//! panic leaves it.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use outrigger_device::{Code, sys};

use crate::entries::entries;
use crate::fail;
use crate::failure::answer;
use crate::handle::{Argument, Handle, Object};
use crate::table::Layered;

/// Runs an entry by its first handle.
#[inline]
fn call<T: Object>(
    first: *mut T,
    body: impl FnOnce(&Layered, &'static Handle, *mut T) -> i32,
) -> i32 {
    // SAFETY: the handle of a call, which the host keeps alive through it.
    match unsafe { Handle::find(first) } {
        Some(handle) => {
            let layered = handle.layered();
            answer(
                || body(layered, handle, handle.below().cast()),
                || layered.layer.error_text(&layered.next),
            )
        }
        None => answer(
            || {
                let what = if first.is_null() {
                    "NULL"
                } else {
                    "none of this driver"
                };
                fail(Code::INVALID_HANDLE, format!("the {} is {what}", T::NAME))
            },
            || None,
        ),
    }
}

/// Runs an entry that makes an object, and gives the host a handle for it.
///
/// # Safety
/// `place` is NULL or writable.
unsafe fn made<T: Object>(
    layered: &Arc<Layered>,
    place: *mut *mut T,
    body: impl FnOnce(*mut *mut T) -> i32,
) -> i32 {
    // SAFETY: `place` is NULL or writable.
    unsafe {
        placed(place, body, |below| {
            Handle::make(below, Arc::clone(layered))
        })
    }
}

/// # Safety
/// `place` is NULL or writable.
unsafe fn placed<T: Object>(
    place: *mut *mut T,
    body: impl FnOnce(*mut *mut T) -> i32,
    handle: impl FnOnce(*mut T) -> *mut T,
) -> i32 {
    if place.is_null() {
        // The driver's own check answers.
        return body(place);
    }
    let mut below = std::ptr::null_mut();
    let code = body(&mut below);
    // An output that a driver writes although it failed, or does not write although it succeeded, is seen
    // as it is.
    if code == Code::OK.0 || !below.is_null() {
        let outside = if code == Code::OK.0 && !below.is_null() {
            handle(below)
        } else {
            below
        };
        // SAFETY: not NULL, so writable.
        unsafe { *place = outside };
    }
    code
}

macro_rules! thunk {
    (plain $method:ident($first:ident: $fty:ident $(, $arg:ident: $ty:ty)*) []) => {
        pub(crate) unsafe extern "C" fn $method($first: *mut sys::$fty $(, $arg: $ty)*) -> i32 {
            call($first, |layered, _, $first| {
                // SAFETY: R7: the host's own arguments, with handles of the driver below.
                unsafe {
                    layered.layer.$method(&layered.next, $first $(, Argument::below($arg))*)
                }
            })
        }
    };
    (takes $method:ident($first:ident: $fty:ident) []) => {
        pub(crate) unsafe extern "C" fn $method($first: *mut sys::$fty) -> i32 {
            let mut gone = None;
            let code = call($first, |layered, handle, below| {
                // SAFETY: R8: no other call uses what the host destroys.
                let code = unsafe { layered.layer.$method(&layered.next, below) };
                gone = (code == Code::OK.0).then_some(handle);
                code
            });
            if let Some(handle) = gone {
                handle.retire();
            }
            code
        }
    };
    (makes $method:ident($first:ident: $fty:ident $(, $arg:ident: $ty:ty)*)
        [$out:ident: $oty:ident]) => {
        pub(crate) unsafe extern "C" fn $method($first: *mut sys::$fty $(, $arg: $ty)*,
            $out: *mut *mut sys::$oty) -> i32 {
            call($first, |layered, handle, $first| {
                // SAFETY: R7: the host's own arguments, with handles of the driver below; a place that is not
                // NULL is writable.
                unsafe {
                    made(handle.layered(), $out, |$out| {
                        layered.layer.$method(&layered.next, $first $(, Argument::below($arg))*, $out)
                    })
                }
            })
        }
    };
    (other $($rest:tt)*) => {};
}

macro_rules! thunks {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($($args:tt)*) [$($out:tt)*];)*) => {
        $(thunk! { $kind $method($($args)*) [$($out)*] })*
    };
}

entries!(thunks);

pub(crate) unsafe extern "C" fn close(driver: *mut sys::otr_driver) -> i32 {
    let mut gone = None;
    let code = call(driver, |layered, handle, below| {
        // SAFETY: R12: `close` comes last.
        let code = unsafe { layered.layer.close(&layered.next, below) };
        if code == Code::OK.0 {
            gone = Some(handle);
            if below == layered.next.raw().handle() {
                layered.next.raw().set_closed();
            }
        }
        code
    });
    if let Some(handle) = gone {
        handle.retire();
    }
    code
}

pub(crate) unsafe extern "C" fn virtual_destroy(
    driver: *mut sys::otr_driver,
    physical: *mut sys::otr_physical,
) -> i32 {
    let mut gone = None;
    let code = call(driver, |layered, _, driver| {
        // SAFETY: R8: no other call uses what the host destroys.
        let code = unsafe {
            layered
                .layer
                .virtual_destroy(&layered.next, driver, physical.below())
        };
        if code == Code::OK.0 {
            // SAFETY: the driver took it for a live handle, so it is one of ours.
            gone = unsafe { Handle::find(physical) };
        }
        code
    });
    if let Some(handle) = gone {
        handle.retire();
    }
    code
}

pub(crate) unsafe extern "C" fn virtual_map(
    driver: *mut sys::otr_driver,
    params: *const sys::otr_map_params,
) -> i32 {
    call(driver, |layered, _, driver| {
        let map = |params| {
            // SAFETY: R7: the host's own arguments, with as many handles of the driver below.
            unsafe { layered.layer.virtual_map(&layered.next, driver, params) }
        };
        // SAFETY: NULL, or the struct.
        let Some(given) = (unsafe { params.as_ref() }).filter(|given| !given.physical.is_null())
        else {
            return map(params);
        };
        // SAFETY: not NULL, so as many handles as are counted.
        let objects = unsafe { std::slice::from_raw_parts(given.physical, given.count as usize) };
        let objects: Vec<_> = objects.iter().map(|object| object.below()).collect();
        map(&sys::otr_map_params {
            struct_size: size_of::<sys::otr_map_params>(),
            physical: objects.as_ptr(),
            ..*given
        })
    })
}

pub(crate) unsafe extern "C" fn kernel_get(
    module: *mut sys::otr_drv_module,
    name: *const c_char,
    kernel: *mut *mut sys::otr_drv_kernel,
) -> i32 {
    call(module, |layered, handle, module| {
        // SAFETY: R7: the host's own arguments, with handles of the driver below; a place that is not
        // NULL is writable.
        unsafe {
            placed(
                kernel,
                |kernel| {
                    layered
                        .layer
                        .kernel_get(&layered.next, module, name, kernel)
                },
                |below| handle.kernel(below),
            )
        }
    })
}
