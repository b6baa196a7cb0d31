//! A driver's function table, checked once. The check reads no further than the sizes that the driver
//! wrote, and returns a table only if all mandatory entries are in it. No later call looks for missing
//! entries again.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, offset_of};

use crate::chain::find_record;
use crate::{Code, Error, Result, sys};

/// A driver's table, copied: what lies behind a smaller `struct_size` is NULL in the copy.
pub(crate) struct Table {
    /// The entries. The mandatory ones are not NULL.
    pub(crate) api: sys::otr_driver_api,
    /// The optional groups; in each, all but the entries that the header marks optional are not
    /// NULL.
    pub(crate) memory_info: Option<sys::otr_memory_info_api>,
    pub(crate) virtual_memory: Option<sys::otr_virtual_memory_api>,
    pub(crate) pinned_memory: Option<sys::otr_pinned_memory_api>,
    pub(crate) peer: Option<sys::otr_peer_api>,
    pub(crate) timing: Option<sys::otr_timing_api>,
    pub(crate) kernel: Option<sys::otr_kernel_api>,
    pub(crate) operators: Option<sys::otr_operator_api>,
    pub(crate) graph: Option<sys::otr_graph_api>,
    pub(crate) ipc: Option<sys::otr_ipc_api>,
    /// The tables of the chain, likewise; one of another major version is none.
    pub(crate) collectives: Option<sys::otr_collective_api>,
    pub(crate) native_queue: Option<sys::otr_native_queue_api>,
    pub(crate) external: Option<sys::otr_external_api>,
    /// Tables of the chain that are of another major version, each as a sentence for the log.
    pub(crate) passed_over: Vec<String>,
    pub(crate) name: String,
    pub(crate) vendor: String,
    pub(crate) version: String,
}

/// The function of a table's entry. Mandatory entries were checked at load, so the error never occurs.
/// The check stays because a plain branch is easier to trust than an unchecked read.
macro_rules! entry {
    ($table:expr, $name:ident) => {
        match $table.$name {
            Some(function) => function,
            None => return Err($crate::table::hole(stringify!($name))),
        }
    };
}
pub(crate) use entry;

/// The error of a table entry that vanished after it was checked.
#[cold]
pub(crate) fn hole(name: &str) -> Error {
    Error::new(
        Code::INTERNAL,
        format!("the driver's entry `{name}` is NULL"),
    )
}

/// Name, offset and presence of entries of a table.
macro_rules! entries {
    ($table:expr, $type:ty: $($name:ident)*) => {
        &[$((stringify!($name), offset_of!($type, $name), $table.$name.is_some())),*]
    };
}

/// Major and minor number of a table, where it is big enough to carry them.
///
/// # Safety
/// `table` is NULL or points to a table of at least its own `struct_size` bytes.
pub(crate) unsafe fn versions(table: *const sys::otr_driver_api) -> Option<(u32, u32)> {
    if table.is_null() || !table.is_aligned() {
        return None;
    }
    // SAFETY: not NULL, aligned, and as large as it says; a struct_size that is too small to hold it is
    // refused in turn.
    let copy = unsafe { copy_prefix(table) };
    (copy.struct_size >= offset_of!(sys::otr_driver_api, name))
        .then_some((copy.api_major, copy.api_minor))
}

impl Table {
    /// Checks and copies a table.
    ///
    /// # Errors
    /// `LOAD` names every mandatory entry that is missing, by cause: table too small, or NULL.
    /// `VERSION` for another major number.
    ///
    /// # Safety
    /// `table` is NULL or points to a table of at least its own `struct_size` bytes, as do its groups and the records
    /// of its chain.
    pub(crate) unsafe fn read(table: *const sys::otr_driver_api) -> Result<Self> {
        if table.is_null() {
            return Err(refuse(
                "otr_driver_get_api answered OTR_OK but returned no table (NULL)",
            ));
        }
        if !table.is_aligned() {
            return Err(refuse(format!(
                "its table lies at {table:p}, which is not aligned"
            )));
        }
        // SAFETY: not NULL, aligned, and as large as its `struct_size` says (R1).
        let api = unsafe { copy_prefix(table) };
        let size = api.struct_size;
        let head = offset_of!(sys::otr_driver_api, open);
        if size < head {
            return Err(refuse(format!(
                "its table has {size} bytes and ends before the versions and names; version {} of the \
                 contract needs at least {}",
                ours(),
                MANDATORY_SIZE
            )));
        }
        if api.api_major != sys::OTR_DRIVER_API_MAJOR {
            return Err(other_major(api.api_major, api.api_minor));
        }
        let entries = entries!(api, sys::otr_driver_api:
            open close last_error device_count device_properties device_open device_close
            memory_alloc memory_free
            queue_create queue_destroy queue_query queue_synchronize queue_wait_event
            event_create event_destroy event_record event_query event_synchronize
            copy fill host_call);
        check_entries("table", size, MANDATORY_SIZE, entries)?;
        // SAFETY: each group is NULL or as large as its `struct_size` says (R1), as are the records of the chain.
        unsafe {
            let mut passed_over = Vec::new();
            Ok(Self {
                memory_info: group(api.memory_info, "memory_info", |g, size| {
                    let all = entries!(g, sys::otr_memory_info_api: info);
                    check_entries("group memory_info", size, size_of_val(g), all)
                })?,
                virtual_memory: group(api.virtual_memory, "virtual_memory", |g, size| {
                    let all = entries!(g, sys::otr_virtual_memory_api:
                        granularity reserve release create destroy map unmap);
                    check_entries("group virtual_memory", size, size_of_val(g), all)
                })?,
                pinned_memory: group(api.pinned_memory, "pinned_memory", |g, size| {
                    let all = entries!(g, sys::otr_pinned_memory_api: alloc free);
                    let needed = offset_of!(sys::otr_pinned_memory_api, pin);
                    check_entries("group pinned_memory", size, needed, all)
                })?,
                peer: group(api.peer, "peer", |g, size| {
                    let all = entries!(g, sys::otr_peer_api: can_access copy);
                    check_entries("group peer", size, size_of_val(g), all)
                })?,
                timing: group(api.timing, "timing", |g, size| {
                    let all = entries!(g, sys::otr_timing_api: event_time device_time);
                    check_entries("group timing", size, size_of_val(g), all)
                })?,
                kernel: group(api.kernel, "kernel", |g, size| {
                    let all = entries!(g, sys::otr_kernel_api:
                        module_load module_unload kernel_get launch);
                    check_entries("group kernel", size, size_of_val(g), all)
                })?,
                operators: group(api.operators, "operators", |g, size| {
                    let all = entries!(g, sys::otr_operator_api: names prepare release launch);
                    check_entries("group operators", size, size_of_val(g), all)
                })?,
                graph: group(api.graph, "graph", |g, size| {
                    let all = entries!(g, sys::otr_graph_api:
                        record_begin record_end launch destroy);
                    check_entries("group graph", size, size_of_val(g), all)
                })?,
                ipc: group(api.ipc, "ipc", |g, size| {
                    let all =
                        entries!(g, sys::otr_ipc_api: memory_export memory_import memory_close);
                    let needed = offset_of!(sys::otr_ipc_api, event_export);
                    check_entries("group ipc", size, needed, all)?;
                    both(
                        "group ipc",
                        "event_export",
                        g.event_export.is_some(),
                        "event_import",
                        g.event_import.is_some(),
                    )?;
                    both(
                        "group ipc",
                        "physical_export",
                        g.physical_export.is_some(),
                        "physical_import",
                        g.physical_import.is_some(),
                    )
                })?,
                collectives: chained(
                    &api,
                    &mut passed_over,
                    |g: &sys::otr_collective_api, size| {
                        let all = entries!(g, sys::otr_collective_api:
                        id create destroy abort query
                        all_reduce reduce reduce_scatter broadcast all_gather);
                        let needed = offset_of!(sys::otr_collective_api, exchange);
                        check_entries("chained table collectives", size, needed, all)
                    },
                )?,
                native_queue: chained(
                    &api,
                    &mut passed_over,
                    |g: &sys::otr_native_queue_api, size| {
                        let all = entries!(g, sys::otr_native_queue_api: handle adopt);
                        check_entries("chained table native_queue", size, size_of_val(g), all)
                    },
                )?,
                external: chained(&api, &mut passed_over, |g: &sys::otr_external_api, size| {
                    let all = entries!(g, sys::otr_external_api:
                            memory_import memory_close semaphore_import semaphore_destroy signal wait);
                    let needed = offset_of!(sys::otr_external_api, memory_export);
                    check_entries("chained table external", size, needed, all)?;
                    both(
                        "chained table external",
                        "semaphore_create",
                        g.semaphore_create.is_some(),
                        "semaphore_export",
                        g.semaphore_export.is_some(),
                    )
                })?,
                passed_over,
                name: text(api.name, "name")?,
                vendor: text(api.vendor, "vendor")?,
                version: text(api.version, "version")?,
                api,
            })
        }
    }
}

/// Where the optional part of the table begins.
const MANDATORY_SIZE: usize = offset_of!(sys::otr_driver_api, queue_flush);

fn ours() -> String {
    format!(
        "{}.{}",
        sys::OTR_DRIVER_API_MAJOR,
        sys::OTR_DRIVER_API_MINOR
    )
}

fn refuse(reason: impl Into<String>) -> Error {
    Error::new(Code::LOAD, reason)
}

/// The refusal of a driver of another major version.
pub(crate) fn other_major(major: u32, minor: u32) -> Error {
    Error::new(
        Code::VERSION,
        format!(
            "it speaks version {major}.{minor} of the driver contract and this Outrigger speaks {}; \
             the major numbers must be equal: rebuild the driver against the driver.h of this version",
            ours()
        ),
    )
}

/// All that a table structure needs to be read by its own size.
///
/// # Safety
/// A `repr(C)` struct that starts with a `struct_size: usize` and is valid when all zero.
unsafe trait Sized0 {
    fn set_size(&mut self, size: usize);
}

macro_rules! sized {
    ($($name:ident)*) => {
        $(
            // SAFETY: generated from a C struct that starts with struct_size; its other fields are
            // integers, raw pointers and optional functions, for all of which zero is valid.
            unsafe impl Sized0 for sys::$name {
                fn set_size(&mut self, size: usize) {
                    self.struct_size = size;
                }
            }
            const _: () = assert!(offset_of!(sys::$name, struct_size) == 0);
        )*
    };
}

sized! {
    otr_driver_api otr_memory_info_api otr_pinned_memory_api otr_peer_api otr_timing_api
    otr_kernel_api otr_operator_api otr_graph_api otr_virtual_memory_api otr_ipc_api
}

/// A table of the chain, which has a version of its own.
///
/// # Safety
/// As [`Sized0`], and a record of the type `TYPE` is such a struct.
unsafe trait Chained: Sized0 {
    const TYPE: u32;
    const NAME: &'static str;
    const VERSION: (u32, u32);
    /// The bytes up to the first entry.
    const HEAD: usize;
    fn version(&self) -> (u32, u32);
}

macro_rules! chained {
    ($($name:ident $first:ident: $type:ident $text:literal $major:ident $minor:ident;)*) => {
        $(
            // SAFETY: generated from a C struct that starts with its record, and that with struct_size; its other
            // fields are integers and optional functions, for all of which zero is valid.
            unsafe impl Sized0 for sys::$name {
                fn set_size(&mut self, size: usize) {
                    self.ext.struct_size = size;
                }
            }
            // SAFETY: as above; the header gives the type to this struct.
            unsafe impl Chained for sys::$name {
                const TYPE: u32 = sys::$type;
                const NAME: &'static str = $text;
                const VERSION: (u32, u32) = (sys::$major, sys::$minor);
                const HEAD: usize = offset_of!(sys::$name, $first);
                fn version(&self) -> (u32, u32) {
                    (self.major, self.minor)
                }
            }
            const _: () = assert!(offset_of!(sys::$name, ext) == 0);
        )*
    };
}

chained! {
    otr_collective_api id: OTR_EXT_COLLECTIVES "collectives" OTR_COLLECTIVES_MAJOR OTR_COLLECTIVES_MINOR;
    otr_native_queue_api handle: OTR_EXT_NATIVE_QUEUE "native_queue" OTR_NATIVE_QUEUE_MAJOR OTR_NATIVE_QUEUE_MINOR;
    otr_external_api memory_import: OTR_EXT_EXTERNAL "external" OTR_EXTERNAL_MAJOR OTR_EXTERNAL_MINOR;
}

/// Copies what a table holds within its own size; the rest is zero. `struct_size` keeps what the
/// driver wrote.
///
/// # Safety
/// `from` is aligned and points to at least as many bytes as its first word says, and at least to that
/// word.
unsafe fn copy_prefix<T: Sized0>(from: *const T) -> T {
    // SAFETY: `from` is aligned, and its first word is readable.
    let size = unsafe { from.cast::<usize>().read() };
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: `size` bytes are readable and size_of::<T>() writable; zero is valid for all fields.
    let mut copy = unsafe {
        std::ptr::copy_nonoverlapping(
            from.cast::<u8>(),
            copy.as_mut_ptr().cast::<u8>(),
            size.min(size_of::<T>()),
        );
        copy.assume_init()
    };
    copy.set_size(size);
    copy
}

/// Copies and checks an optional group.
///
/// # Safety
/// `from` is NULL or points to at least as many bytes as its first word says.
unsafe fn group<T: Sized0>(
    from: *const T,
    name: &str,
    check: impl FnOnce(&T, usize) -> Result<()>,
) -> Result<Option<T>> {
    if from.is_null() {
        return Ok(None);
    }
    if !from.is_aligned() {
        return Err(refuse(format!(
            "its group {name} lies at {from:p}, which is not aligned"
        )));
    }
    // SAFETY: not NULL, aligned, and as large as its first word says (R1).
    let copy = unsafe { copy_prefix(from) };
    // SAFETY: as above; the copy's own struct_size is what the driver wrote.
    let size = unsafe { from.cast::<usize>().read() };
    check(&copy, size)?;
    Ok(Some(copy))
}

/// Copies and checks a table of the chain. One of another major version is as none, and is passed over.
///
/// # Safety
/// The records of the chain are as large as they say.
unsafe fn chained<T: Chained>(
    api: &sys::otr_driver_api,
    passed_over: &mut Vec<String>,
    check: impl FnOnce(&T, usize) -> Result<()>,
) -> Result<Option<T>> {
    // SAFETY: this function's contract.
    let Some(record) = unsafe { find_record(api.next, T::TYPE) }.map_err(refuse)? else {
        return Ok(None);
    };
    // SAFETY: aligned as every record is, and as large as it says.
    let copy = unsafe { copy_prefix(record.as_ptr().cast_const().cast::<T>()) };
    // SAFETY: a record that was found is readable as far as its head.
    let size = unsafe { record.read() }.struct_size;
    if size < T::HEAD {
        return Err(refuse(format!(
            "its chained table {} has {size} bytes and ends within its version; the first entry lies behind {}",
            T::NAME,
            T::HEAD
        )));
    }
    let (theirs, ours) = (copy.version(), T::VERSION);
    if theirs.0 != ours.0 {
        passed_over.push(format!(
            "the table {} is of version {}.{} and is not used: this Outrigger knows {}.{}, and the major numbers must be \
             equal",
            T::NAME, theirs.0, theirs.1, ours.0, ours.1
        ));
        return Ok(None);
    }
    check(&copy, size)?;
    Ok(Some(copy))
}

fn check_entries(
    what: &str,
    size: usize,
    needed: usize,
    entries: &[(&str, usize, bool)],
) -> Result<()> {
    if size < needed {
        let pointer = size_of::<usize>();
        let cut: Vec<&str> = entries
            .iter()
            .filter(|(_, offset, _)| offset + pointer > size)
            .map(|(name, ..)| *name)
            .collect();
        return Err(refuse(format!(
            "its {what} has {size} bytes and needs at least {needed} in version {} of the contract; the \
             first entry that is missing is `{}` (of {} missing)",
            ours(),
            cut.first().copied().unwrap_or("struct_size"),
            cut.len()
        )));
    }
    let null: Vec<String> = entries
        .iter()
        .filter(|(.., present)| !present)
        .map(|(name, ..)| format!("`{name}`"))
        .collect();
    if null.is_empty() {
        return Ok(());
    }
    let advice = match what {
        "table" => "all mandatory entries must be set",
        _ if what.starts_with("group") => {
            "set them, or make the whole group NULL if it is not supported"
        }
        _ => "set them, or take the whole table out of the chain if it is not supported",
    };
    Err(refuse(format!(
        "its {what} has NULL for {}: {advice}",
        null.join(", ")
    )))
}

/// Refuses one of two entries without the other.
fn both(what: &str, one: &str, has_one: bool, other: &str, has_other: bool) -> Result<()> {
    if has_one == has_other {
        return Ok(());
    }
    let (there, missing) = if has_one { (one, other) } else { (other, one) };
    Err(refuse(format!(
        "its {what} has `{there}` and NULL for `{missing}`: set both or none"
    )))
}

/// A string of the table.
///
/// # Safety
/// `pointer` is NULL or a NUL-terminated string.
unsafe fn text(pointer: *const c_char, field: &str) -> Result<String> {
    if pointer.is_null() {
        return Err(refuse(format!(
            "its table has NULL for the string `{field}`"
        )));
    }
    // SAFETY: not NULL, so NUL-terminated.
    Ok(unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned())
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::{Table, versions};
    use crate::{Code, host, sys};

    fn with(change: impl FnOnce(&mut sys::otr_driver_api)) -> crate::Result<Table> {
        let mut api = *host::api("");
        change(&mut api);
        // SAFETY: a whole table of the host driver, at most made smaller.
        unsafe { Table::read(&api) }
    }

    fn message(change: impl FnOnce(&mut sys::otr_driver_api)) -> String {
        match with(change) {
            Ok(_) => panic!("a broken table was taken"),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn the_whole_table_is_taken() {
        let table = with(|_| {}).unwrap();
        assert_eq!(table.name, "host");
        assert!(table.kernel.is_some() && table.operators.is_none());
    }

    #[test]
    fn a_truncated_table_names_its_first_missing_entry() {
        let text = message(|api| api.struct_size = offset_of!(sys::otr_driver_api, event_record));
        assert!(
            text.contains("`event_record`") && text.contains("of 6 missing"),
            "{text}"
        );
        let text = message(|api| api.struct_size = 8);
        assert!(text.contains("8 bytes"), "{text}");
    }

    #[test]
    fn a_table_without_optional_part_has_none() {
        let table =
            with(|api| api.struct_size = offset_of!(sys::otr_driver_api, queue_flush)).unwrap();
        assert!(table.kernel.is_none() && table.timing.is_none());
        assert!(table.api.queue_flush.is_none());
    }

    #[test]
    fn all_null_entries_are_named() {
        let text = message(|api| {
            api.copy = None;
            api.event_query = None;
        });
        assert!(text.contains("`event_query`, `copy`"), "{text}");
        assert!(message(|api| api.vendor = std::ptr::null()).contains("`vendor`"));
    }

    #[test]
    fn a_group_with_a_hole_is_named() {
        // SAFETY: the host driver has this group.
        let mut kernel = unsafe { *host::api("").kernel };
        kernel.launch = None;
        let text = message(|api| api.kernel = &kernel);
        assert!(
            text.contains("group kernel") && text.contains("`launch`"),
            "{text}"
        );
    }

    #[test]
    fn half_of_a_pair_is_named() {
        // SAFETY: the host driver has this group.
        let mut ipc = unsafe { *host::api("virtual_memory=on").ipc };
        ipc.physical_import = None;
        let text = message(|api| api.ipc = &ipc);
        assert!(
            text.contains("group ipc") && text.contains("`physical_import`"),
            "{text}"
        );
        ipc.physical_export = None;
        assert!(with(|api| api.ipc = &ipc).unwrap().ipc.is_some());
        ipc.event_export = None;
        let text = message(|api| api.ipc = &ipc);
        assert!(text.contains("`event_export`"), "{text}");
        ipc.event_import = None;
        assert!(with(|api| api.ipc = &ipc).unwrap().ipc.is_some());
    }

    /// An unknown record.
    fn unknown(next: *const sys::otr_ext) -> sys::otr_ext {
        sys::otr_ext {
            struct_size: size_of::<sys::otr_ext>(),
            type_: 0x8000_0001,
            reserved: 0,
            next,
        }
    }

    /// A table of the host driver's chain.
    fn chained<T: super::Chained>() -> T {
        // SAFETY: the host driver has both tables, which live as long as the process.
        unsafe {
            let record = crate::find_record(host::api("").next, T::TYPE).unwrap();
            record.unwrap().cast::<T>().read()
        }
    }

    #[test]
    fn tables_are_found_between_records_of_unknown_type() {
        let last = unknown(std::ptr::null());
        let mut collectives: sys::otr_collective_api = chained();
        collectives.ext.next = &last;
        let middle = unknown(&collectives.ext);
        let mut native: sys::otr_native_queue_api = chained();
        native.ext.next = &middle;
        let first = unknown(&native.ext);
        let table = with(|api| api.next = &first).unwrap();
        assert!(table.collectives.is_some() && table.native_queue.is_some());
        let table = with(|api| api.next = &last).unwrap();
        assert!(table.collectives.is_none() && table.native_queue.is_none());
        let table = with(|api| api.next = std::ptr::null()).unwrap();
        assert!(table.collectives.is_none() && table.native_queue.is_none());
    }

    #[test]
    fn a_table_of_another_major_is_absent_and_nothing_else_is() {
        let collectives: sys::otr_collective_api = chained();
        let mut native: sys::otr_native_queue_api = chained();
        native.ext.next = &raw const collectives.ext;
        for (major, minor, there) in [(2, 0, false), (0, 9, false), (1, 0, true), (1, 999, true)] {
            (native.major, native.minor) = (major, minor);
            // Of a table of another major, not even the size can be judged.
            native.ext.struct_size = if there { size_of_val(&native) } else { 32 };
            let table = with(|api| api.next = &raw const native.ext).unwrap();
            assert_eq!(table.native_queue.is_some(), there, "{major}.{minor}");
            let told: Vec<_> = table.passed_over.iter().map(String::as_str).collect();
            let text = format!("native_queue is of version {major}.{minor} ");
            assert_eq!(told.len(), usize::from(!there));
            assert!(told.iter().all(|told| told.contains(&text)), "{told:?}");
            assert!(table.collectives.is_some() && table.kernel.is_some());
        }
    }

    #[test]
    fn a_shorter_table_lacks_what_lies_behind_its_end() {
        let mut collectives: sys::otr_collective_api = chained();
        assert!(collectives.exchange.is_some());
        collectives.ext.struct_size = offset_of!(sys::otr_collective_api, exchange);
        let table = with(|api| api.next = &raw const collectives.ext).unwrap();
        assert!(table.collectives.unwrap().exchange.is_none());
        collectives.ext.struct_size = offset_of!(sys::otr_collective_api, all_gather);
        let text = message(|api| api.next = &raw const collectives.ext);
        assert!(
            text.contains("chained table collectives") && text.contains("`all_gather`"),
            "{text}"
        );
        collectives.ext.struct_size = size_of::<sys::otr_ext>();
        let text = message(|api| api.next = &raw const collectives.ext);
        assert!(
            text.contains("24 bytes and ends within its version"),
            "{text}"
        );
    }

    #[test]
    fn a_table_with_a_hole_is_named() {
        let mut native: sys::otr_native_queue_api = chained();
        native.adopt = None;
        let text = message(|api| api.next = &raw const native.ext);
        assert!(
            text.contains("`adopt`") && text.contains("out of the chain"),
            "{text}"
        );
    }

    #[test]
    fn another_major_is_refused_with_both_numbers() {
        let error = with(|api| {
            api.api_major = 7;
            api.api_minor = 3;
        });
        let error = error.err().unwrap();
        assert_eq!(error.code(), Code::VERSION);
        assert!(
            error.message().contains("7.3") && error.message().contains("1.0"),
            "{error}"
        );
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { versions(std::ptr::null()) }, None);
    }
}
