use std::path::Path;

use crate::{Error, Result};

/// How large a page may be, compressed and decompressed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageLimit {
    bytes_max: u64,
    /// The budget that the limit comes from, and how many pages share what is left of it.
    budget: Option<(u64, u64)>,
}

/// What whoever reads a row group holds of it: a page of 1 MiB, as most writers make them, compressed and not, and
/// a dictionary. Larger pages must fit in what is left of a budget.
pub(crate) const PAGE_BYTES_USUAL: u64 = 3 << 20;

/// Far above what any writer makes by itself: what is refused is damage or malice.
const PAGE_BYTES_MAX: u64 = 1 << 30;

impl Default for PageLimit {
    fn default() -> Self {
        Self { bytes_max: PAGE_BYTES_MAX, budget: None }
    }
}

impl PageLimit {
    /// Pages of a loader that has `budget` bytes, of which `for_pages` are left for `pages` of them at once.
    pub fn within(budget: u64, for_pages: u64, pages: u64) -> Self {
        let pages = pages.max(1);
        Self { bytes_max: (for_pages / pages).min(PAGE_BYTES_MAX), budget: Some((budget, pages)) }
    }

    pub fn check(self, path: &Path, page_bytes: u64) -> Result<()> {
        if page_bytes <= self.bytes_max {
            return Ok(());
        }
        match self.budget {
            Some((given, pages)) if page_bytes <= PAGE_BYTES_MAX => Err(Error::Budget {
                given,
                needed: given + (page_bytes - self.bytes_max) * pages,
                because: format!(
                    "{} has a page of {page_bytes} bytes, compressed and decompressed, and {pages} may be held at once; \
                     write it with smaller pages, or allow more",
                    path.display()
                ),
            }),
            _ => Err(Error::Invalid(format!(
                "a page claims {page_bytes} bytes, at most {PAGE_BYTES_MAX} are read"
            ))),
        }
    }
}
