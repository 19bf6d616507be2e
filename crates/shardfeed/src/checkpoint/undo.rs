use std::io::Read;

/// Undoes what a writer did to an item, in this order. What comes out may have `bytes_max` bytes at most, so that a small item
/// cannot become much memory.
pub(crate) fn undo(transforms: &[String], stored: Vec<u8>, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = stored;
    for transform in transforms {
        bytes = match transform.as_str() {
            "stream.zstd/1" => unpack(&bytes, bytes_max)?,
            other => {
                return Err(format!(
                    "it was changed by the transform {other:?}, which is not known here (zstd is: \"stream.zstd/1\")"
                ));
            }
        };
    }
    Ok(bytes)
}

/// All frames, one after another.
fn unpack(packed: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot decompress it (zstd): {error}; it is damaged");
    let mut bytes = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(packed).map_err(cannot)?;
    decoder.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!(
            "it decompresses to more than the {bytes_max} bytes that it can hold; it is damaged, or means harm"
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 3).unwrap()
    }

    #[test]
    fn several_frames_and_several_layers() {
        let zstd = "stream.zstd/1".to_owned();
        let frames = [packed(b"one "), packed(b""), packed(b"two")].concat();
        assert_eq!(undo(std::slice::from_ref(&zstd), frames.clone(), 100).unwrap(), b"one two");
        assert_eq!(undo(&[zstd.clone(), zstd.clone()], packed(&frames), 100).unwrap(), b"one two");
        assert_eq!(undo(&[], b"as it is".to_vec(), 0).unwrap(), b"as it is");
    }

    #[test]
    fn bombs_damage_and_unknown_ones_are_refused() {
        let zstd = ["stream.zstd/1".to_owned()];
        let bomb = packed(&vec![0; 10 << 20]);
        assert!(bomb.len() < 10_000);
        assert!(undo(&zstd, bomb.clone(), 1 << 20).unwrap_err().contains("more than the 1048576 bytes"));
        assert!(undo(&zstd, bomb[..100].to_vec(), 1 << 30).unwrap_err().contains("cannot decompress"));
        assert!(undo(&["stream.lz4/1".to_owned()], vec![], 9).unwrap_err().contains("\"stream.lz4/1\""));
    }
}
