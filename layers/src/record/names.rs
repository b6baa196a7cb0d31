//! Numbers for the objects and the memory to which handles and addresses belong. A number means the
//! same in another process. Numbers are never used again.

use std::collections::{BTreeMap, HashMap};

use super::format::Value;

/// The number of the driver itself.
pub(super) const DRIVER: u32 = 0;

/// The live objects and memory, by handle and by address.
#[derive(Debug)]
pub(super) struct Names {
    objects: HashMap<usize, u32>,
    /// By where it begins: its size in bytes, and its number.
    memory: BTreeMap<u64, (u64, u32)>,
    /// The kernels of each module, which go with it.
    kernels: HashMap<u32, Vec<usize>>,
    last: u32,
}

impl Names {
    pub(super) fn new(driver: usize) -> Self {
        Self {
            objects: HashMap::from([(driver, DRIVER)]),
            memory: BTreeMap::new(),
            kernels: HashMap::new(),
            last: DRIVER,
        }
    }

    fn fresh(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Names a new object; one that is known already keeps its name, as a kernel that is asked for twice.
    pub(super) fn add_object(&mut self, handle: usize) -> Value {
        if handle == 0 {
            return Value::Null;
        }
        if let Some(id) = self.objects.get(&handle) {
            return Value::Object(*id);
        }
        let id = self.fresh();
        self.objects.insert(handle, id);
        Value::Object(id)
    }

    /// Notes that a kernel goes with its module.
    pub(super) fn belongs(&mut self, module: usize, kernel: Option<&Value>) {
        let (Some(module), Some(Value::Object(kernel))) = (self.objects.get(&module), kernel)
        else {
            return;
        };
        let handle = self.objects.iter().find(|(_, id)| *id == kernel);
        if let Some((handle, _)) = handle {
            self.kernels.entry(*module).or_default().push(*handle);
        }
    }

    pub(super) fn object(&self, handle: usize) -> Value {
        match self.objects.get(&handle) {
            Some(id) => Value::Object(*id),
            None if handle == 0 => Value::Null,
            None => Value::Pointer(handle as u64),
        }
    }

    /// Forgets an object before it is destroyed, since its handle may be given out again at once.
    pub(super) fn remove_object(&mut self, handle: usize) -> Option<u32> {
        let id = self.objects.remove(&handle)?;
        for kernel in self.kernels.remove(&id).unwrap_or_default() {
            self.objects.remove(&kernel);
        }
        Some(id)
    }

    pub(super) fn restore_object(&mut self, handle: usize, id: u32) {
        self.objects.insert(handle, id);
    }

    pub(super) fn add_memory(&mut self, address: u64, size: u64) -> Value {
        if address == 0 {
            return Value::Null;
        }
        let id = self.fresh();
        self.memory.insert(address, (size, id));
        Value::Address(id, 0)
    }

    /// An address by the memory that it lies in.
    pub(super) fn address(&self, address: u64) -> Value {
        match self.memory.range(..=address).next_back() {
            Some((start, (size, id))) if address - start < *size => {
                Value::Address(*id, address - start)
            }
            _ if address == 0 => Value::Null,
            _ => Value::Pointer(address),
        }
    }

    pub(super) fn remove_memory(&mut self, address: u64) -> Option<(u64, u32)> {
        self.memory.remove(&address)
    }

    pub(super) fn restore_memory(&mut self, address: u64, what: (u64, u32)) {
        self.memory.insert(address, what);
    }
}
