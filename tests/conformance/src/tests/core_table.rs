//! R1 to R3: the exported symbol, versions, sizes of structs, and extension records.

use std::ffi::{CStr, c_char};
use std::mem::offset_of;
use std::ptr::null;

use libloading::Library;
use outrigger_device::{Code, sys};

use super::raw::{Newer, text, unknown_extension};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

tests! { "core.table":
    /// `otr_driver_get_api` gives the same whole table each time.
    the_table_stays: R10, needs Library;
    /// `otr_driver_get_api` takes a host of any minor version.
    any_minor_is_taken: R2, needs Library;
    /// Another major version is refused with OTR_ERR_VERSION, after the table was written.
    another_major_is_refused: R2, needs Library;
    /// The text for another major version has both numbers, or at least the driver's own.
    another_major_is_named: R2 R5, needs Library;
    /// A host without a function to log is taken.
    no_log_is_taken: R6, needs Library;
    /// A larger host_info of a newer host is taken.
    a_newer_host_is_taken: R1, needs Library;
    /// Nothing behind the `struct_size` of host_info is read.
    an_older_host_is_taken: R1, needs Library;
    /// Extension records of unknown type in host_info are skipped.
    unknown_extensions_are_skipped: R3, needs Library;
    /// `otr_driver_get_api` without a host_info is an invalid argument.
    null_host: R7, needs Library;
    /// `otr_driver_get_api` without a place for the table is an invalid argument.
    null_output: R7, needs Library;
    /// The names in the table are set; `name` is short and lower case.
    names_are_given: R1;
    /// Table and groups are as large as their `struct_size` says, and hold no entry without a function.
    groups_are_whole: R1;
}

type GetApi =
    unsafe extern "C" fn(*const sys::otr_host_info, *mut *const sys::otr_driver_api) -> i32;

/// The library, loaded once more than the driver under test has it.
struct Symbol {
    get_api: GetApi,
    _library: Library,
}

impl Symbol {
    fn load(context: &Context) -> Verdict<Self> {
        let path = context.spec().split('?').next().unwrap_or_default();
        // SAFETY: the driver under test, which the caller asked to run.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: the contract fixes the type of the symbol.
        let get_api = unsafe { *library.get::<GetApi>(c"otr_driver_get_api")? };
        Ok(Self {
            get_api,
            _library: library,
        })
    }

    fn call(&self, host: *const sys::otr_host_info) -> (i32, *const sys::otr_driver_api) {
        let mut api = null();
        // SAFETY: `host` is NULL or valid, and the place for the table lives through the call.
        let code = unsafe { (self.get_api)(host, &mut api) };
        (code, api)
    }

    fn taken(&self, host: *const sys::otr_host_info, what: &str) -> Verdict<sys::otr_driver_api> {
        let (code, api) = self.call(host);
        answers!(code, Code::OK, "otr_driver_get_api for {what}");
        check!(!api.is_null(), "otr_driver_get_api for {what} gave a table");
        // SAFETY: R1, and the loader has refused tables that are smaller than the mandatory part.
        Ok(unsafe { prefix(api) })
    }
}

/// The part of a table that is there; the rest is zero.
///
/// # Safety
/// The table is as large as it says.
unsafe fn prefix(api: *const sys::otr_driver_api) -> sys::otr_driver_api {
    // SAFETY: zero is valid for all fields; no more is read than is there.
    unsafe {
        let mut copy: sys::otr_driver_api = std::mem::zeroed();
        let size = (*api).struct_size.min(size_of_val(&copy));
        (&raw mut copy)
            .cast::<u8>()
            .copy_from_nonoverlapping(api.cast(), size);
        copy
    }
}

fn host(major: u32, minor: u32) -> sys::otr_host_info {
    sys::otr_host_info {
        struct_size: size_of::<sys::otr_host_info>(),
        next: null(),
        api_major: major,
        api_minor: minor,
        version: c"conformance".as_ptr(),
        log: Some(log),
    }
}

fn ours() -> sys::otr_host_info {
    host(sys::OTR_DRIVER_API_MAJOR, sys::OTR_DRIVER_API_MINOR)
}

unsafe extern "C" fn log(_level: i32, _message: *const c_char) {}

fn the_table_stays(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    let first = symbol.call(&ours());
    answers!(first.0, Code::OK, "otr_driver_get_api");
    let head = |api: &sys::otr_driver_api| (api.struct_size, api.copy.map(|f| f as usize));
    // SAFETY: the call succeeded, and R1.
    let before = head(&unsafe { prefix(first.1) });
    for _ in 0..3 {
        let driver = context.open()?;
        let again = symbol.taken(&ours(), "the same host")?;
        equal!(head(&again), before, "the table, asked again");
        drop(driver);
    }
    // SAFETY: the table lives as long as the library is loaded.
    let later = head(&unsafe { prefix(first.1) });
    equal!(later, before, "the first table, later");
    Ok(())
}

fn any_minor_is_taken(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    for minor in [0, 1, 7, 999, u32::MAX] {
        let host = host(sys::OTR_DRIVER_API_MAJOR, minor);
        symbol.taken(&host, &format!("a host of minor {minor}"))?;
    }
    Ok(())
}

fn another_major_is_refused(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    for major in [0, sys::OTR_DRIVER_API_MAJOR + 1, 99, u32::MAX] {
        let (code, api) = symbol.call(&host(major, 0));
        answers!(code, Code::VERSION, "otr_driver_get_api for major {major}");
        check!(
            !api.is_null(),
            "the table is written all the same, for major {major}"
        );
        // SAFETY: not NULL; a driver that refuses a major has written its table (otr_driver_get_api).
        let api = unsafe { prefix(api) };
        equal!(api.api_major, sys::OTR_DRIVER_API_MAJOR, "its own major");
    }
    symbol.taken(&ours(), "the right major, afterwards")?;
    Ok(())
}

fn another_major_is_named(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    let (code, api) = symbol.call(&host(77, 3));
    answers!(code, Code::VERSION, "otr_driver_get_api for major 77");
    check!(!api.is_null(), "the table is written all the same");
    // SAFETY: not NULL; a driver that refuses a major has written its table (otr_driver_get_api).
    let text = text(&unsafe { prefix(api) })?;
    check!(
        text.contains(&sys::OTR_DRIVER_API_MAJOR.to_string()),
        "the text names the version that would be right: {text:?}"
    );
    Ok(())
}

fn no_log_is_taken(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    let mut host = ours();
    host.log = None;
    symbol.taken(&host, "a host that does not log")?;
    // A text that would be logged goes nowhere, and never through the NULL.
    let driver = context.open()?;
    check!(
        driver.memory_alloc(0, u64::MAX).is_err(),
        "that much memory is refused"
    );
    symbol.taken(&ours(), "a host that logs")?;
    Ok(())
}

fn a_newer_host_is_taken(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    let mut host = Newer::new(ours());
    host.known.struct_size = Newer::<sys::otr_host_info>::SIZE;
    symbol.taken(&host.known, "a larger host_info")?;
    check!(host.is_untouched(), "nothing was written to host_info");
    Ok(())
}

fn an_older_host_is_taken(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    let mut host = ours();
    host.struct_size = offset_of!(sys::otr_host_info, version);
    // A driver that reads the members behind the size ends the process.
    host.version = std::ptr::without_provenance(1);
    symbol.taken(&host, "a host_info that ends before its version")?;
    let driver = context.open()?;
    check!(
        driver.memory_alloc(0, u64::MAX).is_err(),
        "that much memory is refused"
    );
    symbol.taken(&ours(), "a whole host_info")?;
    Ok(())
}

fn unknown_extensions_are_skipped(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    let last = unknown_extension(null());
    let first = unknown_extension(&last);
    let mut host = ours();
    host.next = &first;
    symbol.taken(&host, "a host with unknown extensions")?;
    symbol.taken(&ours(), "a host without")?;
    Ok(())
}

fn null_host(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    answers!(
        symbol.call(null()).0,
        Code::INVALID_ARGUMENT,
        "otr_driver_get_api without a host"
    );
    symbol.taken(&ours(), "a host")?;
    Ok(())
}

fn null_output(context: &Context) -> Verdict {
    let symbol = Symbol::load(context)?;
    // SAFETY: the host is valid; the other is NULL, which is to be refused.
    let code = unsafe { (symbol.get_api)(&ours(), std::ptr::null_mut()) };
    answers!(
        code,
        Code::INVALID_ARGUMENT,
        "otr_driver_get_api without a place for the table"
    );
    Ok(())
}

fn names_are_given(context: &Context) -> Verdict {
    let driver = context.open()?;
    let api = driver.raw().0;
    for (what, text) in [
        ("name", api.name),
        ("vendor", api.vendor),
        ("version", api.version),
    ] {
        check!(!text.is_null(), "`{what}` is not NULL");
        // SAFETY: not NULL, and terminated by the contract.
        let text = unsafe { CStr::from_ptr(text) }.to_str()?;
        check!(!text.is_empty(), "`{what}` is not empty");
    }
    let name = driver.name();
    check!(
        name.len() <= 32 && *name == name.to_lowercase(),
        "`name` is short and lower case: {name:?}"
    );
    equal!(
        driver.api_version().0,
        sys::OTR_DRIVER_API_MAJOR,
        "the major number"
    );
    Ok(())
}

fn groups_are_whole(context: &Context) -> Verdict {
    let driver = context.open()?;
    let api = driver.raw().0;
    macro_rules! group {
        ($($name:ident: $last:ident;)*) => {$(
            // SAFETY: NULL, or a group that starts with its size (R1).
            if let Some(size) = unsafe { api.$name.cast::<usize>().as_ref() } {
                let needed = entry_end!(api.$name, $last);
                check!(*size >= needed, "the group {} reaches to {}", stringify!($name), stringify!($last));
                check!(*size % align_of::<usize>() == 0, "the size of {}", stringify!($name));
            }
        )*};
    }
    macro_rules! entry_end {
        ($group:expr, $last:ident) => {{
            // SAFETY: an address is computed, nothing is read.
            let end = unsafe { &raw const (*$group).$last }.addr();
            end + size_of::<usize>() - $group.addr()
        }};
    }
    group! {
        memory_info: info;
        virtual_memory: unmap;
        pinned_memory: free;
        peer: copy;
        timing: device_time;
        kernel: launch;
        operators: launch;
        graph: destroy;
        ipc: memory_close;
    }
    Ok(())
}
