//! Operators that a host registers: functions that are called on the caller's thread when an operator is called, before
//! the driver is asked. A function gives work to the stream. So a stream that captures records that work.
//!
//! A call asks the registration of its device first, then the one for all devices. A function that calls its own operator
//! on the same thread reaches what comes after it: the other registration, the driver, a host kernel.
//!
//! The calls that a function makes are parts of its operator: they are not counted and timed on their own. The operator
//! counts as run on the device, or as a host kernel if one of its parts was. Where nothing is registered, a call costs one
//! load.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use outrigger_device::Code;
use outrigger_handles::{Kind, Ref, Table};
use outrigger_locks::{Rank, RwLock, calls_host};
use outrigger_ops::{Call, OperatorId};
use serde::Serialize;

use crate::places::Place;
use crate::{Device, Error, Result, Stream};

/// A function that serves an operator.
type Function = dyn Fn(&Stream, OperatorId, &Call<'_>) -> Result<()> + Send + Sync;

/// The calls that a registration serves: those of an operator, on one device or on all.
type Scope = (OperatorId, Option<u32>);

/// A registration that is in force, or was.
struct Registered {
    scope: Scope,
    owner: String,
    replaced: OnceLock<String>,
    calls: AtomicU64,
    function: Box<Function>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The function is dropped next, which may call the host.
        calls_host("the end of a registered operator");
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A registration, as [`operator_registrations`] lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegistrationInfo {
    /// The operator.
    pub operator: String,
    /// The name that the caller gave as owner.
    pub owner: String,
    /// The device that it serves; `None` for all.
    pub device: Option<u32>,
    /// The number of calls that the function has served.
    pub calls: u64,
    /// The owner of the registration that it replaced, if it replaced one.
    pub replaced: Option<String>,
}

static TABLE: Table<Registered> = Table::new(Kind::Registration);
static LIST: RwLock<BTreeMap<Scope, Ref<Registered>>> =
    RwLock::new(Rank::Registrations, BTreeMap::new());

/// The registrations that can still be called.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The operators in the list, a bit for each number.
static OPERATORS: [AtomicU64; OperatorId::MOST.div_ceil(64)] =
    [const { AtomicU64::new(0) }; OperatorId::MOST.div_ceil(64)];

fn bit(operator: OperatorId) -> (&'static AtomicU64, u64) {
    let index = operator.index() as usize;
    (&OPERATORS[index / 64], 1 << (index % 64))
}

/// Whether anything is registered, for any operator.
#[inline]
pub(crate) fn any() -> bool {
    LIVE.load(Ordering::Relaxed) != 0
}

/// Whether an operator is registered, for any device.
#[inline]
pub(crate) fn is_registered(operator: OperatorId) -> bool {
    let (word, bit) = bit(operator);
    word.load(Ordering::Relaxed) & bit != 0
}

/// A function that serves an operator, until this is dropped.
#[derive(Debug)]
pub struct Registration {
    id: u64,
}

impl Registration {
    /// Ends the registration. No call of the function begins after that; calls that are running go on, and the last one
    /// drops the function.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if another registration has replaced it.
    pub fn withdraw(self) -> Result<()> {
        withdraw_operator(self.keep())
    }

    /// Leaves it in force. Returns its id for [`withdraw_operator`].
    pub fn keep(self) -> u64 {
        ManuallyDrop::new(self).id
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The call fails only for a registration that was replaced.
        let _ = withdraw_operator(self.id);
    }
}

/// Registers a function for an operator, by its name, on one device or on all (`None`). `owner` says in texts who did.
///
/// The function is called on the thread that calls the operator, with operands that were checked, and with no lock held.
/// It gives work to the stream, and may call the runtime. It may answer `UNSUPPORTED` as long as it has given no work to
/// the stream; then the next one is asked. Any other error, and a panic, is the error of the call. Graphs that are built
/// node by node have no stream, so nothing registered serves them.
///
/// # Errors
/// `BUSY` if the operator is registered for this device, or for all, already; the text names both owners. `NOT_FOUND` if
/// there is no operator of this name. `INVALID_ARGUMENT` if the owner has no name.
pub fn register_operator(
    name: &CStr,
    device: Option<&Device>,
    owner: &str,
    function: impl Fn(&Stream, OperatorId, &Call<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<Registration> {
    register(name, device, owner, Box::new(function), false)
}

/// Does what [`register_operator`] does, and withdraws the registration that is there for the same device, or for all.
/// [`operator_registrations`] names whom it replaced.
///
/// # Errors
/// Those of [`register_operator`] but `BUSY`.
pub fn replace_operator(
    name: &CStr,
    device: Option<&Device>,
    owner: &str,
    function: impl Fn(&Stream, OperatorId, &Call<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<Registration> {
    register(name, device, owner, Box::new(function), true)
}

fn register(
    name: &CStr,
    device: Option<&Device>,
    owner: &str,
    function: Box<Function>,
    replace: bool,
) -> Result<Registration> {
    let operator = OperatorId::find(name).ok_or_else(|| {
        let name = name.to_string_lossy();
        Error::new(
            Code::NOT_FOUND,
            format!("there is no operator named '{name}': a name of its own has '::', as in mylib::{name}"),
        )
    })?;
    if owner.is_empty() {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            "the owner of a registration has no name: say who registers the operator",
        ));
    }
    let scope = (operator, device.map(Device::index));
    LIVE.fetch_add(1, Ordering::Relaxed);
    let made = Registered {
        scope,
        owner: owner.to_owned(),
        replaced: OnceLock::new(),
        calls: AtomicU64::new(0),
        function,
    };
    let made = TABLE.insert(|_| made)?;
    // If it is refused, it ends here.
    let registration = Registration { id: made.id() };
    let before = put(made, replace)?;
    if let Some(before) = before {
        // The removal fails if the owner withdraws the registration just now.
        let _ = TABLE.remove(before.id());
    }
    Ok(registration)
}

/// Puts a registration in the list. Returns the one that it replaces.
fn put(made: Ref<Registered>, replace: bool) -> Result<Option<Ref<Registered>>> {
    let mut list = LIST.write();
    if let Some(before) = list.get(&made.scope) {
        if !replace {
            return Err(taken(made.scope, &before.owner, &made.owner));
        }
        made.replaced.get_or_init(|| before.owner.clone());
    }
    let (word, bit) = bit(made.scope.0);
    word.fetch_or(bit, Ordering::Relaxed);
    Ok(list.insert(made.scope, made))
}

#[cold]
fn taken((operator, device): Scope, before: &str, owner: &str) -> Error {
    let on = device.map_or("all devices".to_owned(), |device| {
        format!("device {device}")
    });
    Error::new(
        Code::BUSY,
        format!(
            "{before} has registered this operator for {on} already, so {owner} cannot: withdraw that registration \
             first, or replace it"
        ),
    )
    .in_operator(operator.name().to_string_lossy())
}

/// Ends a registration, by its id; see [`Registration::withdraw`].
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a registration in force.
pub fn withdraw_operator(id: u64) -> Result<()> {
    let registered = TABLE.remove(id)?;
    let (operator, _) = registered.scope;
    let mut list = LIST.write();
    // Another registration may have taken the place of this one meanwhile.
    let is_it = list
        .get(&registered.scope)
        .is_some_and(|one| one.id() == id);
    let gone = is_it.then(|| list.remove(&registered.scope));
    let mut others = list.range((operator, None)..=(operator, Some(u32::MAX)));
    if others.next().is_none() {
        let (word, bit) = bit(operator);
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    drop(list);
    // The list is not locked here, because this drop may end a function of the host.
    drop(gone);
    Ok(())
}

/// All registrations in force, by operator and device.
pub fn operator_registrations() -> Vec<RegistrationInfo> {
    let list = LIST.read();
    let info = |one: &Ref<Registered>| RegistrationInfo {
        operator: one.scope.0.name().to_string_lossy().into_owned(),
        owner: one.owner.clone(),
        device: one.scope.1,
        calls: one.calls.load(Ordering::Relaxed),
        replaced: one.replaced.get().cloned(),
    };
    let mut infos: Vec<_> = list.values().map(info).collect();
    drop(list);
    infos.sort_by(|a, b| (&a.operator, a.device).cmp(&(&b.operator, b.device)));
    infos
}

impl Device {
    /// Whether the driver has an operator, for some operands, or a host has registered it for this device.
    pub fn serves(&self, operator: OperatorId) -> bool {
        self.offers(operator) || is_registered(operator) && find(operator, self.index()).any()
    }
}

/// The functions for a call, in the order in which they are asked.
pub(crate) struct Found([Option<Ref<Registered>>; 2]);

impl Found {
    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

/// The functions for an operator on a device, but for those that this thread is in.
pub(crate) fn find(operator: OperatorId, device: u32) -> Found {
    let list = LIST.read();
    Found([Some(device), None].map(|device| {
        let one = list.get(&(operator, device))?;
        (!CallFrame::is_in(one.id())).then(|| one.clone())
    }))
}

/// A call of an operator that this thread gave to registered functions.
struct CallFrame {
    /// The functions that were asked so far.
    asked: Cell<[u64; 2]>,
    place: Cell<Place>,
    /// The call that this one is a part of, or NULL.
    around: *const CallFrame,
}

thread_local! {
    static INNERMOST: Cell<*const CallFrame> = const { Cell::new(ptr::null()) };
}

impl CallFrame {
    /// Runs `call` in a frame of its own.
    fn within<R>(call: impl FnOnce(&Self) -> R) -> R {
        struct Restore(*const CallFrame);
        impl Drop for Restore {
            fn drop(&mut self) {
                INNERMOST.set(self.0);
            }
        }
        let frame = Self {
            asked: Cell::new([0; 2]),
            place: Cell::new(Place::Device),
            around: INNERMOST.get(),
        };
        let _restore = Restore(INNERMOST.replace(&raw const frame));
        call(&frame)
    }

    /// Calls `with` on the innermost frame, if there is one.
    fn innermost<R>(with: impl FnOnce(&Self) -> R) -> Option<R> {
        // SAFETY: NULL, or a frame of this thread whose `within` has not returned yet.
        unsafe { INNERMOST.get().as_ref() }.map(with)
    }

    /// Whether this thread is in a call that asked a registration, or that comes after it.
    fn is_in(id: u64) -> bool {
        let mut next = INNERMOST.get();
        // SAFETY: as above; frames end from the inside out.
        while let Some(frame) = unsafe { next.as_ref() } {
            if frame.asked.get().contains(&id) {
                return true;
            }
            next = frame.around;
        }
        false
    }
}

/// Whether this thread is in a registered function, so that a call is a part of another one.
pub(crate) fn is_part() -> bool {
    CallFrame::innermost(|_| ()).is_some()
}

/// Notes where a part has run. Returns false if this thread is in no registered function.
pub(crate) fn is_part_at(place: Place) -> bool {
    CallFrame::innermost(|frame| frame.place.set(frame.place.get().max(place))).is_some()
}

/// Asks the functions in their order. Returns where the work of the one that served the call ran; `None` if all of them
/// said that they cannot.
///
/// # Errors
/// What the function answers, with its owner.
pub(crate) fn ask(
    found: &Found,
    stream: &Stream,
    operator: OperatorId,
    call: &Call<'_>,
) -> Result<Option<Place>> {
    CallFrame::within(|frame| {
        for (at, one) in found.0.iter().enumerate() {
            let Some(one) = one else { continue };
            let mut asked = frame.asked.get();
            asked[at] = one.id();
            frame.asked.set(asked);
            match one.call(stream, operator, call) {
                Err(error) if error.code() == Code::UNSUPPORTED => {}
                outcome => return outcome.map(|()| Some(frame.place.get())),
            }
        }
        Ok(None)
    })
}

impl Registered {
    fn call(&self, stream: &Stream, operator: OperatorId, call: &Call<'_>) -> Result<()> {
        calls_host("a registered operator");
        // Only the host's own data can be left half-changed.
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.function)(stream, operator, call)));
        let owner = &self.owner;
        let error = match outcome {
            Ok(Ok(())) => {
                self.calls.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Ok(Err(error)) => Error::new(error.code(), format!("{error} (registered by {owner})")),
            Err(payload) => {
                let text = payload.downcast_ref::<&str>().copied();
                let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                let text = format!(
                    "the function that {owner} registered panicked: {}",
                    text.unwrap_or("no message")
                );
                // Dropping the payload could panic again.
                std::mem::forget(payload);
                Error::new(Code::EXECUTION, text)
            }
        };
        let error = error.in_operator(operator.name().to_string_lossy());
        Err(error.on_stream(stream.id()))
    }
}
