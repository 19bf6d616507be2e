use std::mem::ManuallyDrop;
use std::ops::Deref;

/// Something that belongs to the process that made it. A child that was forked from it has the memory, but not the threads, and locks
/// may be held for ever: there it is never dropped, and whoever uses it asks first.
pub(crate) struct OfThisProcess<T> {
    made_by: u32,
    it: ManuallyDrop<T>,
}

impl<T> OfThisProcess<T> {
    pub(crate) fn new(it: T) -> Self {
        Self { made_by: std::process::id(), it: ManuallyDrop::new(it) }
    }

    /// Whether this process made it.
    pub(crate) fn is_at_home(&self) -> bool {
        self.made_by == std::process::id()
    }
}

impl<T> Deref for OfThisProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.it
    }
}

impl<T> Drop for OfThisProcess<T> {
    fn drop(&mut self) {
        if self.is_at_home() {
            #[allow(unsafe_code)]
            // SAFETY: this is the only place where it is dropped, once, and nothing uses it afterwards.
            unsafe {
                ManuallyDrop::drop(&mut self.it);
            }
        }
    }
}
