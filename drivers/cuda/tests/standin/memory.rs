//! Memory of the devices, which is the host's; pinned memory; addresses and memory apart; copies and fills.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls::{api, misuse};
use crate::machine::{Context, DEVICES, working};
use crate::streams::{Stream, attempt, submit};

/// Bytes of each device.
pub(crate) const CAPACITY: u64 = 256 << 20;
const GRANULARITY: usize = 2 << 20;

#[derive(Clone, Copy)]
struct Block {
    size: u64,
    device: usize,
}

struct Object {
    file: c_int,
    size: u64,
    device: usize,
    mapped: u32,
    released: bool,
}

#[derive(Default)]
struct Memory {
    used: [u64; DEVICES],
    allocated: BTreeMap<u64, Block>,
    pinned: BTreeMap<u64, (u64, bool)>,
    reserved: BTreeMap<u64, u64>,
    objects: BTreeMap<u64, Object>,
    /// By address: the object, its size, and whether its device may use it.
    mapped: BTreeMap<u64, (u64, u64, bool)>,
    next: u64,
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

fn with<T>(body: impl FnOnce(&mut Memory) -> T) -> T {
    body(MEMORY.lock().unwrap().get_or_insert_default())
}

/// # Safety
/// A combination of arguments that is right for `mmap`, at an address that is NULL or ours.
unsafe fn map(at: u64, size: usize, protection: c_int, flags: c_int, file: c_int) -> u64 {
    // SAFETY: this function's contract.
    let memory = unsafe { libc::mmap(at as *mut c_void, size, protection, flags, file, 0) };
    if memory == libc::MAP_FAILED {
        0
    } else {
        memory as u64
    }
}

fn fresh(size: u64) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at an address that the system chooses.
    unsafe {
        map(
            0,
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
        )
    }
}

impl Memory {
    fn is_device(&self, address: u64, size: u64) -> bool {
        let before = self.allocated.range(..=address).next_back();
        if before.is_some_and(|(start, block)| address + size <= start + block.size) {
            return true;
        }
        let mut at = address;
        while at < address + size {
            match self.mapped.range(..=at).next_back() {
                Some((start, (_, size, true))) if at < start + size => at = start + size,
                _ => return false,
            }
        }
        true
    }

    fn is_pinned(&self, address: u64, size: u64) -> bool {
        let before = self.pinned.range(..=address).next_back();
        before.is_some_and(|(start, (block, _))| address + size <= start + block)
    }

    fn drop_object(&mut self, handle: u64) {
        let Some(object) = self.objects.get(&handle) else {
            return;
        };
        if object.released && object.mapped == 0 {
            self.used[object.device] -= object.size;
            // SAFETY: the file of an object that is gone.
            unsafe { libc::close(object.file) };
            self.objects.remove(&handle);
        }
    }
}

/// Notes a range that is none of a device.
pub(crate) fn device(address: u64, size: usize) -> Result<(), c_int> {
    if with(|memory| memory.is_device(address, size as u64)) {
        return Ok(());
    }
    Err(misuse(format!(
        "{size} bytes at {address:#x} are no memory of a device"
    )))
}

/// A copy of pageable memory may wait, and reads the source too early.
pub(crate) fn pinned(address: *const c_void, size: usize) -> Result<(), c_int> {
    if with(|memory| memory.is_pinned(address as u64, size as u64)) {
        return Ok(());
    }
    Err(misuse(format!(
        "an asynchronous copy of {size} bytes at {address:p}, which is not pinned"
    )))
}

/// # Safety
/// As for `submit`; both ranges live until then.
unsafe fn copy(stream: *mut Stream, dst: u64, src: u64, size: usize) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        submit(stream, move || {
            std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, size);
        })
    }
}

/// Writes a word of N bytes at the beginning of each row.
///
/// # Safety
/// As for `submit`; the range lives until then.
unsafe fn rows<const N: usize>(
    stream: *mut Stream,
    at: u64,
    pitch: usize,
    word: [u8; N],
    count: usize,
) -> c_int {
    if !at.is_multiple_of(N as u64) || !pitch.is_multiple_of(N) {
        return misuse(format!(
            "words of {N} bytes at {at:#x}, each {pitch} bytes behind the last"
        ));
    }
    let bytes = (count - 1) * pitch + N;
    attempt!(device(at, bytes));
    // SAFETY: this function's contract.
    unsafe {
        submit(stream, move || {
            for row in 0..count {
                std::ptr::copy_nonoverlapping(word.as_ptr(), (at as *mut u8).add(row * pitch), N);
            }
        })
    }
}

api! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let context = attempt!(working());
        *free = with(|memory| CAPACITY - memory.used[context.device]) as usize;
        *total = CAPACITY as usize;
        0
    }

    fn cuMemAlloc_v2(place: *mut u64, size: usize) {
        let context = attempt!(working());
        let size = size as u64;
        with(|memory| {
            let used = &mut memory.used[context.device];
            if size == 0 { return 1; }
            if size > CAPACITY - *used { return 2; }
            let address = fresh(size);
            if address == 0 { return 2; }
            *used += size;
            memory.allocated.insert(address, Block { size, device: context.device });
            *place = address;
            0
        })
    }

    fn cuMemFree_v2(address: u64) {
        attempt!(working());
        with(|memory| match memory.allocated.remove(&address) {
            Some(block) => {
                memory.used[block.device] -= block.size;
                // SAFETY: allocated by `cuMemAlloc`, and no work uses it, as the driver promises.
                libc::munmap(address as *mut c_void, block.size as usize)
            }
            None => misuse(format!("{address:#x} is freed and was not allocated")),
        })
    }

    fn cuMemHostAlloc(place: *mut *mut c_void, size: usize, _flags: c_uint) {
        attempt!(working());
        if size as u64 > CAPACITY { return 2; }
        let address = fresh(size as u64);
        with(|memory| memory.pinned.insert(address, (size as u64, false)));
        *place = address as *mut c_void;
        0
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        attempt!(working());
        match with(|memory| memory.pinned.remove(&(pointer as u64))) {
            // SAFETY: allocated by `cuMemHostAlloc`, and no work uses it, as the driver promises.
            Some((size, false)) => libc::munmap(pointer, size as usize),
            _ => misuse(format!("{pointer:p} is freed and was not allocated")),
        }
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, _flags: c_uint) {
        attempt!(working());
        with(|memory| {
            if memory.is_pinned(pointer as u64, 1) { return 712; }
            memory.pinned.insert(pointer as u64, (size as u64, true));
            0
        })
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        attempt!(working());
        match with(|memory| memory.pinned.remove(&(pointer as u64))) {
            Some((_, true)) => 0,
            _ => misuse(format!("{pointer:p} is unregistered and was not registered")),
        }
    }

    fn cuStreamWaitValue32_v2(stream: *mut Stream, address: u64, value: u32, flags: c_uint) {
        let context = attempt!(working());
        attempt!(pinned(address as *const c_void, 4));
        if flags != 0 {
            return misuse("a wait for a value that is not at least one".to_owned());
        }
        submit(stream, move || {
            // SAFETY: the driver promises that the word lives until the stream has come behind it.
            let word = || (address as *const AtomicU32).as_ref().unwrap().load(Ordering::Acquire);
            while (word().wrapping_sub(value) as i32) < 0 && context.lost() == 0 {
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        })
    }

    fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, size: usize, stream: *mut Stream) {
        attempt!(device(dst, size));
        attempt!(pinned(src, size));
        copy(stream, dst, src as u64, size)
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, size: usize, stream: *mut Stream) {
        attempt!(device(src, size));
        attempt!(pinned(dst, size));
        copy(stream, dst as u64, src, size)
    }

    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, size: usize, stream: *mut Stream) {
        attempt!(device(src, size));
        attempt!(device(dst, size));
        copy(stream, dst, src, size)
    }

    fn cuMemcpyPeerAsync(dst: u64, _to: *mut Context, src: u64, _from: *mut Context, size: usize, stream: *mut Stream) {
        attempt!(device(src, size));
        attempt!(device(dst, size));
        copy(stream, dst, src, size)
    }

    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: *mut Stream) {
        rows(stream, at, 1, [value], count)
    }

    fn cuMemsetD16Async(at: u64, value: u16, count: usize, stream: *mut Stream) {
        rows(stream, at, 2, value.to_le_bytes(), count)
    }

    fn cuMemsetD32Async(at: u64, value: c_uint, count: usize, stream: *mut Stream) {
        rows(stream, at, 4, value.to_le_bytes(), count)
    }

    fn cuMemsetD2D8Async(at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: *mut Stream) {
        if width != 1 { return misuse("rows of some words".to_owned()); }
        rows(stream, at, pitch, [value], height)
    }

    fn cuMemsetD2D16Async(at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: *mut Stream) {
        if width != 1 { return misuse("rows of some words".to_owned()); }
        rows(stream, at, pitch, value.to_le_bytes(), height)
    }

    fn cuMemsetD2D32Async(at: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: *mut Stream) {
        if width != 1 { return misuse("rows of some words".to_owned()); }
        rows(stream, at, pitch, value.to_le_bytes(), height)
    }

    fn cuMemGetAllocationGranularity(place: *mut usize, _properties: *const c_void, _which: c_int) {
        *place = GRANULARITY;
        0
    }

    fn cuMemAddressReserve(place: *mut u64, size: usize, alignment: usize, _at: u64, _flags: c_ulonglong) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let Some(whole) = size.checked_add(alignment) else { return 2 };
        // SAFETY: new addresses that the system chooses.
        let start = map(0, whole, libc::PROT_NONE, flags, -1);
        if start == 0 { return 2; }
        let address = start.next_multiple_of(alignment as u64);
        let behind = address + size as u64;
        // SAFETY: what is not needed of the addresses of above.
        libc::munmap(start as *mut c_void, (address - start) as usize);
        libc::munmap(behind as *mut c_void, (start + whole as u64 - behind) as usize);
        with(|memory| memory.reserved.insert(address, size as u64));
        *place = address;
        0
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        with(|memory| {
            if memory.reserved.remove(&address) != Some(size as u64) {
                return misuse(format!("{size} bytes at {address:#x} are no reserved range"));
            }
            if memory.mapped.range(address..address + size as u64).next().is_some() {
                return misuse("a range is freed in which something is mapped".to_owned());
            }
            // SAFETY: reserved above, and nobody uses it.
            libc::munmap(address as *mut c_void, size)
        })
    }

    fn cuMemCreate(place: *mut u64, size: usize, properties: *const [c_int; 4], _flags: c_ulonglong) {
        let device = (*properties)[3] as usize;
        with(|memory| {
            let size = size as u64;
            if size > CAPACITY - memory.used[device] { return 2; }
            let file = libc::memfd_create(c"standin".as_ptr(), 0);
            if file < 0 || libc::ftruncate(file, size as i64) != 0 { return 2; }
            memory.used[device] += size;
            memory.next += 1;
            *place = memory.next;
            let object = Object { file, size, device, mapped: 0, released: false };
            memory.objects.insert(memory.next, object);
            0
        })
    }

    fn cuMemRelease(handle: u64) {
        with(|memory| {
            match memory.objects.get_mut(&handle) {
                Some(object) if !object.released => object.released = true,
                _ => return misuse("an object is released that is not there".to_owned()),
            }
            memory.drop_object(handle);
            0
        })
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, _flags: c_ulonglong) {
        with(|memory| {
            let end = address + size as u64;
            let range = memory.reserved.range(..=address).next_back();
            if range.is_none_or(|(start, size)| end > start + size) {
                return misuse(format!("{address:#x} is mapped and not reserved"));
            }
            if memory.mapped.range(address..end).next().is_some() {
                return misuse(format!("{address:#x} is mapped already"));
            }
            let Some(object) = memory.objects.get_mut(&handle) else { return 1 };
            if offset != 0 || object.size != size as u64 || object.released {
                return misuse("a part of an object is mapped, or one that was released".to_owned());
            }
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: addresses of a reserved range, at which nothing is mapped.
            if map(address, size, libc::PROT_NONE, flags, object.file) == 0 { return 2; }
            object.mapped += 1;
            memory.mapped.insert(address, (handle, size as u64, false));
            0
        })
    }

    fn cuMemSetAccess(address: u64, size: usize, _access: *const c_void, count: usize) {
        with(|memory| {
            let mut at = address;
            while at < address + size as u64 {
                let Some((_, bytes, access)) = memory.mapped.get_mut(&at) else {
                    return misuse("access to what is not mapped".to_owned());
                };
                *access = count == 1;
                at += *bytes;
            }
            // SAFETY: mapped above.
            libc::mprotect(address as *mut c_void, size, libc::PROT_READ | libc::PROT_WRITE)
        })
    }

    fn cuMemUnmap(address: u64, size: usize) {
        with(|memory| {
            let mut at = address;
            while at < address + size as u64 {
                let Some((handle, bytes, _)) = memory.mapped.remove(&at) else {
                    return misuse(format!("{at:#x} is unmapped and not mapped"));
                };
                if let Some(object) = memory.objects.get_mut(&handle) {
                    object.mapped -= 1;
                }
                memory.drop_object(handle);
                at += bytes;
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: addresses of a reserved range, which nobody uses.
            c_int::from(map(address, size, libc::PROT_NONE, flags, -1) == 0)
        })
    }
}
