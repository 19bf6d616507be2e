//! What follows from an answer.

use super::super::key::RunId;
use super::super::rules;
use super::event::{Action, Answer};
use super::{Change, Doing, Held, Lease, Sent, Worker, Write};

impl Worker {
    pub(super) fn answered(&mut self, now: u64, answer: Answer, actions: &mut Vec<Action>) {
        let Some(Sent { at, doing }) = self.sent.take() else { return };
        if self.end.is_some() {
            if let (Doing::Grant, Answer::Granted(id)) = (&doing, &answer) {
                self.lease = Some(Lease { id: *id, holds_until: 0 });
            }
            return;
        }
        let times = self.settings.times;
        match answer {
            Answer::NotSent | Answer::Unknown => {
                // Twice as long each time, but soon enough to keep the lease alive.
                let pause = (20 << self.failures.min(10)).min(times.keep_alive / 2);
                self.failures += 1;
                self.retry_at = now + pause;
            }
            _ => (self.failures, self.retry_at) = (0, 0),
        }
        match (doing, answer) {
            (_, Answer::LeaseGone) => {
                (self.lease, self.joined) = (None, None);
                self.held.values_mut().for_each(|held| held.token = None);
                self.is_unsure = true;
            }
            (Doing::Grant, Answer::Granted(id)) => {
                self.lease = Some(Lease { id, holds_until: at + times.lease });
                self.keep_alive_at = now + times.keep_alive;
            }
            (Doing::KeepAlive, Answer::Alive) => {
                if let Some(lease) = &mut self.lease {
                    lease.holds_until = at + times.lease;
                }
                self.keep_alive_at = at + times.keep_alive;
            }
            (Doing::Look, Answer::Read(entries)) => self.looked(now, entries, actions),
            (Doing::Join, Answer::Applied(change)) => {
                self.joins(change);
                self.reported = change;
                self.report_at = now + self.settings.times.keep_alive;
                self.look_at = now;
            }
            (Doing::Join, Answer::Refused) => {
                // Somebody has the rank, or does not have it any more: not as fast as the store answers.
                (self.is_unsure, self.retry_at) = (true, now + times.keep_alive / 10);
            }
            (Doing::Report, Answer::Applied(change)) => {
                (self.reported, self.report_at) = (change, now + times.keep_alive);
            }
            (Doing::Claim { id, run, modified }, Answer::Applied(change)) => {
                let modified = if modified == 0 { change } else { modified };
                self.take(id, Held { token: Some(change), run, modified }, actions);
                self.look_at = now;
            }
            (Doing::Claim { .. }, Answer::Refused) => (self.is_unsure, self.look_at) = (true, now),
            (Doing::Commit, Answer::Applied(change)) => self.committed(now, change, actions),
            (Doing::Commit, Answer::Unknown) if !rules::doubts() => self.committed(now, 0, actions),
            (Doing::Cut, Answer::Applied(change)) => self.was_cut(now, change),
            (Doing::Deal, _) => self.look_at = now,
            (Doing::Release, Answer::Applied(_) | Answer::Refused) => {
                self.to_release.remove(0);
            }
            (Doing::Grant | Doing::KeepAlive | Doing::Revoke | Doing::Look | Doing::Release, _)
            | (_, Answer::NotSent) => {}
            // Refused, or nobody knows.
            (Doing::Join | Doing::Report | Doing::Commit | Doing::Cut | Doing::Claim { .. }, _) => {
                self.is_unsure = true;
            }
        }
    }

    pub(super) fn joins(&mut self, change: u64) {
        self.joined = Some(change);
        if self.tag == 0 {
            self.tag = change;
        }
    }

    pub(super) fn take(&mut self, id: RunId, held: Held, actions: &mut Vec<Action>) {
        let left = held.run.left(id.start);
        let was_held = self.held.insert(id, held).is_some();
        if !was_held {
            actions.push(Action::Deliver { run: id, left });
        }
    }

    pub(super) fn committed(&mut self, now: u64, change: u64, actions: &mut Vec<Action>) {
        if let Some(write) = self.commit.take() {
            if let Change::Commit { step, checkpoint: Some(_), .. } = write.change {
                self.step = step;
            }
            self.wrote(now, &write, change);
            actions.push(Action::Committed);
        }
    }

    pub(super) fn was_cut(&mut self, now: u64, change: u64) {
        if let Some(write) = self.cut.take() {
            self.last_cut = self.seen_deal.0;
            self.wrote(now, &write, change);
        }
    }

    fn wrote(&mut self, now: u64, write: &Write, change: u64) {
        let runs = self.changed(&write.change, write.seq).0;
        if runs.is_empty() {
            self.reported = change;
        }
        for (id, run) in runs {
            if run.is_done(id.start) {
                self.held.remove(&id);
            } else if let Some(held) = self.held.get_mut(&id) {
                (held.run, held.modified) = (run, change);
            }
        }
        if self.held.is_empty() {
            // Others may have something to give.
            (self.look_at, self.report_at) = (now, now);
        }
    }
}
