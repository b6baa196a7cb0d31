//! The entries of the table `external`, as methods of the layer: a file by themselves, since a trait has one place for all. They
//! keep the books of imported memory and of semaphores.

/// The methods of `Layer` for the table.
macro_rules! entries {
    () => {
        unsafe fn external_memory_import(
            &self,
            next: &Next,
            driver: *mut sys::otr_driver,
            device: u32,
            fd: *const sys::otr_fd,
            address: *mut u64,
        ) -> i32 {
            // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
            unsafe {
                let code = checked(self, "memory_import", address, || {
                    next.external_memory_import(driver, device, fd, address)
                });
                if let (Code::OK, Some(fd)) = (Code(code), fd.as_ref()) {
                    self.made_memory((IMPORTED, true), device, fd.size, 1, address);
                }
                code
            }
        }

        unsafe fn external_memory_close(
            &self,
            next: &Next,
            driver: *mut sys::otr_driver,
            address: u64,
        ) -> i32 {
            // SAFETY: R12: the host closes memory only after its work; the call is handed on.
            self.give_back(next, "memory_close", address, || unsafe {
                next.external_memory_close(driver, address)
            })
        }

        unsafe fn external_semaphore_create(
            &self,
            next: &Next,
            driver: *mut sys::otr_driver,
            device: u32,
            params: *const sys::otr_semaphore_params,
            semaphore: *mut *mut sys::otr_drv_semaphore,
        ) -> i32 {
            // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
            unsafe {
                let code = checked(self, "semaphore_create", semaphore, || {
                    next.external_semaphore_create(driver, device, params, semaphore)
                });
                if code == Code::OK.0 {
                    self.made("semaphore", 0, semaphore);
                }
                code
            }
        }

        unsafe fn external_semaphore_import(
            &self,
            next: &Next,
            driver: *mut sys::otr_driver,
            device: u32,
            fd: *const sys::otr_fd,
            semaphore: *mut *mut sys::otr_drv_semaphore,
        ) -> i32 {
            // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
            unsafe {
                let code = checked(self, "semaphore_import", semaphore, || {
                    next.external_semaphore_import(driver, device, fd, semaphore)
                });
                if code == Code::OK.0 {
                    self.made("semaphore", 0, semaphore);
                }
                code
            }
        }

        unsafe fn external_semaphore_destroy(
            &self,
            next: &Next,
            semaphore: *mut sys::otr_drv_semaphore,
        ) -> i32 {
            // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
            self.forget(semaphore, || unsafe {
                next.external_semaphore_destroy(semaphore)
            })
        }

        unsafe fn external_signal(
            &self,
            next: &Next,
            queue: *mut sys::otr_queue,
            semaphore: *mut sys::otr_drv_semaphore,
            value: u64,
        ) -> i32 {
            self.submit_used(queue.addr(), None, || {
                // SAFETY: R7: the host's own arguments, handed on.
                unsafe { next.external_signal(queue, semaphore, value) }
            })
        }

        unsafe fn external_wait(
            &self,
            next: &Next,
            queue: *mut sys::otr_queue,
            semaphore: *mut sys::otr_drv_semaphore,
            value: u64,
        ) -> i32 {
            self.submit_used(queue.addr(), None, || {
                // SAFETY: R7: the host's own arguments, handed on.
                unsafe { next.external_wait(queue, semaphore, value) }
            })
        }
    };
}
pub(super) use entries;
