use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // They are their names.
pub enum Dtype {
    Float64,
    Float32,
    Float16,
    Bfloat16,
    Float8E4m3fn,
    Float8E4m3fnuz,
    Float8E5m2,
    Float8E5m2fnuz,
    Float8E8m0fnu,
    /// Two numbers of four bits in a byte, which counts as one element.
    Float4E2m1fnX2,
    Complex128,
    Complex64,
    Complex32,
    /// Both parts are `Bfloat16`.
    Bcomplex32,
    Int64,
    Int32,
    Int16,
    Int8,
    Uint64,
    Uint32,
    Uint16,
    Uint8,
    Bool,
}

/// What each is called: by torch, as a storage of torch's first file format, by safetensors; and its bytes.
const NAMES: [(Dtype, &str, &str, &str, u64); 23] = [
    (Dtype::Float64, "float64", "DoubleStorage", "F64", 8),
    (Dtype::Float32, "float32", "FloatStorage", "F32", 4),
    (Dtype::Float16, "float16", "HalfStorage", "F16", 2),
    (Dtype::Bfloat16, "bfloat16", "BFloat16Storage", "BF16", 2),
    (Dtype::Float8E4m3fn, "float8_e4m3fn", "", "F8_E4M3", 1),
    (Dtype::Float8E4m3fnuz, "float8_e4m3fnuz", "", "F8_E4M3FNUZ", 1),
    (Dtype::Float8E5m2, "float8_e5m2", "", "F8_E5M2", 1),
    (Dtype::Float8E5m2fnuz, "float8_e5m2fnuz", "", "F8_E5M2FNUZ", 1),
    (Dtype::Float8E8m0fnu, "float8_e8m0fnu", "", "F8_E8M0", 1),
    (Dtype::Float4E2m1fnX2, "float4_e2m1fn_x2", "", "F4", 1),
    (Dtype::Complex128, "complex128", "ComplexDoubleStorage", "", 16),
    (Dtype::Complex64, "complex64", "ComplexFloatStorage", "C64", 8),
    (Dtype::Complex32, "complex32", "", "", 4),
    (Dtype::Bcomplex32, "bcomplex32", "", "", 4),
    (Dtype::Int64, "int64", "LongStorage", "I64", 8),
    (Dtype::Int32, "int32", "IntStorage", "I32", 4),
    (Dtype::Int16, "int16", "ShortStorage", "I16", 2),
    (Dtype::Int8, "int8", "CharStorage", "I8", 1),
    (Dtype::Uint64, "uint64", "", "U64", 8),
    (Dtype::Uint32, "uint32", "", "U32", 4),
    (Dtype::Uint16, "uint16", "", "U16", 2),
    (Dtype::Uint8, "uint8", "ByteStorage", "U8", 1),
    (Dtype::Bool, "bool", "BoolStorage", "BOOL", 1),
];

impl Dtype {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|names| names.0)
    }

    /// By torch's name, for example `bfloat16`.
    pub fn of_torch(name: &str) -> Option<Self> {
        // Torch has second names for some.
        let name = match name {
            "half" => "float16",
            "float" => "float32",
            "double" => "float64",
            "chalf" => "complex32",
            "cfloat" => "complex64",
            "cdouble" => "complex128",
            "short" => "int16",
            "int" => "int32",
            "long" => "int64",
            name => name,
        };
        NAMES.iter().find(|names| names.1 == name).map(|names| names.0)
    }

    /// By the name of a typed storage, for example `BFloat16Storage`.
    pub fn of_storage(name: &str) -> Option<Self> {
        NAMES.iter().find(|names| !name.is_empty() && names.2 == name).map(|names| names.0)
    }

    /// By the name that safetensors files have for it, for example `BF16`.
    pub fn of_safetensors(name: &str) -> Option<Self> {
        NAMES.iter().find(|names| !name.is_empty() && names.3 == name).map(|names| names.0)
    }

    /// Torch's name for it, without `torch.`.
    pub fn torch_name(self) -> &'static str {
        self.names().1
    }

    /// The name that safetensors files have for it, if there is one.
    pub fn safetensors_name(self) -> Option<&'static str> {
        Some(self.names().3).filter(|name| !name.is_empty())
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        self.names().4
    }

    /// Whether elements are real numbers with a fraction, wide enough to be computed with: those that a cast may change.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float64 | Self::Float32 | Self::Float16 | Self::Bfloat16)
    }

    /// Whether elements are complex.
    pub fn is_complex(self) -> bool {
        matches!(self, Self::Complex32 | Self::Bcomplex32 | Self::Complex64 | Self::Complex128)
    }

    /// Bytes of a number: half an element where those are complex.
    pub fn number_bytes(self) -> u64 {
        if self.is_complex() { self.bytes() / 2 } else { self.bytes() }
    }

    fn names(self) -> &'static (Self, &'static str, &'static str, &'static str, u64) {
        NAMES.iter().find(|names| names.0 == self).expect("all of them are listed")
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.torch_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for dtype in Dtype::all() {
            assert_eq!(Dtype::of_torch(dtype.torch_name()), Some(dtype));
            let name = dtype.safetensors_name();
            assert!(name.is_none_or(|name| Dtype::of_safetensors(name) == Some(dtype)));
            assert!(dtype.names().2.is_empty() || Dtype::of_storage(dtype.names().2) == Some(dtype));
        }
        assert_eq!(Dtype::of_torch("long"), Some(Dtype::Int64));
        assert_eq!(Dtype::of_torch("qint8"), None);
        assert_eq!(Dtype::of_storage(""), None);
        assert_eq!(Dtype::of_safetensors(""), None);
    }
}
