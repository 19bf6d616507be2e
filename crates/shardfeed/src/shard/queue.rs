//! Positions of a stream on their way to the callers: which is next, which are loaded ahead, which are done.
//!
//! Compiled twice: for the loader, and by `tests/prefetch_schedules.rs` against a scheduler that explores what threads
//! may do.

use std::collections::{BTreeSet, VecDeque};

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Hands out each position of a stream once, in order, to however many callers; loads some of them ahead.
pub(crate) struct Queue<S, T> {
    state: Mutex<State<S, T>>,
    /// Something was loaded, or the stream changed.
    loaded: Condvar,
    /// There may be something to load ahead.
    room: Condvar,
}

/// Where samples are, by their position.
pub(crate) trait Stream: Clone {
    /// Positions there are.
    fn len(&self) -> u64;
    /// What is at a position.
    fn place(&self, position: u64) -> Place;
    /// Whether both have the same up to a position.
    fn is_same_until(&self, other: &Self, position: u64) -> bool;
}

/// A sample's index, and whether it was somebody else's at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub index: u64,
    pub is_foreign: bool,
}

/// What a caller gets.
#[derive(Debug)]
pub(crate) enum Claim<S, T> {
    /// It was loaded ahead.
    Ready(Place, T, Option<Box<Snapshot<S>>>),
    /// To be loaded by the caller, who then says [`Queue::done`] or [`Queue::failed`].
    Load(Ticket),
    /// Nothing is left.
    End,
}

/// A stream, and what is done of it, at one moment. Seldom asked for, and large: in a box, so that claims are small.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot<S> {
    pub stream: S,
    pub done: Done,
    /// Changes whenever the queue is restarted.
    pub number: u64,
}

/// A position that a caller has, in the stream that it was of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub position: u64,
    pub place: Place,
    stream: u64,
}

/// How far a queue goes ahead, and how often somebody wants to know where it stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Positions that are loaded ahead.
    pub ahead_max: u64,
    /// Every so many that are handed out there is a snapshot.
    pub snapshot_every: Option<u64>,
}

/// A position to be loaded ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub index: u64,
    position: u64,
    load: u64,
}

struct State<S, T> {
    stream: S,
    /// Changes with the stream: who has a position of another one says nothing about this.
    number: u64,
    /// The first position that no caller has.
    next: u64,
    /// Positions before it that are to be handed out again, since they could not be loaded.
    again: BTreeSet<u64>,
    /// Positions from `ahead_from` on that are being loaded, or are.
    ahead: VecDeque<Entry<T>>,
    ahead_from: u64,
    pace: Pace,
    /// Up to here somebody asked for positions to be loaded.
    wanted_until: u64,
    loads: u64,
    done: Done,
    counts: Counts,
    is_closed: bool,
}

enum Entry<T> {
    /// By whom it is loaded.
    Loading(u64),
    Ready(T),
    /// Whoever asks for it has to load it, and will see why it could not be.
    Failed,
    /// A caller has it.
    Taken,
}

/// Positions that were handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// All before this one, and some beyond.
    pub prefix: u64,
    pub beyond: BTreeSet<u64>,
}

/// What happened since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Samples handed out.
    pub handed_out: u64,
    /// Of those, others' at first.
    pub foreign: u64,
    /// Of those, loaded before they were asked for; and not.
    pub hits: u64,
    pub misses: u64,
}

impl Done {
    #[inline]
    fn add(&mut self, position: u64) {
        if position != self.prefix {
            self.beyond.insert(position);
            return;
        }
        self.prefix += 1;
        while !self.beyond.is_empty() && self.beyond.remove(&self.prefix) {
            self.prefix += 1;
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.prefix + self.beyond.len() as u64
    }

    /// As ranges, ascending and apart.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        if self.prefix > 0 {
            ranges.push((0, self.prefix));
        }
        for &position in &self.beyond {
            match ranges.last_mut() {
                Some((_, end)) if *end == position => *end += 1,
                _ => ranges.push((position, position + 1)),
            }
        }
        ranges
    }

    /// Of ranges that are ascending and apart.
    pub fn of_ranges(ranges: &[(u64, u64)]) -> Self {
        let mut done = Self::default();
        for &(start, end) in ranges {
            if start == done.prefix && done.beyond.is_empty() {
                done.prefix = end;
            } else {
                done.beyond.extend(start..end);
            }
        }
        done
    }
}

impl<S: Stream, T> Queue<S, T> {
    /// A stream from its beginning on.
    pub fn new(stream: S, pace: Pace) -> Self {
        let state = State {
            stream,
            number: 0,
            next: 0,
            again: BTreeSet::new(),
            ahead: VecDeque::new(),
            ahead_from: 0,
            pace,
            wanted_until: 0,
            loads: 0,
            done: Done::default(),
            counts: Counts::default(),
            is_closed: false,
        };
        Self { state: Mutex::new(state), loaded: Condvar::new(), room: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<S, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next position, for the caller alone. Waits only while somebody else loads it; `waits` is called before.
    #[inline]
    pub fn claim(&self, mut waits: impl FnMut()) -> Claim<S, T> {
        let mut state = self.lock();
        'stream: loop {
            let Some((position, place)) = state.take_next() else { return Claim::End };
            let (number, mut is_hit) = (state.number, true);
            while let Some(Entry::Loading(_)) = state.entry(position) {
                is_hit = false;
                waits();
                state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
                if state.number != number {
                    continue 'stream;
                }
            }
            let claim = match state.take_entry(position) {
                Some(Entry::Ready(item)) => {
                    let snapshot = state.hand_out(position, place.is_foreign, is_hit);
                    Claim::Ready(place, item, snapshot)
                }
                _ => Claim::Load(Ticket { position, place, stream: number }),
            };
            let has_room = state.has_much_room();
            drop(state);
            if has_room {
                self.room.notify_one();
            }
            return claim;
        }
    }

    /// A caller has loaded what it claimed.
    #[inline]
    pub fn done(&self, ticket: Ticket) -> Option<Box<Snapshot<S>>> {
        let mut state = self.lock();
        if ticket.stream != state.number {
            return None;
        }
        state.hand_out(ticket.position, ticket.place.is_foreign, false)
    }

    /// It could not: whoever asks next gets it again.
    pub fn failed(&self, ticket: Ticket) {
        let mut state = self.lock();
        if ticket.stream == state.number {
            state.again.insert(ticket.position);
        }
    }

    /// For threads that load ahead: the next position, once there is room for it. `None` when the queue is closed.
    pub fn next_ahead(&self) -> Option<Ahead> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(ahead) = state.load_ahead() {
                if state.may_load() {
                    self.room.notify_one();
                }
                return Some(ahead);
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// It is loaded, or could not be. Nothing happens if nobody wants it any more.
    pub fn put(&self, ahead: Ahead, item: Option<T>) {
        let mut state = self.lock();
        if let Some(entry) = state.entry_mut(ahead.position)
            && matches!(entry, Entry::Loading(load) if *load == ahead.load)
        {
            *entry = item.map_or(Entry::Failed, Entry::Ready);
            drop(state);
            self.loaded.notify_all();
        }
    }

    /// Returns once `count` positions are loaded ahead, or all that are left. The caller helps to `load` them.
    pub fn fill(&self, count: u64, mut load: impl FnMut(u64) -> Option<T>) {
        let mut state = self.lock();
        let number = state.number;
        let until = state.next.saturating_add(count);
        state.wanted_until = state.wanted_until.max(until);
        self.room.notify_all();
        while !state.is_closed && state.number == number {
            if state.to_load() < until
                && let Some(ahead) = state.load_ahead()
            {
                drop(state);
                self.put(ahead, load(ahead.index));
                state = self.lock();
                continue;
            }
            let from = state.next.saturating_sub(state.ahead_from) as usize;
            let until = until.saturating_sub(state.ahead_from) as usize;
            let mut wanted = state.ahead.iter().take(until).skip(from);
            if !wanted.any(|entry| matches!(entry, Entry::Loading(_))) {
                break;
            }
            state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Goes on with another stream, of which some positions are done. Returns the number of snapshots from now on.
    pub fn restart(&self, stream: S, done: Done) -> u64 {
        let mut state = self.lock();
        state.next = done.beyond.last().map_or(done.prefix, |last| last + 1);
        state.again = (done.prefix..state.next).filter(|position| !done.beyond.contains(position)).collect();
        (state.stream, state.done) = (stream, done);
        state.number += 1;
        state.wanted_until = 0;
        state.ahead.clear();
        state.ahead_from = state.next;
        let number = state.number;
        drop(state);
        self.loaded.notify_all();
        self.room.notify_all();
        number
    }

    /// Exchanges the stream for one that is the same up to what callers have. False if it is not.
    pub fn exchange(&self, stream: S) -> bool {
        let mut state = self.lock();
        if stream.len() < state.next || !stream.is_same_until(&state.stream, state.next) {
            return false;
        }
        state.stream = stream;
        let kept = state.next.saturating_sub(state.ahead_from) as usize;
        state.ahead.truncate(kept);
        drop(state);
        self.loaded.notify_all();
        self.room.notify_all();
        true
    }

    /// Where it stands.
    pub fn snapshot(&self) -> Snapshot<S> {
        self.lock().snapshot()
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Threads that load ahead come back.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.room.notify_all();
        self.loaded.notify_all();
    }
}

impl<S: Stream, T> State<S, T> {
    #[inline]
    fn take_next(&mut self) -> Option<(u64, Place)> {
        let first_again = if self.again.is_empty() { None } else { self.again.pop_first() };
        let position = match first_again {
            Some(position) => position,
            None if self.next < self.stream.len() => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        Some((position, self.stream.place(position)))
    }

    #[inline]
    fn hand_out(&mut self, position: u64, is_foreign: bool, is_hit: bool) -> Option<Box<Snapshot<S>>> {
        self.done.add(position);
        self.counts.handed_out += 1;
        self.counts.foreign += u64::from(is_foreign);
        self.counts.hits += u64::from(is_hit);
        self.counts.misses += u64::from(!is_hit);
        let is_due = self.pace.snapshot_every.is_some_and(|every| self.done.count().is_multiple_of(every));
        is_due.then(|| Box::new(self.snapshot()))
    }

    fn snapshot(&self) -> Snapshot<S> {
        Snapshot { stream: self.stream.clone(), done: self.done.clone(), number: self.number }
    }

    #[inline]
    fn entry(&self, position: u64) -> Option<&Entry<T>> {
        self.ahead.get(position.checked_sub(self.ahead_from)? as usize)
    }

    fn entry_mut(&mut self, position: u64) -> Option<&mut Entry<T>> {
        self.ahead.get_mut(position.checked_sub(self.ahead_from)? as usize)
    }

    #[inline]
    fn take_entry(&mut self, position: u64) -> Option<Entry<T>> {
        let taken = std::mem::replace(self.entry_mut(position)?, Entry::Taken);
        while matches!(self.ahead.front(), Some(Entry::Taken)) {
            self.ahead.pop_front();
            self.ahead_from += 1;
        }
        Some(taken)
    }

    /// The first position that is neither loaded nor handed out.
    fn to_load(&self) -> u64 {
        (self.ahead_from + self.ahead.len() as u64).max(self.next)
    }

    fn may_load(&self) -> bool {
        let to_load = self.to_load();
        let until = self.next.saturating_add(self.pace.ahead_max).max(self.wanted_until);
        to_load < until.min(self.stream.len())
    }

    /// Whether it is worth waking somebody: not for each sample that is taken, which would cost more than most samples.
    fn has_much_room(&self) -> bool {
        self.may_load() && self.to_load() - self.next <= self.pace.ahead_max / 2
    }

    fn load_ahead(&mut self) -> Option<Ahead> {
        if !self.may_load() {
            return None;
        }
        let position = self.to_load();
        if self.ahead.is_empty() {
            self.ahead_from = position;
        }
        // Between what was loaded ahead and this, callers loaded for themselves.
        while self.ahead_from + (self.ahead.len() as u64) < position {
            self.ahead.push_back(Entry::Taken);
        }
        self.loads += 1;
        self.ahead.push_back(Entry::Loading(self.loads));
        Some(Ahead { index: self.stream.place(position).index, position, load: self.loads })
    }
}
