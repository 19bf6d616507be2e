//! What follows from a look at everything that is kept.

use super::super::key::RunId;
use super::super::kv::Entry;
use super::super::record::{Cut, Part};
use super::super::rules;
use super::super::table::{Claimer, Table};
use super::event::{Action, Done, End};
use super::{Change, Held, Wants, Worker, Write};

impl Worker {
    pub(super) fn looked(&mut self, now: u64, entries: Vec<Entry>, actions: &mut Vec<Action>) {
        let table = Table::new(entries, &self.lens);
        self.is_unsure = false;
        (self.look_at, self.looked_at) = (now + self.settings.times.look, now);
        match self.generation {
            Some(known) if known != table.generation => return self.out(End::Restored, actions),
            Some(_) => {}
            None => {
                self.generation = Some(table.generation);
                if let Some(scope) = &mut self.scope {
                    // What was read is another generation's.
                    if scope.generation != table.generation.0.id {
                        scope.generation = table.generation.0.id;
                        self.look_at = now;
                        return;
                    }
                }
            }
        }
        // What came before where the job begins is done.
        if self.scope.is_some_and(|scope| scope.epoch < table.generation.0.epoch) {
            return self.out(End::Restored, actions);
        }
        self.looked_for_writes(now, &table, actions);
        if !self.looked_for_itself(now, &table, actions) || self.scope.is_none() {
            return;
        }
        if let Some(lost) = self.looked_for_runs(&table) {
            return self.out(End::Fenced(lost), actions);
        }
        if rules::adopts() {
            for (&id, &(owner, created)) in &table.owners {
                let Some((run, modified)) = table.runs.get(&id) else { continue };
                if owner.session == self.settings.session && !self.held.contains_key(&id) {
                    self.take(
                        id,
                        Held { token: Some(created), run: run.clone(), modified: *modified },
                        actions,
                    );
                }
            }
        }
        if self.joined.is_none() {
            // Nobody expects anything of it yet.
            return;
        }
        if self.held.is_empty() && table.is_done() {
            self.is_over = true;
            self.report_at = now;
            actions.push(Action::Over);
            return;
        }
        self.decide(now, &table, actions);
    }

    /// Whether the worker is there, or may come.
    fn looked_for_itself(&mut self, now: u64, table: &Table, actions: &mut Vec<Action>) -> bool {
        match table.workers.get(&self.settings.rank) {
            Some(there) if there.record.session == self.settings.session => {
                self.joins(there.created);
                self.reported = there.modified;
                self.rival = None;
                true
            }
            Some(there) => {
                self.joined = None;
                let (since, change) = *self.rival.get_or_insert((now, there.modified));
                let has_moved = change != there.modified;
                // Who was killed is gone when its lease ends.
                if has_moved || now > since + 2 * self.settings.times.lease {
                    self.out(End::RankTaken, actions);
                }
                self.look_at = now + self.settings.times.keep_alive;
                false
            }
            None => {
                (self.joined, self.rival) = (None, None);
                true
            }
        }
    }

    /// Finds writes whose answers did not come.
    fn looked_for_writes(&mut self, now: u64, table: &Table, actions: &mut Vec<Action>) {
        if !rules::recognizes_its_writes() {
            return;
        }
        if let Some(change) = self.commit.as_ref().and_then(|commit| self.find_commit(commit, table)) {
            self.committed(now, change, actions);
        }
        if let Some(Write { seq, .. }) = &self.cut {
            // All runs of a write are written by the same change.
            let mine = (self.settings.session, *seq);
            let landed = table.runs.values().find(|(run, _)| (run.by, run.seq) == mine);
            if let Some(change) = landed.map(|(_, change)| *change) {
                self.was_cut(now, change);
            }
        }
    }

    /// The change that a commit was, if it happened: by what the worker is said to have done, since somebody else may have gone
    /// on from there. Then it is change 0, which no run has: the worker has the run no more.
    fn find_commit(&self, commit: &Write, table: &Table) -> Option<u64> {
        let Change::Commit { done, .. } = &commit.change else { return None };
        // What was committed before says nothing about this commit.
        let last_new = |done: &Done| {
            let new = self.held_of(done).map(|(_, held, start, end)| held.run.done.gaps(start, end));
            new.filter(|new| !new.is_empty()).last().map(|new| (done.origin, new.end() - 1))
        };
        let (origin, last) = done.iter().rev().find_map(last_new)?;
        let mut runs = table.runs.iter().filter(|(id, _)| id.origin == origin);
        let is_it = |part: &Part| part.joined == self.tag && (part.start..part.end).contains(&last);
        let (run, change) = runs.find(|(_, (run, _))| run.parts.iter().any(is_it)).map(|(_, there)| there)?;
        let is_mine = (run.by, run.seq) == (self.settings.session, commit.seq);
        Some(if is_mine { *change } else { 0 })
    }

    /// Compares the runs that the worker has with what is there. Returns one that is lost.
    fn looked_for_runs(&mut self, table: &Table) -> Option<RunId> {
        for (&id, held) in &mut self.held {
            let (_, modified) = table.runs.get(&id)?;
            let owner = table.owners.get(&id);
            let is_same = *modified == held.modified || !rules::compares_positions();
            let is_mine = owner.is_none_or(|(owner, _)| owner.session == self.settings.session);
            if !is_same || !is_mine {
                return Some(id);
            }
            held.token = owner.map(|&(_, created)| created);
        }
        None
    }

    /// What to do besides what the worker has to do.
    fn decide(&mut self, now: u64, table: &Table, actions: &mut Vec<Action>) {
        let Some(scope) = self.scope else { return };
        let was_waiting = table.workers.get(&self.settings.rank).is_some_and(|there| there.record.is_waiting);
        if was_waiting != self.is_idle() {
            self.report_at = now;
        }
        let me = Claimer {
            rank: self.settings.rank,
            epoch: scope.epoch,
            replicas: self.settings.replicas,
            is_idle: self.held.is_empty(),
            takes_tails: self.settings.threshold.is_some(),
        };
        let claimable = table.claimable(&me);
        self.wants = Wants::default();
        self.wants.claim = claimable.map(|id| (id, table.runs[&id].0.clone(), table.runs[&id].1));
        if self.settings.replicas > 0 {
            let first = |id: RunId| Some((id, table.runs.get(&id)?.0.left(id.start).as_slice().first()?.0));
            let warm: Vec<(RunId, u64)> = table.standing_by(&me).into_iter().filter_map(first).collect();
            if !warm.is_empty() {
                actions.push(Action::Warm(warm));
            }
        }
        let is_busy = self.cut.is_some() || self.asked_to_shrink.is_some();
        if !is_busy && let Some(cut) = self.wanted_cut(table, scope.epoch) {
            self.asked_to_shrink = Some(cut.run);
            let end = self.held[&cut.run].run.end;
            actions.push(Action::Shrink { cut, end });
        }
        if self.seen_deal.0 != table.deal.0.number {
            self.seen_deal = (table.deal.0.number, now);
        }
        let is_settled = table.is_dealt() || now > self.seen_deal.1 + self.settings.times.lease;
        if let Some(threshold) = self.settings.threshold.filter(|_| is_settled && claimable.is_none()) {
            let deal = table.deal(threshold, self.settings.unit, scope.epoch);
            self.wants.deal = deal.map(|deal| (deal, table.deal.1));
        }
    }

    /// Where the worker should give up a part of what it has: as it was dealt, or to somebody who came back for what is theirs.
    fn wanted_cut(&self, table: &Table, epoch: u64) -> Option<Cut> {
        let (deal, _) = &table.deal;
        if deal.number > self.last_cut {
            let mine = deal.cuts.iter().find(|cut| {
                self.held
                    .get(&cut.run)
                    .is_some_and(|held| cut.at.first().is_some_and(|&at| at < held.run.end))
            });
            if let Some(cut) = mine {
                // It may have been cut since it was dealt.
                let end = self.held[&cut.run].run.end;
                return Some(Cut {
                    run: cut.run,
                    at: cut.at.iter().copied().filter(|&at| at < end).collect(),
                });
            }
        }
        let is_back = |id: &RunId| {
            let home = table.workers.get(&id.origin).map(|home| &home.record);
            home.is_some_and(|home| home.is_waiting && home.epoch == epoch)
        };
        let theirs = self.held.iter().filter(|(id, _)| id.origin != self.settings.rank);
        // With dealing, whoever comes back gets something anyway.
        let wanted = theirs.filter(|(id, _)| self.settings.threshold.is_none() && is_back(id));
        let first = wanted.filter_map(|(id, held)| Some((id, held.run.left(id.start).as_slice().first()?.0)));
        first
            .map(|(&run, at)| Cut { run, at: vec![at + 1] })
            .find(|cut| cut.at[0] < self.held[&cut.run].run.end)
    }
}
