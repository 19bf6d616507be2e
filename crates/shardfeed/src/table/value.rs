use std::sync::Arc;

/// What a column has in a row.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number; also a date, a time or a decimal, as the file has it.
    Int(i64),
    /// A whole number that no `Int` can hold.
    UInt(u64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes that are no text.
    Bytes(Vec<u8>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f64>),
    /// Anything else of which there are several, or some of which are missing.
    List(Vec<Value>),
}

impl Value {
    /// The whole number it is.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    /// The number it is.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            Self::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// The text it is.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(value) => Some(value),
            _ => None,
        }
    }

    /// The whole numbers it is a list of.
    pub fn as_ints(&self) -> Option<&[i64]> {
        match self {
            Self::Ints(values) => Some(values),
            _ => None,
        }
    }
}

/// One row: a value for each column that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    columns: Arc<[String]>,
    values: Vec<Value>,
}

impl Record {
    pub(super) fn new(columns: Arc<[String]>, values: Vec<Value>) -> Self {
        Self { columns, values }
    }

    /// The value of a column; of a column in a struct by its path, `a.b`. `None` if that was not asked for.
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.columns.iter().position(|name| name == column).map(|at| &self.values[at])
    }

    /// Names and values, in the order in which they were asked for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.columns.iter().map(String::as_str).zip(&self.values)
    }
}
