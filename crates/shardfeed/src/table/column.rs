use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::page::PageReader;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{
    AsBytes, BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType,
    Int32Type, Int64Type, Int96, Int96Type,
};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, Type};

use super::guarded::{ColumnShape, TOO_MANY};
use super::value::Value;

/// A column of a file's schema, as far as its values are concerned.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Its number among all that hold values.
    pub number: usize,
    pub descriptor: ColumnDescPtr,
    name: Vec<String>,
    kind: Kind,
    /// For each level of lists, the definition level from which on one has elements.
    list_levels: Vec<i16>,
}

/// What its numbers and bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Text,
    Other,
}

/// The values of a column in a row group, row by row.
pub(super) struct Column {
    leaf: Leaf,
    values: Values,
    /// Levels of all slots, and where each row's slots and values begin. Empty where every row has one value.
    definition: Vec<u8>,
    repetition: Vec<u8>,
    slot_starts: Vec<u32>,
    value_starts: Vec<u32>,
    rows: usize,
}

enum Values {
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Narrow(Vec<i32>),
    Floats(Vec<f64>),
    Singles(Vec<f32>),
    Bytes { bytes: Vec<u8>, ends: Vec<u64> },
}

/// Records that are read at once.
const PORTION: usize = 1024;

impl Leaf {
    pub fn new(number: usize, descriptor: ColumnDescPtr, root: &Type) -> Self {
        let kind = match (descriptor.logical_type_ref(), descriptor.converted_type()) {
            (Some(LogicalType::Integer(int)), _) if !int.is_signed => Kind::Unsigned,
            (
                _,
                ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64,
            ) => Kind::Unsigned,
            (Some(LogicalType::String | LogicalType::Json | LogicalType::Enum), _)
            | (_, ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM) => Kind::Text,
            _ if matches!(descriptor.physical_type(), PhysicalType::INT32 | PhysicalType::INT64) => {
                Kind::Signed
            }
            _ => Kind::Other,
        };
        let (name, list_levels) = walk(&descriptor, root);
        Self { number, descriptor, name, kind, list_levels }
    }

    /// How it is called: its path, with points, without what lists are made of.
    pub fn name(&self) -> String {
        self.name.join(".")
    }

    /// Where it is in the schema.
    pub fn path(&self) -> String {
        self.descriptor.path().string()
    }

    /// What decoding it takes.
    pub fn shape(&self) -> ColumnShape {
        let value = match self.descriptor.physical_type() {
            PhysicalType::BOOLEAN => size_of::<bool>(),
            PhysicalType::INT32 | PhysicalType::FLOAT => 4,
            PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
            PhysicalType::INT96 => size_of::<Int96>(),
            PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => size_of::<ByteArray>(),
        };
        ColumnShape {
            decoded_bytes: (value + 2 * size_of::<i16>()) as u64,
            is_repeated: self.descriptor.max_rep_level() > 0,
            has_definition: self.descriptor.max_def_level() > 0,
        }
    }

    /// Whether it is the column of this name, or part of it.
    pub fn is_in(&self, name: &str) -> bool {
        let own = self.name();
        own.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// The way to a column: its name, and the definition level of each repeated node. Nodes that only make up a list have no
/// name of their own.
fn walk(descriptor: &ColumnDescriptor, root: &Type) -> (Vec<String>, Vec<i16>) {
    let (mut node, mut definition, mut levels, mut name) = (root, 0, Vec::new(), Vec::new());
    // The repeated node of a list, and its element.
    let mut unnamed = 0;
    for part in descriptor.path().parts() {
        let Some(child) = node.get_fields().iter().find(|field| field.name() == part) else { break };
        node = child;
        let info = node.get_basic_info();
        match info.repetition() {
            Repetition::REQUIRED => {}
            Repetition::OPTIONAL => definition += 1,
            Repetition::REPEATED => {
                definition += 1;
                levels.push(definition);
            }
        }
        if unnamed > 0 {
            unnamed -= 1;
        } else {
            name.push(part.clone());
        }
        if info.converted_type() == ConvertedType::LIST || info.logical_type_ref() == Some(&LogicalType::List)
        {
            unnamed = if is_element(node) { 1 } else { 2 };
        } else if info.converted_type() == ConvertedType::MAP
            || info.logical_type_ref() == Some(&LogicalType::Map)
        {
            unnamed = 1;
        }
        if node.is_primitive() {
            break;
        }
    }
    (name, levels)
}

/// Whether the repeated node of a list is its element already, as old writers have it, and not a wrapper around one.
fn is_element(list: &Type) -> bool {
    let Some(repeated) = list.get_fields().first() else { return true };
    let name = repeated.name();
    repeated.is_primitive()
        || repeated.get_fields().len() != 1
        || name == "array"
        || name.strip_suffix("_tuple") == Some(list.name())
}

/// An error if bytes are more than there is room for.
fn fits(bytes: usize, room: u64) -> Result<(), String> {
    if bytes as u64 > room { Err(TOO_MANY.to_owned()) } else { Ok(()) }
}

impl Column {
    /// Reads all `rows` of a column. An error if it takes more than `bytes_max`, or has others.
    pub fn read(
        leaf: &Leaf,
        pages: Box<dyn PageReader>,
        rows: usize,
        bytes_max: u64,
    ) -> Result<Self, String> {
        let mut column = Self {
            leaf: leaf.clone(),
            values: Values::Bools(Vec::new()),
            definition: Vec::new(),
            repetition: Vec::new(),
            slot_starts: Vec::new(),
            value_starts: Vec::new(),
            rows,
        };
        column.values = match leaf.descriptor.physical_type() {
            PhysicalType::BOOLEAN => Values::Bools(column.read_numbers::<BoolType>(pages, bytes_max)?),
            PhysicalType::INT32 => Values::Narrow(column.read_numbers::<Int32Type>(pages, bytes_max)?),
            PhysicalType::INT64 => Values::Ints(column.read_numbers::<Int64Type>(pages, bytes_max)?),
            PhysicalType::INT96 => {
                let times = column.read_numbers::<Int96Type>(pages, bytes_max)?;
                Values::Ints(times.iter().map(Int96::to_nanos).collect())
            }
            PhysicalType::FLOAT => Values::Singles(column.read_numbers::<FloatType>(pages, bytes_max)?),
            PhysicalType::DOUBLE => Values::Floats(column.read_numbers::<DoubleType>(pages, bytes_max)?),
            PhysicalType::BYTE_ARRAY => column.read_bytes::<ByteArrayType>(pages, bytes_max)?,
            PhysicalType::FIXED_LEN_BYTE_ARRAY => {
                column.read_bytes::<FixedLenByteArrayType>(pages, bytes_max)?
            }
        };
        column.shrink();
        Ok(column)
    }

    /// It will not grow any more.
    fn shrink(&mut self) {
        self.definition.shrink_to_fit();
        self.repetition.shrink_to_fit();
        self.slot_starts.shrink_to_fit();
        self.value_starts.shrink_to_fit();
        match &mut self.values {
            Values::Bools(values) => values.shrink_to_fit(),
            Values::Ints(values) => values.shrink_to_fit(),
            Values::Narrow(values) => values.shrink_to_fit(),
            Values::Floats(values) => values.shrink_to_fit(),
            Values::Singles(values) => values.shrink_to_fit(),
            Values::Bytes { bytes, ends } => {
                bytes.shrink_to_fit();
                ends.shrink_to_fit();
            }
        }
    }

    fn read_numbers<T: DataType>(
        &mut self,
        pages: Box<dyn PageReader>,
        bytes_max: u64,
    ) -> Result<Vec<T::T>, String> {
        let mut numbers = Vec::new();
        self.read_all::<T>(pages, bytes_max, |values, room| {
            fits(size_of::<T::T>() * (numbers.len() + values.len()), room)?;
            numbers.append(values);
            Ok(())
        })?;
        Ok(numbers)
    }

    fn read_bytes<T: DataType>(
        &mut self,
        pages: Box<dyn PageReader>,
        bytes_max: u64,
    ) -> Result<Values, String> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        self.read_all::<T>(pages, bytes_max, |values, room| {
            for value in values.drain(..) {
                // Each by itself: values of a dictionary share their bytes, and a few of them can be more than there is room for.
                let value = value.as_bytes();
                fits(bytes.len() + value.len() + size_of::<u64>() * (ends.len() + 1), room)?;
                bytes.extend_from_slice(value);
                ends.push(bytes.len() as u64);
            }
            Ok(())
        })?;
        Ok(Values::Bytes { bytes, ends })
    }

    /// `keep` takes the values of a portion, if all so far fit into so many bytes.
    fn read_all<T: DataType>(
        &mut self,
        pages: Box<dyn PageReader>,
        bytes_max: u64,
        mut keep: impl FnMut(&mut Vec<T::T>, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let descriptor = &self.leaf.descriptor;
        let mut reader = ColumnReaderImpl::<T>::new(descriptor.clone(), pages);
        let (max_definition, max_repetition) = (descriptor.max_def_level(), descriptor.max_rep_level());
        let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rows, mut value_count) = (0, 0_usize);
        loop {
            definition.clear();
            repetition.clear();
            let read = reader.read_records(
                PORTION,
                (max_definition > 0).then_some(&mut definition),
                (max_repetition > 0).then_some(&mut repetition),
                &mut values,
            );
            let (records, _, levels) = read.map_err(|error| error.to_string())?;
            if records == 0 && levels == 0 {
                break;
            }
            rows += records;
            let is_above = |levels: &[i16], max: i16| levels.iter().any(|level| !(0..=max).contains(level));
            if is_above(&definition, max_definition) || is_above(&repetition, max_repetition) {
                return Err("it has levels that its type does not have".to_owned());
            }
            if self.definition.is_empty() && repetition.first().is_some_and(|&level| level > 0) {
                return Err("it begins in the middle of a row".to_owned());
            }
            // Before anything is kept: one row may be more than there is room for.
            let starts = match (max_definition, max_repetition) {
                (0, _) => 0,
                (_, 0) => levels,
                _ => repetition.iter().filter(|&&level| level == 0).count(),
            };
            let kept = self.definition.len() + self.repetition.len() + 8 * self.slot_starts.len();
            let level_bytes = (kept + definition.len() + repetition.len() + 8 * starts) as u64;
            keep(&mut values, bytes_max.checked_sub(level_bytes).ok_or(TOO_MANY)?)?;
            if max_definition > 0 {
                for slot in 0..levels {
                    if max_repetition == 0 || repetition[slot] == 0 {
                        self.slot_starts.push(
                            u32::try_from(self.definition.len()).map_err(|_| "it has too many values")?,
                        );
                        self.value_starts
                            .push(u32::try_from(value_count).map_err(|_| "it has too many values")?);
                    }
                    self.definition.push(definition[slot] as u8);
                    value_count += usize::from(definition[slot] == max_definition);
                }
                self.repetition.extend(repetition.iter().map(|&level| level as u8));
            }
        }
        let starts = if max_definition > 0 { self.slot_starts.len() } else { rows };
        if starts != self.rows {
            return Err(format!("a column has {starts} rows, where the row group has {}", self.rows));
        }
        Ok(())
    }

    fn level_bytes(&self) -> u64 {
        let levels = self.definition.capacity() + self.repetition.capacity();
        (levels + 4 * (self.slot_starts.capacity() + self.value_starts.capacity())) as u64
    }

    /// What it takes in memory.
    pub fn bytes(&self) -> u64 {
        let values = match &self.values {
            Values::Bools(values) => values.capacity(),
            Values::Ints(values) => 8 * values.capacity(),
            Values::Narrow(values) => 4 * values.capacity(),
            Values::Floats(values) => 8 * values.capacity(),
            Values::Singles(values) => 4 * values.capacity(),
            Values::Bytes { bytes, ends } => bytes.capacity() + 8 * ends.capacity(),
        };
        values as u64 + self.level_bytes()
    }

    /// What is in a row, of which there are enough.
    pub fn value(&self, row: usize) -> Result<Value, String> {
        if self.leaf.descriptor.max_def_level() == 0 {
            return self.values.get(row, self.leaf.kind);
        }
        let (from, mut value) = (self.slot_starts[row] as usize, self.value_starts[row] as usize);
        let to = self.slot_starts.get(row + 1).map_or(self.definition.len(), |&start| start as usize);
        self.assemble(from, to, 1, &mut value)
    }

    /// Slots `from..to` as one element of lists of level `level - 1`.
    fn assemble(&self, from: usize, to: usize, level: usize, value: &mut usize) -> Result<Value, String> {
        let definition = i16::from(self.definition[from]);
        let max = self.leaf.descriptor.max_def_level();
        let Some(&has_elements) = self.leaf.list_levels.get(level - 1) else {
            if definition < max {
                return Ok(Value::Null);
            }
            *value += 1;
            return self.values.get(*value - 1, self.leaf.kind);
        };
        if definition < has_elements - 1 {
            return Ok(Value::Null);
        }
        let is_innermost = level == self.leaf.list_levels.len();
        if definition < has_elements {
            // An empty list of numbers is one of numbers, too.
            return if is_innermost {
                self.values.list(0..0, self.leaf.kind)
            } else {
                Ok(Value::List(Vec::new()))
            };
        }
        if is_innermost && self.definition[from..to].iter().all(|&definition| i16::from(definition) == max) {
            let range = *value..*value + (to - from);
            *value = range.end;
            return self.values.list(range, self.leaf.kind);
        }
        let mut elements = Vec::new();
        let mut start = from;
        while start < to {
            let next =
                (start + 1..to).find(|&slot| usize::from(self.repetition[slot]) <= level).unwrap_or(to);
            elements.push(self.assemble(start, next, level + 1, value)?);
            start = next;
        }
        Ok(Value::List(elements))
    }
}

impl Values {
    fn get(&self, at: usize, kind: Kind) -> Result<Value, String> {
        Ok(match self {
            Self::Bools(values) => Value::Bool(values[at]),
            Self::Ints(values) if kind == Kind::Unsigned => {
                match u64::from_ne_bytes(values[at].to_ne_bytes()) {
                    value if i64::try_from(value).is_err() => Value::UInt(value),
                    value => Value::Int(value as i64),
                }
            }
            Self::Ints(values) => Value::Int(values[at]),
            Self::Narrow(values) if kind == Kind::Unsigned => Value::Int(values[at].cast_unsigned().into()),
            Self::Narrow(values) => Value::Int(values[at].into()),
            Self::Floats(values) => Value::Float(values[at]),
            Self::Singles(values) => Value::Float(values[at].into()),
            Self::Bytes { bytes, ends } => {
                let start = at.checked_sub(1).map_or(0, |before| ends[before]);
                let bytes = &bytes[start as usize..ends[at] as usize];
                match kind {
                    Kind::Text => {
                        let text =
                            std::str::from_utf8(bytes).map_err(|_| "a text is not in UTF-8".to_owned())?;
                        Value::Text(text.to_owned())
                    }
                    _ => Value::Bytes(bytes.to_vec()),
                }
            }
        })
    }

    fn list(&self, range: std::ops::Range<usize>, kind: Kind) -> Result<Value, String> {
        Ok(match self {
            Self::Ints(values) if kind == Kind::Signed => Value::Ints(values[range].to_vec()),
            Self::Narrow(values) if kind == Kind::Unsigned => {
                Value::Ints(values[range].iter().map(|value| value.cast_unsigned().into()).collect())
            }
            Self::Narrow(values) => Value::Ints(values[range].iter().map(|&value| value.into()).collect()),
            Self::Floats(values) => Value::Floats(values[range].to_vec()),
            Self::Singles(values) => Value::Floats(values[range].iter().map(|&value| value.into()).collect()),
            _ => Value::List(range.map(|at| self.get(at, kind)).collect::<Result<_, _>>()?),
        })
    }
}
