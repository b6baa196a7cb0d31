//! Host functions by their place in the file from which they were loaded: this is how a recording names
//! them. To find one again means to trust the recording, so it is done only on request.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::format::Value;

/// The place of a function: the file, how far behind its start in memory, and the file's CRC-32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
    pub(crate) sum: u32,
}

impl Place {
    /// The place of a function; `None` if it lies in no file, as one that was compiled at run time.
    pub(super) fn of(function: *const c_void) -> Option<Self> {
        let (file, base) = object_of(function)?;
        Some(Self {
            offset: (function.addr() - base) as u64,
            sum: sum(&file)?,
            file,
        })
    }

    pub(super) fn to_value(&self) -> Value {
        Value::List(vec![
            Value::Bytes(self.file.as_os_str().as_bytes().to_vec()),
            Value::Number(self.offset),
            Value::Number(u64::from(self.sum)),
        ])
    }

    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let Value::List(values) = value else {
            return None;
        };
        let [
            Value::Bytes(file),
            Value::Number(offset),
            Value::Number(sum),
        ] = &values[..]
        else {
            return None;
        };
        Some(Self {
            file: OsStr::from_bytes(file).into(),
            offset: *offset,
            sum: u32::try_from(*sum).ok()?,
        })
    }

    /// The function, if its file has not changed since. The file is loaded if it is not, which runs its
    /// initialisers, and stays loaded.
    pub(crate) fn find(&self) -> Option<*const c_void> {
        if sum(&self.file)? != self.sum {
            return None;
        }
        let base = base_of(&self.file).or_else(|| {
            let name = CString::new(self.file.as_os_str().as_bytes()).ok()?;
            // SAFETY: the name is terminated. Whoever asked for host functions trusts the file.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!library.is_null()).then(|| base_of(&self.file)).flatten()
        })?;
        Some(std::ptr::with_exposed_provenance(
            base.wrapping_add(self.offset as usize),
        ))
    }
}

/// The file that an address was loaded from, and where it begins in memory.
fn object_of(address: *const c_void) -> Option<(PathBuf, usize)> {
    // SAFETY: all fields are pointers, for which zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for, and `info` lives through the call.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated path that lives as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some((path.canonicalize().ok()?, info.dli_fbase.addr()))
}

/// The address at which a file is loaded in this process.
fn base_of(file: &Path) -> Option<usize> {
    struct Search<'a> {
        file: &'a Path,
        base: Option<usize>,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> i32 {
        // SAFETY: the arguments are those of dl_iterate_phdr, and the `Search` below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
        // SAFETY: NUL-terminated, by dl_iterate_phdr.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        // The program itself comes without a name.
        let path = match name.to_bytes() {
            b"" => std::env::current_exe().ok(),
            name => Path::new(OsStr::from_bytes(name)).canonicalize().ok(),
        };
        if path.as_deref() != Some(search.file) {
            return 0;
        }
        search.base = Some(info.dlpi_addr as usize);
        1
    }
    let mut search = Search { file, base: None };
    // SAFETY: `visit` gets a pointer to `search`, which lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.base
}

/// The CRC-32 of a file. Kept, since one file has many functions.
fn sum(file: &Path) -> Option<u32> {
    static KNOWN: Mutex<Vec<(PathBuf, u32)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock();
    if let Some((_, sum)) = known.iter().find(|(path, _)| path == file) {
        return Some(*sum);
    }
    let sum = crc32fast::hash(&std::fs::read(file).ok()?);
    known.push((file.to_owned(), sum));
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_function_is_found_again_by_its_place() {
        let function = a_function_is_found_again_by_its_place as fn() as *const std::ffi::c_void;
        let place = Place::of(function).unwrap();
        assert_eq!(Place::from_value(&place.to_value()), Some(place.clone()));
        assert_eq!(place.find(), Some(function));
        let other = Place {
            sum: !place.sum,
            ..place
        };
        assert_eq!(other.find(), None);
    }
}
