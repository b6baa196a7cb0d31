//! Labels: names that a thread gives to the memory that it allocates, such as "optimizer" or "layer 7".
//!
//! A name is interned once; from then on it is a number. Each thread has its own stack of labels, which
//! costs other threads nothing. Code must never ask for a label while nothing is recorded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use outrigger_locks::{Rank, RwLock};

/// A name, interned for the life of the process. It is meant for some thousand different names, not for
/// one per allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(u32);

/// All names of labels, by number and by text.
#[derive(Default)]
struct LabelNames {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

static NAMES: LazyLock<RwLock<LabelNames>> =
    LazyLock::new(|| RwLock::new(Rank::Labels, LabelNames::default()));

thread_local! {
    static STACK: RefCell<Vec<Label>> = const { RefCell::new(Vec::new()) };
}

impl Label {
    /// The label of this name.
    pub fn new(name: &str) -> Self {
        if let Some(&number) = NAMES.read().numbers.get(name) {
            return Self(number);
        }
        let mut names = NAMES.write();
        if let Some(&number) = names.numbers.get(name) {
            return Self(number);
        }
        let (name, number) = (Arc::<str>::from(name), names.names.len() as u32);
        names.names.push(Arc::clone(&name));
        names.numbers.insert(name, number);
        Self(number)
    }

    /// The text of the label.
    pub fn name(self) -> Arc<str> {
        Arc::clone(&NAMES.read().names[self.0 as usize])
    }

    /// Gives this label to what the calling thread allocates from now on, until [`pop`](Self::pop).
    pub fn push(self) {
        STACK.with_borrow_mut(|stack| stack.push(self));
    }

    /// Goes back to the label before the last [`push`](Self::push) of this thread. `None` if there was
    /// none to take away.
    pub fn pop() -> Option<Self> {
        STACK.with_borrow_mut(Vec::pop)
    }

    /// The label of the calling thread.
    pub fn current() -> Option<Self> {
        // A thread that ends may still allocate after its stack is gone.
        STACK
            .try_with(|stack| stack.borrow().last().copied())
            .ok()
            .flatten()
    }
}
