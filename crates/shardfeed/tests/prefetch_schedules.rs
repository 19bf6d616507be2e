//! The queue of the shard loader under a scheduler that explores what threads may do: each position is handed out once,
//! in order for each caller, and nobody waits for ever.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

/// What the queue is built on, here.
mod sync {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub use std::sync::PoisonError;
}

#[path = "../src/shard/queue.rs"]
#[allow(dead_code)] // Not everything is called here.
mod queue;

use queue::{Claim, Done, Pace, Place, Queue, Stream};

/// Positions of one version of a stream.
#[derive(Clone, Debug)]
struct Numbers {
    len: u64,
    version: u64,
}

impl Stream for Numbers {
    fn len(&self) -> u64 {
        self.len
    }

    fn place(&self, position: u64) -> Place {
        assert!(position < self.len);
        Place { index: self.version * 1000 + position, is_foreign: false }
    }

    fn is_same_until(&self, other: &Self, position: u64) -> bool {
        position == 0 || self.version == other.version
    }
}

/// Loads ahead until the queue is closed. Every third sample cannot be loaded that way.
fn load_ahead(queue: &Queue<Numbers, u64>) {
    while let Some(ahead) = queue.next_ahead() {
        queue.put(ahead, (ahead.index % 3 != 2).then_some(ahead.index));
    }
}

/// What a caller gets up to the end. Every fourth load fails the first time.
fn take_all(queue: &Queue<Numbers, u64>, failed: &AtomicU64) -> Vec<u64> {
    let mut taken = Vec::new();
    loop {
        // Some take what they can at once.
        if taken.len() % 2 == 1
            && let Some(claimed) = queue.claim_at_once()
        {
            taken.push(claimed.place.index);
            claimed.done();
            continue;
        }
        match queue.claim(false, || ()) {
            Claim::End => return taken,
            Claim::Ready(place, item, _) => {
                assert_eq!(place.index, item);
                taken.push(item);
            }
            Claim::Load(ticket)
                if ticket.position % 4 == 1
                    && failed.fetch_or(1 << ticket.position, Relaxed) >> ticket.position & 1 == 0 =>
            {
                queue.failed(ticket);
            }
            Claim::Load(ticket) => {
                taken.extend(queue.done(ticket).ok().map(|_| ticket.place.index));
            }
        }
    }
}

fn start<R: Send + 'static>(
    queue: &Arc<Queue<Numbers, u64>>,
    work: impl FnOnce(&Queue<Numbers, u64>) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let queue = Arc::clone(queue);
    thread::spawn(move || work(&queue))
}

fn explore(iterations: usize, test: impl Fn() + Send + Sync + 'static) {
    let test = std::sync::Arc::new(test);
    let run = std::sync::Arc::clone(&test);
    shuttle::check_random(move || run(), iterations);
    shuttle::check_pct(move || test(), iterations, 3);
}

#[test]
fn each_position_goes_to_one_caller() {
    explore(3000, || {
        let pace = Pace { ahead_max: 2, snapshot_every: Some(3) };
        let queue = Arc::new(Queue::new(Numbers { len: 8, version: 0 }, pace));
        let failed = Arc::new(AtomicU64::new(0));
        let loaders = [start(&queue, load_ahead), start(&queue, load_ahead)];
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let failed = Arc::clone(&failed);
                start(&queue, move |queue| take_all(queue, &failed))
            })
            .collect();
        let taken: Vec<Vec<u64>> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        // Nobody goes home while somebody else may give a position back.
        let mut all: Vec<u64> = taken.concat();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
        assert_eq!(queue.snapshot().done.ranges(), [(0, 8)]);
        let counts = queue.counts();
        assert_eq!(counts.handed_out, 8);
        assert!(counts.hits + counts.by_callers <= 8, "{counts:?}");
        queue.close();
        for loader in loaders {
            loader.join().unwrap();
        }
    });
}

#[test]
fn some_load_at_once_and_others_do_not() {
    explore(3000, || {
        let queue = Arc::new(Queue::new(Numbers { len: 40, version: 0 }, Pace::default()));
        let failed = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let failed = Arc::clone(&failed);
                start(&queue, move |queue| take_all(queue, &failed))
            })
            .collect();
        // One that cannot load it leaves it to the others.
        drop(queue.claim_at_once());
        let mut all: Vec<u64> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
        assert_eq!(queue.snapshot().done.ranges(), [(0, 40)]);
    });
}

#[test]
fn what_somebody_gives_back_and_leaves_is_taken_by_the_others() {
    explore(2000, || {
        let queue = Arc::new(Queue::new(Numbers { len: 3, version: 0 }, Pace::default()));
        let leaver = start(&queue, |queue| match queue.claim(false, || ()) {
            Claim::Load(ticket) => queue.failed(ticket),
            Claim::Ready(..) => unreachable!("nothing is loaded ahead"),
            Claim::End => {}
        });
        let all = take_all(&queue, &AtomicU64::new(u64::MAX));
        leaver.join().unwrap();
        // The one who left may have been the last to come, and found everything taken.
        assert_eq!(all.len(), 3, "{all:?}");
    });
}

/// Whoever is told that nothing is left can go on to the next epoch: nobody has anything of this one any more, or gives it back.
#[test]
fn the_end_is_told_when_everything_is_done() {
    explore(3000, || {
        let queue =
            Arc::new(Queue::new(Numbers { len: 3, version: 0 }, Pace { ahead_max: 1, ..Pace::default() }));
        let loader = start(&queue, load_ahead);
        let leaver = start(&queue, |queue| match queue.claim(false, || ()) {
            Claim::Load(ticket) => {
                queue.failed(ticket);
                0
            }
            Claim::Ready(..) => 1,
            Claim::End => 0,
        });
        let all = take_all(&queue, &AtomicU64::new(u64::MAX));
        assert_eq!(queue.snapshot().done.ranges(), [(0, 3)], "{all:?}");
        assert_eq!(all.len() + leaver.join().unwrap(), 3, "{all:?}");
        queue.close();
        loader.join().unwrap();
    });
}

#[test]
fn a_snapshot_is_due_every_so_many_whatever_the_epoch() {
    // One thread: there is one schedule.
    let one_thread = || {
        let pace = Pace { snapshot_every: Some(4), ..Pace::default() };
        let queue = Queue::<_, u64>::new(Numbers { len: 3, version: 0 }, pace);
        let mut due = Vec::new();
        for epoch in 0..4 {
            while let Some(claimed) = queue.claim_at_once() {
                due.extend(claimed.done().map(|snapshot| (epoch, snapshot.done.count())));
            }
            queue.follow(Numbers { len: 3, version: epoch + 1 });
        }
        assert_eq!(due, [(1, 1), (2, 2), (3, 3)]);
        // As if what is done had been handed out here.
        queue.restore(Numbers { len: 7, version: 0 }, Done::of_ranges(&[(0, 1), (2, 3)]));
        let mut counts = Vec::new();
        loop {
            match queue.claim(false, || ()) {
                Claim::Load(ticket) => counts.extend(queue.done(ticket).unwrap().map(|due| due.done.count())),
                Claim::Ready(..) => unreachable!("nothing is loaded ahead"),
                Claim::End => break,
            }
        }
        assert_eq!(counts, [4]);
    };
    shuttle::check_random(one_thread, 1);
}

#[test]
fn behind_one_that_takes_long_no_more_is_kept_than_is_loaded_ahead() {
    // How many are asked for each time, beside those that come by themselves.
    for asked in [0, 1, 8] {
        explore(2, move || {
            let len = 3_000;
            let pace = Pace { ahead_max: 2, ..Pace::default() };
            let queue = Arc::new(Queue::new(Numbers { len, version: 0 }, pace));
            let slow = queue.next_ahead().unwrap();
            let (sender, receiver) = shuttle::sync::mpsc::channel();
            let waiting = start(&queue, move |queue| {
                matches!(queue.claim(false, || sender.send(()).unwrap()), Claim::Ready(_, 0, _))
            });
            receiver.recv().unwrap();
            let loader = start(&queue, load_ahead);
            for _ in 1..len {
                queue.fill(asked, Some);
                if let Claim::Load(ticket) = queue.claim(false, || ()) {
                    queue.done(ticket).unwrap();
                }
                // That one, and what is loaded ahead.
                assert!(queue.kept() as u64 <= 1 + asked.max(2), "{} with {asked}", queue.kept());
            }
            queue.put(slow, Some(slow.index));
            assert!(waiting.join().unwrap());
            assert_eq!(queue.snapshot().done.ranges(), [(0, len)]);
            queue.close();
            loader.join().unwrap();
        });
    }
}

#[test]
fn filling_ends_and_what_was_filled_is_there() {
    explore(3000, || {
        let queue =
            Arc::new(Queue::new(Numbers { len: 6, version: 0 }, Pace { ahead_max: 1, ..Pace::default() }));
        let loader = start(&queue, |queue| {
            while let Some(ahead) = queue.next_ahead() {
                queue.put(ahead, Some(ahead.index));
            }
        });
        let other = start(&queue, |queue| queue.fill(2, Some));
        queue.fill(4, Some);
        for expected in 0..4 {
            assert!(
                matches!(queue.claim(false, || panic!("it waits")), Claim::Ready(_, item, _) if item == expected)
            );
        }
        queue.fill(100, Some);
        assert_eq!(queue.counts().misses(), 0);
        assert_eq!(take_all(&queue, &AtomicU64::new(u64::MAX)), [4, 5]);
        assert_eq!(queue.counts().hits, 6);
        other.join().unwrap();
        queue.close();
        loader.join().unwrap();
    });
}

#[test]
fn when_something_is_taken_the_next_is_loaded_without_anybody_asking() {
    explore(1000, || {
        let queue =
            Arc::new(Queue::new(Numbers { len: 5, version: 0 }, Pace { ahead_max: 2, ..Pace::default() }));
        let loaded = Arc::new((Mutex::new(0), Condvar::new()));
        let loader = {
            let loaded = Arc::clone(&loaded);
            start(&queue, move |queue| {
                while let Some(ahead) = queue.next_ahead() {
                    queue.put(ahead, Some(ahead.index));
                    *loaded.0.lock().unwrap() += 1;
                    loaded.1.notify_all();
                }
            })
        };
        for taken in 0..5 {
            let mut count = loaded.0.lock().unwrap();
            while *count < (taken + 2).min(5) {
                count = loaded.1.wait(count).unwrap();
            }
            drop(count);
            assert!(matches!(queue.claim(false, || ()), Claim::Ready(_, item, _) if item == taken));
        }
        queue.close();
        loader.join().unwrap();
    });
}

#[test]
fn what_was_loaded_ahead_stays_as_far_as_the_other_stream_is_the_same() {
    explore(2000, || {
        let queue = Arc::new(Queue::new(Numbers { len: 5, version: 0 }, Pace::default()));
        queue.fill(4, Some);
        // Longer, and shorter than what is loaded.
        for len in [9, 3] {
            assert!(queue.exchange(Numbers { len, version: 0 }));
        }
        let other = start(&queue, |queue| queue.exchange(Numbers { len: 7, version: 0 }));
        for expected in 0..3 {
            assert!(
                matches!(queue.claim(false, || panic!("it waits")), Claim::Ready(_, item, _) if item == expected)
            );
        }
        assert!(other.join().unwrap());
        assert_eq!(queue.counts().hits, 3);
        assert_eq!(take_all(&queue, &AtomicU64::new(u64::MAX)), [3, 4, 5, 6]);
    });
}

#[test]
fn what_is_being_loaded_when_the_stream_is_exchanged_is_what_is_there_then() {
    explore(3000, || {
        let pace = Pace { ahead_max: 3, ..Pace::default() };
        let queue = Arc::new(Queue::new(Numbers { len: 6, version: 0 }, pace));
        let loaders = [start(&queue, load_ahead), start(&queue, load_ahead)];
        let exchanger = start(&queue, |queue| {
            assert!(queue.exchange(Numbers { len: 8, version: 0 }));
            queue.exchange(Numbers { len: 8, version: 1 })
        });
        let failed = Arc::new(AtomicU64::new(0));
        let caller = {
            let failed = Arc::clone(&failed);
            start(&queue, move |queue| take_all(queue, &failed))
        };
        let is_other = exchanger.join().unwrap();
        let mut taken = caller.join().unwrap();
        // The caller may have come to the end of the first one before it was longer.
        taken.extend(take_all(&queue, &failed));
        let version = u64::from(is_other) * 1000;
        taken.sort_unstable();
        assert_eq!(taken, (version..version + 8).collect::<Vec<_>>());
        queue.close();
        for loader in loaders {
            loader.join().unwrap();
        }
    });
}

#[test]
fn a_restart_and_an_exchange_leave_nobody_waiting_and_nothing_of_the_old() {
    explore(3000, || {
        let pace = Pace { ahead_max: 3, ..Pace::default() };
        let queue = Arc::new(Queue::new(Numbers { len: 5, version: 0 }, pace));
        let loaders = [start(&queue, load_ahead), start(&queue, load_ahead)];
        let caller = start(&queue, |queue| {
            let mut taken = Vec::new();
            for turn in 0..4 {
                match queue.claim(false, || ()) {
                    Claim::Ready(place, item, _) => {
                        assert_eq!(place.index, item);
                        taken.push(item);
                    }
                    // What is given back after the restart is nobody's.
                    Claim::Load(ticket) if turn % 2 == 0 => queue.failed(ticket),
                    Claim::Load(ticket) => {
                        // Nobody wants it if the stream is another by now.
                        taken.extend(queue.done(ticket).ok().map(|_| ticket.place.index));
                    }
                    Claim::End => {}
                }
            }
            taken
        });
        // Before anything was handed out it may be another stream; afterwards not.
        let is_exchanged = queue.exchange(Numbers { len: 4, version: 2 });
        queue.restore(Numbers { len: 6, version: 1 }, Done::of_ranges(&[(0, 1), (2, 3)]));
        let taken = caller.join().unwrap();
        let before_restart: Vec<u64> = taken.iter().copied().filter(|item| item / 1000 != 1).collect();
        assert!(
            before_restart.iter().all(|item| item / 1000 == if is_exchanged { 2 } else { 0 }),
            "{taken:?}"
        );
        let mut all: Vec<u64> = taken.into_iter().filter(|item| item / 1000 == 1).collect();
        all.extend(take_all(&queue, &AtomicU64::new(u64::MAX)));
        all.sort_unstable();
        assert_eq!(all, [1001, 1003, 1004, 1005]);
        assert_eq!(queue.snapshot().done.ranges(), [(0, 6)]);
        queue.close();
        for loader in loaders {
            loader.join().unwrap();
        }
    });
}
