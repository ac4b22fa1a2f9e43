//! Free-space management of a file, from offset 0 to an end that moves.
//!
//! Finding a free extent by size and merging it with its neighbours by offset take logarithmic time, so that a hundred thousand
//! small pieces are cheap. Of equal extents the lowest is taken: pieces created one after the other then lie next to each other,
//! and the kernel merges their mappings.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents below an end, after which the whole file is free.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    end: u64,
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Extents {
    /// Takes `size` bytes: the smallest free extent that is large enough, else bytes after the end. Returns `None` if the end would
    /// exceed 2^64 - 1.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        if let Some(&(found, offset)) = self.by_size.range((size, 0)..).next() {
            self.remove(offset, found);
            if found > size {
                self.insert(offset + size, found - size);
            }
            return Some(offset);
        }
        let offset = self.end;
        self.end = offset.checked_add(size)?;
        Some(offset)
    }

    /// Returns an extent that was taken.
    pub(crate) fn give_back(&mut self, mut offset: u64, mut size: u64) {
        if let Some((&before, &length)) = self.by_offset.range(..offset).next_back()
            && before + length == offset
        {
            self.remove(before, length);
            offset = before;
            size += length;
        }
        if let Some(&length) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, length);
            size += length;
        }
        if offset + size == self.end {
            self.end = offset;
        } else {
            self.insert(offset, size);
        }
    }

    /// Returns the first offset after all extents in use.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    fn insert(&mut self, offset: u64, size: u64) {
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_overflow_is_refused_without_change() {
        let mut extents = Extents::default();
        assert_eq!(extents.take(u64::MAX - 10), Some(0));
        assert_eq!((extents.take(11), extents.end()), (None, u64::MAX - 10));
        assert_eq!((extents.take(10), extents.end()), (Some(u64::MAX - 10), u64::MAX));
        assert_eq!(extents.take(1), None);
        extents.give_back(0, u64::MAX - 10);
        assert_eq!((extents.take(11), extents.end()), (Some(0), u64::MAX));
    }

    /// Random operations compared with a plain list of the extents in use.
    #[test]
    fn no_byte_is_given_out_twice() {
        let mut extents = Extents::default();
        let mut held: Vec<(u64, u64)> = Vec::new();
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = state >> 33;
            if number % 5 < 3 || held.is_empty() {
                let size = number % 13 + 1;
                let offset = extents.take(size).unwrap();
                assert!(
                    held.iter().all(|(other, length)| offset + size <= *other || other + length <= offset)
                );
                held.push((offset, size));
            } else {
                let (offset, size) = held.swap_remove(number as usize % held.len());
                extents.give_back(offset, size);
            }
            if held.len() > 200 {
                held.drain(..).for_each(|(offset, size)| extents.give_back(offset, size));
                assert_eq!((extents.end(), extents.by_offset.len()), (0, 0));
            }
        }
    }
}
