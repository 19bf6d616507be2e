use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::column::page::PageReader;
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

/// Where the bodies of pages lie in the file at `path`, whose first column is the only one.
pub fn page_bodies(path: &Path) -> Vec<Range<u64>> {
    let file = std::fs::read(path).unwrap();
    let footer = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(file.clone())).unwrap();
    let noted = Arc::new(NotedReads { file: file.into(), bodies: Mutex::default() });
    for group in footer.row_groups() {
        let rows = group.num_rows() as usize;
        let mut pages = SerializedPageReader::new(Arc::clone(&noted), group.column(0), rows, None).unwrap();
        while pages.get_next_page().unwrap().is_some() {}
    }
    let noted = Arc::into_inner(noted).expect("nobody reads any more");
    noted.bodies.into_inner().unwrap()
}

/// Page headers are read as a stream, bodies in one piece: so bodies are told apart.
struct NotedReads {
    file: Bytes,
    bodies: Mutex<Vec<Range<u64>>>,
}

impl Length for NotedReads {
    fn len(&self) -> u64 {
        self.file.len() as u64
    }
}

impl ChunkReader for NotedReads {
    type T = <Bytes as ChunkReader>::T;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.bodies.lock().unwrap().push(start..start + length as u64);
        self.file.get_bytes(start, length)
    }
}
