//! Through the table as the host sees it: what `open` refuses, which the conformance suite cannot ask for.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use outrigger_contract as c;

use crate::driver;
use crate::table::otr_driver_get_api;

fn table() -> &'static c::otr_driver_api {
    let host = c::otr_host_info {
        struct_size: size_of::<c::otr_host_info>(),
        next: std::ptr::null(),
        api_major: c::OTR_DRIVER_API_MAJOR,
        api_minor: c::OTR_DRIVER_API_MINOR,
        version: c"0".as_ptr(),
        log: None,
    };
    let mut table = std::ptr::null();
    // SAFETY: both live through the call, and the table for ever.
    unsafe {
        assert_eq!(otr_driver_get_api(&host, &mut table), c::OTR_OK);
        &*table
    }
}

/// Opens the driver, or gives code and text of the refusal.
fn open(options: &str) -> Result<*mut c::otr_driver, (i32, String)> {
    let (table, options) = (table(), CString::new(options).unwrap());
    let params = c::otr_open_params {
        struct_size: size_of::<c::otr_open_params>(),
        next: std::ptr::null(),
        options: options.as_ptr(),
    };
    let mut handle = std::ptr::null_mut();
    // SAFETY: the parameters live through the call, and the text is this thread's last (R5).
    unsafe {
        match table.open.unwrap()(&params, &mut handle) {
            c::OTR_OK => Ok(handle),
            code => {
                let text = CStr::from_ptr(table.last_error.unwrap()());
                Err((code, text.to_string_lossy().into_owned()))
            }
        }
    }
}

/// An open driver of a test that needs a device; `None` on a machine without OpenCL, where there is nothing to test.
pub(crate) fn opened(options: &str) -> Option<Arc<driver::Open>> {
    match open(options) {
        // SAFETY: a live handle; the object outlives it, and the test's process outlives both.
        Ok(handle) => Some(Arc::clone(unsafe { driver::get(handle) }.unwrap())),
        Err((code, text)) => {
            assert_eq!(code, c::OTR_ERR_NOT_FOUND, "{text}");
            None
        }
    }
}

#[test]
fn an_unknown_option_is_refused_by_its_name() {
    let (code, text) = open("colour=red").unwrap_err();
    assert_eq!(code, c::OTR_ERR_INVALID_ARGUMENT);
    assert!(
        text.contains("`colour`") && text.contains("host_visible"),
        "{text}"
    );
}

#[test]
fn an_unknown_platform_is_refused_with_those_that_are_there() {
    for options in ["platform=Nobody's", "platform=99"] {
        let (code, text) = open(options).unwrap_err();
        assert_eq!(code, c::OTR_ERR_NOT_FOUND, "{text}");
        let missing = text.contains("not installed") || text.contains("install the OpenCL runtime");
        assert!(missing || text.contains("there are: 0: "), "{text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    for options in ["device=99", "device=accelerator"] {
        let (code, text) = open(options).unwrap_err();
        assert_eq!(code, c::OTR_ERR_NOT_FOUND, "{text}");
    }
}

#[test]
fn the_devices_are_those_of_the_options() {
    let Some(all) = opened("") else { return };
    let one = opened("device=0,host_visible=0").unwrap();
    assert_eq!(one.devices.len(), 1);
    assert!(!one.devices[0].visible && !all.devices.is_empty());
}
