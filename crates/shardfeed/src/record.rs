use std::sync::Arc;

use shardfeed_plan::PageChecksum;

use crate::dataset::{ChunkBytes, StoredPage, own_checksum};
use crate::page_memory::PageMemory;
use crate::{DataSet, Error, Result};

/// Reads the pages of a row group once, and takes the checksums of their headers and bodies.
///
/// What is known to be damaged is an error: once recorded, it would pass for right.
pub(crate) fn record_row_group(
    data: &Arc<DataSet>,
    row_group: u32,
    memory: &Arc<PageMemory>,
) -> Result<Vec<PageChecksum>> {
    let facts = data.manifest().row_groups()[row_group as usize];
    data.note_opening(facts.file)?;
    let chunk = ChunkBytes::new(data, &facts, memory);
    let last_page = chunk.last_page();
    let mut pages = Vec::new();
    let mut at = facts.chunk_start;
    let mut data_pages = 0;
    while at < facts.chunk().end {
        let page = chunk.stored_page(at).and_then(|page| checksum(at, &page).map(|sums| (page, sums)));
        let (page, sums) = page.map_err(|error| match error {
            Error::Invalid(reason) => Error::Damaged {
                path: data.path(facts.file).to_owned(),
                row_group: facts.number,
                reason: format!("{}: {reason}", last_page.name(data_pages)),
            },
            other => other,
        })?;
        pages.push(sums);
        data_pages += u32::from(!last_page.is_dictionary());
        at += (page.header.len() + page.body.len()) as u64;
    }
    Ok(pages)
}

fn checksum(at: u64, page: &StoredPage) -> Result<PageChecksum> {
    let body = crc32fast::hash(&page.body);
    if own_checksum(&page.header).is_some_and(|own| own != body) {
        return Err(Error::Invalid(format!(
            "the checksum in its header at byte {at} is not that of its bytes"
        )));
    }
    Ok(PageChecksum { at, header: crc32fast::hash(&page.header), body })
}
