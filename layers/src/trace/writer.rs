//! Writes the events of a timeline into a file: one JSON object per line, in an array that
//! may end anywhere. So the trace of a process that was killed opens, too.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use outrigger_trace::Track;
use parking_lot::Mutex;
use serde_json::Value;

/// Devices are processes of the timeline, with numbers that no process of the system has.
const DEVICES: u64 = 1 << 30;

/// Writes events. Times are nanoseconds since it was made.
pub(super) struct Timeline {
    file: Mutex<Option<File>>,
    start: Instant,
    process: u64,
    threads: AtomicU64,
    flows: AtomicU64,
}

thread_local! {
    /// This thread's number in the timeline of a driver, with the number of that timeline.
    static THREAD: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

impl Timeline {
    pub(super) fn new(path: &Path, driver: &str, devices: u32) -> io::Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(b"[\n")?;
        let timeline = Self {
            file: Mutex::new(Some(file)),
            start: Instant::now(),
            process: u64::from(std::process::id()),
            threads: AtomicU64::new(0),
            flows: AtomicU64::new(0),
        };
        timeline.name_process(timeline.process, &format!("calls of the driver {driver}"));
        for device in 0..devices {
            let process = Self::device(device);
            timeline.name_process(process, &format!("device {device} of {driver}"));
        }
        Ok(timeline)
    }

    /// The process of a device.
    pub(super) fn device(device: u32) -> u64 {
        DEVICES + u64::from(device)
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A number for an arrow.
    pub(super) fn flow(&self) -> u64 {
        self.flows.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A number for a thread of the timeline: no two have the same one, not of two processes either, since a
    /// name goes to the last thread that had the number.
    pub(super) fn thread(&self) -> u64 {
        self.threads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The track of the calling thread.
    pub(super) fn this_thread(&self) -> Track {
        let own = std::ptr::from_ref(self).addr();
        let (timeline, mut thread) = THREAD.get();
        if timeline != own {
            thread = self.thread();
            THREAD.set((own, thread));
            let current = std::thread::current();
            let name = current.name().unwrap_or("thread").to_owned();
            let track = Track {
                process: self.process,
                thread,
            };
            self.name_thread(track, &name);
        }
        Track {
            process: self.process,
            thread,
        }
    }

    fn name_process(&self, process: u64, name: &str) {
        self.write(&outrigger_trace::process_name(process, name));
    }

    pub(super) fn name_thread(&self, track: Track, name: &str) {
        self.write(&outrigger_trace::thread_name(track, name));
    }

    /// A number of bytes of a device, which changes over time.
    pub(super) fn counter(&self, device: u32, name: &str, bytes: u64) {
        let process = Self::device(device);
        self.write(&outrigger_trace::counter(process, name, self.now(), bytes));
    }

    /// Writes an event.
    pub(super) fn write(&self, event: &Value) {
        let line = format!("{event},\n");
        let mut file = self.file.lock();
        if let Some(out) = &mut *file
            && let Err(error) = out.write_all(line.as_bytes())
        {
            tracing::error!(target: "outrigger::trace", %error, "the timeline ends here");
            *file = None;
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if let Some(file) = self.file.get_mut() {
            // The event behind the last comma closes the array. Without it the file opens all the same.
            let end = outrigger_trace::end(self.process);
            let _ = file.write_all(format!("{end}]\n").as_bytes());
        }
    }
}
