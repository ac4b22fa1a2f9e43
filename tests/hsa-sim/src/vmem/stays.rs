//! Memory that ROCr of 7.1 and 7.2 keeps after it is unmapped: the CPU's page table still has it at its addresses, without
//! access, so that it is not freed (rocm-systems PR #4363). It is freed when other memory is mapped there, or when the
//! addresses are freed. If the CPU had access, ROCr removes those pages and nothing stays.

use crate::abi::VmemHandle;
use crate::memory::State;

/// Addresses that still keep memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stay {
    pub(super) at: usize,
    pub(super) size: usize,
    pub(super) handle: VmemHandle,
}

impl Stay {
    const fn end(self) -> usize {
        self.at + self.size
    }

    /// Returns the parts before and after a range that is reused.
    fn outside(self, at: usize, size: usize) -> impl Iterator<Item = Self> {
        let part = move |from: usize, to: usize| Self { at: from, size: to.saturating_sub(from), ..self };
        let parts = [part(self.at, self.end().min(at)), part(self.at.max(at + size), self.end())];
        parts.into_iter().filter(|part| part.size > 0)
    }
}

/// Removes a reused range from a reservation's list. Returns the handles of the entries in it, and of their remaining parts, once
/// for each part.
fn cut_out(stays: &mut Vec<Stay>, at: usize, size: usize) -> (Vec<VmemHandle>, Vec<VmemHandle>) {
    let covered: Vec<Stay> = stays.extract_if(.., |stay| stay.at < at + size && at < stay.end()).collect();
    let left: Vec<Stay> = covered.iter().flat_map(|stay| stay.outside(at, size)).collect();
    stays.extend(&left);
    (covered.iter().map(|stay| stay.handle).collect(), left.iter().map(|stay| stay.handle).collect())
}

impl State {
    /// Frees the memory that was kept in a range of a reservation.
    pub(super) fn cover(&mut self, reservation: usize, at: usize, size: usize) {
        let Some(around) = self.vmem.reservations.get_mut(&reservation) else { return };
        let (gone, left) = cut_out(&mut around.stays, at, size);
        for handle in left {
            if let Some(memory) = self.vmem.physical.get_mut(&handle) {
                memory.mappings += 1;
            }
        }
        for handle in gone {
            self.let_go(handle);
        }
    }

    /// Removes one mapping, or one place that keeps memory.
    pub(super) fn let_go(&mut self, handle: VmemHandle) {
        if let Some(memory) = self.vmem.physical.get_mut(&handle) {
            memory.mappings -= 1;
        }
        self.drop_unused(handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_something_else_covers_is_cut_out() {
        let stay = Stay { at: 100, size: 50, handle: VmemHandle(1) };
        let outside = |at, size| stay.outside(at, size).map(|part| (part.at, part.size)).collect::<Vec<_>>();
        assert_eq!(outside(100, 50), []);
        assert_eq!(outside(90, 20), [(110, 40)]);
        assert_eq!(outside(120, 10), [(100, 20), (130, 20)]);
        assert_eq!(outside(140, 90), [(100, 40)]);
    }
}
