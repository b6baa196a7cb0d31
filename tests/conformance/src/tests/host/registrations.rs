//! Operators that a host registers: functions that serve calls in place of the driver, and how their registrations begin
//! and end.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::tests::host::bindings::*;
use outrigger_device::sys::{otr_operator_call_t, otr_tensor_t};
use outrigger_device::{Code, DType};
use serde_json::Value;

use super::operators::empty_call;
use super::{
    Refused, alloc, begin, download, end, executable, fill, json, made, otr, raw, refused, start,
    stream,
};
use crate::test::tests;
use crate::tests::kit::until;
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

tests! { "host-abi.registration":
    /// A function serves the calls of an operator on its device until it is withdrawn, and is given back once.
    a_function_serves_an_operator: H5 H11 H29;
    /// A second registration is refused with both owners; one that replaces ends the first.
    a_second_one_replaces_only_if_it_says_so: H2 H3;
    /// A function that calls its own operator reaches what comes after it.
    its_own_operator_is_the_next_one: H14 H29;
    /// After UNSUPPORTED the call goes on; any other status of the function is the call's.
    statuses_of_functions: H1 H2 H3;
    /// A registration that ends while its function runs keeps its user data until the function returns.
    user_data_lives_through_the_last_call: H13 H14;
    /// A capture records what a function submits; replays do not call it.
    captures_record_its_work: H18 H25;
}

const ELEMENTS: usize = 64;

/// User data of a function, which is never freed.
#[derive(Default)]
pub(super) struct Served {
    calls: AtomicU32,
    ended: AtomicU32,
    /// The acts of the function with its call.
    acts: Mutex<Option<Act>>,
}

type Act = fn(u64, u32, &otr_operator_call_t) -> *mut otr_status_t;

unsafe extern "C" fn serve(
    user: *mut c_void,
    stream: otr_stream_t,
    operator: otr_operator_id_t,
    call: *const otr_operator_call_t,
) -> *mut otr_status_t {
    // SAFETY: what it was registered with, and a call that lives through this one.
    let (served, call) = unsafe { (&*user.cast::<Served>(), &*call) };
    served.calls.fetch_add(1, Ordering::SeqCst);
    let act = *served.acts.lock().expect("no panic");
    act.map_or(null_mut(), |act| act(stream, operator, call))
}

unsafe extern "C" fn ended(user: *mut c_void) {
    // SAFETY: what it was registered with.
    let served = unsafe { &*user.cast::<Served>() };
    served.ended.fetch_add(1, Ordering::SeqCst);
}

/// Fills the first output with 7.
fn fill_seven(stream: u64, _: u32, call: &otr_operator_call_t) -> *mut otr_status_t {
    // SAFETY: the calls of these tests have an output.
    let output = unsafe { &*call.outputs };
    let pattern = 7f32.to_ne_bytes();
    let (bytes, pattern) = ((ELEMENTS * 4) as u64, pattern.as_ptr().cast());
    // SAFETY: the pattern lives through the call.
    unsafe { raw!(fill, stream, output.address, bytes, pattern, 4) }
}

impl Served {
    pub(super) fn new(act: Act) -> &'static Self {
        Box::leak(Box::new(Self {
            acts: Mutex::new(Some(act)),
            ..Self::default()
        }))
    }

    /// The parameters to register the function with.
    pub(super) fn params(
        &'static self,
        name: &CStr,
        owner: &CStr,
        flags: u32,
    ) -> otr_operator_registration_t {
        otr_operator_registration_t {
            struct_size: size_of::<otr_operator_registration_t>(),
            next: null(),
            name: name.as_ptr(),
            owner: owner.as_ptr(),
            function: Some(serve),
            user: std::ptr::from_ref(self).cast_mut().cast(),
            destroy: Some(ended),
            device: OTR_ALL_DEVICES,
            flags,
        }
    }

    fn register(&'static self, name: &CStr, owner: &CStr, flags: u32) -> Result<u64, Refused> {
        let params = self.params(name, owner, flags);
        super::tried(|out| otr!(operator_register, &params, out))
    }

    fn counts(&self) -> (u32, u32) {
        let load = |count: &AtomicU32| count.load(Ordering::SeqCst);
        (load(&self.calls), load(&self.ended))
    }
}

/// Memory of a stream, and an operator that writes it.
struct Target {
    stream: u64,
    address: u64,
    operator: u32,
}

impl Target {
    fn new(name: &CStr) -> Verdict<Self> {
        let stream = stream()?;
        let address = alloc((ELEMENTS * 4) as u64, stream)?;
        fill(stream, address, (ELEMENTS * 4) as u64, &1f32.to_ne_bytes())?;
        Ok(Self {
            stream,
            address,
            operator: made(|out| otr!(operator_find, name.as_ptr(), out))?,
        })
    }

    fn call(&self) -> Result<(), Refused> {
        let (sizes, strides) = ([ELEMENTS as i64], [1]);
        let tensor = otr_tensor_t {
            address: self.address,
            dtype: DType::F32.0,
            rank: 1,
            sizes: sizes.as_ptr(),
            strides: strides.as_ptr(),
        };
        let call = otr_operator_call_t {
            outputs: &raw const tensor,
            output_count: 1,
            ..empty_call()
        };
        otr!(operator_call, self.stream, self.operator, &call)
    }

    fn expect(&self, value: f32, what: &str) -> Verdict {
        let found: Vec<f32> = download(self.stream, self.address, ELEMENTS)?;
        equal!(found, vec![value; ELEMENTS], "{what}");
        Ok(())
    }
}

fn entry(list: &str, key: &str, operator: &str) -> Verdict<Value> {
    let rows = match list {
        "registrations" => json(|out| otr!(operator_list, out))?,
        _ => json(|out| otr!(operator_report, out))?,
    };
    let rows = rows.as_array().cloned().unwrap_or_default();
    let row = rows.into_iter().find(|row| row["operator"] == operator);
    Ok(row.map_or(Value::Null, |row| row[key].clone()))
}

fn a_function_serves_an_operator(context: &Context) -> Verdict {
    start(context)?;
    let name = c"conformance::seven";
    let target = Target::new(name)?;
    refused(target.call(), Code::UNSUPPORTED, "an operator of nobody")?;
    let offered = || made::<u32>(|out| otr!(operator_offered, 0, target.operator, out));
    equal!(offered()?, 0, "an operator of nobody is not offered");
    let served = Served::new(fill_seven);
    let id = served.register(name, c"conformance", 0)?;
    equal!(offered()?, 1, "an operator that is registered is offered");
    target.call()?;
    target.expect(7.0, "what the function submitted")?;
    equal!(served.counts(), (1, 0), "calls and ends of the function");
    let operator = "conformance::seven";
    equal!(
        entry("registrations", "owner", operator)?,
        "conformance",
        "the owner"
    );
    equal!(entry("registrations", "calls", operator)?, 1, "its calls");
    equal!(
        entry("registrations", "device", operator)?,
        Value::Null,
        "its device"
    );
    equal!(
        entry("report", "place", operator)?,
        "device",
        "where it ran"
    );
    otr!(operator_withdraw, id)?;
    equal!(served.counts(), (1, 1), "after the end");
    refused(target.call(), Code::UNSUPPORTED, "after the end")?;
    refused(
        otr!(operator_withdraw, id),
        Code::INVALID_HANDLE,
        "a second end",
    )?;
    equal!(served.counts(), (1, 1), "after a second end");

    let mut params = served.params(name, c"conformance", 0);
    params.device = 0;
    let id = made(|out| otr!(operator_register, &params, out))?;
    equal!(entry("registrations", "device", operator)?, 0, "one device");
    target.call()?;
    Ok(otr!(operator_withdraw, id)?)
}

fn a_second_one_replaces_only_if_it_says_so(context: &Context) -> Verdict {
    start(context)?;
    let name = c"conformance::twice";
    let target = Target::new(name)?;
    let (first, second) = (Served::new(fill_seven), Served::new(fill_seven));
    let id = first.register(name, c"the first", 0)?;
    let told = refused(
        second.register(name, c"the second", 0),
        Code::BUSY,
        "a second registration",
    )?;
    for owner in ["the first", "the second"] {
        check!(
            told.text.contains(owner),
            "{owner} in the text: {}",
            told.text
        );
    }
    equal!(
        second.counts(),
        (0, 0),
        "what was refused is not given back"
    );
    let replaced = second.register(name, c"the second", OTR_REGISTER_REPLACE)?;
    equal!(first.counts(), (0, 1), "what was replaced is given back");
    equal!(
        entry("registrations", "replaced", "conformance::twice")?,
        "the first",
        "whom it replaced"
    );
    refused(
        otr!(operator_withdraw, id),
        Code::INVALID_HANDLE,
        "the end of what was replaced",
    )?;
    target.call()?;
    equal!(second.counts(), (1, 0), "the second serves");
    Ok(otr!(operator_withdraw, replaced)?)
}

fn its_own_operator_is_the_next_one(context: &Context) -> Verdict {
    start(context)?;
    let name = c"conformance::own";
    let target = Target::new(name)?;
    let served = Served::new(|stream, operator, call| {
        // Nothing comes after it, so this is UNSUPPORTED, and nothing was done.
        // SAFETY: the call lives through this one.
        let status = unsafe { raw!(operator_call, stream, operator, call) };
        match super::outcome(status) {
            Err(refused) if refused.code == Code::UNSUPPORTED => fill_seven(stream, operator, call),
            // SAFETY: no text.
            _ => unsafe { raw!(status_new, Code::EXECUTION.0, null()) },
        }
    });
    let id = served.register(name, c"conformance", 0)?;
    target.call()?;
    equal!(served.counts(), (1, 0), "calls of the function");
    target.expect(7.0, "what it did after the next one")?;
    Ok(otr!(operator_withdraw, id)?)
}

fn statuses_of_functions(context: &Context) -> Verdict {
    start(context)?;
    // SAFETY: no text.
    let fine = unsafe { raw!(status_new, 0, null()) };
    check!(fine.is_null(), "OTR_OK is NULL");
    let name = c"conformance::status";
    let target = Target::new(name)?;
    let served = Served::new(|_, _, _| {
        // SAFETY: a string that lives through the call.
        unsafe { raw!(status_new, Code::OUT_OF_RANGE.0, c"row 7 of 3".as_ptr()) }
    });
    let id = served.register(name, c"the owner", 0)?;
    let told = refused(
        target.call(),
        Code::OUT_OF_RANGE,
        "the status of a function",
    )?;
    for word in ["row 7 of 3", "the owner"] {
        check!(
            told.text.contains(word),
            "{word} in the text: {}",
            told.text
        );
    }
    equal!(
        told.operator.as_deref(),
        Some("conformance::status"),
        "H3: the operator"
    );
    *served.acts.lock().expect("no panic") = Some(|_, _, _| {
        // SAFETY: as above.
        unsafe { raw!(status_new, Code::UNSUPPORTED.0, c"not now".as_ptr()) }
    });
    refused(
        target.call(),
        Code::UNSUPPORTED,
        "a call that nobody serves",
    )?;
    equal!(served.counts().0, 2, "calls of the function");
    equal!(
        entry("registrations", "calls", "conformance::status")?,
        0,
        "calls that were served"
    );
    target.expect(1.0, "memory that nobody wrote")?;
    Ok(otr!(operator_withdraw, id)?)
}

static GO_ON: AtomicU32 = AtomicU32::new(0);

fn user_data_lives_through_the_last_call(context: &Context) -> Verdict {
    start(context)?;
    let name = c"conformance::running";
    let target = Target::new(name)?;
    let served = Served::new(|stream, operator, call| {
        while GO_ON.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        fill_seven(stream, operator, call)
    });
    let id = served.register(name, c"conformance", 0)?;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| target.call());
        let began = until(|| Ok(served.counts().0 == 1));
        let withdrawn = otr!(operator_withdraw, id);
        let counts = served.counts();
        GO_ON.store(1, Ordering::SeqCst);
        let outcome = running.join().expect("no panic");
        began?;
        withdrawn?;
        equal!(counts, (1, 0), "its user data while it runs");
        Ok(outcome?)
    })?;
    equal!(served.counts(), (1, 1), "its user data after its last call");
    target.expect(7.0, "what the last call did")
}

fn captures_record_its_work(context: &Context) -> Verdict {
    start(context)?;
    let name = c"conformance::captured";
    let target = Target::new(name)?;
    let served = Served::new(fill_seven);
    let id = served.register(name, c"conformance", 0)?;
    begin(target.stream)?;
    target.call()?;
    let graph = end(target.stream)?;
    equal!(served.counts(), (1, 0), "calls while the stream captured");
    target.expect(1.0, "nothing ran")?;
    otr!(operator_withdraw, id)?;
    let exec = executable(graph)?;
    otr!(graph_replay, exec, target.stream)?;
    target.expect(7.0, "the replay")?;
    equal!(served.counts(), (1, 1), "calls of a replay");
    Ok(())
}
