#![allow(unsafe_code)] // Threads write into one piece of memory: what it gains is shown by `benches/checkpoint_read.rs`.

use std::marker::PhantomData;
use std::ops::Range;

/// Memory that several threads fill, each its own places.
///
/// Rows of one tensor are read by different threads, and columns of different chunks lie between each other: slices of slices, one for
/// every row of every chunk, would take more memory than narrow tensors themselves.
pub(crate) struct Destinations<'a> {
    parts: Vec<(*mut u8, usize)>,
    _borrowed: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is a list of exclusive borrows, which may go to another thread, and be used by several: nothing can be reached through it
// but by `window`, whose callers answer for it that no two windows share a byte.
unsafe impl Send for Destinations<'_> {}
// SAFETY: as above.
unsafe impl Sync for Destinations<'_> {}

impl<'a> Destinations<'a> {
    pub(crate) fn new(parts: impl Iterator<Item = &'a mut [u8]>) -> Self {
        Self { parts: parts.map(|part| (part.as_mut_ptr(), part.len())).collect(), _borrowed: PhantomData }
    }

    pub(crate) fn len(&self, part: usize) -> usize {
        self.parts[part].1
    }

    /// A range of one of them. Panics if it is not within.
    ///
    /// # Safety
    /// As long as the window is there, no other window of the same part may share a byte with it.
    #[allow(clippy::mut_from_ref)] // See above: the borrows are exclusive, the windows by the caller's word.
    pub(crate) unsafe fn window(&self, part: usize, range: Range<u64>) -> &mut [u8] {
        let (start, len) = self.parts[part];
        assert!(range.start <= range.end && range.end <= len as u64, "{range:?} of {len} bytes");
        // SAFETY: the range lies within memory that is borrowed exclusively for 'a (asserted above), is initialized, since it was a
        // slice of bytes, and by the caller's word is reached through no other reference.
        unsafe {
            std::slice::from_raw_parts_mut(
                start.add(range.start as usize),
                (range.end - range.start) as usize,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_fill_their_own_places() {
        let (mut one, mut two) = (vec![0; 100], vec![0; 10]);
        let destinations = Destinations::new([&mut one[..], &mut two[..]].into_iter());
        assert_eq!((destinations.len(0), destinations.len(1)), (100, 10));
        std::thread::scope(|scope| {
            for thread in 0..10_u8 {
                let destinations = &destinations;
                scope.spawn(move || {
                    for row in 0..10 {
                        let at = row * 10 + thread as u64;
                        // SAFETY: each thread has a column of its own.
                        unsafe { destinations.window(0, at..at + 1) }.fill(thread);
                    }
                });
            }
        });
        assert_eq!(one, (0..100).map(|index| index % 10).collect::<Vec<u8>>());
        assert_eq!(two, [0; 10]);
    }

    #[test]
    #[should_panic(expected = "5..11 of 10 bytes")]
    fn nothing_outside_can_be_reached() {
        let mut bytes = [0; 10];
        let destinations = Destinations::new(std::iter::once(&mut bytes[..]));
        // SAFETY: there is no other window.
        unsafe { destinations.window(0, 5..11) };
    }
}
