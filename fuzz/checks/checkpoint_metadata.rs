//! Any bytes as the metadata of a distributed checkpoint: they are refused, or what they say holds together.

use shardfeed::checkpoint::Metadata;

pub fn check(bytes: &[u8]) {
    let Ok(metadata) = Metadata::parse(bytes) else { return };
    for tensor in &metadata.tensors {
        for chunk in &tensor.chunks {
            assert!(chunk.part.is_within(&tensor.shape), "{tensor:?}");
            assert!((chunk.item.file as usize) < metadata.files.len(), "{tensor:?}");
        }
        // Overlaps and holes are found without counting elements, of which there may be any number.
        let _ = (tensor.cover(), tensor.bytes());
    }
    assert!(metadata.objects.iter().all(|object| (object.item.file as usize) < metadata.files.len()));
    // No path leaves the directory.
    let is_inside = |file: &String| !file.starts_with('/') && file.split('/').all(|part| part != "..");
    assert!(metadata.files.iter().all(is_inside), "{:?}", metadata.files);
    // Two ranks that saved the same have what one has.
    let merged = Metadata::merged([metadata.clone(), metadata.clone()]);
    assert_eq!((merged.tensors.len(), merged.files.len()), (metadata.tensors.len(), metadata.files.len()));
}
