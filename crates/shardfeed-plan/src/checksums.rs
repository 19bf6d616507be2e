use std::ops::Range;

/// What was recorded of a page, to tell later whether its bytes are still the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageChecksum {
    /// Where its header begins in the file.
    pub at: u64,
    /// CRC-32 (IEEE) of its header.
    pub header: u32,
    /// CRC-32 (IEEE) of its body, as it lies in the file.
    pub body: u32,
}

/// The recorded pages of all row groups.
///
/// One flat list, since there are many row groups and few pages in each; nothing at all while nothing is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageChecksums {
    pages: Vec<PageChecksum>,
    /// Where each row group's pages end in `pages`.
    ends: Vec<usize>,
}

impl PageChecksums {
    /// Adds the pages of the next row group: all of them, or none where nothing was recorded.
    pub fn push(&mut self, pages: &[PageChecksum]) {
        self.pages.extend_from_slice(pages);
        self.end_row_group();
    }

    /// Adds a page to the row group that has not ended yet.
    pub(crate) fn push_page(&mut self, page: PageChecksum) {
        self.pages.push(page);
    }

    pub(crate) fn end_row_group(&mut self) {
        self.ends.push(self.pages.len());
    }

    /// The pages of a row group, in the order of the file. None if nothing was recorded of it.
    pub fn of(&self, row_group: u32) -> &[PageChecksum] {
        let row_group = row_group as usize;
        let Some(&end) = self.ends.get(row_group) else { return &[] };
        let start = row_group.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pages[start..end]
    }

    /// Pages of all row groups.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Row groups that were added, those without pages included.
    pub(crate) fn row_groups(&self) -> usize {
        self.ends.len()
    }

    /// As small as it can be, now that no more will be added.
    pub(crate) fn packed(mut self) -> Self {
        if self.is_empty() {
            return Self::default();
        }
        self.pages.shrink_to_fit();
        self.ends.shrink_to_fit();
        self
    }
}

/// Whether pages can be those of a column chunk: the first begins where it does, and each lies behind the one before.
pub(crate) fn fill_chunk(pages: &[PageChecksum], chunk: &Range<u64>) -> bool {
    pages.first().is_none_or(|first| first.at == chunk.start)
        && pages.last().is_none_or(|last| last.at < chunk.end)
        && pages.windows(2).all(|two| two[0].at < two[1].at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(places: &[u64]) -> Vec<PageChecksum> {
        places.iter().map(|&at| PageChecksum { at, header: 1, body: 2 }).collect()
    }

    #[test]
    fn each_row_group_has_its_own_pages_and_some_have_none() {
        let mut all = PageChecksums::default();
        for places in [&[][..], &[4, 20], &[], &[90], &[]] {
            all.push(&pages(places));
        }
        assert_eq!((all.of(0), all.of(1)), (&[][..], &pages(&[4, 20])[..]));
        assert_eq!((all.of(2), all.of(3)), (&[][..], &pages(&[90])[..]));
        assert_eq!((all.of(4), all.of(5)), (&[][..], &[][..]));
        assert_eq!((all.pages(), all.row_groups()), (3, 5));
        let mut none = PageChecksums::default();
        none.push(&[]);
        assert_eq!(none.packed(), PageChecksums::default());
    }

    #[test]
    fn pages_begin_with_the_chunk_and_follow_each_other_within_it() {
        assert!(fill_chunk(&pages(&[4, 20, 21]), &(4..22)));
        assert!(fill_chunk(&[], &(4..22)));
        for wrong in [&[5, 20][..], &[4, 22], &[4, 20, 20], &[4, 20, 10]] {
            assert!(!fill_chunk(&pages(wrong), &(4..22)), "{wrong:?}");
        }
    }
}
