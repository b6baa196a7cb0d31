//! The table that a driver exports, and what the host said of itself when it asked for it (R2).

use std::ffi::CString;
use std::sync::OnceLock;

use outrigger_contract as c;

use crate::given::{Out, null};
use crate::{Fault, Result};

/// A table, or a group of one, as a constant of the library.
#[repr(transparent)]
#[derive(Debug)]
pub struct Static<T>(pub T);

// SAFETY: nobody writes to it, and its pointers are to constants of the library.
unsafe impl<T> Sync for Static<T> {}

type Log = unsafe extern "C" fn(i32, *const std::ffi::c_char);

/// The function that the host wants messages by; set by the first host that asks for the table.
static LOG: OnceLock<Log> = OnceLock::new();

/// Does the work of `otr_driver_get_api`: it writes the table, and then refuses a host of another major number (R2).
///
/// # Errors
/// `OTR_ERR_VERSION` with both numbers, `OTR_ERR_INVALID_ARGUMENT` for NULL.
///
/// # Safety
/// The arguments are those of `otr_driver_get_api`.
pub unsafe fn negotiate(
    host: *const c::otr_host_info,
    place: *mut *const c::otr_driver_api,
    table: &'static Static<c::otr_driver_api>,
) -> Result {
    let place = Out::new(place, "the place for the table")?;
    if host.is_null() {
        return Err(null("the description of the host"));
    }
    place.give(&table.0);
    // SAFETY: not NULL, so a struct of the size that it says, which lives as long as the process.
    let (major, log) = unsafe {
        (
            crate::field!(host, c::otr_host_info, api_major),
            crate::field!(host, c::otr_host_info, log),
        )
    };
    let major = major.unwrap_or(0);
    if major != c::OTR_DRIVER_API_MAJOR {
        return Err(Fault::new(
            c::OTR_ERR_VERSION,
            format!(
                "the host speaks version {major} of the driver contract and this driver version {}",
                c::OTR_DRIVER_API_MAJOR
            ),
        ));
    }
    if let Some(Some(log)) = log {
        LOG.get_or_init(|| log);
    }
    Ok(())
}

/// Sends a message to the host's log; `level` is one of `OTR_LOG_*`. Without a host that logs it is lost.
pub fn log(level: i32, message: &str) {
    if let (Some(log), Ok(message)) = (LOG.get(), CString::new(message.replace('\0', " "))) {
        // SAFETY: the host's function, which takes a NUL-terminated text on any thread.
        unsafe { log(level, message.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::{Static, negotiate};
    use outrigger_contract as c;

    static TABLE: Static<c::otr_driver_api> =
        // SAFETY: zero is valid for all fields: integers, pointers and optional functions.
        Static(unsafe { std::mem::zeroed() });

    #[test]
    fn another_major_is_refused_after_the_table_was_written() {
        let mut host = c::otr_host_info {
            struct_size: size_of::<c::otr_host_info>(),
            next: std::ptr::null(),
            api_major: c::OTR_DRIVER_API_MAJOR,
            api_minor: 99,
            version: c"9".as_ptr(),
            log: None,
        };
        let mut table = std::ptr::null();
        // SAFETY: both live through the calls; NULL is refused.
        unsafe {
            negotiate(&host, &mut table, &TABLE).unwrap();
            assert!(std::ptr::eq(table, &TABLE.0));
            host.api_major += 6;
            table = std::ptr::null();
            let fault = negotiate(&host, &mut table, &TABLE).unwrap_err();
            assert_eq!(fault.code(), c::OTR_ERR_VERSION);
            assert!(fault.text().contains("version 7"), "{fault:?}");
            assert!(!table.is_null());
            assert!(negotiate(std::ptr::null(), &mut table, &TABLE).is_err());
            assert!(negotiate(&host, std::ptr::null_mut(), &TABLE).is_err());
        }
    }
}
