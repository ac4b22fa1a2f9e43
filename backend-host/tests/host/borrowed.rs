//! Regions that are lent to the types of other libraries, and the list of a region's mappings from both of its sides.

use crate::{GRANULE, ONE, SMALL, TWO};
use gpu_vmm_core::extend::{LendMemory, lend_elements};
use gpu_vmm_core::{
    Access, Address, Backend, BackingStore, Bytes, Detail, ErrorKind, Grant, OffsetRange, Operation,
    PhysicalMemory, Properties, Region, Result, Stream, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::Random;

fn lend(region: &Region<HostBackend>, offset: u64, length: u64, grant: Grant) -> Result<Address> {
    let range = OffsetRange { offset: Bytes(offset), length: Bytes(length) };
    region.lend(Operation::Copy, range, grant, Stream::DEFAULT)
}

/// Everything within the mapped and accessible part is lent, and nothing else.
#[test]
fn region_is_lent_only_with_access() {
    let host = HostConfig::new().devices(2).open().unwrap();
    let builder = Region::builder(&host)
        .reserve(Bytes(4 * GRANULE.0))
        .access(ONE, Access::ReadWrite)
        .access(TWO, Access::Read);
    let mut region = builder.build().unwrap();
    region.grow_to(Bytes(2 * GRANULE.0)).unwrap();
    assert_eq!(region.lender(Operation::Copy).unwrap().instance(), host.instance());
    let (size, reserved) = (2 * GRANULE.0, 4 * GRANULE.0);
    let grant = |device, access| Grant { device, access };
    let own = grant(ONE, Access::ReadWrite);
    for (offset, length) in [(0, size), (1, 1), (GRANULE.0 - 1, 2), (size, 0), (reserved, 0)] {
        let address = lend(&region, offset, length, own).unwrap();
        assert_eq!(address, region.address() + Bytes(offset), "{offset}, {length}");
    }
    let kind = |offset, length, grant| lend(&region, offset, length, grant).unwrap_err().kind();
    assert_eq!(kind(0, size + 1, own), ErrorKind::NotMapped);
    assert_eq!(kind(size, 1, own), ErrorKind::NotMapped);
    assert_eq!(kind(reserved, 1, own), ErrorKind::OutOfRange);
    assert_eq!(kind(reserved + 1, 0, own), ErrorKind::OutOfRange);
    assert_eq!(lend(&region, 8, 8, grant(TWO, Access::Read)).unwrap(), region.address() + Bytes(8));
    let error = lend(&region, GRANULE.0, 8, grant(TWO, Access::ReadWrite)).unwrap_err();
    assert_eq!(error.operation(), Operation::Copy);
    let Detail::NoAccess { device: TWO, offset, have: Access::Read, need: Access::ReadWrite } =
        error.detail()
    else {
        panic!("{error:?}")
    };
    assert_eq!(*offset, Bytes::ZERO, "the beginning of the mapping");
    region.suspend(&BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    assert_eq!(lend(&region, 0, 8, own).unwrap_err().kind(), ErrorKind::Suspended);
}

#[test]
fn elements_are_lent_only_if_aligned() {
    let host = HostConfig::new().open().unwrap();
    let mut region = Region::builder(&host).reserve(GRANULE).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let grant = Grant { device: ONE, access: Access::ReadWrite };
    let at = |offset: u64, count| {
        lend_elements::<u32>(&region, Operation::Copy, Bytes(offset), count, grant, Stream::DEFAULT)
    };
    let count = GRANULE.0 as usize / 4;
    assert_eq!(at(0, count).unwrap(), region.address());
    assert_eq!(at(4, count - 1).unwrap(), region.address() + Bytes(4));
    assert_eq!(at(0, count + 1).unwrap_err().kind(), ErrorKind::OutOfRange);
    assert_eq!(at(2, 1).unwrap_err().kind(), ErrorKind::Unsupported);
    let error = at(0, usize::MAX / 2).unwrap_err();
    let Detail::TooManyElements { count, element } = error.detail() else { panic!("{error}") };
    assert_eq!((*count, *element), (usize::MAX / 2, 4));
    let operation = Operation::Copy;
    let nothing = lend_elements::<()>(&region, operation, Bytes::ZERO, 1, grant, Stream::DEFAULT);
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::Unsupported, "elements without a size");
}

/// Mappings of random sizes with holes between them, read from the front, from the back and from both sides in turn.
#[test]
fn mappings_are_listed_from_both_sides() {
    let host = HostConfig::new().granularity(SMALL).open().unwrap();
    let mut random = Random(7);
    for _ in 0..20 {
        let mut region = Region::builder(&host).reserve(Bytes(300 * SMALL.0)).build().unwrap();
        let (mut expected, mut at) = (Vec::new(), 0);
        loop {
            let (hole, granules) = (random.below(4) as u64, 1 + random.below(9) as u64);
            let offset = Bytes((at + hole) * SMALL.0);
            at += hole + granules;
            if at > 300 {
                break;
            }
            let size = Bytes(granules * SMALL.0);
            let memory = PhysicalMemory::create(&host, size, Properties::on(ONE)).unwrap();
            region.map(offset, &memory).unwrap();
            expected.push((offset, size, memory.id()));
        }
        let seen = |mapping: gpu_vmm_core::MappingInfo<'_, HostBackend>| {
            (mapping.offset, mapping.memory.size(), mapping.memory.id())
        };
        assert_eq!(region.mappings().map(seen).collect::<Vec<_>>(), expected);
        let backwards: Vec<_> = region.mappings().rev().map(seen).collect();
        assert!(backwards.iter().eq(expected.iter().rev()), "{backwards:?}");
        let mut mappings = region.mappings();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let is_front = random.below(2) == 0;
            match if is_front { mappings.next() } else { mappings.next_back() } {
                Some(mapping) if is_front => front.push(seen(mapping)),
                Some(mapping) => back.push(seen(mapping)),
                None => break,
            }
        }
        assert!(mappings.next().is_none() && mappings.next_back().is_none());
        front.extend(back.into_iter().rev());
        assert_eq!(front, expected);
    }
}
