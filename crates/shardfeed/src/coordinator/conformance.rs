//! What a store must do, said once and asked of each: the same as the one in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use shardfeed_plan::lease::{
    Answer, Compare, Entry, Key, Keys, Memory, Owner, Request, Run, RunId, Scope, Txn, Value, WorkerRecord,
};

use super::local::LocalStore;
use super::store::Store;

#[cfg(feature = "etcd")]
#[allow(dead_code)]
#[path = "../../tests/common/etcd.rs"]
mod etcd_servers;

const PATIENCE: Duration = Duration::from_secs(5);
const SCOPE: Scope = Scope { generation: 9, epoch: 2 };

/// What is asked, with numbers that stand for what there is then.
#[derive(Clone, Debug)]
enum Step {
    Grant,
    KeepAlive(usize),
    Revoke(usize),
    Read(Vec<usize>),
    Write { compares: Vec<(usize, bool, What)>, puts: Vec<(usize, u64, usize)>, deletes: Vec<usize> },
}

/// What a key is compared with.
#[derive(Clone, Copy, Debug)]
enum What {
    /// What it is.
    Now,
    /// That it is not there.
    Nothing,
    /// A change from before.
    Before(usize),
}

fn key(number: usize) -> Key {
    let run = |start| RunId { origin: 1, start };
    let keys = [
        Key::Alive(0),
        Key::Worker(0),
        Key::Worker(7),
        Key::Bell(SCOPE),
        Key::Owner(SCOPE, run(0)),
        Key::Owner(SCOPE, run(1 << 40)),
        Key::Run(SCOPE, run(0)),
        Key::Run(Scope { epoch: 3, ..SCOPE }, run(0)),
    ];
    keys[number % keys.len()]
}

fn value(key: Key, number: u64) -> Value {
    match key {
        Key::Alive(rank) => Value::Owner(Owner { session: number, rank }),
        Key::Worker(rank) => {
            Value::Worker(Box::new(WorkerRecord { rank, samples: number, ..WorkerRecord::default() }))
        }
        Key::Bell(_) => Value::Bell,
        Key::Run(..) => Value::Run(Run::new(number + 1)),
        _ => Value::Owner(Owner { session: number, rank: 0 }),
    }
}

fn keys(number: usize) -> Keys {
    let all = [Keys::Alive, Keys::Workers, Keys::Owners(SCOPE), Keys::Runs(SCOPE), Keys::One(key(number))];
    all[number % all.len()]
}

fn steps(len: usize) -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![Just(What::Now), Just(What::Nothing), (0_usize..20).prop_map(What::Before)];
    let compares = proptest::collection::vec((0_usize..8, any::<bool>(), what), 0..3);
    let puts = proptest::collection::vec((0_usize..8, 0_u64..1000, 0_usize..4), 0..4);
    let write = (compares, puts, proptest::collection::vec(0_usize..8, 0..2))
        .prop_map(|(compares, puts, deletes)| Step::Write { compares, puts, deletes });
    let step = prop_oneof![
        1 => Just(Step::Grant),
        1 => (0_usize..4).prop_map(Step::KeepAlive),
        1 => (0_usize..4).prop_map(Step::Revoke),
        3 => proptest::collection::vec(0_usize..40, 1..4).prop_map(Step::Read),
        8 => write,
    ];
    proptest::collection::vec(step, 1..len)
}

/// A store beside the one in memory: what each calls a change, or a lease, and what the other does.
struct Pair<'a> {
    store: &'a dyn Store,
    memory: Memory,
    changes: BTreeMap<u64, u64>,
    leases: Vec<(u64, u64)>,
}

impl Pair<'_> {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (here, there) = self.requests(step);
        let answer = self.store.ask(&there, PATIENCE).unwrap();
        match here {
            Request::Grant(ttl) => {
                let Answer::Granted(lease) = answer else { panic!("{answer:?}") };
                self.leases.push((self.memory.grant(0, ttl), lease));
            }
            Request::KeepAlive(lease) => {
                let is_alive = self.memory.keep_alive(0, lease).is_ok();
                prop_assert_eq!(matches!(answer, Answer::Alive), is_alive, "{:?}", answer);
                prop_assert_eq!(matches!(answer, Answer::LeaseGone), !is_alive, "{:?}", answer);
            }
            Request::Revoke(lease) => self.memory.revoke(0, lease),
            Request::Read(keys) => {
                let Answer::Read(found) = answer else { panic!("{answer:?}") };
                let expected: Vec<Entry> =
                    self.memory.read(0, &keys).1.iter().map(|entry| self.translated(entry)).collect();
                for entry in &expected {
                    prop_assert_eq!(self.store.modified(&entry.key, PATIENCE).unwrap(), entry.modified);
                }
                prop_assert_eq!(found, expected);
            }
            Request::Write(txn) => match (self.memory.apply(0, &txn), answer) {
                (Ok(Some(here)), Answer::Applied(there)) => {
                    // Before the first change of this job there were others'.
                    if here > 0 {
                        self.changes.entry(here).or_insert(there);
                    }
                }
                (Ok(None), Answer::Refused) | (Err(_), Answer::LeaseGone) => {}
                (expected, answer) => panic!("{txn:?}: {answer:?} where {expected:?} was expected"),
            },
        }
        Ok(())
    }

    /// The same request for the memory and for the store.
    fn requests(&mut self, step: &Step) -> (Request, Request) {
        let lease = |number: usize| self.leases.get(number).copied().unwrap_or((1 << 40, 1 << 40));
        match step {
            Step::Grant => (Request::Grant(60_000), Request::Grant(60_000)),
            Step::KeepAlive(number) => {
                (Request::KeepAlive(lease(*number).0), Request::KeepAlive(lease(*number).1))
            }
            Step::Revoke(number) => (Request::Revoke(lease(*number).0), Request::Revoke(lease(*number).1)),
            Step::Read(numbers) => {
                let keys: Vec<Keys> = numbers.iter().map(|&number| keys(number)).collect();
                (Request::Read(keys.clone()), Request::Read(keys))
            }
            Step::Write { compares, puts, deletes } => {
                let (mut here, mut there) = (Txn::default(), Txn::default());
                for &(number, is_created, what) in compares {
                    let key = key(number);
                    let now = self.memory.read(0, &[Keys::One(key)]).1.pop();
                    let change = match what {
                        What::Now => {
                            now.map_or(0, |entry| if is_created { entry.created } else { entry.modified })
                        }
                        What::Nothing => 0,
                        What::Before(number) => self.changes.keys().nth(number).copied().unwrap_or(0),
                    };
                    let compare = if is_created { Compare::Created } else { Compare::Modified };
                    here.compares.push(compare(key, change));
                    there.compares.push(compare(key, self.changes.get(&change).copied().unwrap_or(0)));
                }
                // A key once: nobody writes it twice in one transaction.
                let mut used = Vec::new();
                for &(number, content, lease_number) in puts {
                    let key = key(number);
                    if used.contains(&key) {
                        continue;
                    }
                    used.push(key);
                    let (lease_here, lease_there) =
                        if lease_number == 0 { (0, 0) } else { lease(lease_number - 1) };
                    here.puts.push((key, value(key, content), lease_here));
                    there.puts.push((key, value(key, content), lease_there));
                }
                for key in deletes.iter().map(|&number| key(number)) {
                    if !used.contains(&key) {
                        used.push(key);
                        here.deletes.push(key);
                        there.deletes.push(key);
                    }
                }
                (Request::Write(here), Request::Write(there))
            }
        }
    }

    fn translated(&self, entry: &Entry) -> Entry {
        let lease = self.leases.iter().find(|(here, _)| *here == entry.lease).map_or(0, |(_, there)| *there);
        Entry {
            created: self.changes[&entry.created],
            modified: self.changes[&entry.modified],
            lease,
            ..entry.clone()
        }
    }
}

/// Random requests get the answers that the memory gives.
fn answers_as_memory_does(cases: u32, len: usize, make: impl Fn() -> Box<dyn Store>) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner
        .run(&steps(len), |steps| {
            let store = make();
            let mut pair = Pair {
                store: &*store,
                memory: Memory::default(),
                changes: BTreeMap::new(),
                leases: Vec::new(),
            };
            steps.iter().try_for_each(|step| pair.step(step))
        })
        .unwrap();
}

fn write(store: &dyn Store, txn: Txn) -> Answer {
    store.ask(&Request::Write(txn), PATIENCE).unwrap()
}

fn put(key: Key, number: u64, lease: u64) -> Txn {
    Txn { puts: vec![(key, value(key, number), lease)], ..Txn::default() }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Leases end by themselves, and what hangs on them with them; changes are told.
fn leases_end_and_changes_are_told(store: &dyn Store) {
    const LEASE_MS: u64 = 2_000;
    let granted = |ttl| match store.ask(&Request::Grant(ttl), PATIENCE).unwrap() {
        Answer::Granted(lease) => lease,
        other => panic!("{other:?}"),
    };
    let (short, long) = (granted(LEASE_MS), granted(60_000));
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let watch = store.watch(
        Keys::Owners(SCOPE),
        Box::new(move || {
            count.fetch_add(1, Relaxed);
        }),
    );
    // A watch that has just begun may tell of what was before.
    wait_until("the watch is there", || {
        let before = told.load(Relaxed);
        write(store, put(Key::Bell(SCOPE), 0, 0));
        std::thread::sleep(Duration::from_millis(50));
        told.load(Relaxed) > before
    });
    let mut before = told.load(Relaxed);
    for (what, txn) in [
        ("an owner", put(key(4), 1, short)),
        ("the bell", put(Key::Bell(SCOPE), 0, 0)),
        ("an owner that is gone", Txn { deletes: vec![key(4)], ..Txn::default() }),
    ] {
        assert!(matches!(write(store, txn), Answer::Applied(_)));
        wait_until(what, || told.load(Relaxed) > before);
        before = told.load(Relaxed);
    }
    write(store, put(key(4), 1, short));
    write(store, put(key(5), 2, long));
    wait_until("an owner", || told.load(Relaxed) > before);
    // Kept alive it stays for longer than it was granted for.
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(LEASE_MS / 5));
        assert!(matches!(store.ask(&Request::KeepAlive(short), PATIENCE), Ok(Answer::Alive)));
    }
    let (granted, left) = store.time_to_live(short, PATIENCE).unwrap().unwrap();
    assert!(granted >= LEASE_MS && left <= granted, "{granted} {left}");
    before = told.load(Relaxed);
    let owners = || match store.ask(&Request::Read(vec![Keys::Owners(SCOPE)]), PATIENCE).unwrap() {
        Answer::Read(entries) => entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(owners(), [key(4), key(5)]);
    wait_until("the lease ends", || owners() == [key(5)]);
    wait_until("it is told", || told.load(Relaxed) > before);
    assert!(matches!(store.ask(&Request::KeepAlive(short), PATIENCE), Ok(Answer::LeaseGone)));
    assert!(matches!(write(store, put(key(4), 3, short)), Answer::LeaseGone));
    assert_eq!(store.time_to_live(short, PATIENCE), Ok(None));
    drop(watch);
}

#[test]
fn in_the_process() {
    answers_as_memory_does(512, 60, || Box::new(LocalStore::default()));
    leases_end_and_changes_are_told(&LocalStore::default());
}

#[cfg(feature = "etcd")]
mod on_etcd {
    use super::etcd_servers::Etcd;
    use super::*;
    use crate::coordinator::etcd::EtcdStore;
    use crate::coordinator::url::EtcdUrl;

    fn conforms(etcd: &Etcd, cases: u32) {
        let jobs = AtomicUsize::new(0);
        let make = || {
            let job = format!("job{}", jobs.fetch_add(1, Relaxed));
            Box::new(EtcdStore::new(EtcdUrl::parse(&etcd.url(&job)).unwrap()).unwrap()) as Box<dyn Store>
        };
        // Until a leader is chosen nobody answers.
        let store = make();
        let read = Request::Read(vec![Keys::One(Key::Meta)]);
        wait_until("a leader is chosen", || store.ask(&read, Duration::from_secs(1)).is_ok());
        let cases = if std::env::var_os("SHARDFEED_LONG").is_some() { cases * 10 } else { cases };
        answers_as_memory_does(cases, 40, make);
        leases_end_and_changes_are_told(&*store);
    }

    #[test]
    fn of_one_node() {
        conforms(&Etcd::start(1), 40);
    }

    #[test]
    fn of_three_nodes() {
        conforms(&Etcd::start(3), 20);
    }
}
