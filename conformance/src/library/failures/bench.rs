//! The bench on which an operation fails: a region or a vector, with everything that a failure must not change.

use super::edges::{EDGE, Faulty, edges};
use super::saved::{InFile, Saved};
use super::start::{Beside, Kind, Start, far};
use crate::library::registrar::Registrar;
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{
    Access, Address, BackingKind, BackingStore, BankId, BankedRegion, Bytes, DeviceId, DeviceVec,
    PhysicalMemory, Placement, Properties, Region, StagingRing, WaitFor,
};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The number of granules at the end of the first reservation that a bench uses.
const GRANULES: u64 = 5;

/// The seed of the pattern in a region, for the word at offset 0.
pub(super) const SEED: u64 = 1;

/// The seed of the pattern in the second region.
pub(super) const SEED_BESIDE: u64 = 1 << 40;

/// An object that an operation has returned.
#[derive(Debug)]
#[allow(dead_code)] // held until the bench ends
pub(super) enum Made<B: TestKit> {
    Memory(PhysicalMemory<Faulty<B>>),
    Region(Region<Faulty<B>>),
    Vector(DeviceVec<u64, Faulty<B>>),
    BankedRegion(BankedRegion<Faulty<B>>),
    Descriptor(OwnedFd),
    BackingStore(BackingStore<Faulty<B>>),
    Ring(StagingRing<Faulty<B>>),
}

/// The fields are dropped in this order: values that have memory mapped are dropped before the memory.
#[derive(Debug)]
pub(super) struct Bench<B: TestKit> {
    pub(super) made: Vec<Made<B>>,
    region: Option<Region<Faulty<B>>>,
    vector: Option<DeviceVec<u64, Faulty<B>>>,
    banked: Option<BankedRegion<Faulty<B>>>,
    /// Banks of one size: the first, one with the same number of allocations, and one with a different number.
    pub(super) banks: Vec<BankId>,
    beside: Option<Region<Faulty<B>>>,
    /// Reserved directly behind the region, so that the region cannot be extended.
    _wall: Option<Region<Faulty<B>>>,
    /// One granule of memory that is mapped nowhere.
    pub(super) memory: PhysicalMemory<Faulty<B>>,
    shared: Option<(PhysicalMemory<Faulty<B>>, OwnedFd)>,
    ring: Option<StagingRing<Faulty<B>>>,
    /// A backing store with space for the contents of the region or the vector.
    pub(super) store: BackingStore<Faulty<B>>,
    saved: Option<Saved<B>>,
    pub(super) backend: Faulty<B>,
    pub(super) device: DeviceId,
    /// Another device with access; the same device if the start has no peer.
    pub(super) peer: DeviceId,
    granule: Bytes,
    origin: Bytes,
    /// A place with free addresses.
    pub(super) hole: Address,
}

impl<B: TestKit> Bench<B> {
    /// Creates a bench. Its region has granule 0 mapped, granule 1 mapped read-only, a hole, and granule 3; the first reservation
    /// ends behind granule 4.
    pub(super) fn new(subject: &Subject<B>, hole: Address, start: Start, file: Option<Rc<InFile>>) -> Self {
        let backend = FaultInject::new(subject.backend.clone());
        let device = subject.device;
        let peer = if start.peer { subject.two_devices().1 } else { device };
        let granule = subject.granularity();
        let size = Bytes((granule.0 * GRANULES).next_multiple_of(subject.unit().0));
        let mut builder = Region::builder(&backend).on(device).reserve(size);
        builder = match start.guarded {
            true => builder.guarded().at(Placement::Exact(hole + subject.unit())),
            false => builder.at(Placement::Exact(hole)),
        };
        if !start.generous {
            builder = builder.extend_by(Bytes(1));
        }
        if start.peer {
            builder = builder.access(peer, RW);
        }
        let wall = start.walled.then(|| {
            let behind = Placement::Exact(hole.checked_add(size).unwrap());
            Region::builder(&backend).reserve(subject.unit()).at(behind).build().unwrap()
        });
        let memory = PhysicalMemory::create(&backend, granule, subject.properties()).unwrap();
        let (mut region, mut vector, mut banked) = (None, None, None);
        match start.kind {
            Kind::Region => region = Some(builder.build().unwrap()),
            Kind::BankedRegion => banked = Some(BankedRegion::build(builder).unwrap()),
            _ => vector = Some(DeviceVec::build(builder).unwrap().movable()),
        }
        // Banks begin at the start of their region.
        let origin = if banked.is_some() { Bytes(0) } else { size - Bytes(granule.0 * GRANULES) };
        // One thread, so that the calls come in the same order each time. The contents need more chunks than there are buffers.
        let chunk = if start.sparse { Bytes(granule.0 / 2) + EDGE } else { granule + EDGE };
        let ring = || StagingRing::new(&backend, 1, chunk).unwrap();
        let store = match start.store {
            BackingKind::Pinned => BackingStore::pinned(&backend, size + size).unwrap(),
            BackingKind::Pageable => BackingStore::pageable(ring()),
            BackingKind::File => BackingStore::file(std::env::temp_dir(), ring()),
            BackingKind::Nothing => BackingStore::nothing(),
        };
        let mut bench = Self {
            made: Vec::new(),
            region,
            vector,
            banked,
            banks: Vec::new(),
            beside: None,
            _wall: wall,
            memory,
            shared: start.shared.then(|| {
                let properties = subject.properties().shareable();
                let memory = or_skip(PhysicalMemory::create(&backend, granule, properties));
                let fd = or_skip(memory.export());
                (memory, fd)
            }),
            ring: start.ring.then(ring),
            store,
            saved: start.saved.map(|_| Saved::new(subject, &backend, far(subject, hole), file)),
            backend,
            device,
            peer,
            granule,
            origin,
            hole: hole.checked_add(subject.units(32)).unwrap(),
        };
        match start.kind {
            Kind::Region => bench.fill_region(start),
            Kind::BankedRegion => bench.fill_banks(),
            kind => bench.fill_vector(kind, size),
        }
        // Not directly behind the region, where a growing region needs the addresses.
        bench.fill_beside(start.beside, size, Placement::Exact(far(subject, hole)));
        if start.suspended {
            bench.suspend().unwrap();
        }
        bench
    }

    fn fill_beside(&mut self, what: Beside, size: Bytes, at: Placement) {
        let places: Vec<(Bytes, u64)> = match what {
            Beside::Nothing => return,
            Beside::Pieces(pieces) => {
                let sums = pieces.iter().scan(0, |sum, piece| {
                    *sum += piece;
                    Some(*sum - piece)
                });
                sums.map(|first| self.granules(first)).zip(pieces.iter().copied()).collect()
            }
            Beside::Twin => [0, 1, 3].map(|at| (self.at(at), 1)).to_vec(),
        };
        let builder = Region::builder(&self.backend).on(self.device).reserve(size);
        let mut beside = builder.at(at).build().unwrap();
        for (offset, granules) in places {
            let length = self.granules(granules);
            let memory = PhysicalMemory::create(&self.backend, length, Properties::on(self.device)).unwrap();
            beside.map(offset, &memory).unwrap();
            beside.set_access(offset, length, self.device, RW).unwrap();
            for edge in edges(offset, length) {
                beside.write_pattern(self.device, edge, EDGE, SEED_BESIDE + edge.0 / 8).unwrap();
            }
        }
        self.beside = Some(beside);
    }

    fn fill_banks(&mut self) {
        let (device, backend, size) = (self.device, self.backend.clone(), self.granules(2));
        let single = || PhysicalMemory::create(&backend, self.granule, Properties::on(device)).unwrap();
        let pair = vec![single(), single()];
        let banked = self.banked();
        let banks = [banked.add_bank(size), banked.add_bank(size), banked.add_bank_of(pair)];
        let banks = banks.map(Result::unwrap);
        banked.select(banks[0], WaitFor::all_devices()).unwrap();
        for edge in edges(Bytes(0), size) {
            banked.write_pattern(device, edge, EDGE, SEED + edge.0 / 8).unwrap();
        }
        self.banks = banks.to_vec();
    }

    fn fill_region(&mut self, start: Start) {
        let (device, peer, granule) = (self.device, self.peer, self.granule);
        let mapped: &[u64] = if start.sparse { &[4] } else { &[0, 1, 3] };
        for at in mapped.iter().copied() {
            let properties = Properties::on(device);
            let memory = PhysicalMemory::create(&self.backend, granule, properties).unwrap();
            let offset = self.at(at);
            self.region().map(offset, &memory).unwrap();
            self.region().set_access(offset, granule, device, RW).unwrap();
            self.mark(offset);
        }
        if start.walled || start.extended {
            let end = self.at(if start.extended { 6 } else { 5 });
            self.region().grow_to(end).unwrap();
            self.mark(self.at(4));
        }
        if start.extended {
            self.mark(self.at(5));
        }
        let less = if start.closed { Access::None } else { Access::Read };
        let (first, second, last) = (self.at(0), self.at(1), self.at(3));
        if start.sparse {
            let (first, second) = (self.at(4), self.at(5));
            self.region().set_access(second, granule, device, less).unwrap();
            if start.peer {
                self.region().set_access(first, granule, peer, RW).unwrap();
            }
            return;
        }
        self.region().set_access(second, granule, device, less).unwrap();
        if start.peer {
            self.region().set_access(first, granule, peer, RW).unwrap();
            self.region().set_access(last, granule, peer, Access::Read).unwrap();
        }
    }

    /// Writes the pattern to the ends of a granule.
    fn mark(&mut self, offset: Bytes) {
        let (device, granule) = (self.device, self.granule);
        for edge in edges(offset, granule) {
            self.region().write_pattern(device, edge, EDGE, SEED + edge.0 / 8).unwrap();
        }
    }

    fn fill_vector(&mut self, kind: Kind, reserved: Bytes) {
        let elements = |bytes: Bytes| (bytes.0 / 8) as usize;
        let length = match kind {
            Kind::FullVector => elements(reserved),
            _ => elements(self.granules(2)) - 1,
        };
        let slack = elements(self.granules(1)) + 1;
        let values: Vec<u64> = (0..elements(EDGE) as u64).map(|index| index * 3 + 1).collect();
        let vector = self.vector();
        vector.resize(length, 0).unwrap();
        for first in [0, length - values.len()] {
            vector.write(first, &values).unwrap();
        }
        if kind == Kind::SlackVector {
            vector.reserve(slack).unwrap();
        }
    }

    /// Returns the size of `count` granules.
    pub(super) fn granules(&self, count: u64) -> Bytes {
        Bytes(self.granule.0 * count)
    }

    /// Returns the offset of a granule in the region.
    pub(super) fn at(&self, granule: u64) -> Bytes {
        self.origin + self.granules(granule)
    }

    /// Returns the region under test.
    pub(super) fn region(&mut self) -> &mut Region<Faulty<B>> {
        self.region.as_mut().expect("a bench with a region")
    }

    /// Suspends the region or the vector into the store.
    pub(super) fn suspend(&mut self) -> gpu_vmm_core::Result<()> {
        let (store, done) = (self.store.clone(), WaitFor::all_devices());
        let did = match &mut self.vector {
            Some(vector) => vector.suspend(&store, done)?,
            None => self.region().suspend(&store, done)?,
        };
        assert!(!did.already);
        Ok(())
    }

    /// Resumes the region or the vector.
    pub(super) fn resume(&mut self) -> gpu_vmm_core::Result<()> {
        let did = match &mut self.vector {
            Some(vector) => vector.resume()?,
            None => self.region().resume()?,
        };
        assert!(!did.already);
        Ok(())
    }

    /// Returns the region under test and the second one.
    pub(super) fn two_regions(&mut self) -> (&mut Region<Faulty<B>>, &Region<Faulty<B>>) {
        let region = self.region.as_mut().expect("a bench with a region");
        (region, self.beside.as_ref().expect("a bench with a second region"))
    }

    /// Returns both regions mutably.
    pub(super) fn both_regions(&mut self) -> (&mut Region<Faulty<B>>, &mut Region<Faulty<B>>) {
        let region = self.region.as_mut().expect("a bench with a region");
        (region, self.beside.as_mut().expect("a bench with a second region"))
    }

    /// Returns the region under test and the staging ring.
    pub(super) fn region_and_ring(&mut self) -> (&mut Region<Faulty<B>>, &StagingRing<Faulty<B>>) {
        let region = self.region.as_mut().expect("a bench with a region");
        (region, self.ring.as_ref().expect("a bench with a ring"))
    }

    /// Returns the banked region under test.
    pub(super) fn banked(&mut self) -> &mut BankedRegion<Faulty<B>> {
        self.banked.as_mut().expect("a bench with a banked region")
    }

    /// Returns the banked region under test and the second region.
    pub(super) fn banked_and_region(&mut self) -> (&mut BankedRegion<Faulty<B>>, &Region<Faulty<B>>) {
        let banked = self.banked.as_mut().expect("a bench with a banked region");
        (banked, self.beside.as_ref().expect("a bench with a second region"))
    }

    /// Returns the vector under test.
    pub(super) fn vector(&mut self) -> &mut DeviceVec<u64, Faulty<B>> {
        self.vector.as_mut().expect("a bench with a vector")
    }

    /// Adds an observer to the region under test and one to the second region.
    pub(super) fn observe(&mut self, [one, beside]: [Registrar; 2]) {
        if let Some(region) = &mut self.region {
            region.on_backing_change(one);
        } else if let Some(vector) = &mut self.vector {
            vector.on_backing_change(one);
        } else if let Some(banked) = &mut self.banked {
            banked.on_backing_change(one);
        }
        if let Some(region) = &mut self.beside {
            region.on_backing_change(beside);
        }
    }

    /// Returns exportable memory and a descriptor of it.
    pub(super) fn shared(&self) -> &(PhysicalMemory<Faulty<B>>, OwnedFd) {
        self.shared.as_ref().expect("a bench with memory to share")
    }

    /// Returns the region in a file.
    pub(super) fn saved(&self) -> &Saved<B> {
        self.saved.as_ref().expect("a bench with a region in a file")
    }

    /// Returns the vector, if the bench has one.
    pub(super) fn vector_if_any(&self) -> Option<&DeviceVec<u64, Faulty<B>>> {
        self.vector.as_ref()
    }

    /// Returns the region, or the region below the vector or the banked region.
    pub(super) fn seen_region(&self) -> Option<&Region<Faulty<B>>> {
        let below = || self.vector.as_ref().map(DeviceVec::region);
        self.region.as_ref().or_else(below).or_else(|| self.banked.as_ref().map(BankedRegion::region))
    }

    /// Returns the second region.
    pub(super) fn seen_beside(&self) -> Option<&Region<Faulty<B>>> {
        self.beside.as_ref()
    }

    /// Takes the region out of the bench, or the region below the vector or the banked region.
    pub(super) fn take_region(&mut self) -> Option<Region<Faulty<B>>> {
        let below = self.vector.take().map(DeviceVec::into_region);
        self.region.take().or(below).or_else(|| self.banked.take().map(BankedRegion::into_region))
    }

    /// Takes the second region out of the bench.
    pub(super) fn take_beside(&mut self) -> Option<Region<Faulty<B>>> {
        self.beside.take()
    }

    /// Drops the bench and returns its backend.
    pub(super) fn end(self) -> Faulty<B> {
        self.backend.clone()
    }
}
