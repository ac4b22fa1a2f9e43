//! The rules of a valid description. It is checked before it is written and after it is read, so that code that restores regions
//! can rely on its numbers.

use crate::{Description, EarlierSnapshot, MappingRecord, MemoryRecord, RegionRecord};
use gpu_vmm_core::{AccessMap, Bytes, DeviceId, Granularity, Properties};
use std::collections::BTreeSet;

impl Description {
    /// # Errors
    ///
    /// Returns the first violated rule.
    pub(crate) fn check(&self) -> Result<(), String> {
        let devices: BTreeSet<DeviceId> = self.devices.iter().map(|device| device.id).collect();
        if devices.len() < self.devices.len() || devices.iter().any(|device| device.0 >= DeviceId::LIMIT) {
            return Err("two devices have the same ordinal, or an ordinal is out of range".to_owned());
        }
        if let Some(parent) = &self.parent {
            parent.check()?;
        }
        for (at, memory) in self.memories.iter().enumerate() {
            memory.check(&devices).map_err(|what| format!("memory {at}: {what}"))?;
        }
        for (at, region) in self.regions.iter().enumerate() {
            region.check(&devices, &self.memories).map_err(|what| format!("region {at}: {what}"))?;
        }
        let mut ranges: Vec<_> =
            self.regions.iter().map(|region| (region.address, region.address + region.reserved())).collect();
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err("the addresses of two regions overlap".to_owned());
        }
        self.pool.iter().try_for_each(|pool| pool.check(self))
    }
}

impl EarlierSnapshot {
    /// Checks that the name cannot lead to another folder, on any system.
    pub(crate) fn check(&self) -> Result<(), String> {
        let special = |char: char| matches!(char, '/' | '\\' | ':') || char.is_control();
        if self.file.is_empty() || self.file == "." || self.file == ".." || self.file.contains(special) {
            return Err(format!("{:?} is not a file name", self.file));
        }
        Ok(())
    }
}

impl RegionRecord {
    fn check(&self, devices: &BTreeSet<DeviceId>, memories: &[MemoryRecord]) -> Result<(), String> {
        let mut reserved = Bytes::ZERO;
        for size in &self.reservations {
            check_size("reservation", *size, self.granularity)?;
            reserved = reserved.checked_add(*size).ok_or("it is larger than any address space")?;
        }
        if reserved.is_zero() {
            return Err("it has no addresses".to_owned());
        }
        let around = self.address.0.checked_sub(self.guard.0).map(|_| reserved.checked_add(self.guard));
        if around.flatten().and_then(|size| self.address.checked_add(size)).is_none() {
            return Err(format!("{} and a guard of {} do not fit at {}", reserved, self.guard, self.address));
        }
        let end = self.address + reserved + self.guard;
        if let Some(limit) = self.below.filter(|limit| end > *limit) {
            return Err(format!("it ends at {end}, which is not below its limit {limit}"));
        }
        if !self.address.is_aligned_to(self.alignment.bytes()) {
            return Err(format!("its address {} is not aligned to {}", self.address, self.alignment.bytes()));
        }
        let unit = self.granularity;
        if self.alignment.bytes() < unit.bytes() || !unit.divides(self.extend_by) || !unit.divides(self.guard)
        {
            return Err(format!("an alignment, an extension or a guard that is not a multiple of {unit}"));
        }
        check_properties(&self.memory, devices)?;
        check_access(self.access, devices)?;
        let mut end = Bytes::ZERO;
        for mapping in &self.mappings {
            end = mapping.check(self.granularity, end, reserved, memories)?;
            check_access(mapping.access, devices)?;
        }
        Ok(())
    }
}

impl MappingRecord {
    /// Returns the mapping's end. It must begin after the one before it and lie in the region.
    fn check(
        &self,
        unit: Granularity,
        before: Bytes,
        reserved: Bytes,
        memories: &[MemoryRecord],
    ) -> Result<Bytes, String> {
        let Self { offset, memory, .. } = *self;
        let size = memories.get(memory).ok_or_else(|| format!("there is no memory {memory}"))?.size;
        let end = offset.checked_add(size).filter(|end| *end <= reserved);
        let end = end.ok_or_else(|| format!("a mapping at {offset} ends past its {reserved}"))?;
        if offset < before || !unit.divides(offset) || !unit.divides(size) || u32::try_from(memory).is_err() {
            return Err(format!(
                "a mapping of {size} at {offset} that overlaps another or is not in units of {unit}"
            ));
        }
        Ok(end)
    }
}

impl MemoryRecord {
    fn check(&self, devices: &BTreeSet<DeviceId>) -> Result<(), String> {
        check_size("size", self.size, self.granularity)?;
        check_properties(&self.properties, devices)
    }
}

fn check_size(what: &str, size: Bytes, unit: Granularity) -> Result<(), String> {
    if size.is_zero() || !unit.divides(size) {
        return Err(format!("a {what} of {size} in units of {unit}"));
    }
    Ok(())
}

fn check_properties(properties: &Properties, devices: &BTreeSet<DeviceId>) -> Result<(), String> {
    if devices.contains(&properties.device) {
        Ok(())
    } else {
        Err(format!("memory of {}, which is not among the devices", properties.device))
    }
}

fn check_access(access: AccessMap, devices: &BTreeSet<DeviceId>) -> Result<(), String> {
    match access.grants().find(|grant| !grant.device.is_host() && !devices.contains(&grant.device)) {
        Some(grant) => Err(format!("access for {}, which is not among the devices", grant.device)),
        None => Ok(()),
    }
}
