//! The entries that `validate` checks, each with its rules.

use super::commands::Ends;
use super::*;

impl Layer for Rules {
    fn error_text(&self, next: &Next) -> Option<CString> {
        let text = next.last_error();
        match &text {
            None => self.driver("R5", "last_error is NULL after a failed call".to_owned()),
            Some(text) if text.is_empty() => {
                self.driver("R5", "last_error is empty after a failed call".to_owned());
            }
            Some(_) => {}
        }
        text
    }

    unsafe fn close(&self, next: &Next, driver: *mut sys::otr_driver) -> i32 {
        for alive in self.books.lock().alive() {
            self.report(
                Side::Host,
                "R10",
                format!("{alive} is still alive when the driver is closed"),
            );
        }
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        unsafe { next.close(driver) }
    }

    unsafe fn device_properties(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        properties: *mut sys::otr_device_properties,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            self.within_struct(properties, |properties| {
                next.device_properties(driver, device, properties)
            })
        }
    }

    unsafe fn memory_alloc(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        address: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output was written on success.
        unsafe {
            let code = checked(self, "memory_alloc", address, || {
                next.memory_alloc(driver, device, params, address)
            });
            match (Code(code), params.as_ref()) {
                (Code::OK, None) => {
                    let text = "memory_alloc without parameters was not refused".to_owned();
                    self.driver("R7", text);
                }
                (Code::OK, Some(sys::otr_memory_params { size: 0, .. })) => {
                    self.driver("R7", "an allocation of 0 bytes was not refused".to_owned());
                }
                (Code::OK, Some(params)) => {
                    let (size, alignment) = (params.size, params.alignment);
                    self.made_memory(("memory", true), device, size, alignment, address);
                }
                _ => {}
            }
            code
        }
    }

    unsafe fn memory_free(&self, next: &Next, driver: *mut sys::otr_driver, address: u64) -> i32 {
        let reserved = self
            .books
            .lock()
            .memory
            .get(&address)
            .is_some_and(|m| !m.usable);
        let code = self.give_back(next, "memory_free", address, || {
            // SAFETY: R12: the host frees memory only after its work; the call is handed on.
            unsafe { next.memory_free(driver, address) }
        });
        if reserved && code == Code::OK.0 {
            self.driver(
                "R37",
                format!("memory_free took the reservation at {address:#x}"),
            );
        }
        code
    }

    unsafe fn queue_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_queue_params,
        queue: *mut *mut sys::otr_queue,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe {
            checked(self, "queue_create", queue, || {
                next.queue_create(driver, device, params, queue)
            })
        };
        if code == Code::OK.0 {
            // SAFETY: written on success, if it is not NULL.
            let Some(handle) = (unsafe { before(queue) }) else {
                self.driver(
                    "R7",
                    "queue_create with NULL as output was not refused".to_owned(),
                );
                return code;
            };
            let mut books = self.books.lock();
            let number = books.number();
            let queue = Queue {
                number,
                submitted: 0,
                finished: 0,
                behind: Behind::default(),
                recording: None,
                calls: Arc::default(),
                order: Arc::default(),
            };
            let twice = books.queues.insert(handle.addr(), queue).is_some();
            drop(books);
            if twice {
                self.driver("R10", "a queue has the handle of a live queue".to_owned());
            }
        }
        code
    }

    unsafe fn queue_destroy(&self, next: &Next, queue: *mut sys::otr_queue) -> i32 {
        let known = self.books.lock().queues.remove(&queue.addr());
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        let code = unsafe { next.queue_destroy(queue) };
        let Some(known) = known else { return code };
        let mut books = self.books.lock();
        if code != Code::OK.0 {
            books.queues.insert(queue.addr(), known);
        } else if known.recording.is_some() {
            // The recording that the queue began is given up (R33).
            books.record_end(queue.addr());
        }
        code
    }

    unsafe fn queue_query(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        let seen = self.seen(queue.addr());
        // SAFETY: R7: the host's own arguments, handed on.
        let (code, told) =
            unsafe { self.told("queue_query", outcome, || next.queue_query(queue, outcome)) };
        if let Some(seen) = seen
            && !self.recording("queue_query", &seen, code)
            && let Some(told) = told.filter(|told| *told != Code::NOT_READY)
        {
            self.finished("queue_query", queue.addr(), &seen, 0, told);
        }
        code
    }

    unsafe fn queue_synchronize(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            self.wait_for_queue(queue.addr(), outcome, || {
                next.queue_synchronize(queue, outcome)
            })
        }
    }

    unsafe fn queue_wait_event(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        event: *mut sys::otr_drv_event,
    ) -> i32 {
        self.submit_used(queue.addr(), None, || {
            // SAFETY: R7: the host's own arguments, handed on.
            let wait = || unsafe { next.queue_wait_event(queue, event) };
            let (code, asked) = self.ask(event.addr(), wait);
            let Some(asked) = asked.filter(|_| code == Code::OK.0) else {
                return code;
            };
            let mut books = self.books.lock();
            if let Some(recording) = asked.recording {
                books.join(queue.addr(), recording);
            }
            if let Some(recorded) = asked.recorded {
                books.comes_behind(queue.addr(), &recorded);
                if let Some(queue) = books.queues.get(&queue.addr()) {
                    queue.calls.lock().need(&recorded.point);
                }
            }
            code
        })
    }

    unsafe fn event_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_event_params,
        event: *mut *mut sys::otr_drv_event,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe {
            checked(self, "event_create", event, || {
                next.event_create(driver, device, params, event)
            })
        };
        // SAFETY: written on success, if it is not NULL.
        if let (Code::OK, Some(handle)) = (Code(code), unsafe { before(event) }) {
            let mut books = self.books.lock();
            let number = books.number();
            let event = Event::new(number);
            let twice = books.events.insert(handle.addr(), event).is_some();
            drop(books);
            if twice {
                self.driver("R10", "an event has the handle of a live event".to_owned());
            }
        }
        code
    }

    unsafe fn event_destroy(&self, next: &Next, event: *mut sys::otr_drv_event) -> i32 {
        let known = self.books.lock().events.remove(&event.addr());
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        let code = unsafe { next.event_destroy(event) };
        if let (true, Some(known)) = (code != Code::OK.0, known) {
            self.books.lock().events.insert(event.addr(), known);
        }
        code
    }

    unsafe fn event_record(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        queue: *mut sys::otr_queue,
    ) -> i32 {
        self.submit_used(queue.addr(), None, || {
            let mut books = self.books.lock();
            let record = books.events.get_mut(&event.addr());
            let record = record.map(Event::record_begins);
            drop(books);
            // SAFETY: R7: the host's own arguments, handed on.
            let code = unsafe { next.event_record(event, queue) };
            let mut books = self.books.lock();
            let state = (code == Code::OK.0).then(|| books.recorded_on(queue.addr()));
            if let (Some(event), Some(record)) = (books.events.get_mut(&event.addr()), record) {
                event.record_ends(&record, state);
            }
            code
        })
    }

    unsafe fn event_query(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe { self.ask_event(event.addr(), outcome, || next.event_query(event, outcome)) }
    }

    unsafe fn event_synchronize(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            self.wait_for_event(event.addr(), outcome, || {
                next.event_synchronize(event, outcome)
            })
        }
    }

    unsafe fn event_time(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        outcome: *mut sys::otr_outcome,
        nanoseconds: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            let time = || next.event_time(event, outcome, nanoseconds);
            self.told("event_time", outcome, time).0
        }
    }

    unsafe fn comm_query(
        &self,
        next: &Next,
        comm: *mut sys::otr_drv_comm,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let (code, told) =
            unsafe { self.told("query", outcome, || next.comm_query(comm, outcome)) };
        if told == Some(Code::NOT_READY) {
            self.driver("R52", "query of a communicator gave NOT_READY".to_owned());
        }
        code
    }

    unsafe fn copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: the contract of the entry.
        unsafe { self.checked_copy(next, queue, copy) }
    }

    unsafe fn fill(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        fill: *const sys::otr_fill,
    ) -> i32 {
        // SAFETY: the contract of the entry.
        unsafe { self.checked_fill(next, queue, fill) }
    }

    unsafe fn host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        host_call: *const sys::otr_host_call,
    ) -> i32 {
        // SAFETY: the contract of the entry.
        unsafe { self.checked_host_call(next, queue, host_call) }
    }

    unsafe fn kernel_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        kernel: *mut sys::otr_drv_kernel,
        launch: *const sys::otr_launch,
    ) -> i32 {
        // SAFETY: R7: the memory of a launch is the host's to keep live; the call is handed on.
        let (what, ranges) = unsafe { launched(launch) };
        self.submit(queue.addr(), &what, &ranges, || {
            // SAFETY: R7: the memory of a launch is the host's to keep live; the call is handed on.
            unsafe { next.kernel_launch(queue, kernel, launch) }
        })
    }

    unsafe fn operator_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        operator: *mut sys::otr_operator,
        call: *const sys::otr_operator_call,
        workspace: u64,
    ) -> i32 {
        // SAFETY: R7: the call is valid until this returns.
        let (what, ranges) = unsafe { operands(call, workspace) };
        self.submit(queue.addr(), &what, &ranges, || {
            // SAFETY: R7: the memory of a launch is the host's to keep live; the call is handed on.
            unsafe { next.operator_launch(queue, operator, call, workspace) }
        })
    }

    crate::collective::commands! {}

    unsafe fn peer_copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let below = || unsafe { next.peer_copy(queue, copy) };
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        match unsafe { copy.as_ref() } {
            Some(copy) => {
                let ends = Ends::of(copy);
                self.submit(queue.addr(), "peer copy", &[ends.dst, ends.src], below)
            }
            None => self.null("peer copy", below()),
        }
    }

    unsafe fn graph_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        graph: *mut sys::otr_drv_graph,
    ) -> i32 {
        let commands = self.books.lock().graphs.get(&graph.addr()).cloned();
        let used = commands.unwrap_or_default().concat();
        self.submit_used(queue.addr(), Some(&used), || {
            // SAFETY: R31: the host keeps what the commands name valid; the call is handed on.
            unsafe { next.graph_launch(queue, graph) }
        })
    }

    unsafe fn graph_record_begin(&self, next: &Next, queue: *mut sys::otr_queue) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_record_begin(queue) };
        let mut books = self.books.lock();
        if code == Code::OK.0 && !books.record_begin(queue.addr()) {
            let number = books.queues[&queue.addr()].number;
            drop(books);
            self.driver("R33", format!("queue {number} records twice"));
        }
        code
    }

    unsafe fn graph_record_end(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        graph: *mut *mut sys::otr_drv_graph,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_record_end(queue, graph) };
        // After a failure the recording is lost, too (R32), but for one that this queue has only joined.
        let commands = self.books.lock().record_end(queue.addr());
        if code == Code::OK.0 {
            // SAFETY: written on success.
            unsafe { self.made("graph", 0, graph) };
            // SAFETY: as above.
            if let (Some(graph), Some(commands)) = (unsafe { before(graph) }, commands) {
                self.books.lock().graphs.insert(graph.addr(), commands);
            }
        }
        code
    }

    unsafe fn graph_update(
        &self,
        next: &Next,
        graph: *mut sys::otr_drv_graph,
        from: *mut sys::otr_drv_graph,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_update(graph, from) };
        if code == Code::OK.0 {
            self.books.lock().update(graph.addr(), 0, from.addr());
        }
        code
    }

    unsafe fn graph_update_part(
        &self,
        next: &Next,
        graph: *mut sys::otr_drv_graph,
        first: u32,
        from: *mut sys::otr_drv_graph,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_update_part(graph, first, from) };
        if code == Code::OK.0 {
            let first = first as usize;
            self.books.lock().update(graph.addr(), first, from.addr());
        }
        code
    }

    unsafe fn graph_destroy(&self, next: &Next, graph: *mut sys::otr_drv_graph) -> i32 {
        let known = self.books.lock().graphs.remove(&graph.addr());
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        let code = self.forget(graph, || unsafe { next.graph_destroy(graph) });
        if let (true, Some(known)) = (code != Code::OK.0, known) {
            self.books.lock().graphs.insert(graph.addr(), known);
        }
        code
    }

    unsafe fn virtual_granularity(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        bytes: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.virtual_granularity(driver, device, bytes) };
        let least = self.alignments.get(device as usize).copied().unwrap_or(1);
        // SAFETY: written on success, if it is not NULL.
        if let (Code::OK, Some(bytes)) = (Code(code), unsafe { before(bytes) })
            && (!bytes.is_power_of_two() || bytes < u64::from(least))
        {
            let text =
                format!("a granularity of {bytes} bytes where addresses are aligned to {least}");
            self.driver("R37", text);
        }
        code
    }

    unsafe fn virtual_reserve(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_reserve_params,
        address: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output was written on success.
        unsafe {
            let code = checked(self, "reserve", address, || {
                next.virtual_reserve(driver, device, params, address)
            });
            if let (Code::OK, Some(params)) = (Code(code), params.as_ref()) {
                let (size, alignment) = (params.size, params.alignment);
                self.made_memory(("reservation", false), device, size, alignment, address);
            }
            code
        }
    }

    unsafe fn virtual_release(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        address: u64,
        size: u64,
    ) -> i32 {
        let mapped = {
            let books = self.books.lock();
            let end = address.saturating_add(size);
            books.mapped.range(address..end).next().is_some()
        };
        let memory = self.forget_memory(address);
        // SAFETY: R40: the host unmaps only after the work that uses the range; the call is handed on.
        let code = unsafe { next.virtual_release(driver, address, size) };
        if code != Code::OK.0 {
            self.restore_memory(address, memory);
        } else if mapped {
            let text = format!("release of {address:#x}, in which something is mapped, succeeded");
            self.driver("R37", text);
        }
        code
    }

    unsafe fn virtual_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        physical: *mut *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.virtual_create(driver, device, params, physical) };
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        if let (Code::OK, Some(params)) = (Code(code), unsafe { params.as_ref() }) {
            // SAFETY: written on success.
            unsafe { self.made("physical memory", params.size, physical) };
        }
        code
    }

    unsafe fn virtual_destroy(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        physical: *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        self.forget(physical, || unsafe {
            next.virtual_destroy(driver, physical)
        })
    }

    unsafe fn virtual_map(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        params: *const sys::otr_map_params,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.virtual_map(driver, params) };
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        match unsafe { params.as_ref() } {
            Some(params) if code == Code::OK.0 && !params.physical.is_null() => {
                // SAFETY: as many handles as are counted.
                self.mapped(params.address, unsafe {
                    std::slice::from_raw_parts(params.physical, params.count as usize)
                });
                code
            }
            _ => code,
        }
    }

    unsafe fn virtual_unmap(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        address: u64,
        size: u64,
    ) -> i32 {
        let unfinished = self.books.lock().unfinished_mapped(address, size);
        if let Err(code) = self.unused(next, &format!("unmap at {address:#x}"), unfinished) {
            return code;
        }
        // SAFETY: R40: the host unmaps only after the work that uses the range; the call is handed on.
        let code = unsafe { next.virtual_unmap(driver, address, size) };
        if code == Code::OK.0 {
            let mut books = self.books.lock();
            let end = address.saturating_add(size);
            books
                .mapped
                .retain(|start, _| *start < address || *start >= end);
        }
        code
    }

    unsafe fn pinned_alloc(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        size: u64,
        pointer: *mut *mut c_void,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; a pointer is as wide as an address.
        unsafe {
            let code = next.pinned_alloc(driver, size, pointer);
            if code == Code::OK.0 {
                self.made_memory((PINNED, true), u32::MAX, size, 1, pointer.cast());
            }
            code
        }
    }

    unsafe fn pinned_free(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        pointer: *mut c_void,
    ) -> i32 {
        let address = pointer.addr() as u64;
        // SAFETY: R12: the host frees memory only after its work; the call is handed on.
        self.give_back(next, "pinned_free", address, || unsafe {
            next.pinned_free(driver, pointer)
        })
    }

    unsafe fn ipc_memory_import(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        handle: *const sys::otr_ipc_handle,
        imported: *mut sys::otr_imported,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
        unsafe {
            let code = next.ipc_memory_import(driver, device, handle, imported);
            if let (Code::OK, Some(found)) = (Code(code), imported.as_ref()) {
                self.made_memory((IMPORTED, true), device, found.size, 1, &found.address);
            }
            code
        }
    }

    unsafe fn ipc_memory_close(&self, next: &Next, driver: *mut sys::otr_driver, base: u64) -> i32 {
        // SAFETY: R12: the host closes memory only after its work; the call is handed on.
        self.give_back(next, "memory_close", base, || unsafe {
            next.ipc_memory_close(driver, base)
        })
    }

    unsafe fn ipc_physical_import(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        handle: *const sys::otr_ipc_handle,
        imported: *mut sys::otr_imported,
        physical: *mut *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the outputs are written on success.
        unsafe {
            let code = next.ipc_physical_import(driver, device, handle, imported, physical);
            if let (Code::OK, Some(found)) = (Code(code), imported.as_ref()) {
                self.made("physical memory", found.size, physical);
            }
            code
        }
    }

    super::external::entries! {}

    unsafe fn module_load(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        format: u32,
        code: *const c_void,
        size: usize,
        options: *const std::ffi::c_char,
        module: *mut *mut sys::otr_drv_module,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let answer =
            unsafe { next.module_load(driver, device, format, code, size, options, module) };
        if answer == Code::OK.0 {
            // SAFETY: written on success.
            unsafe { self.made("module", 0, module) };
        }
        answer
    }

    unsafe fn module_unload(&self, next: &Next, module: *mut sys::otr_drv_module) -> i32 {
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        self.forget(module, || unsafe { next.module_unload(module) })
    }

    unsafe fn device_time(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        nanoseconds: *mut u64,
    ) -> i32 {
        // One at a time: two answers that cross would look as if the clock ran backwards.
        let mut books = self.books.lock();
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.device_time(driver, device, nanoseconds) };
        // SAFETY: written on success, if it is not NULL.
        if let (Code::OK, Some(time)) = (Code(code), unsafe { before(nanoseconds) }) {
            let last = books.device_time.insert(device, time).unwrap_or(0);
            drop(books);
            if time < last {
                let text =
                    format!("the clock of device {device} ran backwards, from {last} to {time}");
                self.driver("timing", text);
            }
        }
        code
    }
}
