//! Calls of C functions of a host. Such a function must not unwind (R27, H4). If it does, the process
//! ends there, before any frame of ours is unwound: Rust cannot catch exceptions of C++.

/// A C function, as one that may unwind.
pub trait Foreign {
    /// The same with the ABI that allows it.
    type Unwinding;

    /// The function under that type.
    fn unwinding(self) -> Self::Unwinding;
}

macro_rules! foreign {
    ($(($($arg:ident)*))*) => {$(
        impl<R, $($arg),*> Foreign for unsafe extern "C" fn($($arg),*) -> R {
            type Unwinding = unsafe extern "C-unwind" fn($($arg),*) -> R;

            #[inline]
            fn unwinding(self) -> Self::Unwinding {
                // SAFETY: the two ABIs differ only in whether the function may unwind.
                unsafe { std::mem::transmute(self) }
            }
        }
    )*};
}

foreign! { (A) (A B) (A B C) (A B C D) (A B C D E) }

/// Calls a C function of the host: `foreign_call!(function, arguments...)`. As unsafe as the function.
#[macro_export]
macro_rules! foreign_call {
    ($function:expr $(, $argument:expr)* $(,)?) => {{
        let end = $crate::EndOfUnwinding;
        let result = $crate::Foreign::unwinding($function)($($argument),*);
        std::mem::forget(end);
        result
    }};
}

/// Ends the process when it is dropped. Only unwinding drops it: a call that returns forgets it.
#[derive(Debug)]
pub struct EndOfUnwinding;

impl Drop for EndOfUnwinding {
    #[cold]
    fn drop(&mut self) {
        end();
    }
}

/// Panics and cannot unwind: the text is shown like that of any panic, and the process ends.
extern "C" fn end() {
    panic!(
        "an exception or a panic left a function of the host: catch it there (rule H4 of outrigger.h)"
    );
}
