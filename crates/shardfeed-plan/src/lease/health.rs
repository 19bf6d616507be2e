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

/// Throughputs that were reported lately.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// When, in milliseconds, and samples a second.
    reports: VecDeque<(u64, f64)>,
}

/// Reports older than this do not count.
pub const WINDOW_MS: u64 = 30_000;

/// More reports than anybody needs.
const REPORTS_MAX: usize = 1024;

impl Window {
    /// A throughput.
    pub fn report(&mut self, now_ms: u64, rate: f64) {
        self.reports.push_back((now_ms, rate));
        while self.reports.len() > REPORTS_MAX
            || self.reports.front().is_some_and(|(at, _)| now_ms.saturating_sub(*at) > WINDOW_MS)
        {
            self.reports.pop_front();
        }
    }

    /// Their mean.
    pub fn mean(&self) -> Option<f64> {
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
        let mut window = Window::default();
        assert_eq!(window.mean(), None);
        window.report(0, 10.0);
        window.report(WINDOW_MS, 20.0);
        assert_eq!(window.mean(), Some(15.0));
        window.report(WINDOW_MS + 1, 30.0);
        assert_eq!(window.mean(), Some(25.0));
    }
}
