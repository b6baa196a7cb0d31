//! The look-up of handles under loom: all interleavings of a few threads, with the reorderings that the memory model
//! allows. The table's own slot is compiled with loom's primitives in place of those of `src/sync.rs`.
//!
//! Checked properties: a look-up returns the object that was put in under the handle, and the object lives until its
//! reference is given back. A handle is destroyed once. Its last user drops the object, once, and the slot is used
//! again only after that.

#![allow(
    unreachable_pub,
    reason = "the table's own source is compiled here, where nothing is above it"
)]

#[path = "../../src/slot.rs"]
#[expect(
    dead_code,
    reason = "objects that are never freed are read without counting"
)]
mod slot;
mod sync;

use std::ptr::NonNull;

use libtest_mimic::{Arguments, Trial};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use slot::Slot;

fn main() {
    let models: [(&str, fn()); 4] = [
        (
            "what_is_found_is_there_until_it_is_given_back",
            a_look_up_beside_a_destroy_and_a_new_object,
        ),
        ("a_handle_is_destroyed_once", two_destroy),
        (
            "the_last_user_drops_the_object",
            two_look_up_while_one_destroys,
        ),
        (
            "a_copied_reference_counts",
            one_copies_a_reference_while_another_destroys,
        ),
    ];
    let trials = models.map(|(name, model)| {
        // A name with this prefix, because runs under a sanitizer leave it out: sanitizers do not follow loom's stacks.
        Trial::test(format!("model::{name}"), move || {
            loom::model(model);
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

/// An object of a handle, which counts its drops.
struct Object {
    generation: u32,
    ended: Arc<AtomicUsize>,
}

impl Drop for Object {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A slot with an object that only the table refers to, and the count of drops.
fn made() -> (Arc<Slot<Object>>, Arc<AtomicUsize>) {
    let (slot, ended) = (Arc::new(Slot::new()), Arc::new(AtomicUsize::new(0)));
    put_in(&slot, &ended);
    (slot, ended)
}

/// Puts the next object in. Only the table refers to it.
fn put_in(slot: &Slot<Object>, ended: &Arc<AtomicUsize>) {
    let generation = slot.next_generation().expect("few objects");
    let ended = Arc::clone(ended);
    slot.fill(
        generation,
        NonNull::from(Box::leak(Box::new(Object { generation, ended }))),
    );
    leave(slot);
}

/// Ends a reference. Returns true if it was the last one. The slot is the caller's then.
fn leave(slot: &Slot<Object>) -> bool {
    // SAFETY: each caller has counted the reference, and does not use it again.
    let Some(object) = (unsafe { slot.leave() }) else {
        return false;
    };
    // SAFETY: `put_in` made the pointer from a box, and `leave` returned it for the last reference only.
    drop(unsafe { Box::from_raw(object.as_ptr()) });
    true
}

/// Finds an object and uses it. Returns true if this was its last user.
fn use_once(slot: &Slot<Object>, generation: u32) -> bool {
    if !slot.enter(generation) {
        return false;
    }
    // SAFETY: `enter` counted a reference, which is ended below.
    let object = unsafe { slot.object().as_ref() };
    assert_eq!(object.generation, generation, "another's object was found");
    assert_eq!(
        object.ended.load(Ordering::Relaxed) + 1,
        generation as usize,
        "it was dropped"
    );
    leave(slot)
}

/// Destroys a handle. Returns true if nobody uses the object any more.
fn destroy(slot: &Slot<Object>, generation: u32) -> bool {
    slot.close(generation) && leave(slot)
}

fn a_look_up_beside_a_destroy_and_a_new_object() {
    let (slot, ended) = made();
    let other = {
        let (slot, ended) = (Arc::clone(&slot), Arc::clone(&ended));
        thread::spawn(move || {
            if destroy(&slot, 1) {
                put_in(&slot, &ended);
            }
        })
    };
    // Both handles are tried. The second object may be there or not.
    if use_once(&slot, 1) {
        put_in(&slot, &ended);
    }
    let last = use_once(&slot, 2);
    other.join().expect("no model panics");
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    assert!(!slot.enter(1), "a handle never comes back");
    assert!(!last, "the second object has the table's reference");
    assert!(destroy(&slot, 2), "it is there, and nobody uses it");
    assert_eq!(ended.load(Ordering::Relaxed), 2);
}

fn two_destroy() {
    let (slot, ended) = made();
    let other = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || destroy(&slot, 1))
    };
    let here = destroy(&slot, 1);
    let there = other.join().expect("no model panics");
    assert!(here != there, "one of the two");
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}

fn two_look_up_while_one_destroys() {
    let (slot, ended) = made();
    let users = [0, 1].map(|_| {
        let slot = Arc::clone(&slot);
        thread::spawn(move || use_once(&slot, 1))
    });
    let here = destroy(&slot, 1);
    let last = users.map(|user| user.join().expect("no model panics"));
    let dropped = last.iter().filter(|last| **last).count() + usize::from(here);
    assert_eq!(dropped, 1, "by the last user, and nobody else");
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}

fn one_copies_a_reference_while_another_destroys() {
    let (slot, ended) = made();
    let other = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || destroy(&slot, 1))
    };
    if slot.enter(1) {
        slot.again();
        leave(&slot);
        // SAFETY: `again` counted this reference.
        let object = unsafe { slot.object().as_ref() };
        assert_eq!(object.ended.load(Ordering::Relaxed), 0, "it was dropped");
        leave(&slot);
    }
    other.join().expect("no model panics");
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}
