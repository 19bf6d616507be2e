use std::ops::Range;

/// Addresses that reach into each other as ranges that do not, each with the numbers of those that lie in it, in their order.
pub(crate) fn apart(spans: &[Range<usize>]) -> Vec<(Range<usize>, Vec<usize>)> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&index| (spans[index].start, spans[index].end));
    let mut merged: Vec<(Range<usize>, Vec<usize>)> = Vec::new();
    for index in order {
        let span = &spans[index];
        match merged.last_mut().filter(|(range, _)| span.start < range.end) {
            Some((range, members)) => {
                range.end = range.end.max(span.end);
                members.push(index);
            }
            None => merged.push((span.clone(), vec![index])),
        }
    }
    for (_, members) in &mut merged {
        members.sort_unstable();
    }
    merged
}

/// Memory that belongs to Python, as a slice that a thread can write to.
///
/// # Safety
/// All bytes of the range belong to one allocation, which is there for as long as the slice is and is read and written by nobody else
/// in the meantime.
#[allow(unsafe_code)] // Tensors are filled where they lie: a copy of each would cost as much as reading it.
pub(crate) unsafe fn slice(range: Range<usize>) -> &'static mut [u8] {
    // SAFETY: by the caller's word it is memory, and nobody else's. That nobody has written to it yet does not matter: it came from
    // an allocator of another language, and any byte is a byte.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(range.start), range.len()) }
}
