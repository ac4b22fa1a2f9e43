//! The CPU's access to mappings. The CPU is not a device.
#![allow(unsafe_code)] // reads and writes through addresses

use super::{SEED, mapped, some};
use crate::case::cases;
use crate::library::tools::{capability, idle, refused};
use crate::peer::Peer;
use crate::subject::{RW, Subject, or_skip, skip};
use gpu_vmm_core::{
    Access, BackingStore, Bytes, Capability, Detail, DeviceId, Error, Feature, Location, Operation,
    PhysicalMemory, Properties, Region,
};
use gpu_vmm_testkit::{TestKit, count_wrong_words, write_pattern_words};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, Rlimit, setrlimit};

cases! { "kinds":
    /// If the device reports host access, the CPU and the device read each other's writes at the same address; otherwise
    /// access for the host is refused and nothing changes.
    host_access,
    /// If the device reports host access to host memory, the CPU and the device read each other's writes to host memory.
    host_access_to_host_memory,
    /// The CPU can be given access to host memory when a neighboring mapping before or behind it was unmapped.
    beside_what_was_unmapped,
    /// The CPU can be given access to host memory that is mapped where smaller pieces were mapped before.
    in_the_place_of_smaller_pieces,
    /// Addresses to which the CPU had access stay reserved for the region after an unmap: the kernel gives them to no other
    /// mapping of the process.
    addresses_that_the_host_had,
    /// If the device reports host access, a region can be built so that the CPU has access to all memory that the region
    /// grows by.
    regions_for_the_host,
    /// Host memory that the device may write and the CPU may only read is filled, copied to from device memory, suspended and
    /// resumed. A copy of the host's bytes into it, which CUDA's driver makes with the CPU, is refused.
    host_memory_that_the_cpu_only_reads,
    /// A CPU access without access rights is a fault that ends the process.
    without_access_the_cpu_faults with reads_without_access,
    /// The host is not a device: creating memory on it, waiting for it and growing regions on it are refused without a driver
    /// call.
    the_host_is_no_device,
}

const HOST: DeviceId = DeviceId::HOST;

/// The number of pattern words at the start of a region that are wrong when the CPU reads them.
fn wrong_for_the_cpu<B: TestKit>(region: &Region<B>, size: Bytes, seed: u64) -> u64 {
    let words = region.address().as_ptr::<u64>();
    // SAFETY: the host may read `size` bytes, and no device writes there meanwhile.
    let words = unsafe { std::slice::from_raw_parts(words, size.0 as usize / 8) };
    count_wrong_words(words, seed, 0)
}

/// Writes the pattern with the CPU.
fn write_by_the_cpu<B: TestKit>(region: &mut Region<B>, size: Bytes, seed: u64) {
    let words = region.address().as_ptr::<u64>();
    // SAFETY: the host may write `size` bytes, and no device works there meanwhile.
    let words = unsafe { std::slice::from_raw_parts_mut(words, size.0 as usize / 8) };
    write_pattern_words(words, seed, 0);
}

/// Device and CPU write and read memory with these properties in turn. Returns the error if the CPU is refused access.
fn takes_turns<B: TestKit>(subject: &Subject<B>, properties: Properties) -> Result<(), Error> {
    let (memory, mut region) = mapped(subject, properties);
    let size = memory.size();
    subject.write(&mut region, Bytes(0), size, SEED);
    let before = region.access(Bytes(0), HOST);
    if let Err(error) = region.set_access(Bytes(0), size, HOST, RW) {
        assert_eq!((region.access(Bytes(0), HOST), region.access(Bytes(0), subject.device)), (before, RW));
        subject.check(&region, Bytes(0), size, SEED);
        return Err(error);
    }
    assert_eq!((region.access(Bytes(0), HOST), region.access(Bytes(0), subject.device)), (RW, RW));
    assert_eq!(wrong_for_the_cpu(&region, size, SEED), 0);
    write_by_the_cpu(&mut region, size, SEED + 1);
    subject.check(&region, Bytes(0), size, SEED + 1);
    region.set_access(Bytes(0), size, HOST, Access::Read).unwrap();
    subject.write(&mut region, Bytes(0), size, SEED + 2);
    assert_eq!(wrong_for_the_cpu(&region, size, SEED + 2), 0);
    region.set_access(Bytes(0), size, HOST, Access::None).unwrap();
    subject.check(&region, Bytes(0), size, SEED + 2);
    region.close(idle()).unwrap();
    Ok(())
}

/// Fails if the result contradicts the capability.
fn agrees(capability: &Capability, answer: Result<(), Error>) {
    match answer.map_err(Error::into_detail) {
        Ok(()) => assert!(capability.available, "it works, and {capability:?}"),
        Err(Detail::Unsupported { reason, .. }) => {
            assert!(!capability.available && !reason.is_empty(), "{reason}, and {capability:?}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// The properties of host memory. Skips the case on a backend without host memory.
fn host_memory<B: TestKit>(subject: &Subject<B>) -> Properties {
    let capability = capability(subject, Feature::HostMemory);
    if !capability.available {
        skip(capability.note);
    }
    subject.properties().located(Location::Host)
}

fn host_access<B: TestKit>(subject: &Subject<B>) {
    let capability = capability(subject, Feature::HostAccess);
    agrees(&capability, subject.backend.check_host_access(Operation::QueryAccess, &subject.properties()));
    agrees(&capability, takes_turns(subject, subject.properties()));
}

fn host_access_to_host_memory<B: TestKit>(subject: &Subject<B>) {
    let properties = host_memory(subject);
    let checked = subject.backend.check_host_access(Operation::QueryAccess, &properties);
    let turns = takes_turns(subject, properties);
    assert_eq!(checked.is_ok(), turns.is_ok(), "{checked:?}, {turns:?}");
}

fn host_memory_that_the_cpu_only_reads<B: TestKit>(subject: &Subject<B>) {
    let properties = host_memory(subject);
    let (memory, mut region) = mapped(subject, properties);
    let size = memory.size();
    drop(memory);
    region.write(Bytes(0), b"seen by both").unwrap();
    or_skip(region.set_access(Bytes(0), size, HOST, Access::Read));
    let refuses = |answer: Result<(), Error>| {
        refused!(answer, Detail::NoAccess { device: HOST, have: Access::Read, need: RW, .. });
    };
    refuses(region.write(Bytes(0), b"no"));
    let (_, other) = mapped(subject, properties);
    refuses(region.copy_from(Bytes(0), &other, Bytes(0), size));
    let mut on_device = subject.space(1).build().unwrap();
    on_device.map_with_access(Bytes(0), &[subject.piece(1)], subject.device, RW).unwrap();
    on_device.write(Bytes(0), b"seen by both").unwrap();
    region.copy_from(Bytes(0), &on_device, Bytes(0), Bytes(12)).unwrap();
    let stores = [BackingStore::pinned(&subject.backend, size), BackingStore::host(&subject.backend)];
    for store in stores.map(Result::unwrap) {
        region.suspend(&store, idle()).unwrap();
        region.resume().unwrap();
        assert_eq!(
            (region.access(Bytes(0), HOST), region.access(Bytes(0), subject.device)),
            (Access::Read, RW)
        );
        let mut bytes = [0; 12];
        region.read(Bytes(0), &mut bytes).unwrap();
        assert_eq!(&bytes, b"seen by both");
    }
    subject.write(&mut region, Bytes(0), size, SEED);
    assert_eq!(wrong_for_the_cpu(&region, size, SEED), 0);
    region.fill(Bytes(0), size, 0).unwrap();
    region.set_access(Bytes(0), size, HOST, RW).unwrap();
    region.write(Bytes(0), b"yes").unwrap();
    region.close(idle()).unwrap();
}

fn regions_for_the_host<B: TestKit>(subject: &Subject<B>) {
    let size = some(subject, &subject.properties());
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(Bytes(2 * size.0));
    let built = builder.access(subject.device, RW).access(HOST, RW).build();
    let capability = capability(subject, Feature::HostAccess);
    let Ok(mut region) = built else { return agrees(&capability, built.map(drop)) };
    for end in [size, Bytes(2 * size.0)] {
        region.grow_to(end).unwrap();
        subject.write(&mut region, Bytes(0), end, SEED);
        assert_eq!(wrong_for_the_cpu(&region, end, SEED), 0);
        write_by_the_cpu(&mut region, end, SEED + 1);
        subject.check(&region, Bytes(0), end, SEED + 1);
    }
    agrees(&capability, Ok(()));
}

fn without_access_the_cpu_faults<B: TestKit>(subject: &Subject<B>) {
    let mut child = subject.child();
    child.receive::<()>();
    child.send(());
    child.finish_by(libc::SIGSEGV);
}

fn reads_without_access<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    // The fault must not leave a core file.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let (memory, mut region) = mapped(subject, subject.properties());
    region.set_access(Bytes(0), memory.size(), subject.device, Access::None).unwrap();
    peer.send(());
    peer.receive::<()>();
    assert_eq!(wrong_for_the_cpu(&region, Bytes(8), SEED), 1);
}

fn the_host_is_no_device<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    let size = subject.granules(1);
    let created = PhysicalMemory::create(backend, size, Properties::on(HOST)).map(drop);
    let built = Region::builder(backend).on(HOST).reserve(size).build().map(drop);
    let mut region = subject.space(1).build().unwrap();
    region.grow_to(size).unwrap();
    let answers = [
        created,
        built,
        backend.synchronize(HOST),
        backend.memory_info(HOST).map(drop),
        backend.capabilities(HOST).map(drop),
        backend.device(Operation::QueryDevice, HOST).map(drop),
        region.write_pattern(HOST, Bytes(0), size, SEED),
    ];
    for (place, answer) in answers.into_iter().enumerate() {
        let error = answer.unwrap_err();
        assert!(error.driver_error().is_none(), "answer {place}: a driver call was made: {error}");
    }
    assert_eq!(region.access(Bytes(0), HOST), Access::None);
}

fn beside_what_was_unmapped<B: TestKit>(subject: &Subject<B>) {
    let properties = host_memory(subject);
    or_skip(subject.backend.check_host_access(Operation::QueryAccess, &properties));
    let (first, mut region) = mapped(subject, properties);
    let size = first.size();
    region.grow_to(Bytes(2 * size.0)).unwrap();
    region.unmap(size, size, idle()).unwrap();
    region.set_access(Bytes(0), size, HOST, RW).unwrap();
    write_by_the_cpu(&mut region, size, SEED);
    subject.check(&region, Bytes(0), size, SEED);
    // Now the first mapping is unmapped.
    let (_first, mut region) = mapped(subject, properties);
    region.grow_to(Bytes(2 * size.0)).unwrap();
    region.unmap(Bytes(0), size, idle()).unwrap();
    region.set_access(size, size, HOST, RW).unwrap();
}

fn in_the_place_of_smaller_pieces<B: TestKit>(subject: &Subject<B>) {
    let properties = host_memory(subject);
    or_skip(subject.backend.check_host_access(Operation::QueryAccess, &properties));
    let (small, mut region) = mapped(subject, properties);
    let size = small.size();
    subject.open(&mut region, size, &small);
    region.unmap(Bytes(0), Bytes(2 * size.0), idle()).unwrap();
    let large = PhysicalMemory::create(&subject.backend, Bytes(2 * size.0), properties).unwrap();
    subject.open(&mut region, Bytes(0), &large);
    region.set_access(Bytes(0), large.size(), HOST, RW).unwrap();
    write_by_the_cpu(&mut region, large.size(), SEED);
    subject.check(&region, Bytes(0), large.size(), SEED);
}

fn addresses_that_the_host_had<B: TestKit>(subject: &Subject<B>) {
    let (memory, mut region) = mapped(subject, subject.properties());
    let size = memory.size();
    or_skip(region.set_access(Bytes(0), size, HOST, RW));
    region.unmap(Bytes(0), size, idle()).unwrap();
    let (length, at) = (size.0 as usize, region.address().as_ptr());
    // SAFETY: the address is a hint without MAP_FIXED, so the kernel returns a fresh mapping; it is unmapped at once.
    let found = unsafe {
        let found = mmap_anonymous(at, length, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
        munmap(found, length).unwrap();
        found
    };
    assert_ne!(found, at, "the kernel mapped other memory at the region's addresses");
}
