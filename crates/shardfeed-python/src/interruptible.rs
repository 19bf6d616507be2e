use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::failure::raise;

/// How long nobody looks whether the user wants to interrupt.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(30);

/// Does something that may take long on a thread of its own, as asking a file system that does not answer, and hears signals meanwhile.
/// After one that raises the thread is not waited for: it has nothing of the interpreter's, and lets go of everything when it is done.
pub(crate) fn run<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> shardfeed::Result<R> + Send + 'static,
) -> PyResult<R> {
    let (tell, mut told) = channel();
    let thread = std::thread::Builder::new()
        .name("shardfeed-aside".to_owned())
        .spawn(move || {
            // Nobody may be listening any more.
            let _ = tell.send(work());
        })
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    let done = loop {
        let news;
        (news, told) = py.detach(move || (told.recv_timeout(LOOK_EVERY), told));
        match news {
            Ok(done) => break done,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread panicked; please report this"));
            }
        }
    };
    // It has nothing more to do.
    let _ = py.detach(|| thread.join());
    done.map_err(raise)
}
