/// Numbers below a limit, each in as few bytes as the limit needs: four at most, since nobody has tables of more.
#[derive(Clone, Debug)]
pub(super) enum Table {
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
}

impl Table {
    pub fn for_numbers_below(limit: u64) -> Self {
        match limit {
            0..=0x100 => Self::U8(Vec::new()),
            0x101..=0x1_0000 => Self::U16(Vec::new()),
            _ => Self::U32(Vec::new()),
        }
    }

    /// Appends a number, which is below the limit.
    pub fn push(&mut self, number: u64) {
        match self {
            Self::U8(numbers) => numbers.push(number as u8),
            Self::U16(numbers) => numbers.push(number as u16),
            Self::U32(numbers) => numbers.push(number as u32),
        }
    }

    pub fn len(&self) -> u64 {
        (match self {
            Self::U8(numbers) => numbers.len(),
            Self::U16(numbers) => numbers.len(),
            Self::U32(numbers) => numbers.len(),
        }) as u64
    }

    pub fn get(&self, at: u64) -> u64 {
        match self {
            Self::U8(numbers) => numbers[at as usize].into(),
            Self::U16(numbers) => numbers[at as usize].into(),
            Self::U32(numbers) => numbers[at as usize].into(),
        }
    }

    pub fn shrink_to_fit(&mut self) {
        match self {
            Self::U8(numbers) => numbers.shrink_to_fit(),
            Self::U16(numbers) => numbers.shrink_to_fit(),
            Self::U32(numbers) => numbers.shrink_to_fit(),
        }
    }

    pub fn sort_by_key(&mut self, key: impl Fn(u64) -> u64) {
        match self {
            Self::U8(numbers) => numbers.sort_by_cached_key(|&number| key(number.into())),
            Self::U16(numbers) => numbers.sort_by_cached_key(|&number| key(number.into())),
            Self::U32(numbers) => numbers.sort_by_cached_key(|&number| key(number.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_up_to_the_limit_come_back_and_take_no_more_than_they_need() {
        for (limit, bytes) in [(1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 32, 4)] {
            let mut table = Table::for_numbers_below(limit);
            table.push(limit - 1);
            table.push(0);
            assert_eq!((table.get(0), table.get(1), table.len()), (limit - 1, 0, 2));
            table.sort_by_key(|number| number);
            assert_eq!((table.get(0), table.get(1)), (0, limit - 1));
            let each = match table {
                Table::U8(_) => 1,
                Table::U16(_) => 2,
                Table::U32(_) => 4,
            };
            assert_eq!(each, bytes, "{limit}");
        }
    }
}
