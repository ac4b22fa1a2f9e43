//! A hash table by addresses of blocks.
//!
//! An insertion and a removal happen with every allocation. They move no more than the value, unlike a general table's, which also
//! copies keys and results through memory.

use gpu_vmm::Address;

/// The capacity of a table with its first entry. A power of two, as every later one.
const FIRST: usize = 64;

/// A hash table whose slots are searched in their order from the one that the address's hash selects.
pub(super) struct AddressMap<V> {
    slots: Vec<Slot<V>>,
    len: usize,
}

/// A slot: the address and its value, or 0 and none.
type Slot<V> = (u64, Option<V>);

impl<V> AddressMap<V> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), len: 0 }
    }

    /// Returns the slot from which an address is searched.
    #[inline]
    fn home(&self, address: u64) -> usize {
        // The multiplier is 2^64 divided by the golden ratio. The highest bits of the product are spread evenly for neighbouring
        // addresses and for equal distances alike; lower ones are not.
        let hash = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (u64::BITS - self.slots.len().trailing_zeros())) as usize & self.mask()
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    /// Returns the slot that holds an address.
    #[inline]
    fn place(&self, address: Address) -> Option<usize> {
        if self.len == 0 || address.0 == 0 {
            return None;
        }
        let mut at = self.home(address.0);
        loop {
            match self.slots[at].0 {
                0 => return None,
                found if found == address.0 => return Some(at),
                _ => at = (at + 1) & self.mask(),
            }
        }
    }

    /// Inserts a value at an address other than 0. Returns false, and drops the value, if there is one already.
    #[inline]
    pub(super) fn insert(&mut self, address: Address, value: V) -> bool {
        // At most half of the slots are used, so that a search is short.
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let mut at = self.home(address.0);
        while self.slots[at].0 != 0 {
            if self.slots[at].0 == address.0 {
                return false;
            }
            at = (at + 1) & self.mask();
        }
        self.slots[at] = (address.0, Some(value));
        self.len += 1;
        true
    }

    #[cold]
    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(FIRST);
        let before =
            std::mem::replace(&mut self.slots, std::iter::repeat_with(|| (0, None)).take(size).collect());
        self.len = 0;
        for (address, value) in before {
            if let Some(value) = value {
                self.insert(Address(address), value);
            }
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, address: Address) -> Option<&mut V> {
        let at = self.place(address)?;
        self.slots[at].1.as_mut()
    }

    #[inline]
    pub(super) fn remove(&mut self, address: Address) -> Option<V> {
        let mut hole = self.place(address)?;
        let value = self.slots[hole].1.take();
        self.slots[hole].0 = 0;
        self.len -= 1;
        // Moves entries back that were inserted behind the slot because the slot was used.
        let mut at = (hole + 1) & self.mask();
        while self.slots[at].0 != 0 {
            let home = self.home(self.slots[at].0);
            let (from_home, from_hole) =
                (at.wrapping_sub(home) & self.mask(), at.wrapping_sub(hole) & self.mask());
            if from_home >= from_hole {
                self.slots.swap(at, hole);
                hole = at;
            }
            at = (at + 1) & self.mask();
        }
        value
    }

    /// Returns all values.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::AddressMap;
    use gpu_vmm::Address;
    use std::collections::BTreeMap;

    #[test]
    fn it_holds_what_a_tree_holds() {
        let (mut map, mut expected) = (AddressMap::new(), BTreeMap::new());
        let mut state = 1_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few addresses, so that they are inserted again; neighbours, so that slots are contended.
            let address = Address(((state >> 33) % 700 + 1) * 512);
            if (state >> 60).is_multiple_of(2) {
                assert_eq!(map.insert(address, step), !expected.contains_key(&address.0));
                expected.entry(address.0).or_insert(step);
            } else {
                assert_eq!(map.remove(address), expected.remove(&address.0));
            }
            assert_eq!(map.get_mut(address).copied(), expected.get(&address.0).copied());
            assert_eq!(map.len, expected.len());
        }
        let mut values: Vec<_> = map.values().copied().collect();
        values.sort_unstable();
        let mut left: Vec<_> = expected.into_values().collect();
        left.sort_unstable();
        assert_eq!(values, left);
        assert!(left.len() > 100, "the table has grown");
    }

    #[test]
    fn absent_addresses_are_not_found() {
        let mut map = AddressMap::new();
        assert_eq!(map.remove(Address(512)), None);
        assert!(map.insert(Address(512), ()));
        assert_eq!(map.remove(Address(0)), None);
        assert_eq!(map.remove(Address(513)), None, "it shares the slot with 512");
        assert_eq!(map.remove(Address(512)), Some(()));
    }
}
