use std::collections::VecDeque;

/// How a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerStatus {
    /// It works.
    Active,
    /// It waits for work.
    Idle,
    /// Its throughput is under half of the others' median.
    Slow,
    /// It was there, and its lease ended.
    Failed,
    /// Nobody heard of it yet.
    Unknown,
}

/// What is known of a worker when its status is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vitals {
    /// Whether it ever said how it does.
    pub was_heard: bool,
    /// Whether its lease holds.
    pub is_there: bool,
    /// Whether it waits for work.
    pub is_waiting: bool,
    /// Samples a second over the window, once that is known.
    pub rate: Option<f64>,
}

/// The status of a worker among others. Nothing follows from how fast it is by itself.
pub fn status(worker: &Vitals, others: &[Vitals]) -> WorkerStatus {
    if !worker.was_heard {
        return WorkerStatus::Unknown;
    }
    if !worker.is_there {
        return WorkerStatus::Failed;
    }
    if worker.is_waiting {
        return WorkerStatus::Idle;
    }
    let works = |other: &&Vitals| other.was_heard && other.is_there && !other.is_waiting;
    let rates: Vec<f64> = others.iter().filter(works).filter_map(|other| other.rate).collect();
    match (worker.rate, median(rates)) {
        (Some(rate), Some(median)) if rate < median / 2.0 => WorkerStatus::Slow,
        _ => WorkerStatus::Active,
    }
}

fn median(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    let (low, high) = (rates.get(rates.len().checked_sub(1)? / 2)?, rates.get(rates.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Samples a second over the last while in which there was something to do.
#[derive(Clone, Debug, Default)]
pub struct RateMeter {
    /// When it was looked at, in milliseconds; how long it was busy until then, how many samples there were.
    points: VecDeque<Point>,
    /// Throughputs that somebody else measured, and when.
    reports: VecDeque<(u64, f64)>,
    last: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    at_ms: u64,
    busy_ms: u64,
    samples: u64,
}

/// What happened longer ago does not count.
pub const WINDOW_MS: u64 = 30_000;

/// More points are not needed to know a rate.
const POINTS_MAX: usize = 256;

/// A rate over less is chance.
const BUSY_MIN_MS: u64 = 100;

impl RateMeter {
    /// So many samples now; was it busy since the last time? Returns the rate as far as it is known.
    pub fn rate(&mut self, now_ms: u64, samples: u64, is_busy: bool) -> Option<f64> {
        self.forget_reports(now_ms);
        if let Some(mean) = self.mean_of_reports() {
            return Some(mean);
        }
        let last = self.points.back().copied().unwrap_or(Point { at_ms: now_ms, busy_ms: 0, samples });
        let passed = now_ms.saturating_sub(last.at_ms);
        let busy_ms = last.busy_ms + if is_busy || samples > last.samples { passed } else { 0 };
        let point = Point { at_ms: now_ms, busy_ms, samples };
        // Not a point for every moment.
        let spacing = WINDOW_MS / POINTS_MAX as u64;
        match self.points.len() {
            0 | 1 => self.points.push_back(point),
            len if self.points[len - 1].busy_ms - self.points[len - 2].busy_ms < spacing => {
                self.points[len - 1] = point;
            }
            _ => self.points.push_back(point),
        }
        while self.points.len() > POINTS_MAX
            || self.points.front().is_some_and(|first| busy_ms - first.busy_ms > WINDOW_MS)
        {
            self.points.pop_front();
        }
        if let Some(first) = self.points.front().filter(|first| busy_ms - first.busy_ms >= BUSY_MIN_MS) {
            let done = samples.saturating_sub(first.samples) as f64;
            self.last = Some(done * 1000.0 / (busy_ms - first.busy_ms) as f64);
        }
        self.last
    }

    /// Somebody else measured it: from now on that counts.
    pub fn report(&mut self, now_ms: u64, rate: f64) {
        self.reports.push_back((now_ms, rate));
        self.forget_reports(now_ms);
    }

    fn forget_reports(&mut self, now_ms: u64) {
        while self.reports.len() > POINTS_MAX
            || self.reports.front().is_some_and(|(at, _)| now_ms.saturating_sub(*at) > WINDOW_MS)
        {
            self.reports.pop_front();
        }
    }

    /// Of what somebody else measured lately.
    pub fn mean_of_reports(&self) -> Option<f64> {
        let sum: f64 = self.reports.iter().map(|(_, rate)| rate).sum();
        (!self.reports.is_empty()).then(|| sum / self.reports.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rate: f64) -> Vitals {
        Vitals { was_heard: true, is_there: true, is_waiting: false, rate: Some(rate) }
    }

    #[test]
    fn slow_is_under_half_of_the_others_median() {
        let others = [at(100.0), at(80.0), at(3.0)];
        assert_eq!(status(&at(40.0), &others), WorkerStatus::Active);
        assert_eq!(status(&at(39.9), &others), WorkerStatus::Slow);
        assert_eq!(status(&at(0.0), &others), WorkerStatus::Slow);
        // Two others: the middle between them.
        assert_eq!(status(&at(19.0), &[at(10.0), at(70.0)]), WorkerStatus::Slow);
        assert_eq!(status(&at(21.0), &[at(10.0), at(70.0)]), WorkerStatus::Active);
        // Alone, or among those that stand still, nobody is slow.
        assert_eq!(status(&at(0.001), &[]), WorkerStatus::Active);
        assert_eq!(status(&at(0.0), &[at(0.0), at(0.0)]), WorkerStatus::Active);
    }

    #[test]
    fn those_who_wait_or_failed_are_no_measure() {
        let waiting = Vitals { is_waiting: true, rate: Some(0.0), ..at(0.0) };
        let failed = Vitals { is_there: false, ..at(1e9) };
        let unheard = Vitals { was_heard: false, rate: None, ..at(0.0) };
        assert_eq!(status(&at(10.0), &[waiting, failed, unheard, at(12.0)]), WorkerStatus::Active);
        assert_eq!(status(&waiting, &[at(5.0)]), WorkerStatus::Idle);
        assert_eq!(status(&failed, &[at(5.0)]), WorkerStatus::Failed);
        assert_eq!(status(&unheard, &[at(5.0)]), WorkerStatus::Unknown);
        assert_eq!(status(&Vitals { rate: None, ..at(0.0) }, &[at(5.0)]), WorkerStatus::Active);
    }

    #[test]
    fn old_reports_do_not_count() {
        let mut meter = RateMeter::default();
        assert_eq!(meter.mean_of_reports(), None);
        meter.report(0, 10.0);
        meter.report(WINDOW_MS, 20.0);
        assert_eq!(meter.mean_of_reports(), Some(15.0));
        meter.report(WINDOW_MS + 1, 30.0);
        assert_eq!(meter.mean_of_reports(), Some(25.0));
        assert_eq!(meter.rate(WINDOW_MS + 1, 7, true), Some(25.0));
        // Nobody reports any more: it measures by itself again.
        assert_eq!(meter.rate(3 * WINDOW_MS, 7, true), None);
        assert_eq!(meter.rate(3 * WINDOW_MS + 1000, 17, true), Some(10.0));
    }

    #[test]
    fn time_without_work_does_not_count() {
        let mut meter = RateMeter::default();
        assert_eq!(meter.rate(0, 0, true), None);
        for second in 1..=10 {
            meter.rate(second * 1000, second * 5, true);
        }
        assert_eq!(meter.rate(10_000, 50, true), Some(5.0));
        // Nothing to do for an hour.
        assert_eq!(meter.rate(3_610_000, 50, false), Some(5.0));
        // Twice as fast: after the window nothing else counts.
        for second in 1..=40 {
            meter.rate(3_610_000 + second * 1000, 50 + second * 10, true);
        }
        assert_eq!(meter.rate(3_650_000, 450, true), Some(10.0));
        // It stands still, though it has something to do.
        assert!(meter.rate(3_665_000, 450, true).unwrap() < 5.1);
    }
}
