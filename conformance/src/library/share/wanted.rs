//! The options of an import: reserved addresses, access, and the memory that the region grows by later.

use super::offers::{import, region};
use crate::case::cases;
use crate::library::sharing::{or_cannot_share, shareable};
use crate::library::tools::refused;
use crate::subject::{RW, Subject, or_skip, skip};
use gpu_vmm_core::{Access, Bytes, Detail, Location, Operation, PhysicalMemory, Region};
use gpu_vmm_share::{ImportMethod, ImportOptions, Offered};
use gpu_vmm_testkit::TestKit;

cases! { "share":
    /// An importer reserves the requested size, and never less than the region needs.
    reserved_as_wanted,
    /// An importer can request read-only access for the memory's owner.
    an_owner_that_reads,
    /// An imported region grows by memory with the properties of its own memory.
    grows_with_its_own_kind,
    /// The access that an importer requests for other devices also holds for memory that the region grows by.
    grows_for_who_was_wanted,
    /// A region with memory of a larger granularity behind other memory is imported at an address that aligns it.
    aligned_for_what_comes_later,
    /// No device writes to a read-only import, even one to which the importer gave the right to write.
    read_only_for_every_device,
}

fn reserved_as_wanted<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    for (wanted, reserved) in [(8, 8), (1, 3)] {
        let wanted = ImportOptions::new().reserve(subject.units(wanted));
        let imported = import(subject, offered.offer(), &wanted);
        assert_eq!((imported.reserved(), imported.end()), (subject.units(reserved), subject.units(3)));
    }
}

fn an_owner_that_reads<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let wanted = ImportOptions::new().access(subject.device, Access::Read);
    let mut imported = import(subject, offered.offer(), &wanted);
    assert_eq!(imported.access(Bytes(0), subject.device), Access::Read);
    refused!(imported.write(Bytes(0), &[1]), Detail::NoAccess { have: Access::Read, .. }, subject.device);
}

/// Imports a region with these options and room to grow, and grows it by one unit.
fn grown<B: TestKit>(subject: &Subject<B>, wanted: ImportOptions) -> (Region<B>, Bytes) {
    let region = region(subject);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let mut imported = import(subject, offered.offer(), &wanted.reserve(subject.units(4)));
    let end = imported.end();
    or_cannot_share(subject, imported.grow_to(end + subject.unit()));
    (imported, end)
}

fn grows_with_its_own_kind<B: TestKit>(subject: &Subject<B>) {
    let (imported, end) = grown(subject, ImportOptions::new());
    let kinds = [Bytes(0), end].map(|at| imported.mapping_at(at).unwrap().memory.properties());
    assert_eq!(kinds, [subject.properties().shareable(); 2]);
    assert_eq!(imported.access(end, subject.device), RW);
}

fn grows_for_who_was_wanted<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let (imported, end) = grown(subject, ImportOptions::new().access(other, Access::Read));
    for at in [Bytes(0), end] {
        assert_eq!([one, other].map(|device| imported.access(at, device)), [RW, Access::Read], "at {at}");
    }
}

fn aligned_for_what_comes_later<B: TestKit>(subject: &Subject<B>) {
    let backend = &subject.backend;
    let larger = |location| {
        let properties = subject.properties().located(location).shareable();
        let unit = backend.granularity_of(Operation::QueryGranularity, &properties).ok()?;
        (unit > backend.granularity()).then_some((properties, unit))
    };
    let Some((properties, unit)) = [Location::Host, Location::HostNode(0)].into_iter().find_map(larger)
    else {
        skip("all shareable memory here has the same granularity");
    };
    let size = unit.bytes();
    let large = or_skip(PhysicalMemory::create(backend, size, properties));
    let mut region = Region::builder(backend).reserve(Bytes(2 * size.0)).alignment(size).build().unwrap();
    subject.open(&mut region, Bytes(0), &shareable(subject, 1));
    subject.open(&mut region, size, &large);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let mut held = Vec::new();
    for _ in 0..4 {
        // This keeps the next import from being aligned by chance.
        held.push(Region::builder(backend).reserve(Bytes(size.0 / 2)).build().unwrap());
        held.push(import(subject, offered.offer(), &ImportOptions::new()));
        let address = held[held.len() - 1].address();
        assert!(address.is_aligned_to(size), "{size} at {address}");
    }
}

fn read_only_for_every_device<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let region = region(subject);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let wanted = ImportOptions::new().access(other, RW).read_only();
    let imported = import(subject, offered.offer(), &wanted);
    assert_eq!([one, other].map(|device| imported.access(Bytes(0), device)), [Access::Read; 2]);
}
