//! Streams, each with a thread of its own, and events.

use std::collections::{HashSet, VecDeque};
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::calls::{NO_HANDLE, api, misuse};
use crate::machine::{Context, working};

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Stream {
    context: &'static Context,
    line: Arc<Line>,
    /// The work that was put into the stream since a capture began.
    pub(crate) captured: Mutex<Option<Vec<Work>>>,
}

/// A piece of work. One that is captured may be done again and again.
pub(crate) type Work = Arc<dyn Fn() + Send + Sync>;

/// The work that a stream has to do.
#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(bool, Job)>,
    submitted: u64,
    done: u64,
    closed: bool,
}

pub(crate) struct Event {
    timed: bool,
    point: Mutex<Option<Arc<Point>>>,
}

/// A place in a stream.
#[derive(Default)]
struct Point {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

/// Handles that were made and not destroyed.
static LIVE: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

pub(crate) fn add<T>(object: T) -> *mut T {
    let handle = Box::into_raw(Box::new(object));
    LIVE.lock()
        .unwrap()
        .get_or_insert_default()
        .insert(handle.addr());
    handle
}

/// The object of a handle that is live.
///
/// # Safety
/// A live handle is of this type.
pub(crate) unsafe fn live<'a, T>(handle: *mut T, what: &str) -> Result<&'a T, c_int> {
    if LIVE
        .lock()
        .unwrap()
        .get_or_insert_default()
        .contains(&handle.addr())
    {
        // SAFETY: it is live; this function's contract.
        return Ok(unsafe { &*handle });
    }
    misuse(format!("{what} is used that is not live"));
    Err(NO_HANDLE)
}

/// # Safety
/// As for `live`.
pub(crate) unsafe fn remove<T>(handle: *mut T, what: &str) -> Result<Box<T>, c_int> {
    if LIVE
        .lock()
        .unwrap()
        .get_or_insert_default()
        .remove(&handle.addr())
    {
        // SAFETY: made by `add`, and removed once.
        return Ok(unsafe { Box::from_raw(handle) });
    }
    misuse(format!("{what} is destroyed that is not live"));
    Err(NO_HANDLE)
}

impl Line {
    fn push(&self, always: bool, job: Job) {
        let mut state = self.state.lock().unwrap();
        state.jobs.push_back((always, job));
        state.submitted += 1;
        self.changed.notify_all();
    }

    fn work(&self, context: &Context) {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some((always, job)) = state.jobs.pop_front() {
                drop(state);
                // A device that is lost does nothing any more, and calls nobody.
                if always || context.lost() == 0 {
                    job();
                }
                state = self.state.lock().unwrap();
                state.done += 1;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap();
            }
        }
    }

    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        let end = state.submitted;
        while state.done < end {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl Point {
    fn reach(&self) {
        *self.reached.lock().unwrap() = Some(Instant::now());
        self.changed.notify_all();
    }

    fn time(&self) -> Option<Instant> {
        *self.reached.lock().unwrap()
    }

    fn wait(&self) {
        let mut reached = self.reached.lock().unwrap();
        while reached.is_none() {
            reached = self.changed.wait(reached).unwrap();
        }
    }
}

/// Puts work into a stream.
///
/// # Safety
/// As for `live`.
pub(crate) unsafe fn submit(stream: *mut Stream, job: impl Fn() + Send + Sync + 'static) -> c_int {
    // SAFETY: this function's contract.
    match (working(), unsafe { live(stream, "a stream") }) {
        (Err(code), _) | (_, Err(code)) => code,
        (Ok(context), Ok(stream)) => {
            if !std::ptr::eq(context, stream.context) {
                return misuse("work is put into a stream of another context".to_owned());
            }
            match &mut *stream.captured.lock().unwrap() {
                Some(captured) => captured.push(Arc::new(job)),
                None => stream.line.push(false, Box::new(job)),
            }
            0
        }
    }
}

macro_rules! attempt {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(code) => return code,
        }
    };
}
pub(crate) use attempt;

api! {
    fn cuStreamCreateWithPriority(place: *mut *mut Stream, flags: c_uint, priority: c_int) {
        let context = attempt!(working());
        if flags != 1 {
            return misuse("a stream that orders itself against the default stream".to_owned());
        }
        if !(-5..=0).contains(&priority) {
            return misuse(format!("a stream of priority {priority}"));
        }
        let line = Arc::<Line>::default();
        let own = line.clone();
        std::thread::spawn(move || own.work(context));
        *place = add(Stream { context, line, captured: Mutex::new(None) });
        0
    }

    fn cuStreamDestroy_v2(stream: *mut Stream) {
        let stream = attempt!(remove(stream, "a stream"));
        stream.line.state.lock().unwrap().closed = true;
        stream.line.changed.notify_all();
        0
    }

    fn cuStreamSynchronize(stream: *mut Stream) {
        let stream = attempt!(live(stream, "a stream"));
        attempt!(working());
        if stream.captured.lock().unwrap().is_some() {
            return misuse("a stream that captures is waited for".to_owned());
        }
        stream.line.wait();
        stream.context.lost()
    }

    fn cuStreamQuery(stream: *mut Stream) {
        let stream = attempt!(live(stream, "a stream"));
        attempt!(working());
        let state = stream.line.state.lock().unwrap();
        if state.done < state.submitted { 600 } else { stream.context.lost() }
    }

    fn cuStreamGetCtx(stream: *mut Stream, place: *mut *const Context) {
        let stream = attempt!(live(stream, "a stream"));
        *place = stream.context;
        0
    }

    fn cuStreamWaitEvent(stream: *mut Stream, event: *mut Event, flags: c_uint) {
        let event = attempt!(live(event, "an event"));
        let stream = attempt!(live(stream, "a stream"));
        attempt!(working());
        if let Some(point) = event.point.lock().unwrap().clone() {
            stream.line.push(true, Box::new(move || point.wait()));
        }
        flags as c_int
    }

    fn cuEventCreate(place: *mut *mut Event, flags: c_uint) {
        attempt!(working());
        *place = add(Event { timed: flags & 2 == 0, point: Mutex::new(None) });
        0
    }

    fn cuEventDestroy_v2(event: *mut Event) {
        attempt!(remove(event, "an event"));
        0
    }

    fn cuEventRecord(event: *mut Event, stream: *mut Stream) {
        let event = attempt!(live(event, "an event"));
        let stream = attempt!(live(stream, "a stream"));
        attempt!(working());
        let point = Arc::<Point>::default();
        *event.point.lock().unwrap() = Some(point.clone());
        stream.line.push(true, Box::new(move || point.reach()));
        0
    }

    fn cuEventQuery(event: *mut Event) {
        let event = attempt!(live(event, "an event"));
        attempt!(working());
        let point = event.point.lock().unwrap().clone();
        if point.is_some_and(|point| point.time().is_none()) { 600 } else { 0 }
    }

    fn cuEventSynchronize(event: *mut Event) {
        let event = attempt!(live(event, "an event"));
        let context = attempt!(working());
        let point = event.point.lock().unwrap().clone();
        if let Some(point) = point {
            point.wait();
        }
        context.lost()
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: *mut Event, end: *mut Event) {
        let (start, end) = (attempt!(live(start, "an event")), attempt!(live(end, "an event")));
        if !start.timed || !end.timed {
            return misuse("the time of an event without a timestamp".to_owned());
        }
        let time = |event: &Event| event.point.lock().unwrap().as_ref().map(|point| point.time());
        match (time(start), time(end)) {
            (Some(Some(start)), Some(Some(end))) => {
                *milliseconds = match end.checked_duration_since(start) {
                    Some(time) => time.as_secs_f32() * 1e3,
                    None => -(start - end).as_secs_f32() * 1e3,
                };
                0
            }
            (Some(_), Some(_)) => 600,
            _ => misuse("the time of an event that was never recorded".to_owned()),
        }
    }
}
