//! R1 to R7 below the wrappers of this project, on drivers that are libraries: sizes of structs, other
//! versions, extension records, outputs of failed calls, error texts, NULL. The table is called as any
//! host in C would call it.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use libloading::Library;
use outrigger_device::{Code, Driver, sys};

use crate::support::Target;

crate::cases! {
    Nothing:
        open_names_an_unknown_option,
        open_may_be_called_again;
    Library:
        r01_properties_are_written_no_further_than_the_host_knows,
        r01_structs_of_a_newer_host_are_taken,
        r02_another_major_is_refused_after_the_table_was_written,
        r02_any_minor_is_taken,
        r03_an_unknown_extension_is_skipped,
        r04_a_failed_call_writes_no_output,
        r05_a_text_belongs_to_its_thread,
        r07_null_is_refused_by_every_entry;
}

fn open_names_an_unknown_option(target: &Target) {
    let spec = target
        .library()
        .map_or("host".to_owned(), |path| path.display().to_string());
    let error = Driver::open(&format!("{spec}?nonsense=1").parse().unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
    assert!(error.message().contains("nonsense"), "{error}");
    assert!(
        error.message().contains("memory"),
        "it says which options there are: {error}"
    );
}

fn open_may_be_called_again(target: &Target) {
    let (first, second) = (target.open(), target.open());
    let address = first.memory_alloc(0, 4096).unwrap();
    // SAFETY: the second driver does not know the address, and frees nothing.
    let error = unsafe { second.memory_free(address) }.unwrap_err();
    assert_eq!(
        error.code(),
        Code::INVALID_ARGUMENT,
        "each result of open is independent"
    );
    // SAFETY: no work uses it.
    unsafe { first.memory_free(address) }.unwrap();
    drop(first);
    second.queue_create(0, 0).unwrap().synchronize().unwrap();
}

type GetApi =
    unsafe extern "C" fn(*const sys::otr_host_info, *mut *const sys::otr_driver_api) -> i32;

/// A driver as a C host has it.
struct Raw {
    api: sys::otr_driver_api,
    get_api: GetApi,
    _library: Library,
}

fn host(major: u32, minor: u32) -> sys::otr_host_info {
    sys::otr_host_info {
        struct_size: size_of::<sys::otr_host_info>(),
        next: null(),
        api_major: major,
        api_minor: minor,
        version: c"contract test".as_ptr(),
        log: None,
    }
}

impl Raw {
    fn load(target: &Target) -> Self {
        // SAFETY: the driver under test.
        let library = unsafe { Library::new(target.library().unwrap()) }.unwrap();
        // SAFETY: the contract fixes the type of the symbol.
        let get_api = unsafe { *library.get::<GetApi>(c"otr_driver_get_api").unwrap() };
        let mut api = null();
        let host = host(sys::OTR_DRIVER_API_MAJOR, sys::OTR_DRIVER_API_MINOR);
        // SAFETY: both pointers are valid through the call.
        assert_eq!(unsafe { get_api(&host, &mut api) }, Code::OK.0);
        // SAFETY: R1: the table is as large as it says, and this test knows no smaller one.
        let api = unsafe {
            assert!((*api).struct_size >= size_of::<sys::otr_driver_api>());
            *api
        };
        Self {
            api,
            get_api,
            _library: library,
        }
    }

    fn open(&self) -> *mut sys::otr_driver {
        let mut driver = null_mut();
        // SAFETY: no parameters stand for no options; the output is valid.
        let code = unsafe { self.api.open.unwrap()(&params(null()), &mut driver) };
        assert_eq!(code, Code::OK.0);
        driver
    }

    fn close(&self, driver: *mut sys::otr_driver) {
        // SAFETY: all that was made with it is gone.
        let code = unsafe { self.api.close.unwrap()(driver) };
        assert_eq!(code, Code::OK.0, "{}", self.text());
    }

    fn text(&self) -> String {
        text_of(self.api.last_error.unwrap())
    }
}

/// The text of the calling thread.
fn text_of(last_error: unsafe extern "C" fn() -> *const c_char) -> String {
    // SAFETY: R5: never NULL, and valid until this thread's next call.
    unsafe { CStr::from_ptr(last_error()) }
        .to_string_lossy()
        .into_owned()
}

fn params(options: *const c_char) -> sys::otr_open_params {
    sys::otr_open_params {
        struct_size: size_of::<sys::otr_open_params>(),
        next: null(),
        options,
    }
}

fn r01_properties_are_written_no_further_than_the_host_knows(target: &Target) {
    let raw = Raw::load(target);
    let driver = raw.open();
    let known = std::mem::offset_of!(sys::otr_device_properties, total_memory);
    // SAFETY: zero is valid for all fields.
    let mut properties: sys::otr_device_properties = unsafe { std::mem::zeroed() };
    properties.struct_size = known;
    properties.total_memory = 0x5555;
    properties.peak_flops_f16 = 0x6666;
    // SAFETY: the struct is valid, and its size is understated.
    let code = unsafe { raw.api.device_properties.unwrap()(driver, 0, &mut properties) };
    assert_eq!(code, Code::OK.0, "{}", raw.text());
    assert_eq!(
        (
            properties.struct_size,
            properties.total_memory,
            properties.peak_flops_f16
        ),
        (known, 0x5555, 0x6666)
    );
    assert!(properties.name[0] != 0 && properties.next.is_null());
    raw.close(driver);
}

fn r01_structs_of_a_newer_host_are_taken(target: &Target) {
    #[repr(C)]
    struct Newer<T> {
        known: T,
        unknown: [u64; 4],
    }
    let raw = Raw::load(target);
    let mut open = Newer {
        known: params(null()),
        unknown: [u64::MAX; 4],
    };
    open.known.struct_size = size_of_val(&open);
    let (mut driver, mut queue) = (null_mut(), null_mut());
    // SAFETY: larger structs than the driver knows, as R1 allows.
    unsafe {
        assert_eq!(
            raw.api.open.unwrap()(&raw const open.known, &mut driver),
            Code::OK.0,
            "{}",
            raw.text()
        );
        let mut queues = Newer {
            known: sys::otr_queue_params {
                struct_size: 0,
                next: null(),
                priority: 0,
                flags: 0,
            },
            unknown: [u64::MAX; 4],
        };
        queues.known.struct_size = size_of_val(&queues);
        let create = raw.api.queue_create.unwrap();
        assert_eq!(
            create(driver, 0, &raw const queues.known, &mut queue),
            Code::OK.0,
            "{}",
            raw.text()
        );
        assert_eq!(raw.api.queue_destroy.unwrap()(queue), Code::OK.0);
    }
    raw.close(driver);
}

fn r02_another_major_is_refused_after_the_table_was_written(target: &Target) {
    let raw = Raw::load(target);
    let mut api = null();
    // SAFETY: both pointers are valid through the call.
    let code = unsafe { (raw.get_api)(&host(sys::OTR_DRIVER_API_MAJOR + 1, 0), &mut api) };
    assert_eq!(code, Code::VERSION.0);
    // SAFETY: the contract promises a table all the same.
    assert_eq!(unsafe { (*api).api_major }, sys::OTR_DRIVER_API_MAJOR);
}

fn r02_any_minor_is_taken(target: &Target) {
    let raw = Raw::load(target);
    let mut api = null();
    // SAFETY: both pointers are valid through the call.
    let code = unsafe { (raw.get_api)(&host(sys::OTR_DRIVER_API_MAJOR, 999), &mut api) };
    assert!(code == Code::OK.0 && !api.is_null());
}

fn r03_an_unknown_extension_is_skipped(target: &Target) {
    let raw = Raw::load(target);
    let last = sys::otr_ext {
        struct_size: size_of::<sys::otr_ext>(),
        type_: 0xffff_0001,
        reserved: 0,
        next: null(),
    };
    let first = sys::otr_ext {
        next: &last,
        type_: 0x7fff_ffff,
        ..last
    };
    let mut open = params(null());
    open.next = &first;
    let queues = sys::otr_queue_params {
        struct_size: size_of::<sys::otr_queue_params>(),
        next: &first,
        priority: 0,
        flags: 0,
    };
    let (mut driver, mut queue) = (null_mut(), null_mut());
    // SAFETY: the chain is valid and ends.
    unsafe {
        assert_eq!(
            raw.api.open.unwrap()(&open, &mut driver),
            Code::OK.0,
            "{}",
            raw.text()
        );
        assert_eq!(
            raw.api.queue_create.unwrap()(driver, 0, &queues, &mut queue),
            Code::OK.0,
            "{}",
            raw.text()
        );
        assert_eq!(raw.api.queue_destroy.unwrap()(queue), Code::OK.0);
    }
    raw.close(driver);
}

fn r04_a_failed_call_writes_no_output(target: &Target) {
    let raw = Raw::load(target);
    let driver = raw.open();
    let marker = 0x1234_5678usize;
    let (mut address, mut queue, mut event) = (marker as u64, marker as *mut _, marker as *mut _);
    let mut other = marker as *mut sys::otr_driver;
    let options = CString::new("nonsense=1").unwrap();
    // SAFETY: valid outputs, and arguments that are refused.
    unsafe {
        let refused = [
            (
                raw.api.memory_alloc.unwrap()(driver, 99, 64, &mut address),
                Code::INVALID_DEVICE,
            ),
            (
                raw.api.memory_alloc.unwrap()(driver, 0, 0, &mut address),
                Code::INVALID_ARGUMENT,
            ),
            (
                raw.api.memory_alloc.unwrap()(driver, 0, u64::MAX, &mut address),
                Code::OUT_OF_MEMORY,
            ),
            (
                raw.api.queue_create.unwrap()(driver, 99, null(), &mut queue),
                Code::INVALID_DEVICE,
            ),
            (
                raw.api.event_create.unwrap()(driver, 99, 0, &mut event),
                Code::INVALID_DEVICE,
            ),
            (
                raw.api.event_create.unwrap()(driver, 0, 0x8000_0000, &mut event),
                Code::INVALID_ARGUMENT,
            ),
            (
                raw.api.open.unwrap()(&params(options.as_ptr()), &mut other),
                Code::INVALID_ARGUMENT,
            ),
        ];
        for (at, (code, expected)) in refused.into_iter().enumerate() {
            assert_eq!(Code(code), expected, "call {at}");
        }
    }
    assert_eq!(address, marker as u64);
    assert!(queue as usize == marker && event as usize == marker && other as usize == marker);
    raw.close(driver);
}

fn r05_a_text_belongs_to_its_thread(target: &Target) {
    let raw = Raw::load(target);
    let driver = raw.open();
    let mut address = 0;
    // SAFETY: a valid output; the device does not exist.
    unsafe { raw.api.memory_alloc.unwrap()(driver, 4_000_000, 64, &mut address) };
    assert!(
        raw.text().contains("4000000"),
        "it names what was wrong: {}",
        raw.text()
    );
    std::thread::scope(|scope| {
        // The text of a thread without a failure is not NULL, and not that of another.
        let last_error = raw.api.last_error.unwrap();
        scope.spawn(move || assert!(!text_of(last_error).contains("4000000")));
    });
    assert!(raw.text().contains("4000000"));
    raw.close(driver);
}

fn r07_null_is_refused_by_every_entry(target: &Target) {
    unsafe extern "C" fn never(_: *mut std::ffi::c_void, _: i32) -> i32 {
        std::process::abort()
    }
    let raw = Raw::load(target);
    let driver = raw.open();
    let (api, no_driver, no_queue, no_event) = (&raw.api, null_mut(), null_mut(), null_mut());
    let (mut queue, mut event, mut address, mut count) = (null_mut(), null_mut(), 0, 0);
    let pattern = [0u8; 4];
    // SAFETY: every pointer is NULL or valid through its call; nothing is executed.
    unsafe {
        assert_eq!(
            api.queue_create.unwrap()(driver, 0, null(), &mut queue),
            Code::OK.0
        );
        assert_eq!(
            api.event_create.unwrap()(driver, 0, 0, &mut event),
            Code::OK.0
        );
        let handles = [
            ("close", api.close.unwrap()(no_driver)),
            (
                "device_count",
                api.device_count.unwrap()(no_driver, &mut count),
            ),
            (
                "memory_alloc",
                api.memory_alloc.unwrap()(no_driver, 0, 64, &mut address),
            ),
            ("memory_free", api.memory_free.unwrap()(no_driver, 64)),
            (
                "queue_create",
                api.queue_create.unwrap()(no_driver, 0, null(), &mut null_mut()),
            ),
            ("queue_destroy", api.queue_destroy.unwrap()(no_queue)),
            ("queue_query", api.queue_query.unwrap()(no_queue)),
            (
                "queue_synchronize",
                api.queue_synchronize.unwrap()(no_queue),
            ),
            (
                "queue_wait_event",
                api.queue_wait_event.unwrap()(no_queue, event),
            ),
            (
                "queue_wait_event",
                api.queue_wait_event.unwrap()(queue, no_event),
            ),
            (
                "event_create",
                api.event_create.unwrap()(no_driver, 0, 0, &mut null_mut()),
            ),
            ("event_destroy", api.event_destroy.unwrap()(no_event)),
            ("event_record", api.event_record.unwrap()(no_event, queue)),
            ("event_record", api.event_record.unwrap()(event, no_queue)),
            ("event_query", api.event_query.unwrap()(no_event)),
            (
                "event_synchronize",
                api.event_synchronize.unwrap()(no_event),
            ),
            (
                "copy",
                api.copy.unwrap()(no_queue, 64, 128, 16, sys::OTR_COPY_HOST_TO_HOST),
            ),
            (
                "fill",
                api.fill.unwrap()(no_queue, 64, 16, pattern.as_ptr().cast(), 4),
            ),
            (
                "host_call",
                api.host_call.unwrap()(no_queue, Some(never), null_mut()),
            ),
        ];
        for (name, code) in handles {
            assert_eq!(Code(code), Code::INVALID_HANDLE, "{name}");
        }
        let pointers = [
            ("open", api.open.unwrap()(&params(null()), null_mut())),
            (
                "device_count",
                api.device_count.unwrap()(driver, null_mut()),
            ),
            (
                "device_properties",
                api.device_properties.unwrap()(driver, 0, null_mut()),
            ),
            (
                "memory_alloc",
                api.memory_alloc.unwrap()(driver, 0, 64, null_mut()),
            ),
            (
                "queue_create",
                api.queue_create.unwrap()(driver, 0, null(), null_mut()),
            ),
            (
                "event_create",
                api.event_create.unwrap()(driver, 0, 0, null_mut()),
            ),
            (
                "copy of an unknown kind",
                api.copy.unwrap()(queue, 64, 128, 16, 77),
            ),
            ("host_call", api.host_call.unwrap()(queue, None, null_mut())),
        ];
        for (name, code) in pointers {
            assert_eq!(Code(code), Code::INVALID_ARGUMENT, "{name}");
        }
        assert_eq!(
            api.queue_query.unwrap()(queue),
            Code::OK.0,
            "nothing was submitted"
        );
        assert_eq!(api.queue_destroy.unwrap()(queue), Code::OK.0);
        assert_eq!(api.event_destroy.unwrap()(event), Code::OK.0);
    }
    raw.close(driver);
}
