//! Host calls without an outcome (R27), in a stream. CUDA calls a function of a stream on a thread of its own, and may have
//! one for all streams: a host call that blocks there would keep other queues from working (R17). So CUDA's function only
//! says that the turn of a call has come, a thread of the queue calls the host, and the stream waits for a word of memory
//! that this thread writes. What comes behind the call is in the stream meanwhile.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use outrigger_contract as c;
use outrigger_driver_kit::Result;
use outrigger_driver_kit::queue::HostFn;
use parking_lot::{Condvar, Mutex};

use crate::cuda::{self, Cuda};
use crate::device::Device;

/// The host calls of a stream.
pub(crate) struct Calls {
    wait_value: cuda::WaitValue,
    shared: Arc<Shared>,
    /// The number of the newest call. Held while a call is put into the stream, so that their order there is that of
    /// `pending`; never while one runs.
    newest: Mutex<u32>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the stream, the thread and those who wait share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The number of the last call that has returned: pinned memory, which the stream waits for.
    word: Word,
}

struct Word(*const AtomicU32);

// SAFETY: it is only used as the atomic that it is to, which lives until the thread has ended.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

#[derive(Default)]
struct State {
    pending: VecDeque<Call>,
    /// The number of pending calls that have their turn.
    ready: usize,
    running: bool,
    /// The stream says nothing any more.
    lost: bool,
    closed: bool,
}

struct Call {
    function: HostFn,
    user: *mut c_void,
    number: u32,
}

// SAFETY: R27: the host lets any thread call the function with its pointer.
unsafe impl Send for Call {}

impl Calls {
    /// The calls of a stream whose context is entered; `None` where streams cannot wait for memory. The word is pinned
    /// memory that lives until `close`.
    pub(crate) fn new(device: &Device, stream: cuda::Stream, word: *mut u32) -> Option<Self> {
        let wait_value = device.cuda.stream_wait_value?;
        // SAFETY: pinned memory of this size, which nobody else uses yet; a word of 0 is waited for by nobody.
        let tried = unsafe {
            word.write(0);
            wait_value(stream, word as u64, 0, cuda::WAIT_VALUE_GEQ)
        };
        (tried == cuda::SUCCESS).then(|| Self {
            wait_value,
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changed: Condvar::new(),
                word: Word(word.cast_const().cast()),
            }),
            newest: Mutex::new(0),
            thread: Mutex::new(None),
        })
    }

    /// Puts a call into the stream, whose context is entered. The answer is false if there is no thread for it: nothing
    /// was done then.
    pub(crate) fn submit(
        &self,
        device: &Device,
        stream: cuda::Stream,
        function: HostFn,
        user: *mut c_void,
    ) -> Result<bool> {
        let mut newest = self.newest.lock();
        if !self.has_thread() {
            return Ok(false);
        }
        let number = newest.wrapping_add(1);
        let call = Call {
            function,
            user,
            number,
        };
        self.shared.state.lock().pending.push_back(call);
        if let Err(fault) = self.announce(device.cuda, device, stream) {
            let mut state = self.shared.state.lock();
            if state
                .pending
                .back()
                .is_some_and(|last| last.number == number)
            {
                state.pending.pop_back();
                return Err(fault);
            }
            // The context was lost, and the call was called for that.
            *newest = number;
            return Ok(true);
        }
        *newest = number;
        let word = self.shared.word.0 as u64;
        // SAFETY: a live stream, and a word that lives until its work has finished.
        let waits = unsafe { (self.wait_value)(stream, word, number, cuda::WAIT_VALUE_GEQ) };
        if device.check(waits, "cuStreamWaitValue32").is_err() {
            // The call is on its way, and what comes behind it must not overtake it.
            drop(newest);
            self.settle(device);
            self.shared.wait_for(number);
        }
        Ok(true)
    }

    /// Lets the stream say when the turn of the next call has come.
    fn announce(&self, cuda: &Cuda, device: &Device, stream: cuda::Stream) -> Result {
        let shared = Arc::into_raw(Arc::clone(&self.shared));
        // SAFETY: a live stream; `turn` takes the reference that it is given.
        let launched = unsafe { (cuda.host_function)(stream, turn, shared.cast_mut().cast()) };
        device.check(launched, "cuLaunchHostFunc").inspect_err(|_| {
            // SAFETY: the reference of above, which nobody has taken.
            drop(unsafe { Arc::from_raw(shared) });
        })
    }

    fn has_thread(&self) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let new = std::thread::Builder::new().name("outrigger-calls".to_owned());
            *thread = new.spawn(move || shared.serve()).ok();
        }
        thread.is_some()
    }

    /// A stream whose context is lost says nothing any more, but every host call is called once (R27). The answer is
    /// whether all have returned; without a loss it is true.
    pub(crate) fn settle(&self, device: &Device) -> bool {
        if !device.is_lost() {
            return true;
        }
        let mut state = self.shared.state.lock();
        state.lost = true;
        self.shared.changed.notify_all();
        state.pending.is_empty() && !state.running
    }

    /// Settles as `settle` does, and waits for the calls.
    pub(crate) fn finish(&self, device: &Device) {
        if !self.settle(device) {
            let mut state = self.shared.state.lock();
            while state.running || !state.pending.is_empty() {
                self.shared.changed.wait(&mut state);
            }
        }
    }

    /// All work of the stream has finished: ends the thread, whose code may be unloaded next.
    pub(crate) fn close(&self, device: &Device) {
        self.finish(device);
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if !state.pending.is_empty() && (state.ready > 0 || state.lost) {
                let upstream = if state.lost {
                    c::OTR_ERR_DEVICE_LOST
                } else {
                    c::OTR_OK
                };
                state.ready = state.ready.saturating_sub(1);
                let Some(call) = state.pending.pop_front() else {
                    continue;
                };
                state.running = true;
                drop(state);
                // SAFETY: R27: called once, in the order of the queue, with the pointer of its submission.
                unsafe { (call.function)(call.user, upstream) };
                // SAFETY: the word lives until this thread has ended.
                unsafe { &*self.word.0 }.store(call.number, Ordering::Release);
                state = self.state.lock();
                state.running = false;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    fn wait_for(&self, number: u32) {
        let mut state = self.state.lock();
        // SAFETY: the word lives until the thread has ended.
        let done = || unsafe { &*self.word.0 }.load(Ordering::Acquire);
        while (done().wrapping_sub(number) as i32) < 0 {
            self.changed.wait(&mut state);
        }
    }
}

/// The function that CUDA calls in the turn of a host call.
unsafe extern "C" fn turn(shared: *mut c_void) {
    // SAFETY: the reference that `announce` gave.
    let shared = unsafe { Arc::from_raw(shared.cast_const().cast::<Shared>()) };
    shared.state.lock().ready += 1;
    shared.changed.notify_all();
}
