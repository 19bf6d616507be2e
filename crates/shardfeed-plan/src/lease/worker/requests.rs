//! What a worker asks next: the most urgent first.

use super::super::key::{Key, Keys, RunId, Scope};
use super::super::kv::{Compare, Txn};
use super::super::record::{Owner, Run, Value, WorkerRecord};
use super::super::rules;
use super::super::table::Table;
use super::event::{End, Report, Request};
use super::{Change, Doing, Worker, Write};

impl Worker {
    pub(super) fn next_request(&mut self, now: u64) -> Option<(Doing, Request)> {
        if self.end.is_some() {
            if self.end == Some(End::Left) && self.joined.is_some() {
                let leave = self.leave();
                self.joined = None;
                return Some(leave);
            }
            let lease = self.lease.take()?;
            return Some((Doing::Revoke, Request::Revoke(lease.id)));
        }
        if now < self.retry_at {
            return None;
        }
        let Some(lease) = self.lease else {
            return Some((Doing::Grant, Request::Grant(self.settings.times.lease)));
        };
        if now >= self.keep_alive_at {
            return Some((Doing::KeepAlive, Request::KeepAlive(lease.id)));
        }
        if self.is_unsure || self.generation.is_none() || self.rival.is_some_and(|_| now >= self.look_at) {
            return Some(self.look());
        }
        if self.joined.is_none() {
            return self.rival.is_none().then(|| self.join(lease.id));
        }
        if !self.to_release.is_empty() {
            return Some(self.release());
        }
        let scope = self.scope;
        if let (Some(scope), Some((&id, held))) =
            (scope, self.held.iter().find(|(_, held)| held.token.is_none()))
        {
            let (run, modified) = (held.run.clone(), held.modified);
            return Some(self.claim(scope, lease.id, id, run, modified));
        }
        if let (Some(scope), Some(commit)) = (scope, &self.commit) {
            return Some((Doing::Commit, Request::Write(self.write(scope, lease.id, commit))));
        }
        if let (Some(scope), Some(cut)) = (scope, &self.cut) {
            return Some((Doing::Cut, Request::Write(self.write(scope, lease.id, cut))));
        }
        if now >= self.report_at {
            return Some(self.report());
        }
        let scope = scope.filter(|_| !self.is_over)?;
        if let Some((id, run, modified)) = self.wants.claim.take() {
            return Some(self.claim(scope, lease.id, id, run, modified));
        }
        if let Some((deal, modified)) = self.wants.deal.take() {
            let mut txn = self.txn();
            txn.compares.push(Compare::Modified(Key::Deal(scope), modified));
            txn.puts.push((Key::Dealt(scope, deal.number), Value::Deal(Box::new(deal.clone())), 0));
            txn.puts.push((Key::Deal(scope), Value::Deal(Box::new(deal)), 0));
            return Some((Doing::Deal, Request::Write(txn)));
        }
        (now >= self.look_at).then(|| self.look())
    }

    fn look(&self) -> (Doing, Request) {
        let keys = match self.scope {
            Some(scope) => Table::keys(scope).to_vec(),
            None => vec![Keys::One(Key::Generation), Keys::Alive, Keys::Workers],
        };
        (Doing::Look, Request::Read(keys))
    }

    /// A write of this generation.
    pub(super) fn txn(&self) -> Txn {
        let mut txn = Txn::default();
        if rules::checks_the_generation() {
            let modified = self.generation.map_or(0, |(_, modified)| modified);
            txn.compares.push(Compare::Modified(Key::Generation, modified));
        }
        txn
    }

    pub(super) fn record(&self) -> Value {
        let Report { samples, rate, position, epoch, unix_ms } = self.report;
        Value::Worker(Box::new(WorkerRecord {
            session: self.settings.session,
            rank: self.settings.rank,
            name: self.settings.name.clone(),
            generation: self.generation.map_or(0, |(generation, _)| generation.id),
            epoch: self.scope.map_or(epoch, |scope| scope.epoch),
            is_waiting: self.is_idle(),
            has_left: self.end == Some(End::Left),
            samples,
            rate,
            position,
            heartbeat_ms: unix_ms,
        }))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.scope.is_some() && self.held.is_empty() && !self.is_over && self.end.is_none()
    }

    fn join(&self, lease: u64) -> (Doing, Request) {
        let alive = Key::Alive(self.settings.rank);
        let mut txn = self.txn();
        txn.compares.push(Compare::Created(alive, 0));
        let owner = Owner { session: self.settings.session, rank: self.settings.rank };
        txn.puts.push((alive, Value::Owner(owner), lease));
        txn.puts.push((Key::Worker(self.settings.rank), self.record(), 0));
        (Doing::Join, Request::Write(txn))
    }

    fn report(&self) -> (Doing, Request) {
        let mut txn = self.txn();
        txn.compares.push(Compare::Created(Key::Alive(self.settings.rank), self.joined.unwrap_or(0)));
        txn.puts.push((Key::Worker(self.settings.rank), self.record(), 0));
        (Doing::Report, Request::Write(txn))
    }

    /// It leaves: others need not wait for its lease to end.
    fn leave(&self) -> (Doing, Request) {
        let alive = Key::Alive(self.settings.rank);
        let compares = vec![Compare::Created(alive, self.joined.unwrap_or(0))];
        let puts = vec![(Key::Worker(self.settings.rank), self.record(), 0)];
        (Doing::Revoke, Request::Write(Txn { compares, puts, deletes: vec![alive] }))
    }

    fn release(&self) -> (Doing, Request) {
        let mut txn = Txn::default();
        let (scope, id, token) = self.to_release[0];
        txn.compares.push(Compare::Created(Key::Owner(scope, id), token));
        txn.deletes.push(Key::Owner(scope, id));
        (Doing::Release, Request::Write(txn))
    }

    /// Nobody may have the run, and it must be as it was seen.
    fn claim(&self, scope: Scope, lease: u64, id: RunId, run: Run, modified: u64) -> (Doing, Request) {
        let mut txn = self.txn();
        txn.compares.push(Compare::Created(Key::Owner(scope, id), 0));
        txn.compares.push(Compare::Modified(Key::Run(scope, id), modified));
        let owner = Owner { session: self.settings.session, rank: self.settings.rank };
        txn.puts.push((Key::Owner(scope, id), Value::Owner(owner), lease));
        if modified == 0 {
            txn.puts.push((Key::Run(scope, id), Value::Run(run.clone()), lease_of_positions(lease)));
        }
        (Doing::Claim { id, run, modified }, Request::Write(txn))
    }

    /// Each run must be the worker's still, by the same claim, and as the worker wrote it last. A step alone has no run that it could be
    /// compared with: it is written with a report, and follows on the last one, so that none comes after a later one.
    pub(super) fn write(&self, scope: Scope, lease: u64, write: &Write) -> Txn {
        let mut txn = self.txn();
        let (runs, tails) = self.changed(&write.change, write.seq);
        if runs.is_empty() {
            let rank = self.settings.rank;
            if rules::fences() {
                txn.compares.push(Compare::Created(Key::Alive(rank), self.joined.unwrap_or(0)));
            }
            if rules::compares_reports() {
                txn.compares.push(Compare::Modified(Key::Worker(rank), self.reported));
            }
            txn.puts.push((Key::Worker(rank), self.record(), 0));
        }
        for (id, run) in runs {
            let held = &self.held[&id];
            if rules::fences() {
                txn.compares.push(Compare::Created(Key::Owner(scope, id), held.token.unwrap_or(0)));
            }
            if rules::compares_positions() {
                txn.compares.push(Compare::Modified(Key::Run(scope, id), held.modified));
            }
            if run.is_done(id.start) {
                txn.deletes.push(Key::Owner(scope, id));
            }
            txn.puts.push((Key::Run(scope, id), Value::Run(run), lease_of_positions(lease)));
        }
        if !tails.is_empty() {
            txn.puts.push((Key::Bell(scope), Value::Bell, 0));
        }
        for (id, tail) in tails {
            txn.compares.push(Compare::Created(Key::Run(scope, id), 0));
            txn.puts.push((Key::Run(scope, id), Value::Run(tail), lease_of_positions(lease)));
        }
        if let Change::Commit { checkpoint: Some(state), .. } = &write.change {
            let key = Key::Checkpoint(self.settings.rank);
            txn.puts.push((key, Value::Checkpoint(state.clone()), 0));
        }
        txn
    }
}

fn lease_of_positions(lease: u64) -> u64 {
    if rules::keeps_positions() { 0 } else { lease }
}
