//! Checkpoints made by hand, right or wrong on purpose: `.metadata` as Python pickles it, items as `torch.save` writes them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use shardfeed::checkpoint::Dtype;

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const ZSTD: &str = "stream.zstd/1";

/// What a pickle can hold.
#[derive(Clone, Debug)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(String),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(&'static str, &'static str),
    /// The first called with the second.
    Call(Box<(Value, Value)>),
    /// An object of a class, with what is put into it.
    Made(&'static str, &'static str, Box<Value>),
    /// What `torch.save` keeps outside of the pickle.
    Persistent(Box<Value>),
    /// Operations that leave one value, whatever they do before.
    Raw(Vec<u8>),
}

impl Value {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn call(module: &'static str, name: &'static str, args: Vec<Self>) -> Self {
        Self::Call(Box::new((Self::Global(module, name), Self::Tuple(args))))
    }

    /// An object whose state is a dictionary of its fields.
    pub fn object(module: &'static str, name: &'static str, fields: Vec<(&str, Self)>) -> Self {
        let fields = fields.into_iter().map(|(field, value)| (Self::text(field), value)).collect();
        Self::Made(module, name, Box::new(Self::Dict(fields)))
    }

    pub fn numbers(numbers: &[u64]) -> Self {
        Self::Tuple(numbers.iter().map(|&number| Self::Int(number as i64)).collect())
    }

    pub fn size(numbers: &[u64]) -> Self {
        Self::call("torch", "Size", vec![Self::numbers(numbers)])
    }

    /// A whole pickle of protocol 2 or 4.
    pub fn pickled(&self, protocol: u8) -> Vec<u8> {
        let mut bytes = vec![0x80, protocol];
        self.push(protocol, &mut bytes);
        bytes.push(b'.');
        bytes
    }

    fn push(&self, protocol: u8, out: &mut Vec<u8>) {
        let all = |values: &[Self], out: &mut Vec<u8>| {
            out.push(b'(');
            for value in values {
                value.push(protocol, out);
            }
        };
        match self {
            Self::None => out.push(b'N'),
            Self::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
            Self::Int(number) => push_int(*number, out),
            Self::Text(text) => push_text(text, protocol, out),
            Self::Tuple(values) => {
                all(values, out);
                out.push(b't');
            }
            Self::List(values) => {
                out.push(b']');
                all(values, out);
                out.push(b'e');
            }
            Self::Dict(entries) => {
                out.extend_from_slice(b"}(");
                for (key, value) in entries {
                    key.push(protocol, out);
                    value.push(protocol, out);
                }
                out.push(b'u');
            }
            Self::Global(module, name) if protocol < 4 => {
                out.extend_from_slice(format!("c{module}\n{name}\n").as_bytes());
            }
            Self::Global(module, name) => {
                push_text(module, protocol, out);
                push_text(name, protocol, out);
                out.push(0x93);
            }
            Self::Call(call) => {
                call.0.push(protocol, out);
                call.1.push(protocol, out);
                out.push(b'R');
            }
            Self::Made(module, name, state) => {
                Self::Global(module, name).push(protocol, out);
                out.extend_from_slice(b")\x81");
                state.push(protocol, out);
                out.push(b'b');
            }
            Self::Persistent(id) => {
                id.push(protocol, out);
                out.push(b'Q');
            }
            Self::Raw(operations) => out.extend_from_slice(operations),
        }
    }
}

fn push_int(number: i64, out: &mut Vec<u8>) {
    if let Ok(number) = u8::try_from(number) {
        out.extend_from_slice(&[b'K', number]);
    } else if let Ok(number) = i32::try_from(number) {
        out.push(b'J');
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        out.extend_from_slice(&[0x8a, 8]);
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn push_text(text: &str, protocol: u8, out: &mut Vec<u8>) {
    if protocol >= 4 && text.len() < 256 {
        out.extend_from_slice(&[0x8c, text.len() as u8]);
    } else {
        out.push(b'X');
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    }
    out.extend_from_slice(text.as_bytes());
}

/// What `torch.save` makes of a tensor.
#[derive(Clone, Debug)]
pub struct Item {
    pub dtype: Dtype,
    pub sizes: Vec<u64>,
    /// In elements.
    pub strides: Vec<u64>,
    /// The first element.
    pub start: u64,
    /// The storage, byte by byte as it lies in the file.
    pub storage: Vec<u8>,
    pub is_big_endian: bool,
    pub has_crc: bool,
}

/// An item's bytes, and where its parts lie in them.
pub struct Placed {
    pub bytes: Vec<u8>,
    /// Contents of records, by their names without the archive's.
    pub records: BTreeMap<String, Range<usize>>,
    /// Their headers.
    pub headers: BTreeMap<String, usize>,
    pub directory: Range<usize>,
}

impl Item {
    /// Elements row by row, numbers with their small end first.
    pub fn row_major(dtype: Dtype, sizes: &[u64], elements: &[u8]) -> Self {
        let mut strides = vec![1; sizes.len()];
        for dim in (1..sizes.len()).rev() {
            strides[dim - 1] = strides[dim] * sizes[dim].max(1);
        }
        let (sizes, storage) = (sizes.to_vec(), elements.to_vec());
        Self { dtype, sizes, strides, start: 0, storage, is_big_endian: false, has_crc: true }
    }

    /// The same elements with their dimensions in another order in memory: the first of `order` is the slowest.
    pub fn permuted(dtype: Dtype, sizes: &[u64], elements: &[u8], order: &[usize]) -> Self {
        let own = Self::row_major(dtype, sizes, elements);
        let mut strides = vec![0; sizes.len()];
        let mut stride = 1;
        for &dim in order.iter().rev() {
            strides[dim] = stride;
            stride *= sizes[dim].max(1);
        }
        let width = dtype.bytes() as usize;
        let mut storage = vec![0; elements.len()];
        for (number, element) in elements.chunks_exact(width).enumerate() {
            let (mut rest, mut place) = (number as u64, 0);
            for dim in (0..sizes.len()).rev() {
                place += rest % sizes[dim] * strides[dim];
                rest /= sizes[dim];
            }
            storage[place as usize * width..][..width].copy_from_slice(element);
        }
        Self { strides, storage, ..own }
    }

    /// The same numbers as a machine writes them whose numbers begin with their large end. Torch does not turn storages that
    /// do not know their type, neither when it writes them nor when it reads them.
    pub fn big_endian(mut self) -> Self {
        self.is_big_endian = true;
        if storage_class(self.dtype).is_some() {
            let number = self.dtype.number_bytes() as usize;
            self.storage.chunks_exact_mut(number).for_each(<[u8]>::reverse);
        }
        self
    }

    pub fn without_crc(mut self) -> Self {
        self.has_crc = false;
        self
    }

    /// `data.pkl`.
    pub fn description(&self) -> Value {
        let width = self.dtype.bytes();
        let elements = self.storage.len() as u64 / width;
        let (class, count) = match storage_class(self.dtype) {
            Some(class) => (Value::Global("torch", class), elements),
            None => (Value::Global("torch.storage", "UntypedStorage"), self.storage.len() as u64),
        };
        let storage = Value::Persistent(Box::new(Value::Tuple(vec![
            Value::text("storage"),
            class,
            Value::text("0"),
            Value::text("cpu"),
            Value::Int(count as i64),
        ])));
        let mut args = vec![
            storage,
            Value::Int(self.start as i64),
            Value::numbers(&self.sizes),
            Value::numbers(&self.strides),
            Value::Bool(false),
            Value::call("collections", "OrderedDict", vec![]),
        ];
        if storage_class(self.dtype).is_some() {
            return Value::call("torch._utils", "_rebuild_tensor_v2", args);
        }
        args.push(Value::Global("torch", self.dtype.torch_name()));
        Value::call("torch._utils", "_rebuild_tensor_v3", args)
    }

    pub fn placed(&self) -> Placed {
        let order = if self.is_big_endian { "big" } else { "little" };
        let records = [
            ("data.pkl", self.description().pickled(2)),
            (".format_version", b"1".to_vec()),
            (".storage_alignment", b"64".to_vec()),
            ("byteorder", order.as_bytes().to_vec()),
            ("data/0", self.storage.clone()),
            ("version", b"3\n".to_vec()),
            (".data/serialization_id", b"0123456789012345678901234567890123456789".to_vec()),
        ];
        archive(&records, self.has_crc)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.placed().bytes
    }
}

/// An archive as torch writes it: records stored at multiples of 64 bytes, their lengths and checksums in the directory.
pub fn archive(records: &[(&str, Vec<u8>)], has_crc: bool) -> Placed {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    let (mut places, mut headers) = (BTreeMap::new(), BTreeMap::new());
    for (own, content) in records {
        let name = format!("archive/{own}");
        let (header, flags) = (bytes.len(), if content.is_empty() { 0x800_u16 } else { 0x808 });
        let data = (header + 30 + name.len() + 4).next_multiple_of(64);
        let padding = data - (header + 30 + name.len() + 4);
        bytes.extend_from_slice(b"PK\x03\x04");
        push_u16s(&mut bytes, &[0, flags, 0, 0, 0]);
        bytes.extend_from_slice(&[0; 12]);
        push_u16s(&mut bytes, &[name.len() as u16, padding as u16 + 4]);
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b"FB");
        push_u16s(&mut bytes, &[padding as u16]);
        bytes.resize(data, b'Z');
        bytes.extend_from_slice(content);
        let crc = if has_crc { crc32(content) } else { 0 };
        let len = content.len() as u32;
        if !content.is_empty() {
            bytes.extend_from_slice(b"PK\x07\x08");
            push_u32s(&mut bytes, &[crc, len, len]);
        }
        directory.extend_from_slice(b"PK\x01\x02");
        push_u16s(&mut directory, &[0, 0, flags, 0, 0, 0]);
        push_u32s(&mut directory, &[crc, len, len]);
        push_u16s(&mut directory, &[name.len() as u16, 0, 0, 0, 0]);
        push_u32s(&mut directory, &[0, header as u32]);
        directory.extend_from_slice(name.as_bytes());
        places.insert((*own).to_owned(), data..data + content.len());
        headers.insert((*own).to_owned(), header);
    }
    let start = bytes.len();
    end_archive(&mut bytes, &directory, records.len() as u64);
    let end = start + directory.len();
    Placed { bytes, records: places, headers, directory: start..end }
}

/// The directory of an archive, and what comes after it.
pub fn end_archive(bytes: &mut Vec<u8>, directory: &[u8], count: u64) {
    let start = bytes.len();
    bytes.extend_from_slice(directory);
    let end = bytes.len();
    bytes.extend_from_slice(b"PK\x06\x06");
    bytes.extend_from_slice(&44_u64.to_le_bytes());
    push_u16s(bytes, &[0x031e, 45]);
    push_u32s(bytes, &[0, 0]);
    for number in [count, count, directory.len() as u64, start as u64] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    bytes.extend_from_slice(&(end as u64).to_le_bytes());
    push_u32s(bytes, &[1]);
    bytes.extend_from_slice(b"PK\x05\x06");
    push_u16s(bytes, &[0, 0, count as u16, count as u16]);
    push_u32s(bytes, &[directory.len() as u32, start as u32]);
    push_u16s(bytes, &[0]);
}

fn push_u16s(out: &mut Vec<u8>, numbers: &[u16]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn push_u32s(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Bit by bit, so that it shares nothing with what is tested.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ byte as u32, |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// Of types that torch's first file format had; others are stored as bytes.
pub fn storage_class(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Float64 => "DoubleStorage",
        Dtype::Float32 => "FloatStorage",
        Dtype::Float16 => "HalfStorage",
        Dtype::Bfloat16 => "BFloat16Storage",
        Dtype::Complex128 => "ComplexDoubleStorage",
        Dtype::Complex64 => "ComplexFloatStorage",
        Dtype::Int64 => "LongStorage",
        Dtype::Int32 => "IntStorage",
        Dtype::Int16 => "ShortStorage",
        Dtype::Int8 => "CharStorage",
        Dtype::Uint8 => "ByteStorage",
        Dtype::Bool => "BoolStorage",
        _ => return None,
    })
}

/// Where something is stored, as the metadata say.
#[derive(Clone, Debug)]
pub struct Place {
    pub file: String,
    pub offset: i64,
    pub length: i64,
    pub transforms: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Chunk {
    pub offsets: Vec<u64>,
    pub sizes: Vec<u64>,
    /// `None` leaves it out of `storage_data`.
    pub place: Option<Place>,
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: Value,
    pub shape: Vec<u64>,
    pub chunks: Vec<Chunk>,
}

/// A checkpoint that is being made: everything may be changed before it is written.
#[derive(Clone, Debug)]
pub struct Writer {
    pub tensors: Vec<Tensor>,
    pub objects: Vec<(String, Place)>,
    /// Fields that torch does not have.
    pub others: Vec<(String, Value)>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub protocol: u8,
}

impl Writer {
    pub fn new() -> Self {
        let (tensors, objects, others, files) = <(Vec<_>, Vec<_>, Vec<_>, BTreeMap<_, _>)>::default();
        Self { tensors, objects, others, files, protocol: 4 }
    }

    /// A tensor whose chunks are yet to come.
    pub fn tensor(&mut self, name: &str, dtype: Dtype, shape: &[u64]) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dtype: Value::Global("torch", dtype.torch_name()),
            shape: shape.to_vec(),
            chunks: Vec::new(),
        });
        self
    }

    /// A chunk of the last tensor, at the end of a file.
    pub fn chunk(&mut self, file: &str, offsets: &[u64], item: &Item) -> &mut Self {
        let place = self.append(file, &item.bytes());
        self.add_chunk(offsets, &item.sizes, place)
    }

    /// The same, compressed.
    pub fn packed_chunk(&mut self, file: &str, offsets: &[u64], item: &Item) -> &mut Self {
        let packed = zstd::encode_all(&item.bytes()[..], 3).unwrap();
        let place = Place { transforms: vec![ZSTD.to_owned()], ..self.append(file, &packed) };
        self.add_chunk(offsets, &item.sizes, place)
    }

    /// A tensor in one chunk.
    pub fn whole(&mut self, file: &str, name: &str, item: &Item) -> &mut Self {
        let offsets = vec![0; item.sizes.len()];
        self.tensor(name, item.dtype, &item.sizes).chunk(file, &offsets, item)
    }

    pub fn object(&mut self, file: &str, name: &str, stored: &[u8]) -> &mut Self {
        let place = self.append(file, stored);
        self.objects.push((name.to_owned(), place));
        self
    }

    pub fn append(&mut self, file: &str, bytes: &[u8]) -> Place {
        let content = self.files.entry(file.to_owned()).or_default();
        let offset = content.len() as i64;
        content.extend_from_slice(bytes);
        Place { file: file.to_owned(), offset, length: bytes.len() as i64, transforms: Vec::new() }
    }

    pub fn add_chunk(&mut self, offsets: &[u64], sizes: &[u64], place: Place) -> &mut Self {
        let tensor = self.tensors.last_mut().expect("a tensor comes before its chunks");
        let (offsets, sizes) = (offsets.to_vec(), sizes.to_vec());
        tensor.chunks.push(Chunk { offsets, sizes, place: Some(place) });
        self
    }

    /// Where a chunk is stored.
    pub fn place(&mut self, tensor: usize, chunk: usize) -> &mut Place {
        self.tensors[tensor].chunks[chunk].place.as_mut().expect("it is stored")
    }

    pub fn write(&self, directory: &Path) {
        for (name, bytes) in &self.files {
            std::fs::write(directory.join(name), bytes).unwrap();
        }
        std::fs::write(directory.join(".metadata"), self.metadata().pickled(self.protocol)).unwrap();
    }

    /// `.metadata`
    pub fn metadata(&self) -> Value {
        let (mut entries, mut stored) = (Vec::new(), Vec::new());
        for (name, place) in &self.objects {
            let value = Value::object(METADATA, "BytesStorageMetadata", vec![]);
            entries.push((Value::text(name), value));
            stored.push((index(name, None), storage_info(place)));
        }
        for tensor in &self.tensors {
            let chunks = tensor.chunks.iter().map(|chunk| {
                let (offsets, sizes) = (Value::size(&chunk.offsets), Value::size(&chunk.sizes));
                Value::object(METADATA, "ChunkStorageMetadata", vec![("offsets", offsets), ("sizes", sizes)])
            });
            let fields = vec![
                ("properties", properties(&tensor.dtype)),
                ("size", Value::size(&tensor.shape)),
                ("chunks", Value::List(chunks.collect())),
            ];
            let value = Value::object(METADATA, "TensorStorageMetadata", fields);
            entries.push((Value::text(&tensor.name), value));
            for chunk in &tensor.chunks {
                let Some(place) = &chunk.place else { continue };
                stored.push((index(&tensor.name, Some(&chunk.offsets)), storage_info(place)));
            }
        }
        let mut fields = vec![
            ("state_dict_metadata", Value::Dict(entries)),
            ("planner_data", Value::None),
            ("storage_data", Value::Dict(stored)),
            ("storage_meta", Value::None),
            ("version", Value::text("1.0.0")),
        ];
        fields.extend(self.others.iter().map(|(name, value)| (name.as_str(), value.clone())));
        Value::object(METADATA, "Metadata", fields)
    }
}

fn index(name: &str, offsets: Option<&[u64]>) -> Value {
    let mut fields = vec![("fqn", Value::text(name)), ("index", Value::None)];
    fields.extend(offsets.map(|offsets| ("offset", Value::size(offsets))));
    Value::object(METADATA, "MetadataIndex", fields)
}

fn storage_info(place: &Place) -> Value {
    let mut fields = vec![
        ("relative_path", Value::text(&place.file)),
        ("offset", Value::Int(place.offset)),
        ("length", Value::Int(place.length)),
    ];
    if !place.transforms.is_empty() {
        let names = place.transforms.iter().map(Value::text).collect();
        fields.push(("transform_descriptors", Value::List(names)));
    }
    Value::object("torch.distributed.checkpoint.filesystem", "_StorageInfo", fields)
}

/// Dtype, layout, gradient, memory format, pinned, strides.
fn properties(dtype: &Value) -> Value {
    let layout = Value::call("torch.serialization", "_get_layout", vec![Value::text("torch.strided")]);
    let format = Value::call(METADATA, "_MEM_FORMAT_ENCODING", vec![Value::Int(0)]);
    let state = Value::Tuple(vec![
        dtype.clone(),
        layout,
        Value::Bool(false),
        format,
        Value::Bool(false),
        Value::None,
    ]);
    Value::Made(METADATA, "TensorProperties", Box::new(state))
}
