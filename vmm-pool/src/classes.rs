//! The size classes that requests of up to 1 MiB are rounded up to, so that freed memory fits the next request.
//!
//! Small sizes, up to 64 KiB, are slots of a slab: multiples of 256 bytes up to 2 KiB, then eight sizes for each power of
//! two. Medium sizes are ranges of their own, multiples of 4 KiB.

use std::num::NonZero;

/// The smallest size. Every address is a multiple of it.
pub(crate) const SMALLEST: u64 = 256;

/// The largest small size.
pub(crate) const SMALL: u64 = 64 << 10;

/// The largest medium size.
pub(crate) const MEDIUM: u64 = 1 << 20;

const LINEAR: u64 = 8;
const PER_POWER: u64 = 8;
const MEDIUM_STEP: u64 = 4 << 10;

/// The number of small classes.
pub(crate) const SMALL_CLASSES: usize = 48;

/// The number of all classes.
pub(crate) const CLASSES: usize = SMALL_CLASSES + ((MEDIUM - SMALL) / MEDIUM_STEP) as usize;

/// A class as a block stores it: an `Option` of it takes two bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(NonZero<u16>);

impl Class {
    /// Creates the class of an index below [`CLASSES`].
    #[inline]
    pub(crate) fn new(index: usize) -> Self {
        Self(NonZero::<u16>::MIN.saturating_add(index as u16))
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

/// Returns the class of a nonzero size, or none for a large size.
#[inline]
pub(crate) const fn class_of(size: u64) -> Option<usize> {
    if size > MEDIUM {
        return None;
    }
    if size > SMALL {
        return Some(SMALL_CLASSES + ((size - SMALL).div_ceil(MEDIUM_STEP) - 1) as usize);
    }
    let units = size.div_ceil(SMALLEST);
    if units <= LINEAR {
        return Some(units.saturating_sub(1) as usize);
    }
    // 9 to 16 units are the first power, in steps of one; 17 to 32 the second, in steps of two.
    let power = (units - 1).ilog2() as u64 - 3;
    let step = (units - 1) >> power;
    Some((LINEAR + power * PER_POWER + (step - PER_POWER)) as usize)
}

/// Returns the first class from `class` on whose size is a multiple of 512, the alignment that PyTorch requests.
#[inline]
pub(crate) fn aligned_class(class: usize) -> usize {
    // Behind an odd multiple of 256 there is an even one.
    class + (size_of(class) / SMALLEST % 2) as usize
}

/// Returns the size that requests of a class are rounded up to.
#[inline]
pub(crate) const fn size_of(class: usize) -> u64 {
    if class >= SMALL_CLASSES {
        return SMALL + (class - SMALL_CLASSES + 1) as u64 * MEDIUM_STEP;
    }
    let class = class as u64;
    if class < LINEAR {
        return (class + 1) * SMALLEST;
    }
    let (power, step) = ((class - LINEAR) / PER_POWER, (class - LINEAR) % PER_POWER);
    ((PER_POWER + step + 1) << power) * SMALLEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_to_next_class() {
        let mut class = 0;
        for size in 1..=MEDIUM {
            if size > size_of(class) {
                class += 1;
            }
            assert_eq!(class_of(size), Some(class), "of {size}");
            assert!(size_of(class) >= size, "{size} is rounded to {}", size_of(class));
        }
        assert_eq!(class, CLASSES - 1);
        assert_eq!(size_of(SMALL_CLASSES - 1), SMALL);
        assert_eq!(class_of(MEDIUM + 1), None);
    }

    #[test]
    fn the_next_aligned_class_is_found() {
        for class in 0..CLASSES {
            let next = (class..CLASSES).find(|next| size_of(*next).is_multiple_of(512));
            assert_eq!(Some(aligned_class(class)), next);
        }
    }

    #[test]
    fn little_is_lost() {
        for size in 2049..=MEDIUM {
            let rounded = class_of(size).map_or(0, size_of);
            assert!((rounded - size) as f64 / size as f64 <= 0.125, "{size} becomes {rounded}");
        }
    }
}
