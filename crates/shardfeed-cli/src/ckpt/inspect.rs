use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use shardfeed::checkpoint::{Checkpoint, StoredItem, StoredTensor};

use super::CheckpointArgs;
use super::tree::Tree;
use crate::args::Failure;
use crate::output::{bytes_text, say, table, thousands};

#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Levels of the tree to show; what is below is added up.
    #[arg(long, default_value_t = 64)]
    depth: usize,
    /// One JSON object instead of a tree.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let checkpoint = args.checkpoint.open()?;
    say(&if args.json {
        format!("{}\n", as_json(&checkpoint))
    } else {
        as_text(&checkpoint, args.depth.max(1))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a line of the tree is about.
struct Leaf<'a> {
    dtype: String,
    shape: String,
    bytes: u64,
    items: Vec<&'a StoredItem>,
}

fn as_text(checkpoint: &Checkpoint, depth: usize) -> String {
    let mut tree = Tree::default();
    for tensor in checkpoint.tensors() {
        let items = tensor.chunks.iter().map(|chunk| &chunk.item).collect();
        let shape = format!("{:?}", tensor.shape);
        tree.insert(
            &printable(&tensor.name),
            Leaf { dtype: tensor.dtype.to_string(), shape, bytes: tensor.bytes(), items },
        );
    }
    for object in checkpoint.objects() {
        let leaf = Leaf {
            dtype: "object".to_owned(),
            shape: String::new(),
            bytes: object.item.length,
            items: vec![&object.item],
        };
        tree.insert(&printable(&object.name), leaf);
    }
    let mut rows = vec![["name", "dtype", "shape", "bytes", "chunks", "files"].map(str::to_owned).to_vec()];
    for line in tree.lines(depth) {
        let mut row = vec![line.text];
        if let Some(first) = line.leaves.first() {
            let items: Vec<&StoredItem> =
                line.leaves.iter().flat_map(|leaf| leaf.items.iter().copied()).collect();
            let (dtype, shape) = if line.is_cut {
                (format!("{} below", thousands(line.leaves.len() as u64)), String::new())
            } else {
                (first.dtype.clone(), first.shape.clone())
            };
            let bytes = line.leaves.iter().map(|leaf| leaf.bytes).fold(0, u64::saturating_add);
            row.extend([
                dtype,
                shape,
                format!("{:>10}", bytes_text(bytes)),
                format!("{:>6}", items.len()),
                files(checkpoint, &items),
            ]);
        }
        rows.push(row);
    }
    table(&rows) + &totals(checkpoint)
}

/// The one file, or how many.
fn files(checkpoint: &Checkpoint, items: &[&StoredItem]) -> String {
    let numbers: BTreeSet<u32> = items.iter().map(|item| item.file).collect();
    match numbers.first() {
        Some(&only) if numbers.len() == 1 => printable(&checkpoint.metadata().files[only as usize]),
        _ => format!("{} files", thousands(numbers.len() as u64)),
    }
}

fn totals(checkpoint: &Checkpoint) -> String {
    let tensors = checkpoint.tensors();
    let elements = tensors.iter().map(|tensor| tensor.shape.iter().product()).fold(0, u64::saturating_add);
    let bytes = tensors.iter().map(StoredTensor::bytes).fold(0, u64::saturating_add);
    let on_disk = checkpoint.files().map(|(_, len)| len).sum();
    let mut lines = vec![
        format!(
            "\ntensors   {} of {} elements, {}",
            thousands(tensors.len() as u64),
            thousands(elements),
            bytes_text(bytes)
        ),
        format!("objects   {}", thousands(checkpoint.objects().len() as u64)),
        format!("files     {}, {}", thousands(checkpoint.files().count() as u64), bytes_text(on_disk)),
    ];
    if let Some(version) = &checkpoint.metadata().version {
        lines.push(format!("version   {}", printable(version)));
    }
    for (name, value) in &checkpoint.metadata().others {
        lines.push(format!("also      {} = {value}", printable(name)));
    }
    lines.join("\n") + "\n"
}

/// Names come from foreign files: nothing in them moves the cursor.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

fn as_json(checkpoint: &Checkpoint) -> Value {
    let files = &checkpoint.metadata().files;
    let place = |item: &StoredItem| json!({ "file": files[item.file as usize], "offset": item.offset, "length": item.length, "transforms": item.transforms });
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| {
            let chunks: Vec<Value> = tensor
                .chunks
                .iter()
                .map(|chunk| json!({ "offsets": chunk.part.offsets, "sizes": chunk.part.sizes, "stored": place(&chunk.item) }))
                .collect();
            json!({ "name": tensor.name, "dtype": tensor.dtype.torch_name(), "shape": tensor.shape, "bytes": tensor.bytes(), "chunks": chunks })
        })
        .collect();
    let objects: Vec<Value> = checkpoint
        .objects()
        .iter()
        .map(|object| json!({ "name": object.name, "stored": place(&object.item) }))
        .collect();
    let paths: Vec<Value> = checkpoint
        .files()
        .map(|(path, len)| json!({ "path": path.to_string_lossy(), "bytes": len }))
        .collect();
    let others: serde_json::Map<String, Value> =
        checkpoint.metadata().others.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({ "path": checkpoint.path().to_string_lossy(), "version": checkpoint.metadata().version, "tensors": tensors, "objects": objects, "files": paths, "others": others })
}
