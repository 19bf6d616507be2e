use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::args::Failure;

/// Whether somebody pressed Ctrl-C, or asked the program to end as systems do (SIGTERM). The second time ends it at once.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Watches for Ctrl-C from now on. Once in a process.
    pub fn on_ctrl_c() -> Result<Self, Failure> {
        Self::on_ctrl_c_do(|| {})
    }

    /// The same, for work that is told by somebody else: `tell` is called the first time.
    pub fn on_ctrl_c_do(tell: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        ctrlc::set_handler(move || {
            // The second time, whoever types means it.
            if flag.swap(true, SeqCst) {
                std::process::exit(130);
            }
            tell();
        })
        .map_err(|error| Failure::Other(format!("cannot watch for Ctrl-C: {error}")))?;
        Ok(Self(stopped))
    }

    /// Whether it was pressed.
    pub fn is_asked(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// An error once it was pressed, for work that leaves nothing to save.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_asked() { Err(Failure::Stopped) } else { Ok(()) }
    }
}
