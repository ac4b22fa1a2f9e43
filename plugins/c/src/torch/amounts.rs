//! The amounts of live blocks, by PyTorch's rules.

use gpu_vmm::Bytes;

/// The size up to which PyTorch calls blocks small.
const SMALL: u64 = 1 << 20;

/// What PyTorch rounds sizes up to in its statistics.
const ROUNDING: u64 = 512;

/// A quantity of live blocks. The first of two numbers counts blocks of up to 1 MiB, the second larger ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorchQuantity {
    /// The live amount.
    pub live: [u64; 2],
    /// The amount that was freed since gpu_vmm_torch_reset_accumulated.
    pub freed: [u64; 2],
    /// The amount that was allocated since then.
    pub allocated: [u64; 2],
    /// The most that was live since gpu_vmm_torch_reset_peak.
    pub peak: [u64; 2],
    /// The most of both together.
    pub peak_of_all: u64,
}

/// The live blocks of one device: their number, their sizes as PyTorch rounds them, and their requested sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorchAmounts {
    pub blocks: TorchQuantity,
    pub bytes: TorchQuantity,
    pub requested: TorchQuantity,
}

/// Rounds a size as PyTorch does.
#[inline]
fn rounded(size: Bytes) -> u64 {
    size.0.div_ceil(ROUNDING).wrapping_mul(ROUNDING)
}

/// A [`TorchQuantity`] as each call changes it. All numbers wrap around: a caller's numbers may be wrong.
#[derive(Clone, Copy, Default)]
struct Quantity {
    live: [u64; 2],
    freed: [u64; 2],
    /// The live amount at the last reset: with it, the amount allocated since then follows from the others.
    before: [u64; 2],
    peak: [u64; 2],
    peak_of_all: u64,
}

impl Quantity {
    #[inline]
    fn add(&mut self, kind: usize, amount: u64) {
        self.live[kind] = self.live[kind].wrapping_add(amount);
        self.peak[kind] = self.peak[kind].max(self.live[kind]);
        self.peak_of_all = self.peak_of_all.max(self.live());
    }

    #[inline]
    fn remove(&mut self, kind: usize, amount: u64) {
        self.freed[kind] = self.freed[kind].wrapping_add(amount);
        self.live[kind] = self.live[kind].wrapping_sub(amount);
    }

    fn read(&self) -> TorchQuantity {
        let Self { live, freed, before, peak, peak_of_all } = *self;
        let allocated = [0, 1].map(|kind| live[kind].wrapping_add(freed[kind]).wrapping_sub(before[kind]));
        TorchQuantity { live, freed, allocated, peak, peak_of_all }
    }

    #[inline]
    fn live(&self) -> u64 {
        self.live[0].wrapping_add(self.live[1])
    }
}

/// [`TorchAmounts`] as each call changes them.
#[derive(Clone, Copy, Default)]
pub(super) struct Amounts {
    blocks: Quantity,
    bytes: Quantity,
    requested: Quantity,
}

impl Amounts {
    /// Returns the amounts as callers see them.
    pub(super) fn read(&self) -> TorchAmounts {
        let Self { blocks, bytes, requested } = self;
        TorchAmounts { blocks: blocks.read(), bytes: bytes.read(), requested: requested.read() }
    }

    /// Counts a block that is allocated.
    #[inline]
    pub(super) fn add(&mut self, size: Bytes, capacity: Bytes) {
        self.count(size, capacity, Quantity::add);
    }

    /// Counts a block that is freed.
    #[inline]
    pub(super) fn remove(&mut self, size: Bytes, capacity: Bytes) {
        self.count(size, capacity, Quantity::remove);
    }

    /// Changes each quantity by a block. Its kind follows from its capacity: a block of a private pool may serve a smaller request.
    #[inline]
    fn count(&mut self, size: Bytes, capacity: Bytes, change: impl Fn(&mut Quantity, usize, u64)) {
        let kind = usize::from(capacity.0 > SMALL);
        change(&mut self.blocks, kind, 1);
        change(&mut self.bytes, kind, rounded(size));
        change(&mut self.requested, kind, size.0);
    }

    fn each(&mut self, reset: impl Fn(&mut Quantity)) {
        [&mut self.blocks, &mut self.bytes, &mut self.requested].into_iter().for_each(reset);
    }

    pub(super) fn reset_peak(&mut self) {
        self.each(|quantity| (quantity.peak, quantity.peak_of_all) = (quantity.live, quantity.live()));
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.each(|quantity| (quantity.freed, quantity.before) = ([0; 2], quantity.live));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_1_mib_is_small() {
        let mut amounts = Amounts::default();
        for (capacity, blocks) in [(SMALL, [1, 0]), (SMALL + 512, [1, 1])] {
            amounts.add(Bytes(512), Bytes(capacity));
            assert_eq!(amounts.read().blocks.live, blocks, "{capacity}");
        }
    }

    #[test]
    fn a_reset_keeps_what_is_live() {
        let (small, large) = (Bytes(SMALL), Bytes(SMALL + 512));
        let mut amounts = Amounts::default();
        (0..3).for_each(|_| amounts.add(Bytes(700), small));
        (0..2).for_each(|_| amounts.add(Bytes(SMALL + 1), large));
        amounts.remove(Bytes(700), small);
        amounts.remove(Bytes(SMALL + 1), large);
        let live = [2, 1];
        let before = amounts.read().blocks;
        let expected = TorchQuantity { live, freed: [1, 1], allocated: [3, 2], peak: [3, 2], peak_of_all: 5 };
        assert_eq!(before, expected);
        amounts.reset_peak();
        assert_eq!(amounts.read().blocks, TorchQuantity { peak: live, peak_of_all: 3, ..before });
        amounts.reset_accumulated();
        let nothing = [0; 2];
        let reset = TorchQuantity { live, freed: nothing, allocated: nothing, peak: live, peak_of_all: 3 };
        assert_eq!(amounts.read().blocks, reset);
        amounts.add(Bytes(700), small);
        amounts.remove(Bytes(SMALL + 1), large);
        let TorchAmounts { blocks, bytes, requested } = amounts.read();
        let after =
            TorchQuantity { live: [3, 0], freed: [0, 1], allocated: [1, 0], peak: [3, 1], peak_of_all: 4 };
        assert_eq!(blocks, after);
        assert_eq!((bytes.live, bytes.allocated, bytes.freed), ([3 * 1024, 0], [1024, 0], [0, SMALL + 512]));
        assert_eq!(
            (requested.live, requested.allocated, requested.freed),
            ([2100, 0], [700, 0], [0, SMALL + 1])
        );
        assert_eq!(bytes.peak_of_all, 2 * 1024 + SMALL + 512 + 1024);
    }
}
