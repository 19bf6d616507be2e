use std::ops::Range;

use super::dtype::Dtype;
use super::pickle::{Id, Node, Pickle};
use super::zip::{Record, ZipError, ZipItem};

/// Bytes that the description of a single tensor may take.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// A tensor as `torch.save` wrote it.
#[derive(Clone, Debug)]
pub struct TensorItem {
    /// How it lies in the item.
    pub view: TensorView,
    /// The checksum of its bytes, where one was recorded.
    pub crc: Option<u32>,
}

/// How a tensor lies in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// What it is made of.
    pub dtype: Dtype,
    /// How large it is.
    pub sizes: Vec<u64>,
    /// From one index of a dimension to the next, in elements.
    pub strides: Vec<u64>,
    /// The first element.
    pub start: u64,
    /// The bytes that all elements lie in.
    pub data: Range<u64>,
    /// Numbers begin with their large end.
    pub is_big_endian: bool,
    /// The conjugate of what is stored is meant.
    pub is_conjugate: bool,
    /// The negative of what is stored is meant.
    pub is_negative: bool,
}

/// Why an item is no tensor, or none that is read here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// No archive.
    #[error(transparent)]
    Zip(#[from] ZipError),
    /// An archive of something else.
    #[error("{0}")]
    Content(String),
}

impl TensorItem {
    /// Finds a tensor in an item of `len` bytes. `read` is asked for few ranges, all of them within the item, and never for
    /// the elements.
    pub fn parse<E: From<ItemError>>(
        len: u64,
        read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let read = &mut |range: Range<u64>| read(range).map_err(Failure::Outer);
        match Self::parse_inner(len, read) {
            Ok(item) => Ok(item),
            Err(Failure::Outer(error)) => Err(error),
            Err(Failure::Item(error)) => Err(error.into()),
        }
    }

    fn parse_inner<E>(
        len: u64,
        read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, Failure<E>>,
    ) -> Result<Self, Failure<E>> {
        let zip = ZipItem::parse(len, read)?;
        let record = zip.record("data.pkl").ok_or_else(|| content("the archive has no data.pkl"))?;
        let description = small(record, read)?;
        let pickle = Pickle::parse(&description).map_err(|error| content(format!("data.pkl: {error}")))?;
        let described = describe(&pickle)?;
        let is_big_endian =
            match zip.record("byteorder").map(|record| small(record, read)).transpose()?.as_deref() {
                None | Some(b"little") => false,
                Some(b"big") => true,
                Some(other) => {
                    return Err(
                        content(format!("the byte order {:?}", String::from_utf8_lossy(other))).into()
                    );
                }
            };
        let name = format!("data/{}", described.key);
        let record = zip.record(&name).ok_or_else(|| content(format!("the archive has no {name}")))?;
        let data = record.data(read)?;
        let crc = Some(record.crc).filter(|&crc| crc != 0 || record.size == 0);
        let view = TensorView {
            dtype: described.dtype,
            sizes: described.sizes,
            strides: described.strides,
            start: described.start,
            data,
            // Torch does not swap what it stored as bytes, so its own reader gives them as they are. So do we.
            is_big_endian: is_big_endian && described.is_typed,
            is_conjugate: described.is_conjugate,
            is_negative: described.is_negative,
        };
        view.check(described.storage_bytes)?;
        Ok(Self { view, crc })
    }
}

impl TensorView {
    /// Elements that lie one after another, the last index fastest.
    pub fn row_major(dtype: Dtype, sizes: &[u64], data: Range<u64>) -> Self {
        let mut strides = vec![1_u64; sizes.len()];
        for dim in (1..sizes.len()).rev() {
            // What has no elements may be as wide as it likes.
            strides[dim - 1] = strides[dim].saturating_mul(sizes[dim].max(1));
        }
        let sizes = sizes.to_vec();
        let (is_big_endian, is_conjugate, is_negative) = (false, false, false);
        Self { dtype, sizes, strides, start: 0, data, is_big_endian, is_conjugate, is_negative }
    }

    /// Everything lies within the bytes that there are.
    fn check(&self, storage_bytes: u64) -> Result<(), ItemError> {
        let len = self.data.end - self.data.start;
        if len != storage_bytes {
            return Err(content(format!(
                "its elements are said to take {storage_bytes} bytes, the record has {len}"
            )));
        }
        if self.sizes.contains(&0) {
            return Ok(());
        }
        let mut steps =
            self.sizes.iter().zip(&self.strides).map(|(size, stride)| (size - 1).checked_mul(*stride));
        let last = steps.try_fold(self.start, |sum, step| sum.checked_add(step?));
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(self.dtype.bytes()));
        if end.is_none_or(|end| end > len) {
            let what =
                format!("sizes {:?} with strides {:?} from element {}", self.sizes, self.strides, self.start);
            return Err(content(format!("{what} reach past the {len} bytes that are there")));
        }
        Ok(())
    }
}

enum Failure<E> {
    Outer(E),
    Item(ItemError),
}

impl<E> From<ItemError> for Failure<E> {
    fn from(error: ItemError) -> Self {
        Self::Item(error)
    }
}

impl<E> From<ZipError> for Failure<E> {
    fn from(error: ZipError) -> Self {
        Self::Item(error.into())
    }
}

fn small<E>(
    record: &Record,
    read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, Failure<E>>,
) -> Result<Vec<u8>, Failure<E>> {
    if record.size > DESCRIPTION_BYTES_MAX {
        return Err(content(format!(
            "{} of {} bytes describes more than a tensor",
            record.name, record.size
        ))
        .into());
    }
    let range = record.data(read)?;
    let bytes = read(range)?;
    // What says how the elements lie is worth as much as they are, and costs nothing to check. Zero stands for none.
    let found = crc32fast::hash(&bytes);
    if record.crc != 0 && found != record.crc {
        return Err(content(format!(
            "{}: its bytes have the checksum {found:08x}, and {:08x} was recorded when they were saved: they are damaged; copy the file again",
            record.name, record.crc
        ))
        .into());
    }
    Ok(bytes)
}

/// What `data.pkl` says of a tensor.
struct Described {
    dtype: Dtype,
    key: String,
    storage_bytes: u64,
    /// Its storage knows the type of its elements.
    is_typed: bool,
    start: u64,
    sizes: Vec<u64>,
    strides: Vec<u64>,
    is_conjugate: bool,
    is_negative: bool,
}

fn describe(pickle: &Pickle<'_>) -> Result<Described, ItemError> {
    let mut id = pickle.root();
    let unknown = || content(format!("no plain tensor, but {}", pickle.print(pickle.root())));
    let mut made = pickle.object(id).ok_or_else(unknown)?;
    if made.class.is("torch._utils", "_rebuild_parameter") {
        id = *made.args.first().ok_or_else(unknown)?;
        made = pickle.object(id).ok_or_else(unknown)?;
    }
    let args = made.args;
    let is_third = made.class.is("torch._utils", "_rebuild_tensor_v3");
    if !is_third && !made.class.is("torch._utils", "_rebuild_tensor_v2")
        || args.len() < 6 + usize::from(is_third)
    {
        return Err(unknown());
    }
    let numbers = |id: Id| -> Option<Vec<u64>> {
        pickle.sequence(id)?.iter().map(|&number| pickle.count(number)).collect()
    };
    let sizes = numbers(args[2]).ok_or_else(unknown)?;
    let strides = numbers(args[3]).filter(|strides| strides.len() == sizes.len()).ok_or_else(unknown)?;
    let start = pickle.count(args[1]).ok_or_else(unknown)?;
    let storage = storage(pickle, args[0]).ok_or_else(unknown)?;
    let named =
        if is_third { pickle.global(args[6]).filter(|global| global.module == "torch") } else { None };
    let dtype =
        named.and_then(|global| Dtype::of_torch(&global.name)).or(storage.dtype).ok_or_else(unknown)?;
    // Typed storages count elements, untyped ones bytes.
    let unit = storage.dtype.map_or(1, Dtype::bytes);
    let storage_bytes = storage.count.checked_mul(unit).ok_or_else(unknown)?;
    let flags = args.get(6 + usize::from(is_third)).copied();
    let flag = |name: &str| {
        let value = flags.filter(|&flags| matches!(pickle.node(flags), Node::Dict(_)));
        value
            .and_then(|flags| pickle.get(flags, name))
            .is_some_and(|id| matches!(pickle.node(id), Node::Bool(true)))
    };
    let (is_conjugate, is_negative) = (flag("conj"), flag("neg"));
    let is_typed = storage.dtype.is_some();
    Ok(Described {
        dtype,
        key: storage.key,
        storage_bytes,
        is_typed,
        start,
        sizes,
        strides,
        is_conjugate,
        is_negative,
    })
}

struct Storage {
    /// Of its elements, if it knows.
    dtype: Option<Dtype>,
    key: String,
    count: u64,
}

/// `('storage', torch.FloatStorage, '0', 'cpu', 6)`
fn storage(pickle: &Pickle<'_>, id: Id) -> Option<Storage> {
    let Node::Persistent(id) = pickle.node(id) else { return None };
    let &[kind, class, key, _, count] = pickle.sequence(*id)? else { return None };
    let class = pickle.global(class)?;
    let is_untyped = class.is("torch.storage", "UntypedStorage");
    let dtype = Dtype::of_storage(&class.name);
    if pickle.text(kind) != Some("storage") || dtype.is_none() && !is_untyped {
        return None;
    }
    Some(Storage { dtype, key: pickle.text(key)?.to_owned(), count: pickle.count(count)? })
}

fn content(reason: impl Into<String>) -> ItemError {
    ItemError::Content(reason.into())
}
