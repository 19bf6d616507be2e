//! Loads parts of a checkpoint that torch saved into the types of the `safetensors` crate, and writes them with it.
//! `cargo run -p shardfeed --example checkpoint_into_safetensors`

use safetensors::tensor::{SafeTensors, TensorView, serialize};
use shardfeed::checkpoint::{Checkpoint, Dtype, ReadPlan, TensorData, write_sample};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The crate's name for a type. (`convert_checkpoint` knows all of them; here those of the sample do.)
fn dtype(dtype: Dtype) -> Result<safetensors::Dtype> {
    Ok(match dtype {
        Dtype::Float32 => safetensors::Dtype::F32,
        Dtype::Bfloat16 => safetensors::Dtype::BF16,
        Dtype::Int64 => safetensors::Dtype::I64,
        Dtype::Bool => safetensors::Dtype::BOOL,
        other => return Err(format!("{other} is not in this example").into()),
    })
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    write_sample(directory.path())?;
    let checkpoint = Checkpoint::open(directory.path())?;

    // Memory for everything under `model.`, filled by one plan on several threads.
    let chosen: Vec<_> =
        checkpoint.tensors().iter().filter(|tensor| tensor.name.starts_with("model.")).collect();
    let mut tensors: Vec<TensorData> = chosen
        .iter()
        .map(|stored| TensorData {
            dtype: stored.dtype,
            shape: stored.shape.clone(),
            bytes: vec![0; stored.bytes() as usize],
        })
        .collect();
    let mut plan = ReadPlan::new();
    for (stored, tensor) in chosen.iter().zip(&mut tensors) {
        plan.read(&stored.name, &mut tensor.bytes);
    }
    let stats = checkpoint.read_into(plan)?;
    println!("{} bytes wanted, {} read", stats.bytes, stats.bytes_read);

    let mut views = Vec::new();
    for (stored, tensor) in chosen.iter().zip(&tensors) {
        let shape = tensor.shape.iter().map(|&size| size as usize).collect();
        views.push((stored.name.clone(), TensorView::new(dtype(tensor.dtype)?, shape, &tensor.bytes)?));
    }
    let file = serialize(views, None)?;
    let again = SafeTensors::deserialize(&file)?;
    for (stored, tensor) in chosen.iter().zip(&tensors) {
        assert_eq!(again.tensor(&stored.name)?.data(), tensor.bytes);
    }
    println!("{} tensors in {} bytes of safetensors", again.len(), file.len());
    Ok(())
}
