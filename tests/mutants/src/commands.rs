//! Defects of copies and fills.

use std::collections::BTreeMap;

use outrigger_device::{Code, sys};
use outrigger_layers::fail;
use parking_lot::Mutex;

use crate::Shared;
use crate::mutant::{mutants, types::*};
use crate::queues::Side;

mutants! {
    /// Copies of more than a byte leave out the last one.
    copy_short [R16] (()) {
        copy(self, next, queue, dst, src, size, kind) {
            next.copy(queue, dst, src, if size > 1 { size - 1 } else { size }, kind)
        }
    }

    /// A copy to the device begins where the allocation does, whatever the offset.
    copy_ignores_offset [R13] (Mutex<BTreeMap<u64, u64>>) {
        memory_alloc(self, next, driver, device, size, address) {
            let code = next.memory_alloc(driver, device, size, address);
            if code == Code::OK.0 {
                self.state.lock().insert(*address, size);
            }
            code
        }
        memory_free(self, next, driver, address) {
            let code = next.memory_free(driver, address);
            if code == Code::OK.0 {
                self.state.lock().remove(&address);
            }
            code
        }
        copy(self, next, queue, dst, src, size, kind) {
            let base = match self.state.lock().range(..=dst).next_back() {
                Some((base, length)) if kind == sys::OTR_COPY_HOST_TO_DEVICE
                    && dst - base < *length && dst - base + size <= *length => *base,
                _ => dst,
            };
            next.copy(queue, base, src, size, kind)
        }
    }

    /// Copies overtake what was submitted to their queue before.
    copy_overtakes [R16] (Side) {
        queue_create(self, next, driver, device, params, queue) {
            self.state.create(next, driver, device, params, queue)
        }
        queue_destroy(self, next, queue) { self.state.destroy(next, queue) }
        copy(self, next, queue, dst, src, size, kind) {
            self.state.beside(next, queue, |side| next.copy(side, dst, src, size, kind))
        }
    }

    /// Fills overtake what was submitted to their queue before.
    fill_overtakes [R16] (Side) {
        queue_create(self, next, driver, device, params, queue) {
            self.state.create(next, driver, device, params, queue)
        }
        queue_destroy(self, next, queue) { self.state.destroy(next, queue) }
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            self.state.beside(next, queue, |side| next.fill(side, dst, size, pattern, pattern_size))
        }
    }

    /// A copy of 0 bytes is refused.
    copy_of_nothing_refused [R25] (()) {
        copy(self, next, queue, dst, src, size, kind) {
            if size == 0 {
                return outrigger_layers::fail(Code::INVALID_ARGUMENT, "there is nothing to copy");
            }
            next.copy(queue, dst, src, size, kind)
        }
    }

    /// A fill of 0 bytes looks at its address.
    fill_of_nothing_looks [R25] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            let least = if size == 0 { u64::from(pattern_size) } else { size };
            next.fill(queue, dst, least, pattern, pattern_size)
        }
    }

    /// An unknown kind of copy is taken, and does nothing.
    unknown_copy_taken [R7] (()) {
        copy(self, next, queue, dst, src, size, kind) {
            if kind == 0 || kind > sys::OTR_COPY_HOST_TO_HOST {
                return Code::OK.0;
            }
            next.copy(queue, dst, src, size, kind)
        }
    }

    /// A range that leaves its allocation is taken, and does nothing.
    range_unchecked [R7] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            match next.fill(queue, dst, size, pattern, pattern_size) {
                code if code == Code::INVALID_ARGUMENT.0 && size > 0 && !pattern.is_null()
                    && size.is_multiple_of(u64::from(pattern_size.max(1))) => {
                    if matches!(pattern_size, 1 | 2 | 4 | 8 | 16) { Code::OK.0 } else { code }
                }
                code => code,
            }
        }
    }

    /// Fills of more than one pattern leave out the last.
    fill_short [R28] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            let step = u64::from(pattern_size);
            next.fill(queue, dst, if size > step { size - step } else { size }, pattern, pattern_size)
        }
    }

    /// Fills write one pattern too many, where that stays within the allocation.
    fill_long [R28] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            let step = u64::from(pattern_size);
            if size > 0 && next.fill(queue, dst, size.saturating_add(step), pattern, pattern_size) == Code::OK.0 {
                return Code::OK.0;
            }
            next.fill(queue, dst, size, pattern, pattern_size)
        }
    }

    /// Only the first byte of a pattern is repeated.
    fill_by_bytes [R28] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            let right = matches!(pattern_size, 1 | 2 | 4 | 8 | 16)
                && size.is_multiple_of(u64::from(pattern_size));
            next.fill(queue, dst, size, pattern, if right { 1 } else { pattern_size })
        }
    }

    /// Patterns of 16 bytes are refused.
    fill_of_16_refused [R28] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            if pattern_size == 16 {
                return outrigger_layers::fail(Code::INVALID_ARGUMENT, "the pattern is too long");
            }
            next.fill(queue, dst, size, pattern, pattern_size)
        }
    }

    /// A size that is no multiple of the pattern is cut down to one.
    fill_odd_size_taken [R28] (()) {
        fill(self, next, queue, dst, size, pattern, pattern_size) {
            let rest = size.checked_rem(u64::from(pattern_size)).unwrap_or(0);
            next.fill(queue, dst, size - rest, pattern, pattern_size)
        }
    }

    /// Copies between devices leave out the last byte.
    peer_copy_short [R16] (()) {
        peer_copy(self, next, queue, to, dst, from, src, size) {
            next.peer_copy(queue, to, dst, from, src, if size > 1 { size - 1 } else { size })
        }
    }

    /// Copies between ranges that touch are refused.
    copy_between_neighbours_refused [R26] (()) {
        copy(self, next, queue, dst, src, size, kind) {
            if size > 0 && (dst.checked_add(size) == Some(src) || src.checked_add(size) == Some(dst)) {
                return fail(Code::INVALID_ARGUMENT, "the ranges overlap");
            }
            next.copy(queue, dst, src, size, kind)
        }
    }

    /// A copy from host memory clears its source.
    copy_clears_its_source [R26] (()) {
        copy(self, next, queue, dst, src, size, kind) {
            let code = next.copy(queue, dst, src, size, kind);
            if code == Code::OK.0 && kind == sys::OTR_COPY_HOST_TO_DEVICE && size > 0 {
                let source = Shared(std::ptr::with_exposed_provenance_mut(src as usize));
                crate::calls::submit(next, queue, 0, move |upstream| {
                    let source = source;
                    // The host keeps its memory until the copy has finished, and not longer: within it is
                    // where the test looks.
                    source.0.cast::<u8>().write_bytes(0, size as usize);
                    upstream
                });
            }
            code
        }
    }
}
