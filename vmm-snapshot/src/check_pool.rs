//! The rules of a valid table of a pool's blocks, so that code that restores pools can rely on its numbers.

use crate::{Description, PoolBlockRecord, PoolRangeRecord, PoolRecord, PoolSpaceRecord, RegionRecord};
use gpu_vmm_core::Bytes;
use std::collections::BTreeSet;

impl PoolRecord {
    /// # Errors
    ///
    /// Returns the first violated rule.
    pub(crate) fn check(&self, description: &Description) -> Result<(), String> {
        if !description.devices.iter().any(|device| device.id == self.device) {
            return Err(format!("the pool of {}, which is not among the devices", self.device));
        }
        if !self.page.0.is_power_of_two() || self.spaces.len() != description.regions.len() {
            let (spaces, regions) = (self.spaces.len(), description.regions.len());
            return Err(format!(
                "a pool of {spaces} spaces in {regions} regions, with pages of {}",
                self.page
            ));
        }
        let mut used = BTreeSet::new();
        for (at, (space, region)) in self.spaces.iter().zip(&description.regions).enumerate() {
            if let Some(twice) = region.mappings.iter().find(|mapping| !used.insert(mapping.memory)) {
                return Err(format!("pool space {at}: the memory at {} is mapped twice", twice.offset));
            }
            space.check(self, region, description).map_err(|what| format!("pool space {at}: {what}"))?;
        }
        Ok(())
    }
}

impl PoolSpaceRecord {
    fn check(
        &self,
        pool: &PoolRecord,
        region: &RegionRecord,
        description: &Description,
    ) -> Result<(), String> {
        let page = pool.page;
        let mut pages = BTreeSet::new();
        for mapping in &region.mappings {
            let memory = description.memories.get(mapping.memory);
            let fits = |size: Bytes| size == page && mapping.offset.0.is_multiple_of(page.0);
            if !memory.is_some_and(|memory| fits(memory.size) && memory.properties.device == pool.device) {
                return Err(format!("a mapping at {} that is not a page of the pool", mapping.offset));
            }
            pages.insert(mapping.offset.0 / page.0);
        }
        let mut end = Bytes::ZERO;
        for range in &self.ranges {
            range.check().map_err(|what| format!("range at {}: {what}", range.offset))?;
            let behind = range.offset.checked_add(range.size).filter(|end| *end <= region.reserved());
            let behind = behind.ok_or_else(|| format!("a range at {} exceeds the space", range.offset))?;
            if range.offset < end {
                return Err(format!("the range at {} overlaps the one before", range.offset));
            }
            end = behind;
            // The mappings lie in the region, which bounds the number of pages.
            let wanted = range.offset.0 / page.0..end.0.div_ceil(page.0);
            let count = wanted.end - wanted.start;
            if pages.range(wanted).count() as u64 != count {
                return Err(format!("no memory is mapped in a part of the range at {}", range.offset));
            }
        }
        Ok(())
    }
}

impl PoolRangeRecord {
    fn check(&self) -> Result<(), String> {
        let (slot, count) = match self.slot {
            Bytes::ZERO => (self.size, 1),
            slot => (slot, self.size.0 / slot.0),
        };
        if slot.is_zero() || self.blocks.is_empty() || self.size.is_zero() {
            return Err(format!("{} blocks in {} with slots of {slot}", self.blocks.len(), self.size));
        }
        if !self.blocks.is_sorted_by(|one, next| one.slot < next.slot) {
            return Err("slots that are not in order".to_owned());
        }
        let bad = |block: &&PoolBlockRecord| {
            u64::from(block.slot) >= count || block.size.is_zero() || block.size > slot
        };
        match self.blocks.iter().find(bad) {
            Some(block) => Err(format!("a block of {} in slot {} of {count}", block.size, block.slot)),
            None => Ok(()),
        }
    }
}
