//! Objects of a driver as handles of the contract. A handle that is NULL, or of another kind, is found before it is
//! used (R7). A handle that was destroyed is not: that is the host's fault (R8).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Fault, Result};

/// An object of a driver that the host gets a handle of.
pub trait Object: Send + Sync + Sized + 'static {
    /// The opaque type of the contract, `otr_queue` for example.
    type Raw;
    /// A number that no other kind of this driver has, nor any other driver.
    const KIND: u64;
    /// The words by which messages call the object, as "the queue".
    const NAME: &'static str;
}

/// The kind stands first, whatever the object is, so that it may be read through a handle of any kind.
#[repr(C)]
struct Boxed<T> {
    kind: AtomicU64,
    object: T,
}

/// Gives an object to the host (R10).
pub fn give<T: Object>(object: T) -> *mut T::Raw {
    Box::into_raw(Box::new(Boxed {
        kind: AtomicU64::new(T::KIND),
        object,
    }))
    .cast()
}

/// The object behind a handle.
///
/// # Safety
/// `handle` is NULL or a live handle that this driver gave, of any kind, and stays live for `'a`.
#[inline]
pub unsafe fn get<'a, T: Object>(handle: *mut T::Raw) -> Result<&'a T> {
    // SAFETY: this function's contract.
    unsafe { check::<T>(handle) }.map(|boxed| &boxed.object)
}

/// Takes an object back from the host, which destroys it.
///
/// # Safety
/// As for [`get`]; no other call uses the handle (R8).
pub unsafe fn take<T: Object>(handle: *mut T::Raw) -> Result<T> {
    // SAFETY: this function's contract.
    let boxed = unsafe { check::<T>(handle)? };
    boxed.kind.store(0, Ordering::Relaxed);
    // SAFETY: made by `Box::into_raw` in `give`, of this type as its kind says, and given back by the host.
    let boxed = unsafe { Box::from_raw(handle.cast::<Boxed<T>>()) };
    Ok(boxed.object)
}

/// # Safety
/// As for [`get`].
#[inline]
unsafe fn check<'a, T: Object>(handle: *mut T::Raw) -> Result<&'a Boxed<T>> {
    let boxed = handle.cast::<Boxed<T>>();
    if boxed.is_null() || !boxed.is_aligned() {
        return Err(none::<T>(boxed.is_null()));
    }
    // SAFETY: the first word of every handle of this driver is its kind; this function's contract.
    let kind = unsafe { (*boxed.cast::<AtomicU64>()).load(Ordering::Relaxed) };
    if kind != T::KIND {
        return Err(none::<T>(false));
    }
    // SAFETY: the kind says that it is a `Boxed<T>`, which lives for `'a`.
    Ok(unsafe { &*boxed })
}

#[cold]
fn none<T: Object>(null: bool) -> Fault {
    let what = if null {
        "NULL"
    } else {
        "no handle of its kind"
    };
    Fault::handle(format!("{} is {what}", T::NAME))
}

#[cfg(test)]
mod tests {
    use super::{Object, get, give, take};
    use outrigger_contract as c;

    struct One(u32);
    impl Object for One {
        type Raw = c::otr_queue;
        const KIND: u64 = 0x1111;
        const NAME: &'static str = "the queue";
    }

    struct Two;
    impl Object for Two {
        type Raw = c::otr_drv_event;
        const KIND: u64 = 0x2222;
        const NAME: &'static str = "the event";
    }

    #[test]
    fn null_and_foreign_handles_are_found() {
        let (one, two) = (give(One(7)), give(Two));
        // SAFETY: live handles, or NULL, or no address of an object at all.
        unsafe {
            assert_eq!(get::<One>(one).unwrap().0, 7);
            let null = get::<One>(std::ptr::null_mut()).err().unwrap();
            assert_eq!(null.code(), c::OTR_ERR_INVALID_HANDLE);
            assert!(null.text().contains("the queue is NULL"), "{null:?}");
            let foreign = get::<One>(two.cast()).err().unwrap();
            assert_eq!(foreign.code(), c::OTR_ERR_INVALID_HANDLE);
            assert!(get::<One>(one.byte_add(1)).is_err());
            assert!(take::<Two>(one.cast()).is_err());
            assert_eq!(take::<One>(one).unwrap().0, 7);
            assert!(take::<Two>(two).is_ok());
        }
    }
}
