use serde::{Deserialize, Serialize};

use crate::{Assignment, Stretch};

/// Samples dealt among workers, and dealt again as their speeds turn out to differ.
///
/// A pure machine: reports go in, deals come out. Samples are named by whose they were at first: sample `i` of what the
/// base strategy gives worker `origin`. Whoever replays the same deals knows who has what, without having seen a report.
///
/// ```
/// use shardfeed_plan::Deals;
///
/// let mut deals = Deals::new(&[100, 100], 0.2);
/// deals.report(0, 10, 1.0)?; // 10 taken, one a second
/// deals.report(1, 30, 3.0)?;
/// let deal = deals.rebalance().expect("three times as fast").clone();
/// assert_eq!(deal.shares, [40, 120]); // 160 are left
/// assert_eq!(deals.assignment(1).len(), 150);
/// # Ok::<(), shardfeed_plan::DealError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Deals {
    threshold: f64,
    workers: Vec<Worker>,
    made: Vec<Deal>,
}

#[derive(Clone, Debug)]
struct Worker {
    assignment: Assignment,
    taken: u64,
    /// Samples per second, once it is known.
    throughput: Option<f64>,
}

/// What was left, dealt again. With the deals before it, it says who has what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deal {
    /// Samples that each worker had taken: they stay where they are.
    pub taken: Vec<u64>,
    /// Samples that each worker has to take from now on.
    pub shares: Vec<u64>,
}

/// A report, or a deal, that does not fit what went before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DealError {
    /// Nobody by that number.
    #[error("worker {worker} does not exist; there are {workers}, numbered from 0")]
    NoWorker {
        /// The number.
        worker: usize,
        /// Workers there are.
        workers: usize,
    },
    /// More than it has, or fewer than it had.
    #[error(
        "worker {worker} says that it took {taken} samples, where it took {before} before and has {len}; report all that it took so far"
    )]
    Taken {
        /// Who says so.
        worker: usize,
        /// What it says.
        taken: u64,
        /// What it said before.
        before: u64,
        /// What it has altogether.
        len: u64,
    },
    /// Not a speed.
    #[error(
        "worker {worker} says that its throughput is {throughput}; it must be a number, and not negative"
    )]
    Throughput {
        /// Who says so.
        worker: usize,
        /// What it says.
        throughput: f64,
    },
    /// A deal of more or fewer samples than are left.
    #[error("deal {number} gives out {dealt} samples where {left} were left; it belongs to another run")]
    Left {
        /// Which deal, from 0.
        number: usize,
        /// What it gives out.
        dealt: u64,
        /// What was left.
        left: u64,
    },
    /// A deal among another number of workers.
    #[error("deal {number} is among {dealt} workers where there are {workers}; it belongs to another run")]
    Workers {
        /// Which deal, from 0.
        number: usize,
        /// Among how many it is.
        dealt: usize,
        /// Workers there are.
        workers: usize,
    },
}

/// If the last worker would be done so much later than need be, or less, nothing is dealt again.
const LATENESS_MIN: f64 = 0.02;

impl Deals {
    /// Begins with what the base strategy gives each worker. Deals again when the coefficient of variation of the
    /// throughputs is above the threshold, or when somebody has nothing left to do.
    ///
    /// # Panics
    /// If there are more than 2^62 samples.
    pub fn new(lens: &[u64], threshold: f64) -> Self {
        let all = lens.iter().try_fold(0_u64, |sum, &len| sum.checked_add(len));
        assert!(all.is_some_and(|all| all <= 1 << 62), "more samples than anybody has");
        let worker = |(origin, &len): (u32, &u64)| Worker {
            assignment: Assignment::whole(origin, len),
            taken: 0,
            throughput: None,
        };
        Self { threshold, workers: (0..).zip(lens).map(worker).collect(), made: Vec::new() }
    }

    /// The same after deals that were made before.
    pub fn replay(lens: &[u64], threshold: f64, made: &[Deal]) -> Result<Self, DealError> {
        let mut deals = Self::new(lens, threshold);
        for deal in made {
            let (number, workers) = (deals.made.len(), lens.len());
            for dealt in [deal.taken.len(), deal.shares.len()] {
                if dealt != workers {
                    return Err(DealError::Workers { number, dealt, workers });
                }
            }
            for (worker, &taken) in deal.taken.iter().enumerate() {
                deals.take(worker, taken)?;
            }
            let left = deals.left().iter().sum();
            let dealt = deal.shares.iter().try_fold(0_u64, |sum, &share| sum.checked_add(share));
            if dealt != Some(left) {
                return Err(DealError::Left { number, dealt: dealt.unwrap_or(u64::MAX), left });
            }
            deals.deal(deal.shares.clone());
        }
        Ok(deals)
    }

    /// A worker has taken so many of its samples so far, and takes so many a second.
    pub fn report(&mut self, worker: usize, taken: u64, throughput: f64) -> Result<(), DealError> {
        if !(0.0..f64::INFINITY).contains(&throughput) {
            return Err(DealError::Throughput { worker, throughput });
        }
        self.take(worker, taken)?;
        self.workers[worker].throughput = Some(throughput);
        Ok(())
    }

    /// A worker has taken so many of its samples so far; how fast it is, nobody knows yet.
    pub fn report_taken(&mut self, worker: usize, taken: u64) -> Result<(), DealError> {
        self.take(worker, taken)
    }

    fn take(&mut self, worker: usize, taken: u64) -> Result<(), DealError> {
        let workers = self.workers.len();
        let who = self.workers.get_mut(worker).ok_or(DealError::NoWorker { worker, workers })?;
        let (before, len) = (who.taken, who.assignment.len());
        if !(before..=len).contains(&taken) {
            return Err(DealError::Taken { worker, taken, before, len });
        }
        who.taken = taken;
        Ok(())
    }

    /// Deals what is left in proportion to throughput, if that is worth it. All workers must have reported what they
    /// took, and take nothing more until they know of the deal.
    pub fn rebalance(&mut self) -> Option<&Deal> {
        self.deal_again(None)
    }

    /// The same for a worker that has nothing to do: it gets a sample if somebody has one left that is not begun. So nobody waits while
    /// there is work, as if samples were handed out one by one. Until somebody is known to move, all count alike.
    pub fn rebalance_for(&mut self, idle: usize) -> Option<&Deal> {
        self.deal_again(Some(idle))
    }

    fn deal_again(&mut self, idle: Option<usize>) -> Option<&Deal> {
        let mut speeds = self.speeds();
        let left = self.left();
        let idle = idle.filter(|&worker| left.get(worker) == Some(&0));
        if idle.is_some() && speeds.iter().sum::<f64>() <= 0.0 {
            speeds.fill(1.0);
        }
        let (all_left, all_speed) = (left.iter().sum::<u64>(), speeds.iter().sum::<f64>());
        if all_left == 0 || all_speed <= 0.0 || !all_speed.is_finite() {
            return None;
        }
        let has_nothing = |(&left, &speed): (&u64, &f64)| left == 0 && speed > 0.0;
        if idle.is_none() && !left.iter().zip(&speeds).any(has_nothing) {
            let ideal = all_left as f64 / all_speed;
            let times = left.iter().zip(&speeds).map(|(&left, &speed)| time(left, speed));
            let is_late = times.fold(0.0, f64::max) > ideal * (1.0 + LATENESS_MIN);
            if !is_late || variation(&speeds) <= self.threshold {
                return None;
            }
        }
        let mut shares = proportional(all_left, &speeds);
        if let Some(idle) = idle.filter(|&idle| shares[idle] == 0) {
            // Of the one who would be done last.
            let others = (0..shares.len()).filter(|&other| shares[other] > 0);
            let done = |other: usize| time(shares[other], speeds[other]);
            let last = others.max_by(|&a, &b| done(a).total_cmp(&done(b))).expect("something is left");
            shares[last] -= 1;
            shares[idle] = 1;
        }
        // Less than a whole sample cannot be moved.
        if shares == left {
            return None;
        }
        self.deal(shares);
        self.made.last()
    }

    /// Deals made so far, each of which can be replayed.
    pub fn made(&self) -> &[Deal] {
        &self.made
    }

    /// What a worker has.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn assignment(&self, worker: usize) -> &Assignment {
        &self.workers[worker].assignment
    }

    /// The speed of each; of those nobody heard of, that of the others.
    fn speeds(&self) -> Vec<f64> {
        let known: Vec<f64> = self.workers.iter().filter_map(|worker| worker.throughput).collect();
        let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        self.workers.iter().map(|worker| worker.throughput.unwrap_or(mean)).collect()
    }

    fn left(&self) -> Vec<u64> {
        self.workers.iter().map(|worker| worker.assignment.len() - worker.taken).collect()
    }

    /// Each keeps the first of what it has, as many as its share allows; what others have too many goes, from their
    /// ends, to those that have too few.
    fn deal(&mut self, shares: Vec<u64>) {
        let mut over = Vec::new();
        for (worker, &share) in self.workers.iter_mut().zip(&shares) {
            over.extend(worker.assignment.cut(worker.taken.saturating_add(share)));
        }
        // The one cut last is given first; each stays whole where it can.
        for (worker, &share) in self.workers.iter_mut().zip(&shares) {
            let mut missing = worker.taken + share - worker.assignment.len();
            while missing > 0 {
                let mut stretch: Stretch = over.pop().expect("as many as are missing");
                let rest = (stretch.end - stretch.start).saturating_sub(missing);
                if rest > 0 {
                    over.push(Stretch { end: stretch.start + rest, ..stretch });
                    stretch.start += rest;
                }
                missing -= stretch.end - stretch.start;
                worker.assignment.push(stretch);
            }
        }
        let taken = self.workers.iter().map(|worker| worker.taken).collect();
        self.made.push(Deal { taken, shares });
    }
}

/// How long so many samples take; for ever, if nothing moves.
fn time(left: u64, speed: f64) -> f64 {
    if left == 0 { 0.0 } else { left as f64 / speed }
}

/// Standard deviation over mean.
fn variation(speeds: &[f64]) -> f64 {
    let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
    let variance = speeds.iter().map(|speed| (speed - mean).powi(2)).sum::<f64>() / speeds.len() as f64;
    variance.sqrt() / mean
}

/// Whole shares of `all` that are within one of exact. What rounding leaves goes to those who are done with it first.
fn proportional(all: u64, speeds: &[f64]) -> Vec<u64> {
    // In units of the fastest, so that no sum is infinite.
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let speeds: Vec<f64> = speeds.iter().map(|speed| speed / fastest).collect();
    let sum: f64 = speeds.iter().sum();
    let mut left = all;
    let share = |speed: &f64| {
        // Floating point may round up; more than there is cannot be given.
        let share = ((all as f64 * (speed / sum)) as u64).min(left);
        left -= share;
        share
    };
    let mut shares: Vec<u64> = speeds.iter().map(share).collect();
    for _ in 0..left {
        let done = |worker: usize| time(shares[worker] + 1, speeds[worker]);
        let first =
            (0..speeds.len()).min_by(|&a, &b| done(a).total_cmp(&done(b))).expect("somebody is there");
        shares[first] += 1;
    }
    shares
}
