//! Reads trace events by the rules of Perfetto's JSON importer, as strictly as any of its versions. If
//! the importer would leave something out, or count an error and continue, this reader panics.

use std::collections::HashMap;

use serde_json::Value;

/// A piece of work or a call, on its track.
pub(crate) struct Slice {
    pub(crate) process: u64,
    pub(crate) thread: u64,
    pub(crate) name: String,
    pub(crate) args: Value,
    start: i64,
    duration: i64,
}

/// An arrow between two slices, by their numbers.
pub(crate) struct Arrow {
    pub(crate) kind: String,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// The slices and tracks that are shown.
#[derive(Default)]
pub(crate) struct Timeline {
    pub(crate) processes: HashMap<u64, String>,
    pub(crate) threads: HashMap<u64, String>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) arrows: Vec<Arrow>,
    /// Values of the counters of a process.
    pub(crate) counted: HashMap<u64, Vec<f64>>,
    /// The process of each thread.
    owners: HashMap<u64, u64>,
    /// For each thread, the slices that are open, by their numbers.
    open: HashMap<u64, Vec<usize>>,
    /// For each kind and number of an arrow, the slice that it leaves.
    leaving: HashMap<(String, u64), usize>,
}

/// Reads the events of a file.
pub(crate) fn import(events: &[Value]) -> Timeline {
    let mut timeline = Timeline::default();
    let mut ordered: Vec<&Value> = events.iter().collect();
    // Stable: what has the same time stays in the order of the file. Names come first.
    ordered.sort_by_key(|event| match text(event, "ph") {
        "M" => i64::MIN,
        _ => nanoseconds(event, "ts"),
    });
    for event in ordered {
        timeline.add(event);
    }
    for slice in &timeline.slices {
        let (process, thread) = (slice.process, slice.thread);
        assert!(timeline.processes.contains_key(&process), "{process}");
        assert!(timeline.threads.contains_key(&thread), "{thread}");
    }
    assert_eq!(timeline.leaving.len(), timeline.arrows.len());
    timeline
}

impl Timeline {
    fn add(&mut self, event: &Value) {
        let process = number(event, "pid");
        match text(event, "ph") {
            "M" => match text(event, "name") {
                "process_name" => {
                    let name = text(&event["args"], "name").to_owned();
                    assert!(self.processes.insert(process, name).is_none(), "{event}");
                }
                "thread_name" => {
                    let thread = self.thread(event, process);
                    let name = text(&event["args"], "name").to_owned();
                    assert!(self.threads.insert(thread, name).is_none(), "{event}");
                }
                _ => {}
            },
            "X" => {
                let slice = Slice {
                    process,
                    thread: self.thread(event, process),
                    name: text(event, "name").to_owned(),
                    args: event["args"].clone(),
                    start: nanoseconds(event, "ts"),
                    duration: nanoseconds(event, "dur"),
                };
                assert!(slice.args.is_object(), "{event}");
                self.open(slice);
            }
            "C" => {
                for (name, value) in event["args"].as_object().expect("counters have args") {
                    let value = value
                        .as_f64()
                        .unwrap_or_else(|| panic!("{name} in {event}"));
                    self.counted.entry(process).or_default().push(value);
                }
            }
            phase @ ("s" | "f") => {
                let thread = self.thread(event, process);
                assert_eq!(text(event, "name"), text(event, "cat"), "{event}");
                let kind = text(event, "cat").to_owned();
                let open = self.open.get(&thread).and_then(|open| open.last());
                let slice = *open.unwrap_or_else(|| panic!("{event} is in no slice"));
                let at = nanoseconds(event, "ts");
                let around = &self.slices[slice];
                // A slice without a duration is open at its moment.
                let end = around.start + around.duration.max(1);
                assert!(
                    (around.start..end).contains(&at),
                    "{event}: {}",
                    around.name
                );
                let key = (kind.clone(), number(event, "id"));
                if phase == "s" {
                    assert_eq!(self.leaving.insert(key, slice), None, "{event}");
                } else {
                    // Without it the arrow leads to whatever comes next on the track.
                    assert_eq!(text(event, "bp"), "e", "{event}");
                    let from = self.leaving.get(&key);
                    let from = *from.unwrap_or_else(|| panic!("{event} ends before it begins"));
                    let to = slice;
                    self.arrows.push(Arrow { kind, from, to });
                }
            }
            other => panic!("the phase {other}"),
        }
    }

    /// The thread of an event. A name is given to the last thread with a number, of whatever process.
    fn thread(&mut self, event: &Value, process: u64) -> u64 {
        let thread = number(event, "tid");
        let owner = *self.owners.entry(thread).or_insert(process);
        assert_eq!(owner, process, "two processes have the thread of {event}");
        thread
    }

    /// Slices of a track lie side by side or one in the other: of two that overlap one is dropped.
    fn open(&mut self, slice: Slice) {
        let open = self.open.entry(slice.thread).or_default();
        while let Some(outer) = open.last().map(|outer| &self.slices[*outer]) {
            let end = outer.start + outer.duration;
            let both_moments = outer.duration == 0 && slice.duration == 0;
            if end < slice.start || (end == slice.start && !both_moments) {
                open.pop();
                continue;
            }
            assert!(
                slice.start + slice.duration <= end,
                "{} at {} and {} at {end} overlap",
                slice.name,
                slice.start,
                outer.name
            );
            break;
        }
        open.push(self.slices.len());
        self.slices.push(slice);
    }
}

/// A text that must be there.
fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    let text = event[field].as_str().filter(|text| !text.is_empty());
    text.unwrap_or_else(|| panic!("no text {field} in {event}"))
}

/// A number of at most 32 bits that must be there, as processes, threads and arrows have them.
fn number(event: &Value, field: &str) -> u64 {
    let number = event[field].as_u64();
    let number = number.filter(|number| u32::try_from(*number).is_ok());
    number.unwrap_or_else(|| panic!("no number {field} in {event}"))
}

/// A time that must be there, in microseconds; fractions of nanoseconds are cut off.
fn nanoseconds(event: &Value, field: &str) -> i64 {
    let time = event[field].as_f64();
    let time = time.filter(|time| (0.0..1e15).contains(time));
    (time.unwrap_or_else(|| panic!("no time {field} in {event}")) * 1000.0) as i64
}
