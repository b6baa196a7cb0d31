//! The calls of a communicator that are commands, for layers that treat them alike. It writes the methods
//! of a layer, and leaves what they do to the layer's `with_ranks`.

use outrigger_device::sys;

/// The methods of `Layer` for all commands of a communicator. Each gives `with_ranks` the driver below, the
/// queue, the command's name, the addresses that it names, and what passes it on.
macro_rules! commands {
    () => {
        $crate::collective::commands! { @methods
            comm_all_reduce "all_reduce" [&[send, receive]] (send: u64, receive: u64, count: u64,
                dtype: u32, reduction: u32);
            comm_reduce "reduce" [&[send, receive]] (send: u64, receive: u64, count: u64, dtype: u32,
                reduction: u32, root: u32);
            comm_reduce_scatter "reduce_scatter" [&[send, receive]] (send: u64, receive: u64,
                count: u64, dtype: u32, reduction: u32);
            comm_broadcast "broadcast" [&[address]] (address: u64, size: u64, root: u32);
            comm_all_gather "all_gather" [&[send, receive]] (send: u64, receive: u64, size: u64);
            comm_exchange "exchange" [&$crate::collective::addresses(exchange)]
                (exchange: *const sys::otr_exchange);
        }
    };
    (@methods $($method:ident $name:literal [$addresses:expr] ($($arg:ident: $ty:ty),*);)*) => {
        $(
            unsafe fn $method(&self, next: &Next, queue: *mut sys::otr_queue,
                comm: *mut sys::otr_drv_comm $(, $arg: $ty)*) -> i32 {
                // SAFETY: R10: what is pointed to is valid during the call; R12: the memory is the host's to
                // keep live. The call is handed on.
                unsafe {
                    self.with_ranks(next, queue, $name, $addresses, || {
                        next.$method(queue, comm $(, $arg)*)
                    })
                }
            }
        )*
    };
}
pub(crate) use commands;

/// The first address of the memory of each transfer.
///
/// # Safety
/// `exchange` is NULL, or a struct with as many transfers as it counts.
pub(crate) unsafe fn addresses(exchange: *const sys::otr_exchange) -> Vec<u64> {
    // SAFETY: this function's contract.
    let Some(exchange) = (unsafe { exchange.as_ref() }) else {
        return Vec::new();
    };
    if exchange.transfers.is_null() {
        return Vec::new();
    }
    // SAFETY: not NULL, so as many as are counted.
    let transfers =
        unsafe { std::slice::from_raw_parts(exchange.transfers, exchange.count as usize) };
    transfers.iter().map(|one| one.address).collect()
}
