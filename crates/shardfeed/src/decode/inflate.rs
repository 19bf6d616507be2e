//! A compressed page to exactly as many bytes as it claims, in memory that is there already. The `parquet` crate
//! decompresses into memory of its own, and with some codecs to the end of a stream, however far that is.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};

use parquet::basic::Compression;

use crate::foreign;

/// Decompresses, and keeps what takes longer to make than a page to read.
#[derive(Default)]
pub(crate) struct Inflate {
    idle_zstd: Mutex<Vec<zstd::bulk::Decompressor<'static>>>,
}

impl Inflate {
    /// Fills `out`; an error if there is more or less.
    pub fn inflate(&self, codec: Compression, compressed: &[u8], out: &mut [u8]) -> Result<(), String> {
        let len = out.len();
        let written = foreign::call(|| match codec {
            Compression::SNAPPY => snap::raw::Decoder::new().decompress(compressed, out).map_err(no),
            Compression::LZ4_RAW => lz4_flex::block::decompress_into(compressed, out).map_err(no),
            Compression::LZ4 => old_lz4(compressed, out),
            Compression::ZSTD(_) => self.zstd(compressed, out).map_err(no),
            Compression::GZIP(_) => read_all(flate2::read::MultiGzDecoder::new(compressed), out).map_err(no),
            Compression::BROTLI(_) => {
                read_all(brotli::Decompressor::new(compressed, BROTLI_BUFFER), out).map_err(no)
            }
            other => Err(format!("its compression {other} is not supported")),
        })??;
        if written == len {
            return Ok(());
        }
        let more = if written > len { " or more" } else { "" };
        Err(format!("it decompresses to {written}{more} bytes where its header says {len}"))
    }

    fn zstd(&self, compressed: &[u8], out: &mut [u8]) -> io::Result<usize> {
        let idle = self.idle_zstd.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut decompressor = match idle {
            Some(decompressor) => decompressor,
            None => zstd::bulk::Decompressor::new()?,
        };
        let written = decompressor.decompress_to_buffer(compressed, out)?;
        self.idle_zstd.lock().unwrap_or_else(PoisonError::into_inner).push(decompressor);
        Ok(written)
    }
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate").finish_non_exhaustive()
    }
}

fn no(error: impl std::fmt::Display) -> String {
    format!("it does not decompress: {error}")
}

/// Bytes read: those that `out` has room for, or one more if there are more.
fn read_all(mut from: impl Read, out: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < out.len() {
        match from.read(&mut out[at..])? {
            0 => return Ok(at),
            read => at += read,
        }
    }
    Ok(at + from.read(&mut [0])?)
}

const BROTLI_BUFFER: usize = 4096;

/// Three forms went by the name LZ4 before the format named one of them anew: Hadoop's blocks with their lengths
/// before them, LZ4's own frames, and one bare block.
fn old_lz4(compressed: &[u8], out: &mut [u8]) -> Result<usize, String> {
    if hadoop_blocks(compressed, out).is_some() {
        return Ok(out.len());
    }
    match read_all(lz4_flex::frame::FrameDecoder::new(compressed), out) {
        Ok(written) if written == out.len() => Ok(written),
        _ => lz4_flex::block::decompress_into(compressed, out).map_err(no),
    }
}

/// Each block has its length, decompressed and compressed, before it. `None` if they do not fill `out` exactly.
fn hadoop_blocks(mut compressed: &[u8], mut out: &mut [u8]) -> Option<()> {
    while !compressed.is_empty() {
        let (decompressed_len, rest) = compressed.split_first_chunk::<4>()?;
        let (compressed_len, rest) = rest.split_first_chunk::<4>()?;
        let block = rest.get(..u32::from_be_bytes(*compressed_len) as usize)?;
        let (now, later) = out.split_at_mut_checked(u32::from_be_bytes(*decompressed_len) as usize)?;
        if lz4_flex::block::decompress_into(block, now).ok()? != now.len() {
            return None;
        }
        (compressed, out) = (&rest[block.len()..], later);
    }
    out.is_empty().then_some(())
}
