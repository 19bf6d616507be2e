use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shardfeed_plan::checkpoint::{StoredItem, ZipItem};

use super::bytes::FileBytes;
use super::opened::Checkpoint;
use super::options::{ReadOptions, Stop};
use super::undo::undo;
use super::verify::check_records;
use super::workers::workers_for;
use crate::error::{Error, Result};
use crate::failures::{Failures, ItemFailure};
use crate::parallel::map_in_parallel;

/// Something that is stored, wanted as bytes.
#[derive(Clone, Debug)]
pub struct RawItem {
    /// What errors call it.
    pub name: String,
    /// Where it is stored, and which transforms are to be undone: those that it names, which may be none.
    pub item: StoredItem,
    /// Bytes that it may have when they are.
    pub bytes_max: u64,
}

impl Checkpoint {
    /// Items as bytes, with their transforms undone and nothing made of them. If anything fails, all failures that were met are in
    /// the error.
    pub fn read_items(&self, wanted: &[RawItem]) -> Result<Vec<Vec<u8>>> {
        let options = &self.options;
        let bytes = wanted.iter().map(|wish| wish.item.length).sum();
        let each = wanted.iter().map(|wish| wish.item.length).max().unwrap_or(0);
        let asked = if options.use_parallel { options.num_workers } else { Some(1) };
        let workers = workers_for(asked, wanted.len(), bytes, each, || options.memory_bytes());
        let is_failed = AtomicBool::new(false);
        let Ok(read) = map_in_parallel(wanted, workers, |wish| {
            // After a failure nobody begins another.
            if is_failed.load(Relaxed) {
                return Ok::<_, std::convert::Infallible>(None);
            }
            let read = self.read_item(wish, options);
            is_failed.fetch_or(read.is_err(), Relaxed);
            Ok(Some(read))
        });
        let (mut items, mut failures) = (Vec::new(), Vec::new());
        for result in read.into_iter().flatten() {
            match result {
                Ok(bytes) => items.push(bytes),
                Err(failure) => failures.push(failure),
            }
        }
        if failures.is_empty() { Ok(items) } else { Err(Error::CheckpointDamaged(Failures(failures))) }
    }

    fn read_item(&self, wish: &RawItem, options: &ReadOptions) -> std::result::Result<Vec<u8>, ItemFailure> {
        let RawItem { name, item, bytes_max } = wish;
        let Some(facts) = self.files.get(item.file as usize) else {
            let reason = format!("it is said to be in file number {}, and there is none", item.file);
            return Err(ItemFailure {
                path: self.path().to_owned(),
                item: name.clone(),
                offset: item.offset,
                reason,
            });
        };
        let fail = |reason: String| self.item_failure(item, name, reason);
        let end = item.offset.checked_add(item.length).filter(|end| *end <= facts.len);
        let end =
            end.ok_or_else(|| fail(format!("it does not end within the {} bytes of the file", facts.len)))?;
        let file = FileBytes::open(facts, options.direct_io, Vec::new()).map_err(fail)?;
        let mut file = file.stopped_by(options.stop.clone());
        let stored = file.read_all(item.offset..end).map_err(fail)?;
        file.check(facts).map_err(fail)?;
        let bytes = if item.transforms.is_empty() {
            stored
        } else {
            undo(&item.transforms, &stored, *bytes_max).map_err(fail)?
        };
        options.stop.as_ref().map_or(Ok(()), Stop::check).map_err(fail)?;
        if options.verify && ZipItem::begins(&bytes) {
            check_records(&bytes).map_err(|(_, reason)| fail(reason))?;
        }
        Ok(bytes)
    }
}
