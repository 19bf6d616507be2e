//! Positions of a stream on their way to the callers: which is next, which are loaded ahead, which are done.
//!
//! Compiled twice: for the loader, and by `tests/prefetch_schedules.rs` against a scheduler that explores what threads
//! may do.

use std::collections::{BTreeMap, VecDeque};

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
    /// What is at the positions from `from` on, as many as `places` has room for: at most [`UPCOMING`].
    fn fill(&self, from: u64, places: &mut [Place]) {
        for (position, place) in (from..).zip(places) {
            *place = self.place(position);
        }
    }
    /// Whether both have the same up to a position.
    fn is_same_until(&self, other: &Self, position: u64) -> bool;
}

/// A sample's index, and whether it was somebody else's at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The next position, which stays the next unless it is done.
pub(crate) struct AtOnce<'a, S, T> {
    state: MutexGuard<'a, State<S, T>>,
    pub position: u64,
    pub place: Place,
}

impl<S: Stream, T> AtOnce<'_, S, T> {
    /// It is loaded.
    #[inline]
    pub fn done(mut self) -> Option<Box<Snapshot<S>>> {
        self.state.next += 1;
        self.state.hand_out(self.position, self.place.is_foreign, Came::ByCaller)
    }
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
    upcoming: Upcoming,
    /// Positions before it that nobody has: they could not be loaded, or others were faster before a restart. Some are
    /// loaded.
    again: BTreeMap<u64, Option<T>>,
    /// Callers that have a position, and load it or wait for it; and callers that wait for them, since nothing else is left.
    underway: usize,
    at_the_end: usize,
    /// The next positions that are being loaded, or are; and positions that callers have and wait for, while they are loaded.
    ahead: VecDeque<Entry<T>>,
    waited_for: BTreeMap<u64, Entry<T>>,
    pace: Pace,
    /// Up to here somebody asked for positions to be loaded.
    wanted_until: u64,
    loads: u64,
    done: Done,
    /// Handed out since the last snapshot that was due.
    since_snapshot: u64,
    counts: Counts,
    is_closed: bool,
}

/// What is at the next positions. Where they are shuffled, finding several at once takes a processor hardly longer than
/// finding one.
#[derive(Default)]
struct Upcoming {
    places: [Place; UPCOMING],
    from: u64,
    len: usize,
}

pub(crate) const UPCOMING: usize = 16;

impl Upcoming {
    /// `None` past the end of the stream.
    #[inline]
    fn place<S: Stream>(&mut self, position: u64, stream: &S) -> Option<Place> {
        let at = position.wrapping_sub(self.from) as usize;
        if at < self.len {
            return Some(self.places[at % UPCOMING]);
        }
        let left = stream.len().checked_sub(position).filter(|left| *left > 0)?;
        (self.from, self.len) = (position, left.min(UPCOMING as u64) as usize);
        stream.fill(position, &mut self.places[..self.len]);
        Some(self.places[0])
    }
}

/// The stream that a position was of is no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stale;

enum Entry<T> {
    /// By whom it is loaded.
    Loading(u64),
    Ready(T),
    /// Whoever asks for it has to load it, and will see why it could not be.
    Failed,
}

/// Positions that were handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// All before this one.
    pub prefix: u64,
    /// Beyond it, by where a range begins, where it ends. Several while callers are at work; few, however long one of them
    /// takes.
    beyond: BTreeMap<u64, u64>,
    count: u64,
}

/// What happened since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Samples handed out.
    pub handed_out: u64,
    /// Of those, others' at first; and of the others, from another machine.
    pub foreign: u64,
    pub remote: u64,
    /// Of those, loaded before they were asked for.
    pub hits: u64,
    /// Of those, loaded by whoever asked.
    pub by_callers: u64,
}

impl Counts {
    /// Handed out to somebody who had to wait for it, or to load it.
    pub fn misses(&self) -> u64 {
        self.handed_out - self.hits
    }
}

/// When a sample was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Before somebody asked for it.
    Before,
    WhileWaitedFor,
    /// By whoever asked for it.
    ByCaller,
}

impl Done {
    #[inline]
    fn add(&mut self, position: u64) {
        self.count += 1;
        if position == self.prefix {
            self.prefix += 1;
            if !self.beyond.is_empty()
                && let Some(end) = self.beyond.remove(&self.prefix)
            {
                self.prefix = end;
            }
            return;
        }
        let end = self.beyond.remove(&(position + 1)).unwrap_or(position + 1);
        match self.beyond.range_mut(..position).next_back() {
            Some((_, before)) if *before == position => *before = end,
            _ => drop(self.beyond.insert(position, end)),
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// As ranges, ascending and apart.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let first = (self.prefix > 0).then_some((0, self.prefix));
        first.into_iter().chain(self.beyond.iter().map(|(&start, &end)| (start, end))).collect()
    }

    /// Of ranges that are ascending and apart.
    pub fn of_ranges(ranges: &[(u64, u64)]) -> Self {
        let mut done = Self { count: ranges.iter().map(|(start, end)| end - start).sum(), ..Self::default() };
        for &(start, end) in ranges {
            if start == 0 {
                done.prefix = end;
            } else {
                done.beyond.insert(start, end);
            }
        }
        done
    }

    /// What lies between.
    fn gaps(&self) -> impl Iterator<Item = u64> + '_ {
        let ends = std::iter::once(self.prefix).chain(self.beyond.values().copied());
        ends.zip(self.beyond.keys()).flat_map(|(end, &start)| end..start)
    }

    /// One past the last.
    fn end(&self) -> u64 {
        self.beyond.last_key_value().map_or(self.prefix, |(_, &end)| end)
    }
}

impl<S: Stream, T> Queue<S, T> {
    /// A stream from its beginning on.
    pub fn new(stream: S, pace: Pace) -> Self {
        let state = State {
            stream,
            number: 0,
            next: 0,
            upcoming: Upcoming::default(),
            again: BTreeMap::new(),
            underway: 0,
            at_the_end: 0,
            ahead: VecDeque::new(),
            waited_for: BTreeMap::new(),
            pace,
            wanted_until: 0,
            loads: 0,
            done: Done::default(),
            since_snapshot: 0,
            counts: Counts::default(),
            is_closed: false,
        };
        Self { state: Mutex::new(state), loaded: Condvar::new(), room: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<S, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next position, for the caller alone. Waits only while somebody else loads it, or loads the last ones; `waits` is
    /// called before. With `is_eager`, whoever loads ahead is woken for each sample that is taken.
    #[inline]
    pub fn claim(&self, is_eager: bool, mut waits: impl FnMut()) -> Claim<S, T> {
        let mut state = self.lock();
        'stream: loop {
            let number = state.number;
            if !state.again.is_empty()
                && let Some(claim) = state.take_left_behind()
            {
                return claim;
            }
            let Some((position, place, mut entry)) = state.take_next() else {
                // What others are at may come back.
                if state.underway == 0 {
                    return Claim::End;
                }
                waits();
                state.at_the_end += 1;
                state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.at_the_end -= 1;
                continue 'stream;
            };
            // From here on it has the position: to others the stream is not over before it is done.
            state.underway += 1;
            let mut came = Came::Before;
            // Aside, however long it takes: others go on with what comes after it.
            while let Some(Entry::Loading(load)) = entry {
                came = Came::WhileWaitedFor;
                state.waited_for.insert(position, Entry::Loading(load));
                waits();
                state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
                if state.number != number {
                    continue 'stream;
                }
                entry = state.waited_for.remove(&position);
            }
            let claim = match entry {
                Some(Entry::Ready(item)) => {
                    state.underway -= 1;
                    let snapshot = state.hand_out(position, place.is_foreign, came);
                    self.tell_those_at_the_end(&state);
                    Claim::Ready(place, item, snapshot)
                }
                _ => Claim::Load(Ticket { position, place, stream: number }),
            };
            let has_room = state.is_worth_waking(is_eager);
            drop(state);
            if has_room {
                self.room.notify_one();
            }
            return claim;
        }
    }

    /// The next position, while everybody else waits: for samples that take no longer than that. `None` where [`claim`] has to be
    /// asked, since something is loaded ahead, was left behind, or nothing is left.
    ///
    /// [`claim`]: Self::claim
    #[inline]
    pub fn claim_at_once(&self) -> Option<AtOnce<'_, S, T>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.pace.ahead_max > 0 || !state.ahead.is_empty() || !state.again.is_empty() {
            return None;
        }
        let position = state.next;
        let place = state.upcoming.place(position, &state.stream)?;
        Some(AtOnce { state: guard, position, place })
    }

    /// A caller has loaded what it claimed. An error if that is of a stream that is no more: then nobody wants it.
    #[inline]
    pub fn done(&self, ticket: Ticket) -> Result<Option<Box<Snapshot<S>>>, Stale> {
        let mut state = self.lock();
        if ticket.stream != state.number {
            return Err(Stale);
        }
        state.underway -= 1;
        let snapshot = state.hand_out(ticket.position, ticket.place.is_foreign, Came::ByCaller);
        self.tell_those_at_the_end(&state);
        Ok(snapshot)
    }

    /// It could not: whoever asks next gets it again.
    pub fn failed(&self, ticket: Ticket) {
        self.give_back(ticket, None);
    }

    fn give_back(&self, ticket: Ticket, item: Option<T>) {
        let mut state = self.lock();
        if ticket.stream == state.number {
            state.underway -= 1;
            state.again.insert(ticket.position, item);
            self.tell_those_at_the_end(&state);
        }
    }

    fn tell_those_at_the_end(&self, state: &State<S, T>) {
        if state.at_the_end > 0 {
            self.loaded.notify_all();
        }
    }

    /// A sample that was handed out came from another machine.
    pub fn note_remote(&self) {
        self.lock().counts.remote += 1;
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

    /// Returns once the next `count` positions are loaded, or all that are left. The caller helps to `load` them.
    pub fn fill(&self, count: u64, mut load: impl FnMut(u64) -> Option<T>) {
        let mut state = self.lock();
        let number = state.number;
        let mut left_behind: Vec<u64> = state.again.keys().copied().take(count as usize).collect();
        let until = state.next.saturating_add(count - left_behind.len() as u64);
        state.wanted_until = state.wanted_until.max(until);
        self.room.notify_all();
        while !state.is_closed && state.number == number {
            if let Some(position) = left_behind.pop() {
                if let Some(None) = state.again.get(&position) {
                    state.again.remove(&position);
                    state.underway += 1;
                    let place = state.stream.place(position);
                    drop(state);
                    self.give_back(Ticket { position, place, stream: number }, load(place.index));
                    state = self.lock();
                }
                continue;
            }
            if state.to_load() < until
                && let Some(ahead) = state.load_ahead()
            {
                drop(state);
                self.put(ahead, load(ahead.index));
                state = self.lock();
                continue;
            }
            let mut wanted = state.ahead.iter().take(until.saturating_sub(state.next) as usize);
            if !wanted.any(|entry| matches!(entry, Entry::Loading(_))) {
                break;
            }
            state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Goes elsewhere, to the beginning of a stream. Returns the number of snapshots from now on.
    pub fn restart(&self, stream: S) -> u64 {
        self.restore(stream, Done::default())
    }

    /// Goes on with the stream that follows on what has been handed out.
    pub fn follow(&self, stream: S) -> u64 {
        self.restart_locked(self.lock(), stream, Done::default())
    }

    /// Goes on where somebody was in another stream, as if everything had been handed out here that is done.
    pub fn restore(&self, stream: S, done: Done) -> u64 {
        let mut state = self.lock();
        state.since_snapshot = state.pace.snapshot_every.map_or(0, |every| done.count() % every);
        self.restart_locked(state, stream, done)
    }

    /// Either, unless that was done since a snapshot of this number.
    pub fn restart_since(&self, number: u64, stream: S, follows: bool) -> Option<u64> {
        let mut state = self.lock();
        if state.number != number {
            return None;
        }
        if !follows {
            state.since_snapshot = 0;
        }
        Some(self.restart_locked(state, stream, Done::default()))
    }

    fn restart_locked(&self, mut state: MutexGuard<'_, State<S, T>>, stream: S, done: Done) -> u64 {
        state.next = done.end();
        state.again = done.gaps().map(|position| (position, None)).collect();
        (state.stream, state.done) = (stream, done);
        state.upcoming = Upcoming::default();
        state.number += 1;
        (state.wanted_until, state.underway) = (0, 0);
        state.ahead.clear();
        state.waited_for.clear();
        let number = state.number;
        drop(state);
        self.loaded.notify_all();
        self.room.notify_all();
        number
    }

    /// Exchanges the stream for one that is the same up to what callers have. False if it is not.
    pub fn exchange(&self, stream: S) -> bool {
        self.exchange_locked(self.lock(), stream)
    }

    /// The same, where the other stream follows from this one and the first position that no caller has. False if there is none,
    /// or the queue was restarted since it had this number.
    pub fn exchange_with<E>(
        &self,
        number: u64,
        other: impl FnOnce(&S, u64) -> Result<Option<S>, E>,
    ) -> Result<bool, E> {
        let state = self.lock();
        if state.number != number {
            return Ok(false);
        }
        let stream = other(&state.stream, state.next)?;
        Ok(stream.is_some_and(|stream| self.exchange_locked(state, stream)))
    }

    fn exchange_locked(&self, mut state: MutexGuard<'_, State<S, T>>, stream: S) -> bool {
        if stream.len() < state.next || !stream.is_same_until(&state.stream, state.next) {
            return false;
        }
        // What was loaded ahead stays, as far as the same comes next.
        let same = (state.next..stream.len()).zip(&state.ahead);
        let same = same.take_while(|&(position, _)| stream.place(position) == state.stream.place(position));
        let same = same.count();
        state.ahead.truncate(same);
        state.stream = stream;
        state.upcoming = Upcoming::default();
        drop(state);
        self.loaded.notify_all();
        self.room.notify_all();
        true
    }

    /// How many were handed out altogether, the first position that was not, and something about the stream.
    pub fn standing<R>(&self, of: impl FnOnce(&S) -> R) -> (u64, u64, R) {
        let state = self.lock();
        (state.counts.handed_out, state.done.prefix, of(&state.stream))
    }

    /// Where it stands.
    pub fn snapshot(&self) -> Snapshot<S> {
        self.lock().snapshot()
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Positions of which it is kept what became of them ahead.
    #[cfg(test)]
    #[allow(dead_code)] // For `tests/prefetch_schedules.rs`.
    pub fn kept(&self) -> usize {
        let state = self.lock();
        state.ahead.len() + state.waited_for.len()
    }

    /// Threads that load ahead come back.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.room.notify_all();
        self.loaded.notify_all();
    }
}

impl<S: Stream, T> State<S, T> {
    /// With what became of it ahead.
    #[inline]
    fn take_next(&mut self) -> Option<(u64, Place, Option<Entry<T>>)> {
        if !self.again.is_empty()
            && let Some((position, _)) = self.again.pop_first()
        {
            return Some((position, self.stream.place(position), None));
        }
        let position = self.next;
        let place = self.upcoming.place(position, &self.stream)?;
        self.next += 1;
        Some((position, place, self.ahead.pop_front()))
    }

    /// The first position that is left behind, if it is loaded.
    #[cold]
    fn take_left_behind(&mut self) -> Option<Claim<S, T>> {
        let mut first = self.again.first_entry()?;
        let item = first.get_mut().take()?;
        let position = first.remove_entry().0;
        let place = self.stream.place(position);
        let snapshot = self.hand_out(position, place.is_foreign, Came::Before);
        Some(Claim::Ready(place, item, snapshot))
    }

    #[inline]
    fn hand_out(&mut self, position: u64, is_foreign: bool, came: Came) -> Option<Box<Snapshot<S>>> {
        self.done.add(position);
        self.counts.handed_out += 1;
        self.counts.foreign += u64::from(is_foreign);
        self.counts.hits += u64::from(came == Came::Before);
        self.counts.by_callers += u64::from(came == Came::ByCaller);
        let every = self.pace.snapshot_every?;
        self.since_snapshot += 1;
        if self.since_snapshot < every {
            return None;
        }
        self.since_snapshot = 0;
        Some(Box::new(self.snapshot()))
    }

    fn snapshot(&self) -> Snapshot<S> {
        Snapshot { stream: self.stream.clone(), done: self.done.clone(), number: self.number }
    }

    fn entry_mut(&mut self, position: u64) -> Option<&mut Entry<T>> {
        match position.checked_sub(self.next) {
            Some(at) => self.ahead.get_mut(at as usize),
            None => self.waited_for.get_mut(&position),
        }
    }

    /// The first position that is neither loaded nor handed out.
    fn to_load(&self) -> u64 {
        self.next + self.ahead.len() as u64
    }

    fn may_load(&self) -> bool {
        let until = self.next.saturating_add(self.pace.ahead_max).max(self.wanted_until);
        self.to_load() < until.min(self.stream.len())
    }

    /// Whether somebody should be woken to load ahead: for each sample that is taken, or, since that would cost more than a
    /// small sample does, for several at once.
    fn is_worth_waking(&self, is_eager: bool) -> bool {
        self.may_load() && (is_eager || self.ahead.len() as u64 <= self.pace.ahead_max / 2)
    }

    fn load_ahead(&mut self) -> Option<Ahead> {
        if !self.may_load() {
            return None;
        }
        let position = self.to_load();
        self.loads += 1;
        self.ahead.push_back(Entry::Loading(self.loads));
        Some(Ahead { index: self.stream.place(position).index, position, load: self.loads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_ranges_whatever_the_order() {
        for seed in 0..200 {
            let mut order: Vec<u64> = (0..12).collect();
            order.sort_by_key(|position| (position * 7919 + seed * 104_729) % 31);
            let (mut done, mut naive) = (Done::default(), std::collections::BTreeSet::new());
            for position in order {
                done.add(position);
                naive.insert(position);
                let listed: Vec<u64> =
                    done.ranges().into_iter().flat_map(|(start, end)| start..end).collect();
                assert_eq!(listed, naive.iter().copied().collect::<Vec<_>>());
                assert!(done.ranges().windows(2).all(|pair| pair[0].1 < pair[1].0), "{done:?}");
                assert_eq!((done.count(), done.end()), (naive.len() as u64, naive.last().unwrap() + 1));
                let gaps: Vec<u64> = (0..done.end()).filter(|position| !naive.contains(position)).collect();
                assert_eq!(done.gaps().collect::<Vec<_>>(), gaps);
                assert_eq!(Done::of_ranges(&done.ranges()), done);
            }
            assert_eq!(done.ranges(), [(0, 12)]);
        }
    }
}
