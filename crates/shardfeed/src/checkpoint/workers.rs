use std::path::{Path, PathBuf};

use crate::parallel::default_threads;

/// Threads that nobody needs more of, however many cores there are: reads wait for the disk, not for them.
const WORKERS_MAX: usize = 32;

/// Work under which a second thread costs more than it brings.
const SMALL_BYTES: u64 = 4 << 20;

/// Memory that is assumed where the system does not tell.
const MEMORY_ASSUMED: u64 = 2 << 30;

/// Threads for so many files: as many as there are cores, and never more than there are files or than `max`.
pub fn optimal_workers(files: usize, max: Option<usize>) -> usize {
    cores().min(files).min(max.unwrap_or(usize::MAX)).max(1)
}

/// Threads that can each hold a file of this size within four fifths of the memory that is available; never more than there are
/// cores, or than `max`.
pub fn memory_aware_workers(avg_file_bytes: u64, max: Option<usize>) -> usize {
    let fitting = memory_budget() / avg_file_bytes.max(1);
    cores().min(usize::try_from(fitting).unwrap_or(usize::MAX)).min(max.unwrap_or(usize::MAX)).max(1)
}

/// Threads of a large read if nobody says how many: twice the cores, since those that wait for a disk need none.
pub fn default_read_workers() -> usize {
    (2 * cores()).min(WORKERS_MAX)
}

/// Threads for a read: as many as somebody says, or by default; not more than there are tasks, nor than the memory allows, and one for
/// little work. `budget` is asked only where it decides: to ask the system takes as long as a small read.
pub(crate) fn workers_for(
    asked: Option<usize>,
    tasks: usize,
    bytes: u64,
    each: u64,
    budget: impl FnOnce() -> u64,
) -> usize {
    let by_itself = || if bytes < SMALL_BYTES { 1 } else { default_read_workers() };
    let wished = asked.unwrap_or_else(by_itself).min(tasks);
    if wished <= 1 {
        return 1;
    }
    let fitting = usize::try_from(budget() / each.max(1)).unwrap_or(usize::MAX);
    wished.min(fitting).max(1)
}

/// Four fifths of the memory that is available to this process.
pub(crate) fn memory_budget() -> u64 {
    available_memory(Path::new("/")).unwrap_or(MEMORY_ASSUMED) / 5 * 4
}

fn cores() -> usize {
    default_threads().min(WORKERS_MAX)
}

/// What the machine has, or less where a control group says so. `root` is the system's root.
fn available_memory(root: &Path) -> Option<u64> {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().filter_map(|line| group_left(root, line)).min();
    Some(left.unwrap_or(u64::MAX).min(kibibytes * 1024))
}

/// What a control group, or one that it is in, still allows. A line is `0::/path` in the second version, `4:memory:/path` in the first.
fn group_left(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (base, limit, usage, cache) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file", "active_file"]),
        names if names.split(',').any(|name| name == "memory") => {
            let cache = ["total_inactive_file", "total_active_file"];
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", cache)
        }
        _ => return None,
    };
    let base = root.join(base);
    let mut group: Option<PathBuf> = Some(base.join(path.trim_start_matches('/')));
    let mut left: Option<u64> = None;
    while let Some(folder) = group.filter(|folder| folder.starts_with(&base)) {
        let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        if let (Some(limit), Some(usage)) = (number(limit), number(usage)) {
            // The system drops cached files before it kills anybody, also those that were read more than once.
            let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let of = |line: &str| {
                let (name, bytes) = line.split_once(' ')?;
                cache.contains(&name).then_some(bytes)?.trim().parse::<u64>().ok()
            };
            let cached = stat.lines().filter_map(of).fold(0, u64::saturating_add);
            let own = limit.saturating_sub(usage.saturating_sub(cached));
            left = Some(left.map_or(own, |left| left.min(own)));
        }
        group = folder.parent().map(Path::to_owned);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_workers_than_work_memory_or_wish() {
        assert_eq!(optimal_workers(1, None), 1);
        assert_eq!(optimal_workers(0, None), 1);
        assert!(optimal_workers(1000, None) <= WORKERS_MAX);
        assert_eq!(optimal_workers(1000, Some(1)), 1);
        assert_eq!(memory_aware_workers(u64::MAX, None), 1);
        assert_eq!(memory_aware_workers(1, Some(1)), 1);
        assert_eq!(workers_for(Some(64), 10, 1 << 30, 1 << 20, || 1 << 40), 10);
        assert_eq!(workers_for(Some(64), 100, 1 << 30, 1 << 20, || 5 << 20), 5);
        assert_eq!(workers_for(Some(64), 100, 1 << 30, 1 << 20, || 0), 1);
        assert_eq!(workers_for(None, 100, 1 << 30, 1 << 20, || 1 << 40), default_read_workers());
        let unasked = || unreachable!("one thread needs no leave");
        assert_eq!(workers_for(None, 100, 1 << 10, 1 << 20, unasked), 1);
        assert_eq!(workers_for(Some(64), 1, 1 << 30, 1 << 20, unasked), 1);
        assert!((1..=WORKERS_MAX).contains(&default_read_workers()));
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(available_memory(root.path()), None);
        write("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n");
        assert_eq!(available_memory(root.path()), Some(1_024_000));
        // Second version: the limit of a group above, less what is used of it and could not be dropped.
        write("proc/self/cgroup", "0::/job/task\n");
        write("sys/fs/cgroup/job/task/memory.max", "max\n");
        write("sys/fs/cgroup/job/task/memory.current", "5000\n");
        write("sys/fs/cgroup/job/memory.max", "600000\n");
        write("sys/fs/cgroup/job/memory.current", "200000\n");
        write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 30000\nactive_file 20000\n");
        assert_eq!(available_memory(root.path()), Some(450_000));
        // First version.
        write("proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n");
        write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
        write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000\n");
        assert_eq!(available_memory(root.path()), Some(200_000));
    }
}
