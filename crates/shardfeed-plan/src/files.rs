use crate::{Rank, fisher_yates, key};

/// Which whole files a worker owns, and in which order it reads them in an epoch.
///
/// Ownership is by `index mod world_size` and never changes; only the order is shuffled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOrder {
    owned: Vec<u32>,
    seed: u64,
}

/// Too few files to give each worker one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "insufficient files: {files} .parquet files for {world_size} workers leave some without data; \
     use at most {files} workers, or split the files"
)]
pub struct FileShardError {
    /// Files there are.
    pub files: usize,
    /// Workers that want one.
    pub world_size: u32,
}

impl FileOrder {
    /// The files of `rank`, out of `files` numbered alike on every rank.
    pub fn new(files: u32, rank: Rank, seed: u64) -> Result<Self, FileShardError> {
        if files < rank.world_size() {
            return Err(FileShardError { files: files as usize, world_size: rank.world_size() });
        }
        let owned = (rank.index()..files).step_by(rank.world_size() as usize).collect();
        Ok(Self { owned, seed })
    }

    /// The worker's files in the order of `epoch`: the same whenever it is asked.
    pub fn epoch(&self, epoch: u64) -> Vec<u32> {
        fisher_yates(self.owned.len() as u32, key(&[self.seed, epoch, 3]))
            .into_iter()
            .map(|index| self.owned[index as usize])
            .collect()
    }

    /// The worker's files, in the order of their numbers.
    pub fn owned(&self) -> &[u32] {
        &self.owned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_one_owner_in_every_epoch() {
        for files in 1..=20 {
            for world_size in 1..=files.min(8) {
                for epoch in 0..3 {
                    let mut owners = vec![0; files as usize];
                    for index in 0..world_size {
                        let order = FileOrder::new(files, Rank::new(index, world_size).unwrap(), 42).unwrap();
                        for file in order.epoch(epoch) {
                            assert_eq!(file % world_size, index);
                            owners[file as usize] += 1;
                        }
                    }
                    assert!(owners.iter().all(|&count| count == 1));
                }
            }
        }
    }

    #[test]
    fn the_order_of_files_is_golden() {
        let order = FileOrder::new(10, Rank::single(), 42).unwrap();
        assert_eq!(order.epoch(0), [3, 5, 0, 9, 6, 7, 1, 4, 2, 8]);
        assert_eq!(order.epoch(1), [6, 1, 3, 9, 7, 2, 0, 5, 8, 4]);
    }

    #[test]
    fn fewer_files_than_workers_is_an_error_with_both_numbers() {
        let error = FileOrder::new(3, Rank::new(0, 4).unwrap(), 1).unwrap_err().to_string();
        assert!(
            error.contains("insufficient files") && error.contains('3') && error.contains('4'),
            "{error}"
        );
    }
}
