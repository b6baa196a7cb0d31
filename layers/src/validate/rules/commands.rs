//! Copies, fills and host calls under `validate`: whether what is given is right, and whether the driver takes and refuses
//! what it should.

use super::*;

/// The ends of a copy: where each begins, and its bytes, with what lies between its rows.
pub(super) struct Ends {
    pub(super) dst: (u64, u64),
    pub(super) src: (u64, u64),
    apart: bool,
}

impl Ends {
    pub(super) fn of(copy: &sys::otr_copy) -> Self {
        let before = u64::from(copy.rows.max(1) - 1);
        let size = |pitch: u64| match copy.size {
            0 => 0,
            size => before.saturating_mul(pitch).saturating_add(size),
        };
        Self {
            dst: (copy.dst, size(copy.dst_pitch)),
            src: (copy.src, size(copy.src_pitch)),
            apart: copy.rows > 1,
        }
    }

    /// Whether they are seen to overlap. Rows of both may lie between those of the other.
    fn overlap(&self) -> bool {
        let ((dst, to), (src, from)) = (self.dst, self.src);
        let there = dst != 0 && src != 0 && to > 0;
        there && !self.apart && dst.abs_diff(src) < to.min(from)
    }
}

impl Rules {
    /// R7: parameters of a command that are NULL, with what the driver has answered.
    pub(super) fn null(&self, entry: &str, code: i32) -> i32 {
        if code == Code::OK.0 {
            self.driver("R7", format!("{entry} with NULL was not refused"));
        }
        code
    }

    /// # Safety
    /// That of the entry.
    pub(super) unsafe fn checked_copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: R26: both ranges stay valid until the copy has finished.
        let below = || unsafe { next.copy(queue, copy) };
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        let Some(copy) = (unsafe { copy.as_ref() }) else {
            return self.null("copy", below());
        };
        let (kind, ends) = (copy.kind, Ends::of(copy));
        let (to, from) = match kind {
            sys::OTR_COPY_HOST_TO_DEVICE => (true, false),
            sys::OTR_COPY_DEVICE_TO_HOST => (false, true),
            sys::OTR_COPY_DEVICE_TO_DEVICE => (true, true),
            _ => (false, false),
        };
        for (device, (address, size)) in [(to, ends.dst), (from, ends.src)] {
            if device && let Err(code) = self.in_memory("copy", address, size) {
                return code;
            }
        }
        if to == from && ends.overlap() {
            let text = format!(
                "a copy of {} bytes from {:#x} to {:#x}, which overlap",
                copy.size, copy.src, copy.dst
            );
            return self.refuse(Code::INVALID_ARGUMENT, "R26", text);
        }
        let code = self.submit(queue.addr(), "copy", &[ends.dst, ends.src], below);
        let known = (1..=4).contains(&kind);
        if known {
            // Several rows a driver may refuse, empty ones too (R25).
            if copy.rows <= 1 {
                self.zero("copy", copy.size, code);
            }
        } else if code == Code::OK.0 {
            self.driver(
                "R7",
                format!("a copy of the unknown kind {kind} was not refused"),
            );
        }
        code
    }

    /// # Safety
    /// That of the entry.
    pub(super) unsafe fn checked_fill(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        fill: *const sys::otr_fill,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let below = || unsafe { next.fill(queue, fill) };
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        let Some(fill) = (unsafe { fill.as_ref() }) else {
            return self.null("fill", below());
        };
        let (dst, size) = (fill.dst, fill.size);
        let (pattern, pattern_size) = (fill.pattern, fill.pattern_size);
        if let Err(code) = self.in_memory("fill", dst, size) {
            return code;
        }
        let code = self.submit(queue.addr(), "fill", &[(dst, size)], below);
        let good = matches!(pattern_size, 1 | 2 | 4 | 8 | 16);
        if good && !pattern.is_null() {
            self.zero("fill", size, code);
        }
        if code == Code::OK.0 && !(good && size.is_multiple_of(u64::from(pattern_size))) {
            let text =
                format!("a fill of {size} bytes with a pattern of {pattern_size} was not refused");
            self.driver("R28", text);
        }
        code
    }

    /// # Safety
    /// That of the entry.
    pub(super) unsafe fn checked_host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        host_call: *const sys::otr_host_call,
    ) -> i32 {
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        let call = unsafe { host_call.as_ref() };
        let Some((call, function)) = call.and_then(|call| Some((call, call.function?))) else {
            // SAFETY: R7: the host's own arguments, handed on.
            return self.null("host_call", unsafe { next.host_call(queue, host_call) });
        };
        let (user, flags) = (call.user, call.flags);
        let place = {
            let books = self.books.lock();
            let known = books.queues.get(&queue.addr());
            let known = known.filter(|known| known.recording.is_none());
            known.map(|known| (known.number, Arc::clone(&known.calls)))
        };
        self.submit(queue.addr(), "host_call", &[], || {
            let place = place.as_ref().map(|(number, book)| (*number, book));
            let call = (function, user, flags);
            let (function, user) = self.calls.make(call, place, self.driver, &self.sink);
            // SAFETY: R27: the function is called exactly once; its data is kept until the driver is
            // closed.
            let code = unsafe { next.host_call(queue, &params::host_call(function, user, flags)) };
            if code != Code::OK.0 {
                self.calls.refused(user);
            }
            code
        })
    }
}
