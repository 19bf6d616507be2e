use crate::network::{Dice, Weather};

/// Workers, work and faults.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub lens: Vec<u64>,
    pub epochs: u64,
    pub replicas: usize,
    pub threshold: Option<f64>,
    pub unit: u64,
    pub commit_every: u64,
    /// Milliseconds that each worker takes for a sample.
    pub pace: Vec<u64>,
    pub weather: Weather,
    /// When each happens, in order of time.
    pub faults: Vec<(u64, Fault)>,
    /// From here on nothing goes wrong.
    pub calm_from: u64,
    /// Workers that are there in the end; the others left for good.
    pub stay: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is gone; another comes so much later.
    Crash { rank: usize, for_ms: u64 },
    /// It stands still, and goes on as if nothing had happened.
    Stop { rank: usize, for_ms: u64 },
    /// Nothing it sends arrives.
    CutOff { rank: usize, for_ms: u64 },
    /// It takes so many times as long for a sample from now on.
    Slow { rank: usize, times: u64 },
    /// The store answers nobody. Leases begin anew afterwards, or do not.
    Outage { for_ms: u64, extends: bool },
    /// Where the job stands is written down.
    Save,
    /// The job goes back there.
    Restore,
}

pub const LEASE_MS: u64 = 3_000;
pub const WORKERS_MAX: u32 = 5;

impl Schedule {
    pub fn new(dice: &mut Dice) -> Self {
        let workers = dice.between(1, u64::from(WORKERS_MAX)) as usize;
        let stormy = dice.permille(700);
        let rate = |dice: &mut Dice, max: u64| if stormy { dice.below(max) } else { 0 };
        let weather = Weather {
            lost_requests: rate(dice, 60),
            lost_answers: rate(dice, 60),
            late: rate(dice, 100),
            doubled: rate(dice, 60),
        };
        let calm_from = dice.between(2_000, 12_000);
        let mut faults = Vec::new();
        for _ in 0..dice.between(0, 6) {
            let at = dice.below(calm_from);
            let rank = dice.below(workers as u64) as usize;
            let for_ms = dice.between(10, 3 * LEASE_MS).min(calm_from - at);
            let fault = match dice.below(9) {
                0 | 1 => Fault::Crash { rank, for_ms },
                2 | 3 => Fault::Stop { rank, for_ms },
                4 | 5 => Fault::CutOff { rank, for_ms },
                6 => Fault::Slow { rank, times: dice.between(2, 6) },
                7 => Fault::Outage { for_ms: for_ms.min(2 * LEASE_MS), extends: dice.permille(600) },
                _ => {
                    faults.push((dice.below(at + 1), Fault::Save));
                    Fault::Restore
                }
            };
            faults.push((at, fault));
        }
        faults.sort_by_key(|(at, _)| *at);
        let replicas = dice.below(3) as usize;
        let first = dice.below(workers as u64) as usize;
        // Somebody stays, and who takes over is there.
        let stays = |rank: usize, dice: &mut Dice| rank == first || replicas == 0 || dice.permille(800);
        Self {
            lens: (0..workers).map(|_| dice.below(40)).collect(),
            epochs: dice.between(1, 2),
            replicas,
            threshold: dice.permille(600).then_some(0.2),
            unit: dice.between(1, 6),
            commit_every: dice.between(1, 8),
            pace: (0..workers).map(|_| dice.between(10, 150)).collect(),
            weather,
            faults,
            calm_from,
            stay: (0..workers).map(|rank| stays(rank, dice)).collect(),
        }
    }
}
