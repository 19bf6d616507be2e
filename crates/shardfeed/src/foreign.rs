//! Calls into code that works on foreign bytes and may panic on them, which we have seen: hostile pages make some
//! decoders index past an end. A panic becomes an error like any other.

use std::panic::AssertUnwindSafe;

/// What `work` returns, or what it panicked with. Whatever it worked on must not be used after a panic.
pub(crate) fn call<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text =
            panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        format!("the decoder panicked: {}", text.unwrap_or("no message"))
    })
}
