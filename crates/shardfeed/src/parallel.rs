use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Threads to use when nobody says.
pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `work` of every item, on `threads` threads, in the order of the items. The error is that of the first item
/// that has one, whichever thread was faster.
pub(crate) fn map_in_parallel<T: Sync, R: Send, E: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let threads = threads.clamp(1, items.len().max(1));
    if threads == 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(usize::MAX);
    let results: Mutex<Vec<(usize, Result<R, E>)>> = Mutex::new(Vec::with_capacity(items.len()));
    // Items are taken in portions: a lock per footer would cost as much as the footer.
    let portion = (items.len() / (threads * 8)).clamp(1, 256);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(portion, Relaxed);
                    if start >= items.len() || start > failed.load(Relaxed) {
                        return;
                    }
                    let mut done = Vec::with_capacity(portion);
                    for (index, item) in items.iter().enumerate().skip(start).take(portion) {
                        let result = work(item);
                        let is_err = result.is_err();
                        done.push((index, result));
                        if is_err {
                            failed.fetch_min(index, Relaxed);
                            break;
                        }
                    }
                    results.lock().unwrap_or_else(PoisonError::into_inner).append(&mut done);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_the_first_error_wins() {
        let items: Vec<usize> = (0..5000).collect();
        for threads in [1, 2, 7] {
            let doubled = map_in_parallel(&items, threads, |item| Ok::<_, usize>(item * 2)).unwrap();
            assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
            for _ in 0..20 {
                let error =
                    map_in_parallel(
                        &items,
                        threads,
                        |&item| {
                            if item % 1000 == 777 { Err(item) } else { Ok(item) }
                        },
                    );
                assert_eq!(error, Err(777));
            }
        }
        assert_eq!(map_in_parallel(&[], 4, |item: &usize| Ok::<_, ()>(*item)), Ok(vec![]));
    }
}
