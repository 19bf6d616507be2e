use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::errors::ParquetError;
use shardfeed_plan::{RowGroup, TokenColumn};

use super::levels::Levels;
use super::pages::{LoadedPage, Pages};
use super::values::{Room, ValueError, Values};
use crate::page_memory::PageMemory;
use crate::{DataSet, Error, Result};

/// Goes through one row group's tokens, row by row.
///
/// [`segment`](Self::segment) tells what comes next; the caller then takes those tokens with
/// [`read`](Self::read) or passes over them with [`skip`](Self::skip).
///
/// ```
/// # use shardfeed::sample::{SampleData, write_sample};
/// # let dir = tempfile::tempdir()?;
/// # write_sample(dir.path(), &SampleData::default())?;
/// let (data, _) = shardfeed::scan(&dir.path().into(), &Default::default())?;
/// let mut cursor = data.open_row_group(0)?;
/// let (mut tokens, mut row_starts) = (Vec::new(), Vec::new());
/// while let Some(segment) = cursor.segment(1000)? {
///     if segment.starts_row {
///         row_starts.push(tokens.len());
///     }
///     cursor.read(segment.tokens, &mut tokens)?;
/// }
/// assert_eq!(tokens.len() as u64, data.manifest().row_groups()[0].tokens);
/// assert_eq!(row_starts.len() as u64, data.manifest().row_groups()[0].documents);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// At the end, what was found is compared with what the manifest says: a difference is damage, never a shift of
/// everything that follows.
pub struct RowGroupCursor {
    data: Arc<DataSet>,
    facts: RowGroup,
    column: TokenColumn,
    pages: Pages,
    page: PageLevels,
    values: Values,
    found: Found,
    /// A token may follow in the row that was last seen.
    in_row: bool,
    /// Whether the manifest's counts of this row group are known, and so checked.
    counted: bool,
    levels_only: bool,
    memory: Arc<PageMemory>,
    /// Where the dictionary and the page at hand are, to read them again.
    dictionary_at: Option<u64>,
    page_at: u64,
    /// Bytes that the page at hand takes.
    page_capacity: u64,
    parked: Parked,
}

/// What a cursor that nobody works with holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parked {
    /// Somebody works with it.
    No,
    /// Everything, which takes this much of the memory for keeping.
    Kept(u64),
    /// Nothing: its page and dictionary are read again when it goes on.
    Dropped,
}

/// Tokens that follow each other in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whether the first of them is the first of its row.
    pub starts_row: bool,
    /// How many.
    pub tokens: usize,
}

/// What a cursor has passed.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    tokens: u64,
    documents: u64,
    rows: u64,
    /// Pages were passed over whose headers do not tell their rows.
    rows_unknown: bool,
    data_pages: u32,
}

struct PageLevels {
    repetition: Levels,
    definition: Levels,
    slots_left: usize,
}

/// The parts of a data page.
struct PageParts {
    repetition: Bytes,
    definition: Bytes,
    values: Bytes,
    encoding: Encoding,
}

impl RowGroupCursor {
    pub(crate) fn open(data: &Arc<DataSet>, facts: RowGroup, memory: &Arc<PageMemory>) -> Result<Self> {
        let column = data.manifest().files()[facts.file as usize].column.clone();
        let damaged = |reason: String| Error::Damaged {
            path: data.path(facts.file).to_owned(),
            row_group: facts.number,
            reason,
        };
        if !(1..=7).contains(&column.present_level) {
            return Err(damaged(format!("its lists are nested {} levels deep", column.present_level)));
        }
        let pages = Pages::open(data, &facts, column.ids, memory, None).map_err(damaged)?;
        let empty = || Levels::new(Bytes::new(), 1);
        Ok(Self {
            data: Arc::clone(data),
            facts,
            values: Values::new(column.ids),
            column,
            pages,
            page: PageLevels { repetition: empty(), definition: empty(), slots_left: 0 },
            found: Found::default(),
            in_row: false,
            counted: true,
            levels_only: false,
            memory: Arc::clone(memory),
            dictionary_at: None,
            page_at: 0,
            page_capacity: 0,
            parked: Parked::No,
        })
    }

    /// For counting: the manifest's tokens and documents are not known yet.
    pub(crate) fn uncounted(mut self) -> Self {
        self.counted = false;
        self
    }

    /// Only rows and their lengths are wanted: values are not even looked at, and `read` must not be called.
    pub(crate) fn levels_only(mut self) -> Self {
        self.levels_only = true;
        self
    }

    /// Passes over whole pages that end at or before `limit` tokens (and documents, if `with_documents`), as far
    /// as their headers alone tell what is in them. Returns how many were passed over. Only at the beginning.
    pub(crate) fn skip_pages(&mut self, limit: u64, with_documents: bool) -> Result<u64> {
        // With gaps, a page's slots are more than its tokens, and only its levels tell how many.
        if !self.facts.has_no_gaps() {
            return Ok(0);
        }
        let mut skipped = 0;
        while let Some(page) = self.pages.peek().map_err(|error| self.page_error(&error))? {
            if page.is_dict {
                match self.pages.next() {
                    Ok(Some(dictionary)) => self.set_dictionary(dictionary)?,
                    Ok(None) => break,
                    Err(error) => return Err(self.page_error(&error)),
                }
                continue;
            }
            let Some(tokens) = page.num_levels.map(|slots| slots as u64) else { break };
            let rows = page.num_rows.map(|rows| rows as u64);
            let documents = match (with_documents, rows) {
                (false, _) => 0,
                (true, Some(rows)) => rows,
                (true, None) => break,
            };
            if skipped + tokens + documents > limit {
                break;
            }
            self.pages.skip().map_err(|error| self.page_error(&error))?;
            skipped += tokens + documents;
            self.found.tokens += tokens;
            self.found.data_pages += 1;
            self.found.rows += rows.unwrap_or(0);
            self.found.documents += rows.unwrap_or(0);
            self.found.rows_unknown |= rows.is_none();
            // Pages may end within a row; where documents are counted by page, they must not.
            self.in_row = !with_documents;
        }
        Ok(skipped)
    }

    /// The next tokens of one row, at most `max` of them, at least one. Null and empty rows are passed over.
    /// `None` at the end of the row group, once its counts have been found right and its file unchanged.
    pub fn segment(&mut self, max: usize) -> Result<Option<Segment>> {
        let max = max.max(1);
        self.unpark()?;
        loop {
            if self.page.slots_left == 0 {
                if !self.next_page()? {
                    self.check_counts()?;
                    self.data.check_unchanged(self.facts.file)?;
                    return Ok(None);
                }
                continue;
            }
            let limit = self.page.slots_left;
            let (Some((repetition, repeats)), Some((definition, defines))) =
                (self.page.repetition.peek_run(limit), self.page.definition.peek_run(limit))
            else {
                return Err(self.damaged("the levels of a page end before its values".to_owned()));
            };
            if repetition > 1 {
                return Err(
                    self.damaged(format!("a repetition level is {repetition}, where 1 is the highest"))
                );
            }
            let present = definition == self.column.present_level;
            let starts_row = repetition == 0;
            if starts_row && !present {
                self.check_gap(definition)?;
                let count = repeats.min(defines);
                self.page.advance(count);
                self.found.rows += count as u64;
                self.in_row = false;
                self.check_not_more()?;
                continue;
            }
            if !present {
                return Err(self.bad_level(definition));
            }
            let mut tokens = 0;
            if starts_row {
                self.found.rows += 1;
                self.found.documents += 1;
                self.in_row = true;
                self.page.advance(1);
                tokens = 1;
            } else if !self.in_row {
                return Err(self.damaged("a row continues that never began".to_owned()));
            }
            // Run by run: the first tokens of a row are often packed, and the others repeated.
            while tokens < max {
                match self.page.take_continuation(self.column.present_level, max - tokens) {
                    0 => break,
                    taken => tokens += taken,
                }
            }
            self.found.tokens += tokens as u64;
            self.check_not_more()?;
            return Ok(Some(Segment { starts_row, tokens }));
        }
    }

    /// Appends the tokens that [`segment`](Self::segment) announced.
    pub fn read(&mut self, tokens: usize, out: &mut Vec<u32>) -> Result<()> {
        let from = out.len();
        out.resize(from + tokens, 0);
        self.read_into(&mut out[from..]).inspect_err(|_| out.truncate(from))
    }

    /// Fills `out` with tokens that [`segment`](Self::segment) announced.
    pub fn read_into(&mut self, out: &mut [u32]) -> Result<()> {
        self.unpark()?;
        self.values.read(out).map_err(|error| self.value_error(error))
    }

    /// The same into memory for narrow or wide ids. False, and nothing is taken, if they may not fit into narrow ones.
    pub(crate) fn read_room(&mut self, room: Room) -> Result<bool> {
        self.unpark()?;
        self.values.read_room(room).map_err(|error| self.value_error(error))
    }

    /// Passes over tokens that [`segment`](Self::segment) announced.
    pub fn skip(&mut self, tokens: usize) -> Result<()> {
        if self.levels_only {
            return Ok(());
        }
        self.unpark()?;
        self.values.skip(tokens).map_err(|error| self.value_error(error))
    }

    /// Whether nothing is left of the page at hand.
    pub(crate) fn is_between_pages(&self) -> bool {
        self.page.slots_left == 0
    }

    /// Nobody works with it for a while: keeps its page and dictionary if memory allows, else lets go of them.
    pub(crate) fn park(&mut self) {
        if self.parked != Parked::No {
            return;
        }
        if self.is_between_pages() {
            self.unload_page();
        }
        let bytes = self.page_capacity + self.values.dictionary_bytes();
        if self.memory.try_keep(bytes) {
            self.parked = Parked::Kept(bytes);
            return;
        }
        self.unload_page();
        self.values.unload_dictionary();
        self.parked = Parked::Dropped;
    }

    fn unload_page(&mut self) {
        self.page.repetition.unload();
        self.page.definition.unload();
        self.values.unload_page();
        self.page_capacity = 0;
    }

    fn unpark(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.parked, Parked::No) {
            Parked::No => Ok(()),
            Parked::Kept(bytes) => {
                self.memory.release(bytes);
                self.values.warm();
                Ok(())
            }
            Parked::Dropped => self.load_again(),
        }
    }

    /// Reads the dictionary and the page at hand once more. What was taken of them is not forgotten.
    fn load_again(&mut self) -> Result<()> {
        if let Some(at) = self.dictionary_at {
            let dictionary = self.page_again(at)?;
            self.set_dictionary(dictionary)?;
        }
        if self.page.slots_left == 0 {
            return Ok(());
        }
        let LoadedPage { page, capacity, .. } = self.page_again(self.page_at)?;
        let parts = PageParts::of(page).map_err(|reason| self.damaged(reason))?;
        self.page.repetition.reload(parts.repetition);
        self.page.definition.reload(parts.definition);
        if !self.levels_only {
            self.values.reload(parts.values).map_err(|reason| self.damaged(reason))?;
        }
        self.page_capacity = capacity;
        self.data.note_page_read_again();
        Ok(())
    }

    fn page_again(&self, at: u64) -> Result<LoadedPage> {
        let mut pages = Pages::open(&self.data, &self.facts, self.column.ids, &self.memory, Some(at))
            .map_err(|reason| self.damaged(reason))?;
        match pages.next() {
            Ok(Some(page)) => Ok(page),
            Ok(None) => Err(self.damaged("a page is gone".to_owned())),
            Err(error) => {
                let name = pages.last_page().name(self.found.data_pages.saturating_sub(1));
                Err(self.named_page_error(&name, &error))
            }
        }
    }

    /// Reads everything that is left, and checks it.
    pub(crate) fn read_through(&mut self) -> Result<()> {
        let mut tokens = vec![0; 1 << 14];
        while let Some(segment) = self.segment(tokens.len())? {
            self.read_into(&mut tokens[..segment.tokens])?;
        }
        Ok(())
    }

    /// The row within the row group that was last seen; meaningful only while no page was passed over.
    pub(crate) fn row(&self) -> u64 {
        self.found.rows.saturating_sub(1)
    }

    /// Rows seen so far that were null or empty.
    pub(crate) fn rows_without_tokens(&self) -> u64 {
        self.found.rows - self.found.documents
    }

    /// Tokens and documents seen so far.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.found.tokens, self.found.documents)
    }

    fn next_page(&mut self) -> Result<bool> {
        loop {
            let loaded = match self.pages.next() {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(false),
                Err(error) => return Err(self.page_error(&error)),
            };
            if loaded.page.is_dictionary_page() {
                if !self.levels_only {
                    self.set_dictionary(loaded)?;
                }
                continue;
            }
            self.found.data_pages += 1;
            let slots = loaded.page.num_values() as usize;
            if slots == 0 {
                continue;
            }
            (self.page_at, self.page_capacity) = (loaded.at, loaded.capacity);
            self.begin_page(loaded.page, slots)
                .map_err(|reason| self.damaged(format!("page {}: {reason}", self.found.data_pages - 1)))?;
            return Ok(true);
        }
    }

    fn begin_page(&mut self, page: Page, slots: usize) -> Result<(), String> {
        let parts = PageParts::of(page)?;
        let present_level = self.column.present_level;
        let definition = Levels::new(parts.definition, present_level);
        let present = count_present(definition.clone(), present_level, slots)?;
        if present > 0 && !self.levels_only {
            let foreign_before = self.values.foreign_pages();
            self.values.set_page(parts.values, parts.encoding, present)?;
            if foreign_before == 0 && self.values.foreign_pages() > 0 {
                self.data.note_fallback();
            }
        }
        let repetition = Levels::new(parts.repetition, 1);
        self.page = PageLevels { repetition, definition, slots_left: slots };
        Ok(())
    }

    fn set_dictionary(&mut self, loaded: LoadedPage) -> Result<()> {
        self.dictionary_at = Some(loaded.at);
        self.values
            .set_dictionary(loaded.page)
            .map_err(|reason| self.damaged(format!("dictionary page: {reason}")))
    }

    /// What passes the footer's counts is damage, noticed at once. Before it is counted, a row group's tokens are
    /// taken to be all its slots.
    fn check_not_more(&self) -> Result<()> {
        if self.found.tokens > self.facts.tokens || self.found.rows > self.facts.rows {
            return Err(self.miscounted());
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        let Found { tokens, documents, rows, rows_unknown, .. } = self.found;
        let documents_differ = documents != self.facts.documents && self.counted;
        if (self.counted && tokens != self.facts.tokens)
            || (!rows_unknown && (documents_differ || rows != self.facts.rows))
        {
            return Err(self.miscounted());
        }
        Ok(())
    }

    fn miscounted(&self) -> Error {
        let Found { tokens, documents, rows, .. } = self.found;
        self.damaged(format!(
            "its pages hold {tokens} or more tokens in {documents} documents and {rows} rows, its footer says {}, {} and {}",
            self.facts.tokens, self.facts.documents, self.facts.rows
        ))
    }

    /// A row without tokens is a null or empty list, unless its level says that a null is inside.
    fn check_gap(&mut self, definition: u8) -> Result<()> {
        if definition > self.column.present_level || self.is_null_item(definition) {
            self.found.rows += 1;
            return Err(self.bad_level(definition));
        }
        Ok(())
    }

    fn is_null_item(&self, definition: u8) -> bool {
        self.column.nullable_items && definition == self.column.present_level - 1
    }

    fn bad_level(&self, definition: u8) -> Error {
        if self.is_null_item(definition) {
            self.row_error("a null inside a list is no token; tokenize this row again".to_owned())
        } else {
            self.damaged(format!(
                "a definition level is {definition}, where {} is a token",
                self.column.present_level
            ))
        }
    }

    fn value_error(&self, error: ValueError) -> Error {
        match error {
            ValueError::Page(reason) => {
                self.damaged(format!("page {}: {reason}", self.found.data_pages.saturating_sub(1)))
            }
            ValueError::NotAnId(reason) => self.row_error(reason),
        }
    }

    fn row_error(&self, reason: String) -> Error {
        if self.found.rows_unknown {
            // Pages were passed over without counting their rows: go there again, counting. Only on the way to
            // an error, so nobody waits for it twice.
            return self.find_row().err().unwrap_or_else(|| self.damaged(reason));
        }
        Error::Row {
            path: self.data.path(self.facts.file).to_owned(),
            row_group: self.facts.number,
            row: self.row(),
            reason,
        }
    }

    fn find_row(&self) -> Result<()> {
        let mut cursor = Self::open(&self.data, self.facts, &self.memory)?;
        let mut tokens = Vec::new();
        while let Some(segment) = cursor.segment(1 << 16)? {
            tokens.clear();
            cursor.read(segment.tokens, &mut tokens)?;
        }
        Ok(())
    }

    /// What became of reading the next page.
    fn page_error(&self, error: &ParquetError) -> Error {
        self.named_page_error(&self.pages.last_page().name(self.found.data_pages), error)
    }

    fn named_page_error(&self, name: &str, error: &ParquetError) -> Error {
        if let ParquetError::External(source) = error {
            // Our own reads fail with our own errors, headers behind one of the standard library's.
            let inner =
                source.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()?.downcast_ref());
            match source.downcast_ref::<Error>().or(inner) {
                Some(Error::Changed { path, what }) => {
                    return Error::Changed { path: path.clone(), what: what.clone() };
                }
                Some(Error::Budget { given, needed, because }) => {
                    return Error::Budget { given: *given, needed: *needed, because: because.clone() };
                }
                Some(Error::Invalid(reason)) => return self.damaged(format!("{name}: {reason}")),
                Some(Error::Io { path, action, source }) => {
                    return Error::io(path, action, std::io::Error::new(source.kind(), source.to_string()));
                }
                _ => {}
            }
        }
        self.damaged(format!("{name}: {error}"))
    }

    fn damaged(&self, reason: String) -> Error {
        // Somebody may be writing into the file just now: that is what to say then.
        if let Err(changed @ Error::Changed { .. }) = self.data.check_unchanged(self.facts.file) {
            return changed;
        }
        Error::Damaged {
            path: self.data.path(self.facts.file).to_owned(),
            row_group: self.facts.number,
            reason,
        }
    }
}

/// Every page of a row group that cannot be read, by number, the dictionary without: a checksum differs, or it does not
/// decompress. Behind a header that cannot be read nothing can be found, unless it was recorded where pages are.
pub(crate) fn damaged_pages(
    data: &Arc<DataSet>,
    row_group: u32,
    memory: &Arc<PageMemory>,
) -> Result<Vec<(Option<u32>, Error)>> {
    let recorded = data.manifest().checksums().of(row_group);
    let mut cursor = data.open_row_group_within(row_group, memory)?;
    let mut damaged = Vec::new();
    let mut failed_at = None;
    loop {
        let error = match cursor.pages.next() {
            Ok(None) => return Ok(damaged),
            Ok(Some(_)) => None,
            Err(error) => Some(error),
        };
        let page = cursor.pages.last_page();
        let (at, has_header, is_dictionary) = (page.at(), page.has_header(), page.is_dictionary());
        if let Some(error) = error {
            // The crate did not get past this header, though it looked sound.
            if failed_at == Some(at) {
                return Ok(damaged);
            }
            failed_at = Some(at);
            let number = (!is_dictionary).then_some(cursor.found.data_pages);
            damaged.push((number, cursor.page_error(&error)));
            match recorded.iter().find(|page| page.at > at) {
                Some(next) => {
                    let ids = cursor.column.ids;
                    cursor.pages = Pages::open(data, &cursor.facts, ids, memory, Some(next.at))
                        .map_err(|reason| cursor.damaged(reason))?;
                }
                None if has_header && recorded.is_empty() => {}
                None => return Ok(damaged),
            }
        }
        cursor.found.data_pages += u32::from(!is_dictionary);
    }
}

impl DataSet {
    /// Opens a row group at its beginning.
    ///
    /// # Panics
    /// If the manifest has no such row group.
    pub fn open_row_group(self: &Arc<Self>, row_group: u32) -> Result<RowGroupCursor> {
        self.open_row_group_within(row_group, self.page_memory())
    }

    /// Opens a row group whose pages live within `memory`.
    pub(crate) fn open_row_group_within(
        self: &Arc<Self>,
        row_group: u32,
        memory: &Arc<PageMemory>,
    ) -> Result<RowGroupCursor> {
        let facts = self.manifest().row_groups()[row_group as usize];
        self.note_opening(facts.file)?;
        RowGroupCursor::open(self, facts, memory)
    }
}

impl PageLevels {
    fn advance(&mut self, count: usize) {
        self.repetition.advance(count);
        self.definition.advance(count);
        self.slots_left -= count;
    }

    /// Takes the tokens that go on in the current row, as far as they are of one run.
    fn take_continuation(&mut self, present_level: u8, max: usize) -> usize {
        let limit = max.min(self.slots_left);
        if limit == 0 || self.repetition.peek(1).is_none_or(|(level, _)| level != 1) {
            return 0;
        }
        let repeats = self.repetition.peek(limit).map_or(0, |(_, repeats)| repeats);
        match self.definition.peek(repeats) {
            Some((level, count)) if level == present_level => {
                self.advance(count);
                count
            }
            _ => 0,
        }
    }
}

impl Drop for RowGroupCursor {
    fn drop(&mut self) {
        if let Parked::Kept(bytes) = self.parked {
            self.memory.release(bytes);
        }
    }
}

impl PageParts {
    fn of(page: Page) -> Result<Self, String> {
        match page {
            Page::DataPage { buf, encoding, def_level_encoding, rep_level_encoding, .. } => {
                if [rep_level_encoding, def_level_encoding].iter().any(|encoding| *encoding != Encoding::RLE)
                {
                    return Err(format!(
                        "levels encoded as {rep_level_encoding} and {def_level_encoding}, not RLE"
                    ));
                }
                let (repetition, rest) = take_prefixed(&buf)?;
                let (definition, values) = take_prefixed(&rest)?;
                Ok(Self { repetition, definition, values, encoding })
            }
            Page::DataPageV2 { buf, encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let (repetition_len, definition_len) =
                    (rep_levels_byte_len as usize, def_levels_byte_len as usize);
                let levels_len = repetition_len.saturating_add(definition_len);
                if levels_len > buf.len() {
                    return Err(format!("levels of {levels_len} bytes in a page of {}", buf.len()));
                }
                let definition = buf.slice(repetition_len..levels_len);
                let repetition = buf.slice(..repetition_len);
                Ok(Self { repetition, definition, values: buf.slice(levels_len..), encoding })
            }
            Page::DictionaryPage { .. } => Err("a dictionary where data was expected".to_owned()),
        }
    }
}

fn count_present(mut definition: Levels, present_level: u8, slots: usize) -> Result<usize, String> {
    let (mut present, mut left) = (0, slots);
    while left > 0 {
        let (level, count) = definition.peek(left).ok_or("its definition levels end early")?;
        definition.advance(count);
        left -= count;
        present += if level == present_level { count } else { 0 };
    }
    Ok(present)
}

/// Splits off bytes whose length stands before them in four bytes.
pub(crate) fn take_prefixed(bytes: &Bytes) -> Result<(Bytes, Bytes), String> {
    let len = bytes.first_chunk::<4>().map(|len| u32::from_le_bytes(*len) as usize);
    match len {
        Some(len) if len <= bytes.len() - 4 => Ok((bytes.slice(4..4 + len), bytes.slice(4 + len..))),
        _ => Err("its levels are longer than the page".to_owned()),
    }
}
