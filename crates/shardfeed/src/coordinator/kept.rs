use shardfeed_plan::CheckpointState;
use shardfeed_plan::lease::{Answer, Compare, Key, Request, Txn, Value};

/// How often somebody looks what is there, to keep one checkpoint.
const LOOKS_MAX: u32 = 2;

/// The checkpoint of a worker that is there by a change, as somebody hands it on again and again.
///
/// A write without an answer may happen at any later time. So each says which change it comes after: once another has come after that one,
/// it happens no more.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The change that wrote the last one, or 0 if there is none; `None` while nobody knows.
    last: Option<u64>,
}

impl Kept {
    /// Keeps another one. False if it has to be tried again. `modified` looks up the change that wrote the last one.
    pub fn keep(
        &mut self,
        rank: u32,
        joined: u64,
        state: &CheckpointState,
        modified: impl Fn() -> Option<u64>,
        mut ask: impl FnMut(&Request) -> Answer,
    ) -> bool {
        let mut looks = 0;
        loop {
            looks += u32::from(self.last.is_none());
            let Some(last) = self.last.or_else(&modified) else { return false };
            let answer = ask(&write(rank, joined, Some(last), state));
            self.last = match answer {
                Answer::Applied(change) => Some(change),
                Answer::NotSent => Some(last),
                _ => None,
            };
            match answer {
                Answer::Applied(_) => return true,
                // One that was held up has come after all, and the rank may still be ours: again, with what is there now.
                Answer::Refused if looks < LOOKS_MAX => {}
                _ => return false,
            }
        }
    }
}

/// Writes the checkpoint of a worker that is there by a change, after another change if one is named.
pub(crate) fn write(rank: u32, joined: u64, after: Option<u64>, state: &CheckpointState) -> Request {
    // Somebody else may have the rank, and be further.
    let mut compares = vec![Compare::Created(Key::Alive(rank), joined)];
    compares.extend(after.map(|after| Compare::Modified(Key::Checkpoint(rank), after)));
    Request::Write(Txn {
        compares,
        puts: vec![(Key::Checkpoint(rank), Value::Checkpoint(Box::new(state.clone())), 0)],
        deletes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use proptest::prelude::*;
    use shardfeed_plan::lease::Keys;
    use shardfeed_plan::{Facts, Partition, PartitionStrategy, Progress, Rank, StreamIdentity};

    use super::*;
    use crate::coordinator::local::LocalStore;
    use crate::coordinator::store::Store;

    /// What becomes of a write.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Answered,
        /// It happened, and nobody heard.
        Unheard,
        /// It happens some time later, if it still can.
        Late,
        NotSent,
    }

    fn checkpoint(epoch: u64) -> CheckpointState {
        let strategy = PartitionStrategy::Contiguous;
        let stream = StreamIdentity {
            rank: Rank::new(0, 1).unwrap(),
            shuffle_seed: None,
            strategy: &strategy,
            samples: 10,
            fingerprint: 0,
            facts: 0,
        };
        let partition = Partition::new(&strategy, 10, 1, None, Facts::None).unwrap();
        let progress = Progress { epoch, processed: Vec::new(), assignment: None, step: None, timestamp: 0 };
        CheckpointState::new(&stream, progress, &partition)
    }

    /// The epoch of the checkpoint that is there.
    fn there(store: &LocalStore) -> Option<u64> {
        let read = Request::Read(vec![Keys::One(Key::Checkpoint(0))]);
        let Answer::Read(entries) = ask(store, &read) else { panic!("it is in the process") };
        entries.into_iter().next().map(|entry| match entry.value {
            Value::Checkpoint(state) => state.epoch,
            other => panic!("{other:?}"),
        })
    }

    fn ask(store: &LocalStore, request: &Request) -> Answer {
        store.ask(request, Duration::ZERO).unwrap()
    }

    fn modified(store: &LocalStore) -> u64 {
        store.modified(&Key::Checkpoint(0), Duration::ZERO).unwrap()
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![Just(Fate::Answered), Just(Fate::Unheard), Just(Fate::Late), Just(Fate::NotSent)]
    }

    proptest! {
        /// Whatever happens to requests, once a checkpoint is known to be kept no older one comes back.
        #[test]
        fn no_older_one_comes_after_one_that_is_kept(
            // What becomes of a write, whether nobody answers who looks, and which write that was held up arrives before it.
            steps in proptest::collection::vec((fate(), any::<bool>(), any::<Option<proptest::sample::Index>>()), 1..40),
        ) {
            let store = LocalStore::default();
            let late = RefCell::new(Vec::<Request>::new());
            let (mut kept, mut known) = (Kept::default(), None);
            for (epoch, (fate, is_silent, arrival)) in (1..).zip(steps) {
                let arrive = || {
                    let mut late = late.borrow_mut();
                    if let Some(arrival) = arrival.filter(|_| !late.is_empty()) {
                        let number = arrival.index(late.len());
                        ask(&store, &late.swap_remove(number));
                    }
                };
                let look = || (!is_silent).then(|| modified(&store));
                let is_kept = kept.keep(0, 0, &checkpoint(epoch), look, |request| {
                    arrive();
                    match fate {
                        Fate::Answered => ask(&store, request),
                        Fate::Unheard => {
                            ask(&store, request);
                            Answer::Unknown
                        }
                        Fate::Late => {
                            late.borrow_mut().push(request.clone());
                            Answer::Unknown
                        }
                        Fate::NotSent => Answer::NotSent,
                    }
                });
                if is_kept {
                    prop_assert_eq!(there(&store), Some(epoch));
                    known = Some(epoch);
                }
                arrive();
                prop_assert!(there(&store) >= known, "{:?} after {:?} was kept", there(&store), known);
            }
            // When nothing is lost any more, the first try succeeds.
            prop_assert!(kept.keep(0, 0, &checkpoint(1000), || Some(modified(&store)), |request| ask(&store, request)));
            for request in late.take() {
                ask(&store, &request);
            }
            prop_assert_eq!(there(&store), Some(1000));
        }
    }

    #[test]
    fn who_has_lost_its_rank_keeps_nothing() {
        let store = LocalStore::default();
        let mut kept = Kept::default();
        assert!(!kept.keep(0, 7, &checkpoint(1), || Some(modified(&store)), |request| ask(&store, request)));
        assert_eq!(there(&store), None);
    }
}
