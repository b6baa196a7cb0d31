//! The worker's side: reads requests, measures, replies. A candidate is measured by code that asks the tuner for its
//! choice as ever, and is given this one.

use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::channel;

use serde_json::Value;

use crate::worker::{MARK, Reply, Request, VERSION};

thread_local! {
    static TRIED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The candidate that this thread tries.
pub(crate) fn tried() -> Option<String> {
    TRIED.with_borrow(Clone::clone)
}

/// Runs `work` with this candidate as the choice of each question that its thread asks.
pub fn trying<R>(candidate: &str, work: impl FnOnce() -> R) -> R {
    struct Back(Option<String>);
    impl Drop for Back {
        fn drop(&mut self) {
            TRIED.set(self.0.take());
        }
    }
    let _back = Back(TRIED.replace(Some(candidate.to_owned())));
    work()
}

/// Measures what comes in, line by line, until the process that asks is gone. This ends the process then, also in the middle
/// of a measurement that hangs.
///
/// # Errors
/// If nothing can be written.
pub fn serve(mut measure: impl FnMut(&Value) -> Result<u64, String>) -> io::Result<()> {
    let (sender, lines) = channel();
    std::thread::Builder::new()
        .name("otr-tune".to_owned())
        .spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
            // Nothing of a driver that hangs may run any more, as it would at an exit.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        })?;
    for line in lines {
        let reply: Reply = serde_json::from_str::<Request>(&line)
            .map_err(|error| format!("a request makes no sense: {error}"))
            .and_then(|request| match request.version == VERSION {
                true => Ok(request),
                false => Err(format!(
                    "the worker is of version {VERSION}, not {}",
                    request.version
                )),
            })
            .and_then(|request| trying(&request.candidate, || measure(&request.task)));
        let reply = serde_json::to_string(&reply)?;
        let mut output = io::stdout().lock();
        // A line of its own, whatever was printed before.
        writeln!(output, "\n{MARK}{reply}")?;
        output.flush()?;
    }
    Ok(())
}
