use std::path::Path;

use shardfeed::checkpoint::{
    Checkpoint, ConvertOptions, OpenOptions, Problem, ProblemKind, convert_checkpoint, verify_checkpoint,
    write_sample,
};

use super::promises::{Wrong, ensure};
use crate::output::thousands;

/// A checkpoint that torch saved is unpacked, looked at, checked and converted.
pub fn check_reading(directory: &Path) -> Result<String, Wrong> {
    let saved = directory.join("checkpoint");
    write_sample(&saved)?;
    let checkpoint = Checkpoint::open(&saved)?;
    ensure(problems(&saved)?.is_empty(), "a good checkpoint was called damaged")?;
    let converted = directory.join("checkpoint-safetensors");
    convert_checkpoint(&checkpoint, &converted, &ConvertOptions::default())?;
    let again = Checkpoint::open(&converted)?;
    let mut bytes = 0;
    for tensor in checkpoint.tensors() {
        let (one, other) = (checkpoint.read(&tensor.name)?, again.read(&tensor.name)?);
        ensure(one == other, &format!("{} is not what it was", tensor.name))?;
        bytes += one.bytes.len() as u64;
    }
    ensure(again.tensors().len() == checkpoint.tensors().len(), "there are other tensors than before")?;
    Ok(format!("{} tensors, {} bytes, equal as safetensors", checkpoint.tensors().len(), thousands(bytes)))
}

/// A byte of a tensor is changed, which torch would not notice.
pub fn check_damage(directory: &Path, scratch: &Path) -> Result<String, Wrong> {
    let (saved, damaged) = (directory.join("checkpoint"), scratch.join("damaged-checkpoint"));
    write_sample(&damaged)?;
    let checkpoint = Checkpoint::open(&saved)?;
    let tensor = checkpoint
        .tensor("model.weight")
        .ok_or_else(|| Wrong("the sample has no model.weight".to_owned()))?;
    let (file, item) = (damaged.join("__0_0.distcp"), &tensor.chunks[0].item);
    let other = |error: std::io::Error| Wrong(error.to_string());
    let mut bytes = std::fs::read(&file).map_err(other)?;
    // Its elements begin some hundred bytes after the item does.
    let weight = checkpoint.read("model.weight")?.bytes;
    let own = &mut bytes[item.offset as usize..(item.offset + item.length) as usize];
    let at = own
        .windows(weight.len())
        .position(|window| window == weight)
        .ok_or_else(|| Wrong("its bytes are not there".to_owned()))?;
    own[at + 5] ^= 1;
    std::fs::write(&file, bytes).map_err(other)?;
    let found = problems(&damaged)?;
    let [problem] = found.as_slice() else {
        return Err(Wrong(format!("{} problems were found", found.len())));
    };
    ensure(problem.kind == ProblemKind::Checksum && problem.item == "model.weight", &problem.reason)?;
    Ok(format!("{} at byte {} of __0_0.distcp", problem.item, thousands(problem.offset)))
}

fn problems(path: &Path) -> Result<Vec<Problem>, Wrong> {
    Ok(verify_checkpoint(path, &OpenOptions::default(), None)?.problems)
}
