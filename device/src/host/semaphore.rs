//! Semaphores: numbers in a page that processes share. Whoever has the page may set the number, and nobody owns it, so it goes
//! with the last descriptor or import. A waiting queue waits by a host call on a queue of its own, as for events of other
//! processes.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::fstat;
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use super::board::relayed;
use super::command::Command;
use super::driver::Host;
use super::fault::Fault;
use super::pages::Pages;
use super::queue::Queue;
use crate::Code;

/// The first bytes of the page of a semaphore.
const MAGIC: &[u8; 16] = b"otr-host-semapho";

/// The bytes of the page. No memory of a device has a file as small as this.
const SIZE: u64 = 4096;

/// How long a waiter sleeps before it looks by itself.
const LOOK: Duration = Duration::from_millis(100);

/// What the processes share.
#[repr(C)]
struct Words {
    /// Written before anybody else has the page.
    magic: [u8; 16],
    value: AtomicU64,
    /// The first value that came with the first failure; 0: there was none.
    failed: AtomicU64,
    code: AtomicU32,
    /// Grows with each signal; waiters sleep on it.
    signals: AtomicU32,
}

/// A semaphore, mapped here.
#[derive(Debug)]
pub(super) struct Semaphore {
    words: NonNull<Words>,
    pages: Pages,
}

// SAFETY: the words are atomic, and mapped as long as this lives.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), SIZE as usize) };
    }
}

impl Semaphore {
    /// A semaphore that begins with a number.
    pub(super) fn new(initial: u64) -> Result<Self, Fault> {
        let make = || {
            let pages = Pages::small(SIZE)?;
            if pwrite(pages.file(), MAGIC, 0)? != MAGIC.len() {
                return Err(Errno::NOSPC);
            }
            Self::map(pages)
        };
        let semaphore = make().map_err(no_page)?;
        semaphore.words().value.store(initial, Ordering::Release);
        Ok(semaphore)
    }

    /// Whether a file is a semaphore.
    pub(super) fn is_in(file: &OwnedFd) -> bool {
        let mut start = [0; 16];
        fstat(file).is_ok_and(|stat| stat.st_size == SIZE as i64)
            && pread(file, &mut start, 0).is_ok_and(|read| read == start.len())
            && start == *MAGIC
    }

    /// The semaphore in a file; `None` if it is another one.
    pub(super) fn of(file: OwnedFd) -> Result<Option<Self>, Fault> {
        if !Self::is_in(&file) {
            return Ok(None);
        }
        Self::map(Pages::of(file)).map(Some).map_err(no_page)
    }

    fn map(pages: Pages) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that has so many bytes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                SIZE as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                pages.file(),
                0,
            )
        }?;
        let words = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { words, pages })
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped until this is dropped, and made of numbers of which any value is one; what is not atomic is not read.
        unsafe { self.words.as_ref() }
    }

    /// Another descriptor of it.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.pages.file().as_fd(), 0)
    }

    /// Sets the number, with the failure of the work before that. The first failure stays.
    pub(super) fn reach(&self, value: u64, upstream: Code) {
        let words = self.words();
        if upstream != Code::OK {
            // Seen by whoever sees the value below. Of two failures at a time either may be the first.
            if words.failed.load(Ordering::Acquire) == 0 {
                words.code.store(upstream.0 as u32, Ordering::Relaxed);
            }
            // All numbers that come with this signal, not the last alone.
            let from = words.value.load(Ordering::Acquire).saturating_add(1);
            let (first, late) = (Ordering::Release, Ordering::Relaxed);
            let _ = words
                .failed
                .compare_exchange(0, from.min(value.max(1)), first, late);
        }
        words.value.fetch_max(value, Ordering::AcqRel);
        words.signals.fetch_add(1, Ordering::Release);
        // Not private: the sleepers are other processes. Where it fails they look by themselves.
        let _ = futex::wake(&words.signals, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// What a wait for a value comes to; `None`: it goes on.
    fn outcome(&self, value: u64) -> Option<Code> {
        let words = self.words();
        if words.value.load(Ordering::Acquire) < value {
            return None;
        }
        let failed = words.failed.load(Ordering::Acquire);
        if failed == 0 || value < failed {
            return Some(Code::OK);
        }
        // Another process wrote it: what is no failure counts as one.
        match Code(words.code.load(Ordering::Relaxed) as i32) {
            Code::OK | Code::NOT_READY => Some(Code::EXECUTION),
            code => Some(code),
        }
    }

    fn wait(&self, value: u64) -> Code {
        loop {
            let signals = &self.words().signals;
            let before = signals.load(Ordering::Acquire);
            if let Some(code) = self.outcome(value) {
                return code;
            }
            let limit = futex::Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.subsec_nanos().into(),
            };
            // Whatever ends the sleep, the page says what is so.
            let _ = futex::wait(signals, futex::Flags::empty(), before, Some(&limit));
        }
    }

    /// Makes later work of a queue start when the number has come to a value.
    pub(super) fn queue_wait(
        self: &Arc<Self>,
        host: &Arc<Host>,
        queue: &'static Queue,
        value: u64,
    ) -> Result<(), Fault> {
        if self.outcome(value) == Some(Code::OK) {
            return Ok(());
        }
        let user = Box::into_raw(Box::new((Arc::clone(self), value)));
        relayed(host, |relay| {
            let submitted = relay.submit(Command::HostCall {
                function: wait,
                user: user.cast(),
                can_fail: true,
            });
            if submitted.is_err() {
                // SAFETY: boxed above, and nobody will be called with it.
                drop(unsafe { Box::from_raw(user) });
            }
            submitted?;
            queue.wait_for(relay, relay.tail())
        })
    }
}

/// Blocks until a semaphore has come to a value.
unsafe extern "C" fn wait(user: *mut c_void, _upstream: i32) -> i32 {
    // SAFETY: boxed in `queue_wait` for this call, which is made once.
    let (semaphore, value) = *unsafe { Box::from_raw(user.cast::<(Arc<Semaphore>, u64)>()) };
    semaphore.wait(value).0
}

fn no_page(error: Errno) -> Fault {
    Fault::new(
        Code::OUT_OF_HOST_MEMORY,
        format!("no page for a semaphore: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::{Code, Pages, SIZE, Semaphore};

    #[test]
    fn the_number_grows_and_the_first_failure_stays() {
        let semaphore = Semaphore::new(3).unwrap();
        assert_eq!(semaphore.outcome(3), Some(Code::OK));
        assert_eq!(semaphore.outcome(4), None);
        semaphore.reach(7, Code::OK);
        semaphore.reach(5, Code::OK);
        assert_eq!(semaphore.outcome(7), Some(Code::OK));
        semaphore.reach(9, Code::EXECUTION);
        semaphore.reach(11, Code::CANCELLED);
        let other = Semaphore::of(semaphore.descriptor().unwrap()).unwrap();
        let other = other.unwrap();
        let seen = [7, 8, 9, 11].map(|value| other.outcome(value));
        let failed = Some(Code::EXECUTION);
        assert_eq!(seen, [Some(Code::OK), failed, failed, failed]);
        assert_eq!(other.outcome(12), None);
    }

    #[test]
    fn another_file_is_no_semaphore() {
        for size in [0, SIZE, 2 * SIZE] {
            let pages = Pages::small(size).unwrap();
            let file = pages.file().try_clone_to_owned().unwrap();
            assert!(Semaphore::of(file).unwrap().is_none());
        }
    }
}
