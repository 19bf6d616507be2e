//! Decompression of codecs whose streams do not tell their length: the `parquet` crate would read them to their
//! end, however far that is. Others are bounded by the size in the page's header, which is checked before.

use std::io::Read;

use bytes::Bytes;
use parquet::basic::Compression;

/// Whether pages of this codec are decompressed here.
pub(super) fn is_ours(codec: Compression) -> bool {
    matches!(codec, Compression::GZIP(_) | Compression::BROTLI(_))
}

/// Exactly `len` bytes, or an error.
pub(super) fn inflate(codec: Compression, compressed: &[u8], len: usize) -> Result<Bytes, String> {
    let mut bytes = Vec::with_capacity(len);
    // One byte more than claimed tells that there is more, and no more is made.
    let limit = len as u64 + 1;
    match codec {
        Compression::GZIP(_) => {
            flate2::read::MultiGzDecoder::new(compressed).take(limit).read_to_end(&mut bytes)
        }
        _ => brotli::Decompressor::new(compressed, BROTLI_BUFFER).take(limit).read_to_end(&mut bytes),
    }
    .map_err(|error| format!("it does not decompress: {error}"))?;
    if bytes.len() != len {
        let more = if bytes.len() > len { " or more" } else { "" };
        return Err(format!("it decompresses to {}{more} bytes where its header says {len}", bytes.len()));
    }
    Ok(bytes.into())
}

const BROTLI_BUFFER: usize = 4096;
