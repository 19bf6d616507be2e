//! Loads a checkpoint that torch saved into candle's tensors, whole and in parts: `cargo run` in this folder.
#![deny(unsafe_code)]

use candle_core::{DType, Device, Tensor};
use shardfeed::checkpoint::{Checkpoint, Dtype, TensorData, write_sample};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What candle calls a type of torch's; not all have a name there.
fn dtype(dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::Float64 => DType::F64,
        Dtype::Float32 => DType::F32,
        Dtype::Float16 => DType::F16,
        Dtype::Bfloat16 => DType::BF16,
        Dtype::Float8E4m3fn => DType::F8E4M3,
        Dtype::Int64 => DType::I64,
        Dtype::Uint32 => DType::U32,
        // Candle has no booleans: they are bytes of zero and one.
        Dtype::Uint8 | Dtype::Bool => DType::U8,
        other => return Err(format!("candle has no {other}; cast it first").into()),
    })
}

fn into_candle(data: &TensorData) -> Result<Tensor> {
    let shape: Vec<usize> = data.shape.iter().map(|&size| size as usize).collect();
    Ok(Tensor::from_raw_buffer(&data.bytes, dtype(data.dtype)?, &shape, &Device::Cpu)?)
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    write_sample(directory.path())?;
    let checkpoint = Checkpoint::open(directory.path())?;
    for stored in checkpoint.tensors() {
        let tensor = into_candle(&checkpoint.read(&stored.name)?)?;
        println!("{:20} {:?} {:?}", stored.name, tensor.dtype(), tensor.shape());
    }
    // As a rank of a tensor-parallel job would: the left half of every row.
    let weight = into_candle(&checkpoint.read("model.weight")?)?;
    let half = into_candle(&checkpoint.read_slice("model.weight", &[0..4, 0..2])?)?;
    assert_eq!(weight.narrow(1, 0, 2)?.to_vec2::<f32>()?, half.to_vec2::<f32>()?);
    // Stored column by column, read row by row.
    let transposed = into_candle(&checkpoint.read("model.transposed")?)?;
    assert_eq!(weight.t()?.to_vec2::<f32>()?, transposed.to_vec2::<f32>()?);
    println!("half of model.weight: {:?}", half.to_vec2::<f32>()?);
    Ok(())
}
