use std::ops::Deref;

/// Something that belongs to the process that made it. A child that was forked from it has the memory, but not the threads, and locks
/// may be held for ever: there it is never dropped, and whoever uses it asks first.
pub(crate) struct OfThisProcess<T> {
    made_by: u32,
    /// There until it is taken.
    it: Option<T>,
}

impl<T> OfThisProcess<T> {
    pub(crate) fn new(it: T) -> Self {
        Self { made_by: std::process::id(), it: Some(it) }
    }

    /// Whether this process made it.
    pub(crate) fn is_at_home(&self) -> bool {
        self.made_by == std::process::id()
    }

    /// For whoever drops it in another way, and uses nothing of it afterwards; `None` where it is never dropped.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_at_home() { self.it.take() } else { None }
    }
}

impl<T> Deref for OfThisProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it.as_ref().expect("it is taken only to be dropped")
    }
}

impl<T> Drop for OfThisProcess<T> {
    fn drop(&mut self) {
        if !self.is_at_home() {
            std::mem::forget(self.it.take());
        }
    }
}
