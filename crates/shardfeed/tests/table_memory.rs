//! Small files that decode to more than there is: what a `ParquetDataset` takes before it refuses them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use shardfeed::{Dataset, ParquetDataset, Value};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Memory is counted for one test at a time.
static COUNTS: Mutex<()> = Mutex::new(());

const CACHE: u64 = 1 << 20;

/// What the crate takes for a row or a dictionary while it decodes it, and what is kept of it until that is too much.
const DECODING: u64 = 6 * CACHE;

const FLAT_TEXT: &str = "message rows { required binary a (STRING); }";
const LIST_OF_TEXT: &str =
    "message rows { required group a (LIST) { repeated group list { required binary element (STRING); } } }";
const LIST_OF_NUMBERS: &str =
    "message rows { required group a (LIST) { repeated group list { required int64 element; } } }";

/// One column in one row group: the lists of a row one after another, or a value for each row.
fn write<T: DataType>(path: &Path, schema: &str, encoding: Option<Encoding>, rows: &[Vec<T::T>]) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_dictionary_page_size_limit(1 << 30)
        .set_data_page_size_limit(1 << 30)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .set_compression(parquet::basic::Compression::ZSTD(parquet::basic::ZstdLevel::default()));
    let properties = match encoding {
        Some(encoding) => properties.set_dictionary_enabled(false).set_encoding(encoding),
        None => properties,
    };
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.clone(), Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<T::T> = rows.iter().flatten().cloned().collect();
    let is_list = !schema.get_fields()[0].is_primitive();
    let definition = vec![1; values.len()];
    let repetition: Vec<i16> =
        rows.iter().flat_map(|row| (0..row.len()).map(|at| i16::from(at > 0))).collect();
    column
        .typed::<T>()
        .write_batch(&values, is_list.then_some(&definition), is_list.then_some(&repetition))
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

fn text(bytes: usize) -> ByteArray {
    ByteArray::from(vec![b'x'; bytes])
}

/// Files whose values are far more than `CACHE`, each in another way, and what is in row 0.
fn bombs(dir: &Path) -> Vec<(&'static str, u64)> {
    let mut made = Vec::new();
    let mut note = |name, write: &dyn Fn(&Path)| {
        let path = dir.join(name);
        write(&path);
        made.push((name, std::fs::metadata(path).unwrap().len()));
    };
    let rows_of = |bytes: usize, rows: usize| -> Vec<Vec<ByteArray>> { vec![vec![text(bytes)]; rows] };
    note("one_long_text_in_every_row", &|path| {
        write::<ByteArrayType>(path, FLAT_TEXT, None, &rows_of(200_000, 1000));
    });
    note("texts_that_begin_as_the_one_before", &|path| {
        write::<ByteArrayType>(path, FLAT_TEXT, Some(Encoding::DELTA_BYTE_ARRAY), &rows_of(200_000, 1000));
    });
    note("a_row_of_many_numbers", &|path| {
        write::<Int64Type>(path, LIST_OF_NUMBERS, None, &[vec![7; 8_000_000]]);
    });
    note("a_row_of_many_texts", &|path| {
        write::<ByteArrayType>(path, LIST_OF_TEXT, None, &[vec![text(0); 4_000_000]]);
    });
    // Few enough to be decoded, and more than can be kept: what that takes for a moment is four times as much, and vectors that grow.
    note("a_row_of_as_many_numbers_as_are_decoded", &|path| {
        write::<Int64Type>(path, LIST_OF_NUMBERS, None, &[vec![7; 340_000]]);
    });
    note("a_row_of_as_many_texts_as_are_decoded", &|path| {
        write::<ByteArrayType>(path, LIST_OF_TEXT, None, &[vec![text(0); 116_000]]);
    });
    note("a_row_of_texts_that_begin_as_the_one_before", &|path| {
        let row = vec![text(200_000); 1000];
        write::<ByteArrayType>(path, LIST_OF_TEXT, Some(Encoding::DELTA_BYTE_ARRAY), &[row]);
    });
    note("a_dictionary_of_many_short_texts", &|path| {
        let row = (0..250_000_u32).map(|i| ByteArray::from(i.to_string().into_bytes())).collect();
        write::<ByteArrayType>(path, LIST_OF_TEXT, None, &[row]);
    });
    made
}

#[test]
fn what_decodes_to_too_much_is_refused_before_it_is_there() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    for (name, file_bytes) in bombs(dir.path()) {
        let rows = ParquetDataset::builder(vec![dir.path().join(name)]).cache_bytes(CACHE).build().unwrap();
        let _profiler = dhat::Profiler::builder().testing().build();
        let error = rows.get(0).unwrap_err().to_string();
        let peak = dhat::HeapStats::get().max_bytes as u64;
        assert!(error.contains(name) && error.contains("cache_bytes"), "{name}: {error}");
        assert!(peak < DECODING, "{name}: {peak} bytes for a file of {file_bytes}");
    }
}

#[test]
fn with_room_the_same_is_read() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    for (name, _) in bombs(dir.path()) {
        let rows = ParquetDataset::builder(vec![dir.path().join(name)]).build().unwrap();
        let row = rows.get(rows.len() - 1).unwrap();
        match row.get("a").unwrap() {
            Value::Text(text) => assert_eq!(text.len(), 200_000, "{name}"),
            Value::Ints(numbers) => {
                assert!([8_000_000, 340_000].contains(&numbers.len()) && numbers.iter().all(|&n| n == 7));
            }
            Value::List(texts) if texts.len() == 250_000 => {
                assert_eq!(texts[249_999], Value::Text("249999".to_owned()));
            }
            Value::List(texts) => {
                let len = if texts.len() == 1000 { 200_000 } else { 0 };
                let is_right = |text: &Value| text.as_text().is_some_and(|text| text.len() == len);
                assert!(texts.iter().all(is_right), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn what_just_fits_is_read() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fits.parquet");
    let taken = |bytes: u64| {
        let rows = ParquetDataset::builder(vec![path.clone()]).cache_bytes(bytes).build().unwrap();
        rows.get(0).map(drop)
    };
    for encoding in [None, Some(Encoding::DELTA_BYTE_ARRAY), Some(Encoding::DELTA_LENGTH_BYTE_ARRAY)] {
        let rows: Vec<Vec<ByteArray>> = (0..200_u64)
            .map(|row| (0..row % 4).map(|at| ByteArray::from(vec![b'a'; (row * at) as usize])).collect())
            .filter(|row: &Vec<_>| !row.is_empty())
            .collect();
        write::<ByteArrayType>(&path, LIST_OF_TEXT, encoding, &rows);
        // Bytes, where each text ends, a byte for each level, where each row's slots and values begin.
        let texts: usize = rows.iter().map(Vec::len).sum();
        let bytes: usize = rows.iter().flatten().map(|text| text.data().len()).sum();
        let needed = (bytes + 10 * texts + 8 * rows.len()) as u64;
        taken(needed).unwrap();
        taken(needed - 1).unwrap_err();
    }
}

#[test]
fn lengths_that_a_page_cannot_have_are_refused_by_name() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lengths.parquet");
    for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
        // Too short for zstd to compress: the bytes of the page stand in the file as they are.
        let rows: Vec<Vec<ByteArray>> = (0..5).map(|row| vec![text(row)]).collect();
        write::<ByteArrayType>(&path, FLAT_TEXT, Some(encoding), &rows);
        let good = std::fs::read(&path).unwrap();
        // Blocks of 128 values in 4 parts, and 5 values.
        let begin = [0x80, 0x01, 0x04, 0x05];
        let places: Vec<usize> = (0..good.len() - 4).filter(|&at| good[at..at + 4] == begin).collect();
        assert_eq!(places.len(), if encoding == Encoding::DELTA_BYTE_ARRAY { 2 } else { 1 });
        for at in places {
            let mut bytes = good.clone();
            bytes[at + 3] = 0x7f;
            std::fs::write(&path, &bytes).unwrap();
            let error = ParquetDataset::open(path.as_path()).unwrap().get(0).unwrap_err().to_string();
            assert!(
                error.contains("lengths.parquet") && error.contains("127 lengths in a page of 5 values"),
                "{error}"
            );
        }
    }
}
