//! The mappings of a backend and each device's access: one table for all reservations.
//!
//! The kernel knows the pages but not the devices, so copies check this table. The table also holds the memory of each mapping,
//! which lives until its last mapping is gone.

use crate::device::Charge;
use gpu_vmm_core::{Access, AccessMap, Address, AddressRange, Bytes, DeviceId, Properties};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The table, by first address.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    table: RwLock<BTreeMap<Address, Mapping>>,
    /// Work in flight locks it for reading while it writes memory; calls that remove pages or access lock it for writing, so that
    /// the table and the pages change together.
    touched: RwLock<()>,
}

/// One mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) size: Bytes,
    pub(crate) access: AccessMap,
    pub(crate) kept: Backing,
}

/// The memory that a mapping keeps alive.
#[derive(Debug)]
pub(crate) enum Backing {
    /// A whole handle, mapped in a reservation: its memory, and the properties that the handle reports.
    Handle(Arc<dyn Any + Send + Sync>, Properties),
    /// A plain allocation, which is its own mapping.
    Plain(#[expect(dead_code, reason = "held for what happens when it is dropped")] Charge),
}

/// Why a device may not access a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotMapped { at: Address },
    Denied { at: Address, have: Access },
}

impl Mappings {
    pub(crate) fn insert(&self, base: Address, mapping: Mapping) {
        self.write().insert(base, mapping);
    }

    /// Returns the first mapping that overlaps the range.
    pub(crate) fn first_in(&self, range: AddressRange) -> Option<AddressRange> {
        let table = self.read();
        let before =
            table.range(..range.base).next_back().map(ranged).filter(|found| found.end() > range.base);
        before.or_else(|| table.range(range.base..range.end()).next().map(ranged))
    }

    /// Returns the mappings that fill the range, or `None` if it has a hole or cuts a mapping.
    pub(crate) fn whole(&self, range: AddressRange) -> Option<Vec<(AddressRange, AccessMap)>> {
        let table = self.read();
        let mut next = range.base;
        let mut found = Vec::new();
        for (base, mapping) in table.range(range.base..range.end()) {
            if *base != next {
                return None;
            }
            next = *base + mapping.size;
            found.push((ranged((base, mapping)), mapping.access));
        }
        (next == range.end()).then_some(found)
    }

    /// Removes the mappings that begin in the range. Their memory is released when the caller drops the result, after the lock.
    pub(crate) fn remove(&self, range: AddressRange) -> Vec<Mapping> {
        let mut table = self.write();
        let bases: Vec<Address> = table.range(range.base..range.end()).map(|(base, _)| *base).collect();
        bases.iter().filter_map(|base| table.remove(base)).collect()
    }

    /// Removes the plain allocation of exactly this range.
    pub(crate) fn remove_plain(&self, range: AddressRange) -> Option<Mapping> {
        let mut table = self.write();
        let found = table.get(&range.base)?;
        let is_plain = matches!(found.kept, Backing::Plain(_)) && found.size == range.size;
        if is_plain { table.remove(&range.base) } else { None }
    }

    pub(crate) fn set_access(&self, changed: &[(AddressRange, AccessMap)]) {
        let mut table = self.write();
        for (range, access) in changed {
            if let Some(mapping) = table.get_mut(&range.base) {
                mapping.access = *access;
            }
        }
    }

    /// Returns a device's access at an address, or `None` if nothing is mapped there.
    pub(crate) fn access(&self, at: Address, device: DeviceId) -> Option<Access> {
        let table = self.read();
        let found = table.range(..=at).next_back()?;
        ranged(found).contains(at).then(|| found.1.access.get(device))
    }

    /// Returns the memory of the handle that is mapped at an address, with its properties. An error says what is there instead.
    pub(crate) fn handle_at(
        &self,
        at: Address,
    ) -> Result<(Arc<dyn Any + Send + Sync>, Properties), &'static str> {
        let table = self.read();
        let found = table.range(..=at).next_back().filter(|found| ranged(*found).contains(at));
        match found.map(|(_, mapping)| &mapping.kept) {
            None => Err("nothing is mapped there"),
            Some(Backing::Plain(_)) => Err("it is a plain allocation"),
            Some(Backing::Handle(memory, properties)) => Ok((Arc::clone(memory), *properties)),
        }
    }

    /// Checks that `device` has `need` access to every byte of the range, which can span mappings.
    pub(crate) fn check(&self, range: AddressRange, device: DeviceId, need: Access) -> Result<(), Refusal> {
        if range.size.is_zero() {
            return Ok(());
        }
        let table = self.read();
        let mut next = range.base;
        let first = table.range(..=range.base).next_back().map_or(range.base, |(base, _)| *base);
        for (base, mapping) in table.range(first..range.end()) {
            let end = *base + mapping.size;
            if end <= next {
                continue;
            }
            if *base > next {
                break;
            }
            let have = mapping.access.get(device);
            if !need.is_within(have) {
                return Err(Refusal::Denied { at: next, have });
            }
            next = end;
        }
        if next >= range.end() { Ok(()) } else { Err(Refusal::NotMapped { at: next }) }
    }

    /// Calls `act` if `device` has `need` access to the whole range; the access stays until `act` returns.
    pub(crate) fn while_allowed<T>(
        &self,
        range: AddressRange,
        device: DeviceId,
        need: Access,
        act: impl FnOnce() -> T,
    ) -> Result<T, Refusal> {
        let _touching = self.touched.read().unwrap_or_else(PoisonError::into_inner);
        self.check(range, device, need)?;
        Ok(act())
    }

    /// Keeps work in flight from accessing memory while the guard lives.
    pub(crate) fn untouched(&self) -> RwLockWriteGuard<'_, ()> {
        self.touched.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Address, Mapping>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Address, Mapping>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ranged((base, mapping): (&Address, &Mapping)) -> AddressRange {
    AddressRange { base: *base, size: mapping.size }
}
