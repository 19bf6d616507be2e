use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers of a batch. Their memory is used again for another batch once nobody holds them any more.
#[derive(Debug)]
pub struct Array<T> {
    items: Vec<T>,
    home: Option<Arc<Stack<T>>>,
}

/// Arrays of batches that were let go of.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrayPool {
    pub i64s: Pool<i64>,
    pub i32s: Pool<i32>,
    pub starts: Pool<i32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pool<T>(Arc<Stack<T>>);

#[derive(Debug)]
struct Stack<T> {
    idle: Mutex<Vec<Vec<T>>>,
    /// How many are kept.
    idle_max: AtomicUsize,
}

/// Batches whose memory is kept where nobody said how many.
const IDLE_MAX: usize = 6;

impl ArrayPool {
    /// Keeps the memory of so many batches; if a trainer holds more, the others are freed.
    pub fn keep_batches(&self, batches: usize) {
        self.i64s.0.idle_max.store(batches, Relaxed);
        self.i32s.0.idle_max.store(batches, Relaxed);
        self.starts.0.idle_max.store(batches, Relaxed);
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Arc::new(Stack { idle: Mutex::default(), idle_max: AtomicUsize::new(IDLE_MAX) }))
    }
}

impl<T: Clone + Default> Pool<T> {
    /// Nothing yet, to be extended.
    pub fn take_empty(&self) -> Array<T> {
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut items = idle.unwrap_or_default();
        items.clear();
        Array { items, home: Some(Arc::clone(&self.0)) }
    }

    /// `len` numbers, left over from something else.
    pub fn take(&self, len: usize) -> Array<T> {
        if len == 0 {
            // What is empty needs nothing, and would leave nothing of what it was given.
            return Array { items: Vec::new(), home: Some(Arc::clone(&self.0)) };
        }
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut items = idle.unwrap_or_default();
        if items.capacity() < len {
            // Fresh from the system, zeros cost nothing.
            items = vec![T::default(); len];
        }
        items.resize(len, T::default());
        Array { items, home: Some(Arc::clone(&self.0)) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let Some(home) = &self.home else { return };
        if self.items.capacity() > 0 {
            let mut idle = home.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < home.idle_max.load(Relaxed) {
                idle.push(std::mem::take(&mut self.items));
            }
        }
    }
}

impl<T> Array<T> {
    /// The numbers themselves; their memory is not used again then.
    pub fn into_vec(mut self) -> Vec<T> {
        self.home = None;
        std::mem::take(&mut self.items)
    }

    pub(crate) fn extend(&mut self, items: impl IntoIterator<Item = T>) {
        self.items.extend(items);
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T: Clone> Clone for Array<T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), home: None }
    }
}

impl<T: PartialEq> PartialEq for Array<T> {
    fn eq(&self, other: &Self) -> bool {
        self.items == other.items
    }
}

impl<T: Eq> Eq for Array<T> {}
