//! The driver's table as a C host sees it, for calls that the wrappers of this project would not make.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use outrigger_device::{Code, Driver, NO_OUTCOME, find_record, sys};

use crate::verdict::{answers, check};
use crate::{Context, Failure, Verdict};

/// Calls an entry of a table, and gives its answer.
macro_rules! call {
    ($table:expr, $entry:ident $(, $argument:expr)* $(,)?) => {{
        let Some(entry) = $table.$entry else {
            return Err($crate::Failure::new(concat!("the entry `", stringify!($entry), "` is NULL")));
        };
        // SAFETY: live handles, and pointers to what outlives the call; or NULL, or a handle of another
        // open driver, or a number, all of which the contract says is checked (R7).
        unsafe { entry($($argument),*) }
    }};
}
pub(super) use call;

/// An open driver, called without the wrappers.
pub(super) struct Raw {
    driver: Driver,
}

impl Raw {
    #[track_caller]
    pub(super) fn open(context: &Context) -> Verdict<Self> {
        Ok(Self {
            driver: context.open()?,
        })
    }

    pub(super) fn of(driver: &Driver) -> Self {
        Self {
            driver: driver.clone(),
        }
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn api(&self) -> &sys::otr_driver_api {
        self.driver.raw().0
    }

    pub(super) fn handle(&self) -> *mut sys::otr_driver {
        self.driver.raw().1
    }

    /// The table of a type in the driver's chain, as the struct that the type stands for.
    fn chained<T>(&self, type_: u32) -> Option<&T> {
        // SAFETY: the loader has walked the same chain, and found the table whole where the driver declares it.
        let record = unsafe { find_record(self.api().next, type_) };
        // SAFETY: as above; it lives as long as the driver is loaded.
        record.ok()?.map(|record| unsafe { record.cast().as_ref() })
    }

    /// The table of communicators; a test of it needs `Collectives`.
    pub(super) fn collectives(&self) -> Verdict<&sys::otr_collective_api> {
        self.chained(sys::OTR_EXT_COLLECTIVES)
            .ok_or_else(|| Failure::new("the driver has the table collectives"))
    }

    /// The table of native queues; a test of it needs `NativeQueue`.
    pub(super) fn native_queue(&self) -> Verdict<&sys::otr_native_queue_api> {
        self.chained(sys::OTR_EXT_NATIVE_QUEUE)
            .ok_or_else(|| Failure::new("the driver has the table native_queue"))
    }

    /// The table of file descriptors; a test of it needs `External`.
    pub(super) fn external(&self) -> Verdict<&sys::otr_external_api> {
        self.chained(sys::OTR_EXT_EXTERNAL)
            .ok_or_else(|| Failure::new("the driver has the table external"))
    }

    /// The text of this thread's last failed call.
    pub(super) fn text(&self) -> Verdict<String> {
        text(self.api())
    }

    /// Checks the code of a call that this thread just made, and that there is a text for it.
    #[track_caller]
    pub(super) fn refuses(&self, answer: i32, code: Code, what: &str) -> Verdict {
        answers!(answer, code, "{what}");
        check!(
            !self.text()?.is_empty(),
            "R5: {what} was refused with {code:?}, and last_error has a text"
        );
        Ok(())
    }

    /// Checks that a call was taken.
    #[track_caller]
    pub(super) fn takes(&self, answer: i32, what: &str) -> Verdict {
        if answer == Code::OK.0 {
            return Ok(());
        }
        let text = self.text()?;
        answers!(answer, Code::OK, "{what} (`{text}`)");
        Ok(())
    }

    /// Waits for a queue whose work is well.
    #[track_caller]
    pub(super) fn synchronize(&self, queue: *mut sys::otr_queue) -> Verdict {
        let mut outcome = NO_OUTCOME;
        let answer = call!(self.api(), queue_synchronize, queue, &mut outcome);
        self.takes(answer, "queue_synchronize")?;
        answers!(outcome.code, Code::OK, "the outcome of the queue");
        Ok(())
    }

    /// The outcome of a queue, as a query tells it.
    #[track_caller]
    pub(super) fn query(&self, queue: *mut sys::otr_queue) -> Verdict<Code> {
        let mut outcome = NO_OUTCOME;
        let answer = call!(self.api(), queue_query, queue, &mut outcome);
        self.takes(answer, "queue_query")?;
        Ok(Code(outcome.code))
    }

    /// A queue of device 0, destroyed by [`Self::destroy`].
    #[track_caller]
    pub(super) fn queue(&self) -> Verdict<*mut sys::otr_queue> {
        let mut queue = null_mut();
        let answer = call!(
            self.api(),
            queue_create,
            self.handle(),
            0,
            null(),
            &mut queue
        );
        self.takes(answer, "queue_create without parameters")?;
        check!(!queue.is_null(), "queue_create gave a queue");
        Ok(queue)
    }

    /// An event of device 0.
    #[track_caller]
    pub(super) fn event(&self) -> Verdict<*mut sys::otr_drv_event> {
        let mut event = null_mut();
        let answer = call!(
            self.api(),
            event_create,
            self.handle(),
            0,
            std::ptr::null(),
            &mut event
        );
        self.takes(answer, "event_create without flags")?;
        check!(!event.is_null(), "event_create gave an event");
        Ok(event)
    }

    /// Destroys both, of which one may be NULL.
    #[track_caller]
    pub(super) fn destroy(
        &self,
        queue: *mut sys::otr_queue,
        event: *mut sys::otr_drv_event,
    ) -> Verdict {
        if !queue.is_null() {
            self.takes(call!(self.api(), queue_destroy, queue), "queue_destroy")?;
        }
        if !event.is_null() {
            self.takes(call!(self.api(), event_destroy, event), "event_destroy")?;
        }
        Ok(())
    }
}

/// The text of this thread's last failed call.
#[track_caller]
pub(super) fn text(api: &sys::otr_driver_api) -> Verdict<String> {
    let text = call!(api, last_error);
    check!(!text.is_null(), "R5: last_error is never NULL");
    // SAFETY: R5: NUL-terminated, and valid until this thread's next call.
    Ok(unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned())
}

/// The options of a specification, as the contract has them: `key=value,key=value`.
pub(super) fn options(context: &Context) -> Verdict<CString> {
    let options = context.spec().split_once('?').map_or("", |(_, tail)| tail);
    Ok(CString::new(options.replace('&', ","))?)
}

/// Parameters of `open`.
pub(super) fn open_params(options: *const c_char) -> sys::otr_open_params {
    sys::otr_open_params {
        struct_size: size_of::<sys::otr_open_params>(),
        next: null(),
        options,
    }
}

/// Parameters of `queue_create`.
pub(super) fn queue_params(priority: i32, flags: u32) -> sys::otr_queue_params {
    sys::otr_queue_params {
        struct_size: size_of::<sys::otr_queue_params>(),
        next: null(),
        priority,
        flags,
    }
}

/// A struct as a newer host has it, with fields that no driver knows yet.
#[repr(C)]
pub(super) struct Newer<T> {
    pub(super) known: T,
    unknown: [u64; 8],
}

impl<T> Newer<T> {
    pub(super) fn new(known: T) -> Self {
        Self {
            known,
            unknown: [u64::MAX; 8],
        }
    }

    pub(super) const SIZE: usize = size_of::<Self>();

    /// Whether nobody wrote behind the known part.
    pub(super) fn is_untouched(&self) -> bool {
        self.unknown == [u64::MAX; 8]
    }
}

/// An extension record of a type that nobody knows.
pub(super) fn unknown_extension(next: *const sys::otr_ext) -> sys::otr_ext {
    sys::otr_ext {
        struct_size: size_of::<sys::otr_ext>(),
        type_: if next.is_null() {
            0xffff_0001
        } else {
            0x7fff_ffff
        },
        reserved: 0,
        next,
    }
}

/// The driver opened once more, without the loader, so that the test can close it.
pub(super) struct Bare<'a> {
    pub(super) raw: &'a Raw,
    pub(super) handle: *mut sys::otr_driver,
}

impl<'a> Bare<'a> {
    /// With all of its devices open.
    #[track_caller]
    pub(super) fn open(context: &Context, raw: &'a Raw) -> Verdict<Self> {
        let bare = Self::closed(context, raw)?;
        for device in 0..raw.driver().device_count() {
            let answer = call!(bare.api(), device_open, bare.handle, device, null());
            raw.takes(answer, "device_open")?;
        }
        Ok(bare)
    }

    /// With all of its devices closed.
    #[track_caller]
    pub(super) fn closed(context: &Context, raw: &'a Raw) -> Verdict<Self> {
        let options = options(context)?;
        let mut handle = null_mut();
        let answer = call!(raw.api(), open, &open_params(options.as_ptr()), &mut handle);
        raw.takes(answer, "open")?;
        check!(!handle.is_null(), "open gave a driver");
        Ok(Self { raw, handle })
    }

    pub(super) fn api(&self) -> &sys::otr_driver_api {
        self.raw.api()
    }

    #[track_caller]
    pub(super) fn queue(&self) -> Verdict<*mut sys::otr_queue> {
        let mut queue = null_mut();
        let answer = call!(self.api(), queue_create, self.handle, 0, null(), &mut queue);
        self.raw.takes(answer, "queue_create")?;
        Ok(queue)
    }

    #[track_caller]
    pub(super) fn close(self, what: &str) -> Verdict {
        self.raw.takes(call!(self.api(), close, self.handle), what)
    }
}
