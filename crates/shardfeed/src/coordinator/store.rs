use std::time::Duration;

use shardfeed_plan::lease::{Answer, Key, Keys, Request};

/// Where workers keep what they share: in the process, or on etcd.
///
/// What it must do is what [`Memory`](shardfeed_plan::lease::Memory) does; `conformance.rs` compares.
pub(crate) trait Store: Send + Sync {
    /// Asks, and waits for an answer for about that long.
    fn ask(&self, request: &Request, patience: Duration) -> Result<Answer, StoreError>;

    /// What a lease was granted for, and how much of it is left, in milliseconds; `None` if it ended.
    fn time_to_live(&self, lease: u64, patience: Duration) -> Result<Option<(u64, u64)>, StoreError>;

    /// The change that a key was modified last by, whatever is kept there; 0 if it is not there.
    fn modified(&self, key: &Key, patience: Duration) -> Result<u64, StoreError>;

    /// Calls `wake` when something changes among these keys, until what it returns is dropped. A hint: some changes may go
    /// unheard, others be told twice.
    fn watch(&self, keys: Keys, wake: Wake) -> Watch;

    /// Whether asking takes no time.
    fn is_local(&self) -> bool;

    /// What it is called, without secrets.
    fn name(&self) -> String;
}

/// What a watch calls.
pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

/// Ends when it is dropped.
pub(crate) type Watch = Box<dyn Send>;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// The question never left: nothing happened.
    #[error("{0}")]
    NotSent(String),
    /// It may have happened, may yet happen, or not.
    #[error("{0}")]
    Unknown(String),
    /// It will not be answered, however often it is asked: who asks may not, or what is kept there is not ours.
    #[error("{0}")]
    #[cfg_attr(not(feature = "etcd"), allow(dead_code))]
    Denied(String),
}

/// Whether a watch of these keys is told of that one.
pub(crate) fn is_watched(keys: &Keys, key: &Key) -> bool {
    let (first, last) = keys.bounds();
    let is_bell = matches!((keys, key), (Keys::Owners(scope), Key::Bell(of)) if scope == of);
    is_bell || (first..=last).contains(key)
}
