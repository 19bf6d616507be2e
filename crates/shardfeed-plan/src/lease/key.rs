use std::fmt;

/// Where something is kept that workers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// What the job is: its data and how they are divided.
    Meta,
    /// From which positions the job goes on: changes when it is restored.
    Generation,
    /// A worker that is there. Vanishes with its lease.
    Alive(u32),
    /// How a worker does, or did last.
    Worker(u32),
    /// The samples that a worker was registered with.
    Indices(u32),
    /// Where a worker's stream stood last.
    Checkpoint(u32),
    /// How the work of an epoch was dealt last.
    Deal(Scope),
    /// How it was dealt each time.
    Dealt(Scope, u64),
    /// Changes when there is something to take that nobody had before. Lies among the owners, to be watched with them.
    Bell(Scope),
    /// Who has a run. Vanishes with its owner's lease.
    Owner(Scope, RunId),
    /// How far a run is. Outlives everybody.
    Run(Scope, RunId),
}

/// An epoch of the job, as it goes on since it was started, or restored last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Tells this start from others: see [`Generation`](super::Generation).
    pub generation: u64,
    /// The epoch.
    pub epoch: u64,
}

/// A run of consecutive samples: those from `start` on of what the strategy gives worker `origin`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct RunId {
    /// Whose samples they are at first.
    pub origin: u32,
    /// The first of them.
    pub start: u64,
}

impl Key {
    /// As text, within a job. Numbers have all their digits, so that paths sort as numbers do.
    pub fn path(&self) -> String {
        match self {
            Self::Meta => "meta".to_owned(),
            Self::Generation => "generation".to_owned(),
            Self::Alive(rank) => format!("alive/{rank:08x}"),
            Self::Worker(rank) => format!("worker/{rank:08x}"),
            Self::Indices(rank) => format!("indices/{rank:08x}"),
            Self::Checkpoint(rank) => format!("checkpoint/{rank:08x}"),
            Self::Deal(scope) => format!("{scope}/deal"),
            Self::Dealt(scope, number) => format!("{scope}/dealt/{number:016x}"),
            Self::Bell(scope) => format!("{scope}/owner/bell"),
            Self::Owner(scope, run) => format!("{scope}/owner/{run}"),
            Self::Run(scope, run) => format!("{scope}/run/{run}"),
        }
    }

    /// The key of a path; `None` if it is nobody's.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        let rank = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let key = match *parts.as_slice() {
            ["meta"] => Self::Meta,
            ["generation"] => Self::Generation,
            ["alive", digits] => Self::Alive(rank(digits)?),
            ["worker", digits] => Self::Worker(rank(digits)?),
            ["indices", digits] => Self::Indices(rank(digits)?),
            ["checkpoint", digits] => Self::Checkpoint(rank(digits)?),
            ["g", generation, epoch, ref rest @ ..] => {
                let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
                let scope = Scope { generation: number(generation)?, epoch: number(epoch)? };
                match *rest {
                    ["deal"] => Self::Deal(scope),
                    ["dealt", digits] => Self::Dealt(scope, number(digits)?),
                    ["owner", "bell"] => Self::Bell(scope),
                    [kind, origin, start] => {
                        let run = RunId { origin: rank(origin)?, start: number(start)? };
                        match kind {
                            "owner" => Self::Owner(scope, run),
                            "run" => Self::Run(scope, run),
                            _ => return None,
                        }
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        // One path for each key: no signs, no missing zeros.
        (key.path() == path).then_some(key)
    }
}

/// Keys that are next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// This one.
    One(Key),
    /// All workers that are there.
    Alive,
    /// All workers.
    Workers,
    /// All deals of a scope.
    Dealt(Scope),
    /// All owners of a scope.
    Owners(Scope),
    /// All runs of a scope.
    Runs(Scope),
}

impl Keys {
    /// The first key and the last that could be one of them.
    pub fn bounds(&self) -> (Key, Key) {
        let (first, last) = (RunId::default(), RunId { origin: u32::MAX, start: u64::MAX });
        match *self {
            Self::One(key) => (key, key),
            Self::Alive => (Key::Alive(0), Key::Alive(u32::MAX)),
            Self::Workers => (Key::Worker(0), Key::Worker(u32::MAX)),
            Self::Dealt(scope) => (Key::Dealt(scope, 0), Key::Dealt(scope, u64::MAX)),
            Self::Owners(scope) => (Key::Owner(scope, first), Key::Owner(scope, last)),
            Self::Runs(scope) => (Key::Run(scope, first), Key::Run(scope, last)),
        }
    }

    /// What the paths of all of them begin with; `None` if it is one key.
    pub fn prefix(&self) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Alive => Some("alive/".to_owned()),
            Self::Workers => Some("worker/".to_owned()),
            Self::Dealt(scope) => Some(format!("{scope}/dealt/")),
            Self::Owners(scope) => Some(format!("{scope}/owner/")),
            Self::Runs(scope) => Some(format!("{scope}/run/")),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g/{:016x}/{:016x}", self.generation, self.epoch)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}/{:016x}", self.origin, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope { generation: 0xab, epoch: 3 };
    const RUN: RunId = RunId { origin: 7, start: 4096 };

    #[test]
    fn golden_paths() {
        let golden = [
            (Key::Meta, "meta"),
            (Key::Generation, "generation"),
            (Key::Alive(12), "alive/0000000c"),
            (Key::Worker(12), "worker/0000000c"),
            (Key::Indices(1), "indices/00000001"),
            (Key::Checkpoint(2), "checkpoint/00000002"),
            (Key::Deal(SCOPE), "g/00000000000000ab/0000000000000003/deal"),
            (Key::Dealt(SCOPE, 2), "g/00000000000000ab/0000000000000003/dealt/0000000000000002"),
            (Key::Bell(SCOPE), "g/00000000000000ab/0000000000000003/owner/bell"),
            (Key::Owner(SCOPE, RUN), "g/00000000000000ab/0000000000000003/owner/00000007/0000000000001000"),
            (Key::Run(SCOPE, RUN), "g/00000000000000ab/0000000000000003/run/00000007/0000000000001000"),
        ];
        for (key, path) in golden {
            assert_eq!(key.path(), path);
            assert_eq!(Key::parse(path), Some(key));
        }
        for wrong in ["", "worker/c", "worker/+000000c", "g/1/2/run/3/4", "meta/", "worker/0000000C", "else"]
        {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_hold_what_begins_with_their_prefix() {
        let keys =
            [Key::Worker(3), Key::Worker(u32::MAX), Key::Owner(SCOPE, RUN), Key::Run(SCOPE, RUN), Key::Meta];
        for range in [Keys::Workers, Keys::Owners(SCOPE), Keys::Runs(SCOPE), Keys::Runs(Scope::default())] {
            let (first, last) = range.bounds();
            let prefix = range.prefix().unwrap();
            for key in keys {
                assert_eq!(
                    (first..=last).contains(&key),
                    key.path().starts_with(&prefix),
                    "{key:?} {range:?}"
                );
            }
        }
    }
}
