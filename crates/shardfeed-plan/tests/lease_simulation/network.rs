use shardfeed_plan::mix;

/// Numbers that are the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x7369_6d75_6c61_7465))
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One of `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(below)) >> 64) as u64
    }

    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// So many times in a thousand.
    pub fn permille(&mut self, count: u64) -> bool {
        self.below(1000) < count
    }
}

/// How messages fare, in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub lost_requests: u64,
    pub lost_answers: u64,
    pub late: u64,
    pub doubled: u64,
}

/// What becomes of one request: when it arrives (twice, perhaps), and how long the answer takes; `None` if it is lost.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    pub arrives: Option<u64>,
    pub again: Option<u64>,
    pub answers: Option<u64>,
    pub is_late: bool,
}

impl Weather {
    pub fn fate(&self, dice: &mut Dice) -> Fate {
        let is_late = dice.permille(self.late);
        // Some longer than a lease.
        let late = if dice.permille(200) { 8_000 } else { 2_500 };
        let travel = |dice: &mut Dice| if is_late { dice.between(1, late) } else { dice.between(1, 8) };
        Fate {
            arrives: (!dice.permille(self.lost_requests)).then(|| travel(dice)),
            again: dice.permille(self.doubled).then(|| dice.between(1, late)),
            answers: (!dice.permille(self.lost_answers)).then(|| travel(dice)),
            is_late,
        }
    }
}
