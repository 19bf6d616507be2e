/// Asks the system to keep this memory in large pages, where it does so only for those who ask. Sequences are written
/// and read in a shuffled order: with small pages the processor looks up where each of them is.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)] // The one call of its kind; what it gains is in docs/benchmarks.md.
pub(crate) fn prefer_large_pages(memory: &mut [u8]) {
    // Advice is given for whole pages, and must begin with one.
    let skipped = memory.as_ptr().align_offset(PAGE_BYTES).min(memory.len());
    let memory = &mut memory[skipped..];
    // SAFETY: the memory is ours alone as long as this borrow lasts, and the advice changes nothing that is in it. Should
    // the system refuse, everything stays as it was.
    unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_HUGEPAGE) };
}

/// Elsewhere the system decides by itself.
#[cfg(not(target_os = "linux"))]
pub(crate) fn prefer_large_pages(_memory: &mut [u8]) {}

#[cfg(target_os = "linux")]
const PAGE_BYTES: usize = 4096;
