//! Planning the regions to be restored on a backend. The plan is checked before any driver call.

use crate::merge::{SourceMapping, merge};
use crate::planned::{PlannedMapping, PlannedMemory};
use crate::{Description, RegionRecord, Restore};
use gpu_vmm_core::extend::{ADDRESS_SPACE, RegionSettings, check_reach, rounded_size};
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, Detail, DeviceId, Error, Granularity, Operation, Properties,
    Result,
};
use std::collections::{BTreeMap, HashMap};

/// All regions and memory to be created.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) regions: Vec<PlannedRegion>,
    pub(crate) memories: Vec<PlannedMemory>,
}

/// A region to be created.
#[derive(Debug)]
pub(crate) struct PlannedRegion {
    pub(crate) settings: RegionSettings,
    /// The original address range.
    pub(crate) was: AddressRange,
    /// The sizes of its reservations.
    pub(crate) reservations: Vec<Bytes>,
    /// The mappings, in order of their offsets.
    pub(crate) mappings: Vec<PlannedMapping>,
}

/// The granularity of memory types, queried once for each.
struct Kinds<'a, B: Backend> {
    backend: &'a B,
    units: HashMap<Properties, Granularity>,
}

impl<B: Backend> Kinds<'_, B> {
    fn unit(&mut self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        if let Some(unit) = self.units.get(properties) {
            return Ok(*unit);
        }
        let (_, unit) = rounded_size(self.backend, operation, Bytes(1), properties)?;
        self.units.insert(*properties, unit);
        Ok(unit)
    }
}

/// Plans the regions.
///
/// # Errors
///
/// The errors of [`Restore::regions`] that need no driver call.
pub(crate) fn plan<B: Backend>(
    operation: Operation,
    backend: &B,
    options: &Restore,
    description: &Description,
) -> Result<Plan> {
    let options = &options.resolved(operation, backend, description)?;
    let mut kinds = Kinds { backend, units: HashMap::new() };
    let mut times = vec![0; description.memories.len()];
    for mapping in description.regions.iter().flat_map(|region| &region.mappings) {
        if let Some(times) = times.get_mut(mapping.memory) {
            *times += 1;
        }
    }
    let mut plan = Plan { regions: Vec::new(), memories: Vec::new() };
    let mut made = BTreeMap::new();
    for record in &description.regions {
        let growth = options.properties(operation, &record.memory)?;
        let granularity = kinds.unit(operation, &growth)?.max(backend.granularity());
        let mut pieces = Vec::with_capacity(record.mappings.len());
        for mapping in &record.mappings {
            let Some(memory) = description.memories.get(mapping.memory) else { continue };
            let properties = options.properties(operation, &memory.properties)?;
            let unit = kinds.unit(operation, &properties)?.max(granularity);
            let access = options.access(mapping.access);
            pieces.push(SourceMapping {
                offset: mapping.offset,
                size: memory.size,
                memory: mapping.memory,
                properties,
                access,
                unit,
                is_alias: times[mapping.memory] > 1,
            });
        }
        let mappings = merge(operation, record, &pieces, &mut plan.memories, &mut made)?;
        let unit = pieces.iter().map(|piece| piece.unit).fold(granularity, Granularity::max);
        let reservations = record.here(operation, backend.reservation_unit().max(granularity))?;
        plan.regions.push(PlannedRegion {
            settings: RegionSettings {
                tag: record.tag.as_str().into(),
                alignment: record.alignment.bytes().max(unit.bytes()),
                memory: growth,
                access: options.access(record.access),
                extend_by: record.extend_by,
                guard: record.guard,
                portable: record.portable,
                recommended: false,
                below: record.below,
            },
            was: AddressRange { base: record.address, size: record.reserved() },
            reservations,
            mappings,
        });
    }
    if !options.may_relocate() {
        plan.check_addresses(operation, backend.reservation_unit())?;
    }
    plan.check_reach(operation, backend)?;
    plan.check_room(operation, backend)?;
    Ok(plan)
}

impl RegionRecord {
    /// Returns the sizes of its reservations on the target.
    fn here(&self, operation: Operation, unit: Granularity) -> Result<Vec<Bytes>> {
        let size = self.reserved();
        let here = in_units(&self.reservations, unit).filter(|here| {
            let size: Bytes = here.iter().copied().sum();
            size <= ADDRESS_SPACE && self.address.checked_add(size).is_some()
        });
        here.ok_or_else(|| Error::new(operation, Detail::ExceedsAddressSpace { size, limit: ADDRESS_SPACE }))
    }
}

/// Returns reservation sizes that are multiples of the driver's unit: a size that is not is merged with those after it, and the
/// last one is rounded up. Returns `None` if they exceed an address space.
fn in_units(sizes: &[Bytes], unit: Granularity) -> Option<Vec<Bytes>> {
    let mut here = Vec::with_capacity(sizes.len());
    let mut open = Bytes::ZERO;
    for size in sizes {
        open = open.checked_add(*size)?;
        if unit.divides(open) {
            here.push(std::mem::take(&mut open));
        }
    }
    if !open.is_zero() {
        here.push(unit.round_up(open)?);
    }
    Some(here)
}

impl Plan {
    /// Refuses access for devices that do not exist or cannot access the memory.
    fn check_reach<B: Backend>(&self, operation: Operation, backend: &B) -> Result<()> {
        let mut checked = None;
        for mapping in self.regions.iter().flat_map(|region| &region.mappings) {
            let Some(memory) = self.memories.get(mapping.memory) else { continue };
            let way = (mapping.access, memory.properties);
            if checked.replace(way) != Some(way) {
                for grant in mapping.access.grants() {
                    check_reach(backend, operation, grant.device, &memory.properties)?;
                }
            }
        }
        Ok(())
    }

    /// Refuses more memory than a device has in total.
    fn check_room<B: Backend>(&self, operation: Operation, backend: &B) -> Result<()> {
        let mut needed: BTreeMap<DeviceId, Bytes> = BTreeMap::new();
        for memory in self.memories.iter().filter(|memory| !memory.properties.location.is_host()) {
            *needed.entry(memory.properties.device).or_default() += memory.size;
        }
        for (device, requested) in needed {
            let total = backend.device(operation, device)?.total_memory;
            if requested > total {
                return Err(Error::new(operation, Detail::ExceedsDevice { requested, device, total }));
            }
        }
        Ok(())
    }

    /// Refuses addresses that are not aligned for the target, and regions that would overlap because the target reserves addresses
    /// in larger units.
    fn check_addresses(&self, operation: Operation, unit: Granularity) -> Result<()> {
        let mut ranges = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            let base = region.was.base;
            if !region.is_aligned() {
                let granularity = Granularity::new(region.settings.alignment).unwrap_or(unit);
                return Err(Error::new(
                    operation,
                    Detail::Unaligned { what: "address", value: base.0, granularity },
                ));
            }
            let guard = region.settings.guard;
            let size: Bytes = region.reservations.iter().copied().sum();
            ranges.push((Address(base.0.saturating_sub(guard.0)), base + size + guard));
        }
        ranges.sort_unstable();
        let mut pairs = ranges.iter().zip(ranges.iter().skip(1));
        let Some((one, next)) = pairs.find(|(one, next)| one.1 > next.0) else { return Ok(()) };
        let reason = format!(
            "the region at {} would overlap the one at {}, since addresses are reserved in units of {unit} here; \
             reserve multiples of that unit before the snapshot, or allow relocation",
            one.0, next.0
        );
        Err(Error::new(operation, Detail::Unsupported { reason }))
    }
}

impl PlannedRegion {
    /// Returns whether its address is aligned for the target.
    pub(crate) fn is_aligned(&self) -> bool {
        self.was.base.is_aligned_to(self.settings.alignment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_core::AccessMap;

    #[test]
    fn reservations_become_multiples_of_the_unit() {
        let unit = Granularity::new(Bytes(8)).unwrap();
        let of = |sizes: &[u64]| {
            let sizes: Vec<Bytes> = sizes.iter().copied().map(Bytes).collect();
            in_units(&sizes, unit).map(|here| here.into_iter().map(Bytes::get).collect::<Vec<_>>())
        };
        assert_eq!(of(&[8, 16]), Some(vec![8, 16]), "those that fit are as they were");
        assert_eq!(of(&[8, 4, 12, 8]), Some(vec![8, 16, 8]), "those that do not are put together");
        assert_eq!(of(&[8, 3]), Some(vec![8, 8]), "the last one is rounded up");
        assert_eq!(of(&[4, 3]), Some(vec![8]));
        assert_eq!(of(&[u64::MAX, 8]), None);
        assert_eq!(of(&[]), Some(vec![]));
    }

    /// Creates a region with its original address and its reservations on the target.
    fn region(address: u64, reservations: &[u64]) -> PlannedRegion {
        let reservations: Vec<Bytes> = reservations.iter().copied().map(Bytes).collect();
        PlannedRegion {
            settings: RegionSettings {
                tag: "".into(),
                alignment: Bytes(4),
                memory: Properties::on(DeviceId(0)),
                access: AccessMap::NONE,
                extend_by: Bytes::ZERO,
                guard: Bytes::ZERO,
                portable: false,
                recommended: false,
                below: None,
            },
            was: AddressRange { base: Address(address), size: Bytes(1) },
            reservations,
            mappings: Vec::new(),
        }
    }

    #[test]
    fn regions_that_would_overlap_are_refused() {
        let check = |regions: Vec<PlannedRegion>| {
            let plan = Plan { regions, memories: Vec::new() };
            let unit = Granularity::new(Bytes(32)).unwrap();
            plan.check_addresses(Operation::Restore, unit).map_err(|error| error.to_string())
        };
        assert_eq!(check(vec![region(0x60, &[0x20]), region(0x20, &[0x20, 0x20])]), Ok(()), "side by side");
        let text = check(vec![region(0x5c, &[0x20]), region(0x20, &[0x20, 0x20])]).unwrap_err();
        assert!(["0x20", "0x5c", "32 B"].iter().all(|part| text.contains(part)), "{text}");
        // A guard on either side is part of the region's addresses.
        let guarded = |address| {
            let mut region = region(address, &[0x20]);
            region.settings.guard = Bytes(0x20);
            region
        };
        assert_eq!(check(vec![guarded(0x40), region(0, &[0x20]), region(0x80, &[0x20])]), Ok(()));
        for beside in [0x20, 0x60] {
            let text = check(vec![guarded(0x40), region(beside, &[0x20])]).unwrap_err();
            assert!(text.contains("would overlap"), "{text}");
        }
        let text = check(vec![region(0x22, &[0x20])]).unwrap_err();
        assert!(text.contains("0x22") && text.contains("granularity (4 B)"), "{text}");
    }

    #[test]
    fn address_overflow_error_has_the_size() {
        let of = |address: u64, size: u64| {
            let record = RegionRecord::in_bytes(Address(address), Bytes(size));
            record.here(Operation::Restore, Granularity::new(Bytes(8)).unwrap())
        };
        assert_eq!(of(0x1000, ADDRESS_SPACE.0).unwrap(), [ADDRESS_SPACE]);
        // Rounded up, the last one reaches behind the last address.
        for (address, size) in [(0x1000, ADDRESS_SPACE.0 + 8), (u64::MAX - 20, 20), (0, u64::MAX)] {
            let error = of(address, size).unwrap_err();
            let Detail::ExceedsAddressSpace { size: found, limit } = error.detail() else {
                panic!("{error}")
            };
            assert_eq!((*found, *limit), (Bytes(size), ADDRESS_SPACE));
        }
    }
}
