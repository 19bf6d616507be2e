//! Looks through Thrift's compact form before the `parquet` crate does, which believes what a list says of its length:
//! a few bytes keep it busy for hours, or make it ask for gigabytes.

/// What is wrong with some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// They end too early.
    Short,
    /// They are nothing that Parquet writes.
    Foreign(&'static str),
}

/// Deeper than any structure of the format.
const DEPTH_MAX: u32 = 24;

/// The length of the structure that `bytes` begin with, when every length in it is true.
pub(crate) fn struct_len(bytes: &[u8]) -> Result<usize, Flaw> {
    let mut walk = Walk { bytes, at: 0 };
    walk.structure(0)?;
    Ok(walk.at)
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn structure(&mut self, depth: u32) -> Result<(), Flaw> {
        if depth > DEPTH_MAX {
            return Err(Flaw::Foreign("structures within structures without end"));
        }
        loop {
            let tag = self.byte()?;
            if tag == 0 {
                return Ok(());
            }
            // A field's number is the last one's and a little more, or stands by itself.
            if tag >> 4 == 0 {
                self.number()?;
            }
            match tag & 0x0f {
                // Truths are in the tag.
                1 | 2 => {}
                kind => self.value(kind, depth)?,
            }
        }
    }

    fn value(&mut self, kind: u8, depth: u32) -> Result<(), Flaw> {
        match kind {
            3 => self.pass(1),
            4..=6 => self.number().map(drop),
            7 => self.pass(8),
            8 => {
                let len = self.number()?;
                self.pass(len)
            }
            9 | 10 => self.list(depth),
            12 => self.structure(depth + 1),
            // Of truths in a list nobody agrees how long they are, and Parquet has none, and no maps.
            _ => Err(Flaw::Foreign("a kind of value that Parquet does not have")),
        }
    }

    fn list(&mut self, depth: u32) -> Result<(), Flaw> {
        let tag = self.byte()?;
        let count = match tag >> 4 {
            15 => self.number()?,
            count => count.into(),
        };
        if depth > DEPTH_MAX {
            return Err(Flaw::Foreign("lists within lists without end"));
        }
        // Each takes a byte at least, so this ends where the bytes do.
        (0..count).try_for_each(|_| self.value(tag & 0x0f, depth + 1))
    }

    fn byte(&mut self) -> Result<u8, Flaw> {
        let byte = *self.bytes.get(self.at).ok_or(Flaw::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, Flaw> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Flaw::Foreign("a number without end"))
    }

    fn pass(&mut self, len: u64) -> Result<(), Flaw> {
        if len > (self.bytes.len() - self.at) as u64 {
            return Err(Flaw::Short);
        }
        self.at += len as usize;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_header_is_as_long_as_it_is() {
        // Type 0, sizes 64 and 3, a data page header of four numbers, and something behind it.
        let header =
            [0x15, 0, 0x15, 0x80, 1, 0x15, 6, 0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0, 0xff, 0xff];
        assert_eq!(struct_len(&header), Ok(18));
        for len in 0..18 {
            assert_eq!(struct_len(&header[..len]), Err(Flaw::Short), "{len}");
        }
    }

    #[test]
    fn what_keeps_a_reader_busy_for_nothing_is_refused() {
        let two_billion = [0xff, 0xff, 0xff, 0xff, 0x07];
        for element in 0..=15 {
            let mut bytes = vec![0x19, 0xf0 | element];
            bytes.extend(two_billion);
            bytes.extend([0; 64]);
            assert!(struct_len(&bytes).is_err(), "{element}");
        }
        let deep = vec![0x1c; 10_000];
        assert!(matches!(struct_len(&deep), Err(Flaw::Foreign(_))));
        let lists = vec![0x19; 10_000];
        assert!(struct_len(&lists).is_err());
        assert!(matches!(
            struct_len(&[0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Err(Flaw::Foreign(_))
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_length_or_a_flaw(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(len) = struct_len(&bytes) {
                prop_assert!(len <= bytes.len() && len > 0);
                prop_assert_eq!(struct_len(&bytes[..len]), Ok(len));
                prop_assert_eq!(struct_len(&bytes[..len - 1]), Err(Flaw::Short));
            }
        }
    }
}
