use std::sync::{Arc, Mutex, PoisonError};

/// Called with work done and work in all.
pub(crate) type Tell = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Tells of work that several threads do. Calls come one after another, and `done` never goes back.
pub(crate) struct Progress<'a> {
    done: Mutex<u64>,
    total: u64,
    tell: Option<&'a Tell>,
}

impl<'a> Progress<'a> {
    pub fn new(total: u64, tell: Option<&'a Tell>) -> Self {
        Self { done: Mutex::new(0), total, tell }
    }

    pub fn add(&self, work: u64) {
        let Some(tell) = self.tell else { return };
        // Held while it is told: a thread that overtook another would say 5 before 4.
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += work;
        tell(*done, self.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_never_goes_back() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let told_to = Arc::clone(&told);
        let tell: Tell = Arc::new(move |done, total| {
            // As if the one that is told were now slow and now fast.
            (0..done % 7).for_each(|_| std::thread::yield_now());
            told_to.lock().unwrap().push((done, total));
        });
        let progress = Progress::new(800, Some(&tell));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..100).for_each(|_| progress.add(1)));
            }
        });
        assert_eq!(*told.lock().unwrap(), (1..=800).map(|done| (done, 800)).collect::<Vec<_>>());
    }
}
