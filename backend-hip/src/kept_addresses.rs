//! Address ranges that are kept for later reservations instead of being freed (quirk `free-races`).

use gpu_vmm_core::{Address, AddressRange, Alignment, Bytes};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A reservation: the range that HIP returned, and the used part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// The range that must be freed.
    pub(crate) whole: AddressRange,
    /// The used part.
    pub(crate) range: AddressRange,
}

impl Reserved {
    /// Returns the parts of a larger range before and after this one.
    pub(crate) fn rest_of(self, larger: AddressRange) -> impl Iterator<Item = Self> {
        let between = move |from: Address, to: Address| Self {
            whole: self.whole,
            range: AddressRange { base: from, size: Bytes(to.0.saturating_sub(from.0)) },
        };
        let parts = [between(larger.base, self.range.base), between(self.range.end(), larger.end())];
        parts.into_iter().filter(|part| !part.range.size.is_zero())
    }
}

/// The address from which on the kernel places what no hint was given for. Restorable regions lie below.
const HIPS_OWN: Address = Address(0x7000_0000_0000);

/// The kept ranges: parts of HIP's reservations that no live reservation uses.
#[derive(Default)]
pub(crate) struct KeptAddresses(Mutex<Vec<Reserved>>);

impl KeptAddresses {
    fn parts(&self) -> MutexGuard<'_, Vec<Reserved>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a range from the smallest part with room for it within a range; of its places in that part, 0 chooses the lowest.
    /// The rest before and after it stays, so that a reservation can be extended into the rest of a larger one.
    ///
    /// Of parts of one size, one that HIP has placed serves before one that was asked for by a hint, which a later hint may name again.
    /// Among these the lowest serves: a program that repeats itself finds its regions at their old addresses, and the addresses behind
    /// them among the kept ones.
    pub(crate) fn take(
        &self,
        size: Bytes,
        alignment: Alignment,
        within: AddressRange,
        random: u64,
    ) -> Option<Reserved> {
        let mut parts = self.parts();
        let place = |part: &Reserved| {
            let first = aligned(part.range.base.max(within.base), alignment)?;
            let end = part.range.end().min(within.end());
            let room = end.0.checked_sub(first.0)?.checked_sub(size.0)?;
            let place = random % (room / alignment.bytes().0 + 1);
            Some(AddressRange { base: first + Bytes(place * alignment.bytes().0), size })
        };
        let (index, range) =
            parts.iter().enumerate().filter_map(|(index, part)| Some((index, place(part)?))).min_by_key(
                |(index, _)| {
                    let AddressRange { base, size } = parts[*index].range;
                    (size, base < HIPS_OWN, base)
                },
            )?;
        let Reserved { whole, range: free } = parts.swap_remove(index);
        let taken = Reserved { whole, range };
        parts.extend(taken.rest_of(free));
        Some(taken)
    }

    /// Keeps a dropped reservation, joined with the free parts on both sides of it.
    pub(crate) fn put(&self, reserved: Reserved) {
        let mut parts = self.parts();
        let mut joined = reserved.range;
        parts.retain(|part| {
            let meets = part.range.end() == joined.base || joined.end() == part.range.base;
            if part.whole != reserved.whole || !meets {
                return true;
            }
            joined =
                AddressRange { base: joined.base.min(part.range.base), size: joined.size + part.range.size };
            false
        });
        parts.push(Reserved { whole: reserved.whole, range: joined });
    }

    /// Removes and returns the ranges of which no part is in use.
    pub(crate) fn take_unused(&self) -> Vec<AddressRange> {
        let unused = self.parts().extract_if(.., |part| part.range == part.whole).collect::<Vec<_>>();
        unused.into_iter().map(|part| part.whole).collect()
    }
}

/// Returns the first aligned address at or above `address`.
pub(crate) fn aligned(address: Address, alignment: Alignment) -> Option<Address> {
    address.0.checked_next_multiple_of(alignment.bytes().0).map(Address)
}

/// True if `size` bytes from `base` lie in the range.
pub(crate) fn holds(whole: AddressRange, base: Address, size: Bytes) -> bool {
    base.checked_add(size).is_some_and(|end| end <= whole.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(base: u64, size: Bytes) -> AddressRange {
        AddressRange { base: Address(base), size }
    }

    /// Every address.
    const ALL: AddressRange = AddressRange { base: Address(0), size: Bytes(1 << 47) };

    fn alignment(bytes: Bytes) -> Alignment {
        Alignment::new(bytes).unwrap()
    }

    fn kept(wholes: &[AddressRange]) -> KeptAddresses {
        let kept = KeptAddresses::default();
        wholes.iter().for_each(|whole| kept.put(Reserved { whole: *whole, range: *whole }));
        kept
    }

    #[test]
    fn the_smallest_part_with_room_serves() {
        let (large, small) = (range(0x4000_0000, Bytes::mib(64)), range(0x8020_0000, Bytes::mib(4)));
        let kept = kept(&[large, small]);
        let two = alignment(Bytes::mib(2));
        assert_eq!(kept.take(Bytes::mib(128), two, ALL, 0), None, "no part is that large");
        let first = kept.take(Bytes::mib(2), two, ALL, 0).unwrap();
        assert_eq!(first, Reserved { whole: small, range: range(small.base.0, Bytes::mib(2)) });
        let rest = kept.take(Bytes::mib(2), two, ALL, 0).unwrap();
        assert_eq!(rest.range.base, first.range.end(), "the rest after it");
        let aligned = kept.take(Bytes::mib(2), alignment(Bytes::gib(1)), ALL, 0).unwrap();
        assert_eq!(aligned.range, range(0x4000_0000, Bytes::mib(2)));
        assert_eq!(
            kept.take(Bytes::mib(2), alignment(Bytes::gib(1)), ALL, 0),
            None,
            "nothing aligned is left"
        );
    }

    #[test]
    fn kept_hint_is_served_and_extended() {
        let whole = range(0x4000_0000, Bytes::mib(64));
        let kept = kept(&[whole]);
        let two = alignment(Bytes::mib(2));
        for hint in [0x3fe0_0000, 0x4110_0000, 0x43f0_0000, 0x4400_0000, u64::MAX - 1] {
            assert_eq!(kept.take(Bytes::mib(4), two, range(hint, Bytes::mib(4)), 0), None, "{hint:#x}");
        }
        let middle = kept.take(Bytes::mib(8), two, range(0x4100_0000, Bytes::mib(8)), 0).unwrap();
        let behind = kept.take(Bytes::mib(4), two, range(middle.range.end().0, Bytes::mib(4)), 0).unwrap();
        assert_eq!(behind.range, range(0x4180_0000, Bytes::mib(4)));
        assert_eq!(kept.take(Bytes::mib(2), two, range(0x4100_0000, Bytes::mib(2)), 0), None, "in use");
        assert_eq!(kept.take_unused(), [], "a part is in use");
        kept.put(middle);
        kept.put(behind);
        assert_eq!(kept.take_unused(), [whole], "joined again");
    }

    #[test]
    fn adjacent_ranges_stay_apart() {
        let (low, high) = (range(0x4000_0000, Bytes::mib(4)), range(0x4040_0000, Bytes::mib(4)));
        let kept = kept(&[low, high]);
        assert_eq!(
            kept.take(Bytes::mib(8), alignment(Bytes::mib(2)), ALL, 0),
            None,
            "no call may cross the border"
        );
        assert_eq!(kept.take_unused().len(), 2);
    }

    #[test]
    fn parts_of_one_size_serve_in_order() {
        let (low, high) = (HIPS_OWN.0, HIPS_OWN.0 + (1 << 30));
        let sizes = [high, 0x8000_0000, low, 0x4000_0000].map(|base| range(base, Bytes::mib(4)));
        let kept = kept(&sizes);
        let two = alignment(Bytes::mib(2));
        let bases = [(); 4].map(|()| kept.take(Bytes::mib(4), two, ALL, 0).unwrap().range.base.0);
        assert_eq!(bases, [low, high, 0x4000_0000, 0x8000_0000], "those of a hint serve last");
    }

    #[test]
    fn range_is_taken_within_given_one() {
        let whole = range(0x4000_0000, Bytes::mib(64));
        let kept = kept(&[whole]);
        let two = alignment(Bytes::mib(2));
        assert_eq!(kept.take(Bytes::mib(4), two, range(0x4400_0000, Bytes::mib(64)), 0), None, "behind it");
        assert_eq!(kept.take(Bytes::mib(8), two, range(0x3f00_0000, Bytes::mib(20)), 0), None, "4 MiB of it");
        let taken = kept.take(Bytes::mib(4), two, range(0x4110_0000, Bytes::mib(64)), 0).unwrap();
        assert_eq!(taken, Reserved { whole, range: range(0x4120_0000, Bytes::mib(4)) });
    }

    #[test]
    fn random_number_chooses_place_in_part() {
        let whole = range(0x4000_0000, Bytes::mib(64));
        for (random, base) in [(0, 0x4000_0000), (7, 0x40e0_0000), (30, 0x43c0_0000), (31, 0x4000_0000)] {
            let taken = kept(&[whole]).take(Bytes::mib(4), alignment(Bytes::mib(2)), ALL, random).unwrap();
            assert_eq!(taken.range, range(base, Bytes::mib(4)), "{random}");
        }
    }
}
