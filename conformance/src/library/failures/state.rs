//! The state that a failure must not change: addresses, mappings, access, contents, and the driver's objects.
#![allow(unsafe_code)] // compares the driver's behavior with the library's records

use super::bench::{Bench, SEED, SEED_BESIDE};
use super::edges::{EDGE, Faulty, edges};
use crate::library::at::agrees;
use crate::subject::Subject;
use gpu_vmm_core::{
    Access, Address, AddressRange, Backend, Bytes, Detail, DeviceId, DeviceVec, Error, MappingInfo, Region,
    Vendor,
};
use gpu_vmm_testkit::{Live, TestKit};

/// The state that is compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) ranges: Vec<AddressRange>,
    pub(super) mappings: Vec<ObservedMapping>,
    /// The mappings of the second region.
    pub(super) beside: Vec<ObservedMapping>,
    /// The number of a vector's elements, and a checksum of them.
    pub(super) elements: Option<(usize, u64)>,
    pub(super) live: Live,
    /// Free memory of every device; empty if the driver counts memory as free only after its addresses are freed.
    pub(super) free: Vec<Bytes>,
}

/// One mapping, as the library records it and as the devices find it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedMapping {
    pub(super) offset: Bytes,
    pub(super) length: Bytes,
    pub(super) owner: DeviceId,
    /// The access of each of the two devices, by the library's records and by the driver.
    pub(super) access: [Access; 2],
    /// The number of words at its ends that each device reads with wrong contents, if it may read.
    pub(super) wrong: [Option<u64>; 2],
    /// The mapping is poisoned.
    pub(super) poisoned: bool,
}

impl State {
    /// Records the state of a bench.
    pub(super) fn of<B: TestKit>(bench: &Bench<B>, subject: &Subject<B>) -> Self {
        let devices = [bench.device, bench.peer];
        let (region, beside) = (bench.seen_region(), bench.seen_beside());
        region.into_iter().chain(beside).for_each(agrees);
        let see = |region: Option<&Region<Faulty<B>>>, seed| match region {
            Some(region) => {
                let mappings = region.mappings();
                mappings.map(|mapping| ObservedMapping::of(bench, region, &mapping, devices, seed)).collect()
            }
            None => Vec::new(),
        };
        Self {
            ranges: ranges(bench),
            mappings: see(region, SEED),
            beside: see(beside, SEED_BESIDE),
            elements: bench.vector_if_any().and_then(sum),
            live: bench.backend.live(),
            free: free(subject),
        }
    }

    /// Returns this state for another bench that was created in the same way and not used. What its devices read is known and
    /// takes most of the time, so it is not read again, except below a vector, where not every word was written.
    pub(super) fn of_another<B: TestKit>(&self, bench: &Bench<B>, subject: &Subject<B>) -> Self {
        if bench.vector_if_any().is_some() {
            return Self::of(bench, subject);
        }
        Self { ranges: ranges(bench), live: bench.backend.live(), free: free(subject), ..self.clone() }
    }

    /// Returns this state without what differs from run to run: addresses, free memory, and the contents of new memory.
    pub(super) fn shape(&self) -> Self {
        let mut shape = self.clone();
        shape.ranges.clear();
        shape.free.clear();
        shape.mappings.iter_mut().chain(&mut shape.beside).for_each(|seen| seen.wrong = [None; 2]);
        shape
    }

    /// Returns the contents, as far as they are checked.
    pub(super) fn contents(&self) -> Vec<Option<u64>> {
        let elements = self.elements.map(|(_, sum)| sum);
        self.mappings.iter().flat_map(|seen| seen.wrong).chain([elements]).collect()
    }

    /// Returns true if every device reads the written contents everywhere, or if a vector has all elements.
    pub(super) fn is_whole(&self) -> bool {
        let right = |wrong: &Option<u64>| wrong.is_none_or(|words| words == 0);
        self.elements.is_some() || self.mappings.iter().all(|seen| seen.wrong.iter().all(right))
    }

    /// Returns this state without the contents between two offsets.
    pub(super) fn without_contents(mut self, from: Bytes, to: Bytes) -> Self {
        for seen in &mut self.mappings {
            if seen.offset < to && from < seen.offset + seen.length {
                seen.wrong = [None; 2];
            }
        }
        self
    }

    /// Returns this state without a vector's memory and its addresses.
    pub(super) fn without_capacity(mut self) -> Self {
        self.ranges.clear();
        self.mappings.clear();
        self.live = Live::default();
        self.free.clear();
        self
    }
}

/// Returns the address ranges of the regions.
fn ranges<B: TestKit>(bench: &Bench<B>) -> Vec<AddressRange> {
    [bench.seen_region(), bench.seen_beside()].into_iter().flatten().flat_map(Region::reservations).collect()
}

/// Returns a vector's length, and a checksum of its ends in which each position has its own weight.
fn sum<B: TestKit>(vector: &DeviceVec<u64, Faulty<B>>) -> Option<(usize, u64)> {
    let mut ends = vec![0; (EDGE.0 / 8) as usize * 2];
    let (first, last) = ends.split_at_mut((EDGE.0 / 8) as usize);
    vector.read(0, first).ok()?;
    vector.read(vector.len() - last.len(), last).ok()?;
    let weighed = ends.iter().zip((1..).step_by(2)).map(|(element, weight)| element.wrapping_mul(weight));
    Some((vector.len(), weighed.fold(0, u64::wrapping_add)))
}

/// Returns the free memory of every device, if the driver counts freed memory at once.
fn free<B: TestKit>(subject: &Subject<B>) -> Vec<Bytes> {
    let late = ["memory-stays-until-free", "release-frees-nothing"];
    if late.iter().any(|quirk| subject.has_quirk(quirk)) { Vec::new() } else { subject.free() }
}

impl ObservedMapping {
    fn of<B: TestKit>(
        bench: &Bench<B>,
        region: &Region<Faulty<B>>,
        mapping: &MappingInfo<'_, Faulty<B>>,
        devices: [DeviceId; 2],
        seed: u64,
    ) -> Self {
        let (offset, length) = (mapping.offset, mapping.length);
        let access = devices.map(|device| region.access(offset, device));
        let count = |device| {
            edges(offset, length).into_iter().try_fold(0, |wrong, edge| {
                Ok(wrong + region.count_wrong(device, edge, EDGE, seed + edge.0 / 8)?)
            })
        };
        let first = count(devices[0]);
        let poisoned = matches!(first.as_ref().map_err(Error::detail), Err(Detail::Poisoned { .. }));
        let second = if devices[0] == devices[1] { first.clone() } else { count(devices[1]) };
        let seen = Self {
            offset,
            length,
            owner: mapping.memory.device(),
            access,
            wrong: [first, second].map(Result::ok),
            poisoned,
        };
        if !poisoned {
            seen.compare_with_the_driver(&bench.backend, region.address() + offset, devices);
        }
        seen
    }

    /// Checks that the library's records equal the driver's behavior.
    fn compare_with_the_driver<B: TestKit>(
        &self,
        backend: &Faulty<B>,
        address: Address,
        devices: [DeviceId; 2],
    ) {
        let Self { offset, length, owner, access, wrong, .. } = self;
        for at in [address, address + (*length - Bytes(1))] {
            let word = devices.map(|device| backend.access_at(at, device).unwrap());
            assert_eq!(word, access.map(Some), "the driver's access to {length} at offset {offset}");
        }
        let may_read = access.map(|access| access != Access::None);
        assert_eq!(
            wrong.map(|wrong| wrong.is_some()),
            may_read,
            "the devices that can read {length} at offset {offset}"
        );
        if !backend.reports_faults() {
            return;
        }
        let mut word = [0; 8];
        let (last, owned) = (address + (*length - Bytes(8)), access[usize::from(*owner != devices[0])]);
        // Below HIP a copy without access ends the process.
        if backend.vendor() != Vendor::Hip || owned != Access::None {
            // SAFETY: the word is mapped. The check is whether its owner may read it.
            let read = unsafe { backend.inner().copy_to_host(*owner, &mut word, last) };
            assert_eq!(read.is_ok(), owned != Access::None, "reading at offset {offset}: {read:?}");
        }
        if backend.vendor() != Vendor::Hip || owned == Access::ReadWrite {
            // SAFETY: as above. The word that was read is written back.
            let written = unsafe { backend.inner().copy_from_host(*owner, last, &word) };
            assert_eq!(
                written.is_ok(),
                owned == Access::ReadWrite,
                "writing at offset {offset}: {written:?}"
            );
        }
    }
}
