//! Observers of memory and of fallbacks, observers that release memory before a request fails, and the
//! counts of fallbacks.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use crate::tests::host::bindings::*;
use outrigger_device::Code;

use super::{Refused, alloc, json, made, near, otr, refused, start, stats, stream, text};
use crate::test::tests;
use crate::tests::kit::{threads, until};
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

tests! { "host-abi.observer":
    /// An observer hears of the kinds that it asked for, on the thread that caused them, until it is removed.
    memory_is_observed: H11 H14;
    /// An observer hears when the cache takes memory from the device and gives it back.
    segments_are_observed: H11;
    /// An observer hears of a request that cannot be met, with the text of the failure.
    failures_are_observed: H3 H24;
    /// An observer may call the library: allocate, free, and add observers.
    observers_may_call_the_library: H14 H16;
    /// Once an observer is removed, no call of it is running.
    removing_waits_for_the_last_call: H14 H16;
    /// An observer that removes itself is told that it cannot, and is removed by others.
    an_observer_cannot_remove_itself: H2 H16;
    /// Before a request fails, observers of pressure are asked to release memory.
    pressure_comes_before_failure: H16 H24;
    /// Fallbacks are counted by operator, told to observers, and forgotten where they are reset.
    fallbacks_are_counted: H11 H29;
    /// In mode warn the first fallback of an operator is worth a warning, in mode error all are refused.
    modes_of_fallbacks: H2 H8 H29;
}

const MIB: u64 = 1 << 20;

fn free(address: u64) -> Verdict {
    Ok(otr!(memory_free, 0, address)?)
}

/// An observation, kept beyond the observer's call.
#[derive(Clone, Debug)]
struct Seen {
    kind: u32,
    device: u32,
    address: u64,
    size: u64,
    allocated: u64,
    reserved: u64,
    nanoseconds: u64,
    name: Option<String>,
    text: Option<String>,
    thread: ThreadId,
}

/// The observations that an observer has seen. They are never freed.
#[derive(Default)]
struct Heard(Mutex<Vec<Seen>>);

impl Heard {
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    fn user(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Adds an observer that notes what it hears here.
    fn listen(&'static self, kinds: u32) -> Verdict<u64> {
        made(|out| otr!(observer_add, kinds, Some(hear), self.user(), out))
    }

    /// The observations since the last time.
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

unsafe extern "C" fn hear(user: *mut c_void, observation: *const otr_observation_t) {
    // SAFETY: what the observer was added with, and an observation that lives through this call.
    let (heard, seen) = unsafe { (&*user.cast::<Heard>(), &*observation) };
    assert!(
        seen.struct_size >= size_of::<otr_observation_t>(),
        "the size of an observation"
    );
    heard.0.lock().expect("no panic").push(Seen {
        kind: seen.kind,
        device: seen.device,
        address: seen.address,
        size: seen.size,
        allocated: seen.allocated_bytes,
        reserved: seen.reserved_bytes,
        nanoseconds: seen.nanoseconds,
        name: text(seen.name),
        text: text(seen.text),
        thread: std::thread::current().id(),
    });
}

fn memory_is_observed(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (both, frees) = (Heard::new(), Heard::new());
    let observers = [
        both.listen(OTR_OBSERVE_ALLOC | OTR_OBSERVE_FREE)?,
        frees.listen(OTR_OBSERVE_FREE)?,
    ];
    threads(2, |_| {
        let address = alloc(5000, stream)?;
        free(address)?;
        let (here, kinds) = (std::thread::current().id(), |heard: &Heard| -> Vec<u32> {
            let seen = heard.0.lock().expect("no panic");
            let own = seen
                .iter()
                .filter(|one| one.thread == std::thread::current().id());
            own.map(|one| one.kind).collect()
        });
        equal!(
            kinds(both),
            [OTR_OBSERVE_ALLOC, OTR_OBSERVE_FREE],
            "what {here:?} has caused"
        );
        equal!(kinds(frees), [OTR_OBSERVE_FREE], "frees of {here:?}");
        Ok(())
    })?;
    both.take();
    let address = alloc(5000, stream)?;
    let in_use = stats()?;
    let seen = both.take();
    equal!(seen.len(), 1, "observations of one allocation");
    equal!(
        (
            seen[0].device,
            seen[0].address,
            seen[0].allocated,
            seen[0].reserved
        ),
        (
            0,
            address,
            in_use.allocated_bytes.current,
            in_use.reserved_bytes.current
        ),
        "device, address, bytes handed out and bytes held"
    );
    check!(seen[0].size >= 5000, "the block has {} bytes", seen[0].size);
    equal!(
        (seen[0].name.as_deref(), seen[0].text.as_deref()),
        (Some(""), Some("")),
        "what does not apply"
    );
    for observer in observers {
        otr!(observer_remove, observer)?;
        refused(
            otr!(observer_remove, observer),
            Code::INVALID_HANDLE,
            "an observer that was removed",
        )?;
    }
    free(address)?;
    equal!(both.take().len(), 0, "what is heard after the removal");
    Ok(())
}

fn segments_are_observed(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let heard = Heard::new();
    heard.listen(OTR_OBSERVE_SEGMENT_ALLOC | OTR_OBSERVE_SEGMENT_FREE)?;
    let before = stats()?.reserved_bytes.current;
    let sum = |seen: &[Seen], kind| -> u64 {
        let ones = seen
            .iter()
            .filter(|one| one.kind == kind && one.device == 0);
        ones.map(|one| one.size).sum()
    };
    let address = alloc(30 * MIB, stream)?;
    let taken = heard.take();
    equal!(
        sum(&taken, OTR_OBSERVE_SEGMENT_ALLOC),
        stats()?.reserved_bytes.current - before,
        "bytes that the cache has taken"
    );
    equal!(sum(&taken, OTR_OBSERVE_SEGMENT_FREE), 0, "and given back");
    free(address)?;
    free(alloc(30 * MIB, stream)?)?;
    equal!(heard.take().len(), 0, "observations of what is cached");
    let held = stats()?.reserved_bytes.current;
    otr!(device_synchronize, 0)?;
    otr!(memory_empty_cache, 0)?;
    equal!(
        sum(&heard.take(), OTR_OBSERVE_SEGMENT_FREE),
        held - stats()?.reserved_bytes.current,
        "bytes that the cache has given back"
    );
    Ok(())
}

fn failures_are_observed(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let heard = Heard::new();
    heard.listen(OTR_OBSERVE_OUT_OF_MEMORY)?;
    free(alloc(64, stream)?)?;
    equal!(heard.take().len(), 0, "what is heard where nothing fails");
    let told = refused(
        otr!(memory_alloc, 0, 1 << 50, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "too much memory",
    )?;
    let seen = heard.take();
    equal!(seen.len(), 1, "observations of one failure");
    equal!(
        (seen[0].kind, seen[0].device, seen[0].size),
        (OTR_OBSERVE_OUT_OF_MEMORY, 0, 1 << 50),
        "kind, device and size"
    );
    equal!(seen[0].text.as_ref(), Some(&told.text), "the text");
    Ok(())
}

/// The state that [`reenter`] works with.
#[derive(Default)]
struct Inner {
    stream: u64,
    calls: AtomicU64,
    failure: Mutex<Option<Refused>>,
}

/// Uses the library from within: an observer of allocations that allocates, a few levels deep.
unsafe extern "C" fn reenter(user: *mut c_void, _: *const otr_observation_t) {
    // SAFETY: what the observer was added with, which is never freed.
    let inner = unsafe { &*user.cast::<Inner>() };
    if inner.calls.fetch_add(1, Ordering::SeqCst) > 2 {
        return;
    }
    let (mut address, mut observer) = (0, 0);
    let heard = Heard::new();
    let outcome = otr!(memory_alloc, 0, 64, inner.stream, &mut address)
        .and_then(|()| otr!(memory_free, 0, address))
        .and_then(|()| {
            let (kinds, user) = (OTR_OBSERVE_FREE, heard.user());
            otr!(observer_add, kinds, Some(hear), user, &mut observer)
        })
        .and_then(|()| otr!(observer_remove, observer));
    if let Err(refused) = outcome {
        inner.failure.lock().expect("no panic").replace(refused);
    }
}

fn observers_may_call_the_library(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let inner: &'static Inner = Box::leak(Box::new(Inner {
        stream,
        ..Inner::default()
    }));
    let user = std::ptr::from_ref(inner).cast_mut().cast();
    let observer = made(|out| otr!(observer_add, OTR_OBSERVE_ALLOC, Some(reenter), user, out))?;
    free(alloc(64, stream)?)?;
    if let Some(refused) = inner.failure.lock().expect("no panic").take() {
        return Err(refused.into());
    }
    equal!(
        inner.calls.load(Ordering::SeqCst),
        4,
        "calls: of the allocation, and of three that were made from within"
    );
    Ok(otr!(observer_remove, observer)?)
}

static INSIDE: AtomicBool = AtomicBool::new(false);

/// Takes its time, and allocates then, of which it is told too.
unsafe extern "C" fn dawdle(user: *mut c_void, _: *const otr_observation_t) {
    if INSIDE.swap(true, Ordering::SeqCst) {
        return;
    }
    std::thread::sleep(Duration::from_millis(30));
    let own = alloc(64, user as u64).and_then(free);
    INSIDE.store(false, Ordering::SeqCst);
    assert!(own.is_ok(), "memory for the observer itself: {own:?}");
}

fn removing_waits_for_the_last_call(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    for _ in 0..5 {
        let observer = made(|out| {
            otr!(
                observer_add,
                OTR_OBSERVE_ALLOC,
                Some(dawdle),
                stream as *mut c_void,
                out
            )
        })?;
        threads(2, |at| {
            if at == 0 {
                return free(alloc(64, stream)?);
            }
            until(|| Ok(INSIDE.load(Ordering::SeqCst)))?;
            otr!(observer_remove, observer)?;
            check!(
                !INSIDE.load(Ordering::SeqCst),
                "no call of an observer that was removed is running"
            );
            Ok(())
        })?;
    }
    Ok(())
}

static ITSELF: AtomicU64 = AtomicU64::new(0);
static ANSWERS: Mutex<Vec<Code>> = Mutex::new(Vec::new());

unsafe extern "C" fn remove_itself(_: *mut c_void, _: *const otr_observation_t) {
    let answer = otr!(observer_remove, ITSELF.load(Ordering::SeqCst));
    let code = answer.map_or_else(|refused| refused.code, |()| Code::OK);
    ANSWERS.lock().expect("no panic").push(code);
}

fn an_observer_cannot_remove_itself(context: &Context) -> Verdict {
    start(context)?;
    let (kinds, user) = (OTR_OBSERVE_FALLBACK, null_mut());
    let observer = made(|out| otr!(observer_add, kinds, Some(remove_itself), user, out))?;
    ITSELF.store(observer, Ordering::SeqCst);
    otr!(fallback_end, c"mine".as_ptr(), 1, 0)?;
    let answers = || ANSWERS.lock().expect("no panic").clone();
    equal!(answers(), [Code::BUSY], "what it is told");
    otr!(observer_remove, observer)?;
    otr!(fallback_end, c"mine".as_ptr(), 1, 0)?;
    equal!(answers().len(), 1, "calls after it was removed");
    Ok(())
}

/// A host that gives one block back whenever it is asked.
#[derive(Default)]
struct Hoard {
    stream: u64,
    blocks: Mutex<Vec<u64>>,
    asked: Mutex<Vec<(u32, u64)>>,
    within: AtomicU64,
}

unsafe extern "C" fn release(user: *mut c_void, device: u32, needed: u64) -> u32 {
    // SAFETY: the hoard below, which is never freed.
    let hoard = unsafe { &*user.cast::<Hoard>() };
    hoard.asked.lock().expect("no panic").push((device, needed));
    // A request that cannot be met here is an error, and nobody is asked again.
    let answer = otr!(memory_alloc, device, 1 << 50, hoard.stream, &mut 0);
    let refused = answer.is_err_and(|refused| refused.code == Code::OUT_OF_MEMORY);
    hoard.within.fetch_add(refused.into(), Ordering::SeqCst);
    let block = hoard.blocks.lock().expect("no panic").pop();
    block.is_some_and(|block| free(block).is_ok()).into()
}

fn pressure_comes_before_failure(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    otr!(memory_empty_cache, 0)?;
    let limit = stats()?.reserved_bytes.current + 64 * MIB;
    otr!(memory_set_limit, 0, limit)?;
    let hoard: &'static Hoard = Box::leak(Box::new(Hoard {
        stream,
        blocks: Mutex::new(vec![alloc(24 * MIB, stream)?, alloc(24 * MIB, stream)?]),
        ..Hoard::default()
    }));
    let user = std::ptr::from_ref(hoard).cast_mut().cast();
    let observer = made(|out| otr!(observer_add_pressure, Some(release), user, out))?;
    let heard = Heard::new();
    heard.listen(OTR_OBSERVE_OUT_OF_MEMORY)?;
    let failures = || -> usize {
        let seen = heard.take();
        seen.iter().filter(|one| one.size < 1 << 50).count()
    };
    let served = alloc(30 * MIB, stream)?;
    let asked = || std::mem::take(&mut *hoard.asked.lock().expect("no panic"));
    equal!(asked(), [(0, 30 * MIB)], "who was asked: device and bytes");
    equal!(failures(), 0, "failures where a block was enough");

    refused(
        otr!(memory_alloc, 0, 63 * MIB, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "more than all that can be released",
    )?;
    check!(
        hoard.blocks.lock().expect("no panic").is_empty(),
        "all blocks were released"
    );
    let asks = asked();
    check!(
        !asks.is_empty() && asks.iter().all(|one| *one == (0, 63 * MIB)),
        "what was asked: {asks:?}"
    );
    equal!(
        hoard.within.load(Ordering::SeqCst),
        asks.len() as u64 + 1,
        "requests from within, each refused"
    );
    equal!(failures(), 1, "failures that were observed");
    otr!(observer_remove, observer)?;
    refused(
        otr!(memory_alloc, 0, 63 * MIB, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "too much memory",
    )?;
    equal!(asked(), [], "who was asked after the removal");
    free(served)
}

fn begin(operator: &std::ffi::CStr) -> Result<bool, Refused> {
    let mut first = 7;
    otr!(fallback_begin, operator.as_ptr(), &mut first)?;
    Ok(first == 1)
}

fn fallbacks_are_counted(context: &Context) -> Verdict {
    start(context)?;
    otr!(fallback_reset)?;
    let heard = Heard::new();
    heard.listen(OTR_OBSERVE_FALLBACK)?;
    let end = |operator: &std::ffi::CStr, nanoseconds, bytes| {
        otr!(fallback_end, operator.as_ptr(), nanoseconds, bytes)
    };
    check!(!begin(c"cheap")?, "a warning, where nobody asked for it");
    end(c"cheap", 1000, 64)?;
    for _ in 0..3 {
        begin(c"dear")?;
        end(c"dear", 2_000_000, 100)?;
    }
    let report = json(|out| otr!(fallback_report, out))?;
    let told = |at: usize| {
        let one = &report[at];
        let (calls, bytes) = (one["calls"].as_u64(), one["staged_bytes"].as_u64());
        (one["operator"].as_str(), calls, bytes)
    };
    equal!(
        (told(0), told(1)),
        (
            (Some("dear"), Some(3), Some(300)),
            (Some("cheap"), Some(1), Some(64))
        ),
        "operators, calls and bytes, the most expensive first"
    );
    let seconds = report[0]["seconds"].as_f64().unwrap_or_default();
    check!(near(seconds, 0.006, 1e-9), "6 ms are {seconds} seconds");
    let seen = heard.take();
    equal!(seen.len(), 4, "observations of four fallbacks");
    equal!(
        (seen[3].name.as_deref(), seen[3].nanoseconds, seen[3].size),
        (Some("dear"), 2_000_000, 100),
        "operator, time and bytes of the last"
    );
    // Calls of frameworks are timed with and without this.
    otr!(operator_timing, 1)?;
    end(c"cheap", 1000, 0)?;
    otr!(operator_timing, 0)?;
    let report = json(|out| otr!(operator_report, out))?;
    let cheap = report
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["operator"] == "cheap"));
    let told = cheap.map(|row| (row["place"].as_str(), row["timed_calls"].as_u64()));
    equal!(
        told,
        Some((Some("framework"), Some(2))),
        "place and timed calls"
    );
    otr!(fallback_reset)?;
    let report = json(|out| otr!(fallback_report, out))?;
    equal!(report, serde_json::json!([]), "counts that were forgotten");
    Ok(())
}

fn modes_of_fallbacks(context: &Context) -> Verdict {
    start(context)?;
    let mode = || made::<u32>(|out| otr!(fallback_mode, out));
    equal!(mode()?, OTR_FALLBACK_SILENT, "the mode without a variable");
    otr!(fallback_set_mode, OTR_FALLBACK_WARN)?;
    equal!(mode()?, OTR_FALLBACK_WARN, "the mode that was set");
    equal!(
        [begin(c"one")?, begin(c"one")?, begin(c"two")?],
        [true, false, true],
        "warnings: the first of each operator"
    );
    otr!(fallback_reset)?;
    check!(begin(c"one")?, "a warning after all was forgotten");
    refused(
        otr!(fallback_set_mode, 3),
        Code::INVALID_ARGUMENT,
        "a mode that there is not",
    )?;
    equal!(mode()?, OTR_FALLBACK_WARN, "the mode after a refused one");
    otr!(fallback_set_mode, OTR_FALLBACK_ERROR)?;
    let told = refused(
        begin(c"aten::nothing").map(drop),
        Code::UNSUPPORTED,
        "a fallback where they are forbidden",
    )?;
    equal!(
        told.operator.as_deref(),
        Some("aten::nothing"),
        "H3: the operator of the failure"
    );
    otr!(fallback_set_mode, OTR_FALLBACK_SILENT)?;
    begin(c"aten::nothing")?;
    Ok(())
}
