//! The numbers in the errors of refused calls: each range, limit and offset is the one that the error's text says it is.

use crate::range::{Range, create, create_as};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::extend::{ADDRESS_SPACE, MappedMemory};
use gpu_vmm_core::{
    Access, AccessMap, Address, Backend, BackingStore, BankedRegion, Bytes, Detail, DeviceVec, Error, Handle,
    MemoryCalls, OffsetRange, Operation, PhysicalMemory, Placement, Properties, Region, Reservation, Result,
    WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;
use std::os::fd::AsFd;

const IDLE: WaitFor<'static> = WaitFor::all_devices();

fn granules(count: u64) -> Bytes {
    Bytes(count * GRANULE.0)
}

fn range(offset: u64, length: u64) -> OffsetRange {
    OffsetRange { offset: granules(offset), length: granules(length) }
}

fn memory(host: &HostBackend, count: u64) -> PhysicalMemory<HostBackend> {
    PhysicalMemory::create(host, granules(count), Properties::on(ONE)).unwrap()
}

/// Creates a region with eight granules of addresses, and maps memory with access for its device there: each pair is an offset and
/// a length.
fn region(host: &HostBackend, mapped: &[(u64, u64)]) -> Region<HostBackend> {
    let mut region = Region::builder(host).reserve(granules(8)).build().unwrap();
    for (offset, length) in mapped {
        let memory = memory(host, *length);
        region.map_with_access(granules(*offset), &[memory], ONE, Access::ReadWrite).unwrap();
    }
    region
}

fn error<T>(answer: Result<T>) -> Error {
    answer.map(drop).unwrap_err()
}

/// Compares every field of an error.
#[track_caller]
fn assert_refused<T>(answer: Result<T>, operation: Operation, detail: &Detail) {
    let error = error(answer);
    assert_eq!((error.operation(), format!("{:?}", error.detail())), (operation, format!("{detail:?}")));
}

#[test]
fn overlapped_mapping_is_named_whole() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host, &[(2, 2), (5, 1)]);
    let in_the_way = |asked, mapping| Detail::AlreadyMapped { range: asked, mapping };
    let (one, three) = (memory(&host, 1), memory(&host, 3));
    for (offset, memory, asked, mapping) in [
        (1, &three, range(1, 3), range(2, 2)),
        (3, &one, range(3, 1), range(2, 2)),
        (4, &three, range(4, 3), range(5, 1)),
    ] {
        let answer = region.map(granules(offset), memory);
        assert_refused(answer, Operation::Map, &in_the_way(asked, mapping));
    }
    // In a layout, the mapping in the way is the one before.
    for (wanted, asked, mapping) in [
        ([(1, &three), (2, &one), (7, &one)], range(2, 1), range(1, 3)),
        ([(0, &one), (5, &one), (3, &three)], range(3, 3), range(5, 1)),
    ] {
        let wanted = wanted.map(|(offset, memory)| MappedMemory {
            offset: granules(offset),
            memory: memory.clone(),
            access: AccessMap::NONE,
        });
        let answer = region.apply_layout(Operation::ApplyChange, &wanted, IDLE);
        assert_refused(answer, Operation::ApplyChange, &in_the_way(asked, mapping));
    }
}

#[test]
fn hole_error_has_size_and_end() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host, &[(0, 1), (1, 1), (3, 1)]);
    let hole =
        |asked| Detail::NotMapped { range: asked, hole: granules(2), mapped: granules(3), end: granules(4) };
    assert_refused(region.fill(granules(1), granules(3), 0), Operation::Fill, &hole(range(1, 3)));
    assert_refused(region.unmap(granules(0), granules(4), IDLE), Operation::Unmap, &hole(range(0, 4)));
}

#[test]
fn cut_mapping_is_named_whole() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host, &[(0, 3), (3, 2)]);
    for (asked, mapping) in
        [(range(1, 4), range(0, 3)), (range(0, 4), range(3, 2)), (range(4, 1), range(3, 2))]
    {
        let answer = region.unmap(asked.offset, asked.length, IDLE);
        assert_refused(answer, Operation::Unmap, &Detail::PartialMapping { range: asked, mapping });
    }
}

#[test]
fn overflow_error_has_both_numbers() {
    let host = HostConfig::new().open().unwrap();
    let high = u64::MAX - GRANULE.0 + 1;
    let overflow = |length| Detail::Overflow { base: high, length };
    let mut region = region(&host, &[]);
    let answer = region.unmap(Bytes(high), granules(3), IDLE);
    assert_refused(answer, Operation::Unmap, &overflow(granules(3).0));
    for placement in [Placement::Prefer(Address(high)), Placement::Exact(Address(high))] {
        let answer = Region::builder(&host).reserve(granules(2)).at(placement).build();
        assert_refused(answer, Operation::Reserve, &overflow(granules(2).0));
    }
}

#[test]
fn shrink_error_has_the_end() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host, &[(0, 2)]);
    let behind = Detail::OutOfRange { range: range(0, 3), limit: granules(2) };
    assert_refused(region.shrink_to(granules(3), IDLE), Operation::Shrink, &behind);
    let shrunk = region.shrink_to(granules(2), IDLE).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (granules(2), Bytes::ZERO));
}

#[test]
fn crossing_error_has_the_reservations_border() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host, &[]);
    region.grow_to(granules(7)).unwrap();
    let crosses = Detail::CrossesReservation { range: range(7, 2), border: granules(8) };
    assert_refused(region.grow_with(&[memory(&host, 2)]), Operation::Grow, &crosses);
    assert_eq!((region.reserved(), region.end()), (granules(8), granules(7)));
}

#[test]
fn growth_error_has_the_guards_address() {
    let host = HostConfig::new().open().unwrap();
    let mut region = Region::builder(&host).reserve(granules(2)).guard(granules(3)).build().unwrap();
    let guarded = Detail::Guarded { end: region.range().end(), guard: granules(3) };
    assert_refused(region.grow_to(granules(3)), Operation::Grow, &guarded);
}

#[test]
fn differing_access_error_has_both_levels() {
    let host = HostConfig::new().devices(2).open().unwrap();
    let mut whole = region(&host, &[(0, 2)]);
    let mut halves = region(&host, &[(3, 1), (4, 1)]);
    halves.set_access(granules(4), GRANULE, TWO, Access::Read).unwrap();
    let differs =
        Detail::AccessDiffers { range: range(3, 2), device: TWO, one: Access::None, other: Access::Read };
    let answer = halves.swap(granules(3), &mut whole, granules(0), granules(2), IDLE);
    assert_refused(answer, Operation::Swap, &differs);
}

#[test]
fn whole_swap_needs_active_fitting_regions() {
    let host = HostConfig::new().open().unwrap();
    let mut large = region(&host, &[(0, 4)]);
    let mut small = Region::builder(&host).reserve(granules(2)).build().unwrap();
    let outside = Detail::OutOfRange { range: range(0, 4), limit: granules(2) };
    assert_refused(large.swap_all(&mut small, IDLE), Operation::Swap, &outside);
    assert_refused(small.swap_all(&mut large, IDLE), Operation::Swap, &outside);
    // A suspended region has no mappings, as the empty one, and is refused nevertheless.
    large.suspend(&BackingStore::nothing(), IDLE).unwrap();
    let suspended = Detail::Suspended { address: large.address(), reserved: granules(8) };
    assert_refused(large.swap_all(&mut small, IDLE), Operation::Swap, &suspended);
    assert_refused(small.swap_all(&mut large, IDLE), Operation::Swap, &suspended);
    assert_refused(large.write(Bytes::ZERO, b"x"), Operation::Write, &suspended);
}

#[test]
fn layout_overflow_error_has_its_end() {
    let host = HostConfig::new().open().unwrap();
    let mut region = region(&host, &[]);
    let wanted = |offset| [MappedMemory { offset, memory: memory(&host, 2), access: AccessMap::NONE }];
    let beyond = Detail::ExceedsAddressSpace { size: ADDRESS_SPACE + GRANULE, limit: ADDRESS_SPACE };
    let answer = region.apply_layout(Operation::ApplyChange, &wanted(ADDRESS_SPACE - GRANULE), IDLE);
    assert_refused(answer, Operation::ApplyChange, &beyond);
    let much = ADDRESS_SPACE + Bytes(1);
    let answer = Region::builder(&host).reserve(much).build();
    let beyond = Detail::ExceedsAddressSpace { size: much, limit: ADDRESS_SPACE };
    assert_refused(answer, Operation::Reserve, &beyond);
}

#[test]
fn oversized_elements_error_has_the_count() {
    let host = HostConfig::new().open().unwrap();
    let mut numbers = DeviceVec::<u32, _>::from_slice(&host, ONE, &[1, 2, 3]).unwrap();
    let many = |count| Detail::TooManyElements { count, element: 4 };
    assert_refused(numbers.reserve(usize::MAX - 3), Operation::Grow, &many(usize::MAX));
    assert_refused(numbers.reserve(usize::MAX - 1), Operation::Grow, &many(usize::MAX));
    assert_refused(numbers.reserve(usize::MAX / 2), Operation::Grow, &many(usize::MAX / 2 + 3));
    assert_refused(numbers.read(usize::MAX, &mut [0, 0]), Operation::Read, &many(2));
    let missing = Detail::NoSuchElement { index: 4, length: 3 };
    assert_refused(numbers.read(2, &mut [0; 3]), Operation::Read, &missing);
    assert_refused(numbers.write(2, &[0; 3]), Operation::Write, &missing);
    assert_eq!(numbers.to_vec().unwrap(), [1, 2, 3]);
}

/// Two machines are two backends, and their numbers are all that tells them apart.
#[test]
fn foreign_memory_error_has_both_numbers() {
    let (ours, theirs) = (HostConfig::new().open().unwrap(), HostConfig::new().open().unwrap());
    let mut region = region(&ours, &[]);
    let named = |host: &HostBackend| format!("host backend {}", host.instance().number());
    assert_ne!(named(&ours), named(&theirs));
    let foreign = Detail::ForeignHandle { theirs: named(&theirs), ours: named(&ours) };
    assert_refused(region.map(Bytes::ZERO, &memory(&theirs, 1)), Operation::Map, &foreign);
}

#[test]
fn missing_bank_error_lists_existing_banks() {
    let host = HostConfig::new().open().unwrap();
    let mut banked = BankedRegion::build(Region::builder(&host).reserve(GRANULE)).unwrap();
    let banks = [(); 3].map(|()| banked.add_bank(GRANULE).unwrap());
    drop(banked.remove_bank(banks[1], IDLE).unwrap());
    let error = error(banked.remove_bank(banks[1], IDLE));
    let Detail::NoSuchBank { bank, existing } = error.detail() else { panic!("{error}") };
    assert_eq!((error.operation(), *bank), (Operation::RemoveBank, banks[1]));
    assert_eq!(*existing, format!("{}, {}", banks[0], banks[2]));
    for bank in [banks[0], banks[2]] {
        drop(banked.remove_bank(bank, IDLE).unwrap());
    }
    let none = Detail::NoSuchBank { bank: banks[0], existing: "none".to_owned() };
    assert_refused(banked.select(banks[0], IDLE), Operation::SelectBank, &none);
}

/// Both errors are the cause, the range is the mapping's, and no call takes it for free or mapped.
#[test]
fn poisoned_mapping_has_range_and_errors() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut region = Region::builder(&host).reserve(granules(4)).guarded().build().unwrap();
    region.grow_to(granules(1)).unwrap();
    region.grow_to(granules(3)).unwrap();
    host.set_access_though_failing(true);
    host.fail_calls(&[Operation::SetAccess]);
    let failed = error(region.set_access(granules(1), granules(2), ONE, Access::Read));
    host.stop();
    let Detail::RollbackFailed { .. } = failed.detail() else { panic!("{failed}") };
    let memory = PhysicalMemory::create(&host, GRANULE, Properties::on(ONE)).unwrap();
    for (answer, operation) in [
        (region.map(granules(2), &memory), Operation::Map),
        (region.fill(granules(0), granules(2), 0), Operation::Fill),
        (region.unmap(granules(1), granules(2), IDLE), Operation::Unmap),
        (region.shrink_to(granules(1), IDLE).map(drop), Operation::Shrink),
        // The guard is in the way, so the region would move.
        (region.grow_or_move(granules(5), IDLE).map(drop), Operation::Grow),
        (
            region.apply_layout_elsewhere(Operation::ApplyChange, &[], Placement::Anywhere, IDLE),
            Operation::ApplyChange,
        ),
    ] {
        let error = error(answer);
        let Detail::Poisoned { range: told, cause } = error.detail() else { panic!("{error}") };
        assert_eq!((error.operation(), *told), (operation, range(1, 2)));
        assert_eq!(cause.matches("failed by plan").count(), 2, "{cause}");
    }
    drop(region);
    // SAFETY: the region is dropped, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}

/// The first mapping is removed, the second cannot be removed, and the first cannot be mapped again.
#[test]
fn unrestored_mapping_reports_both_errors() {
    let host = FaultInject::new(HostConfig::new().unmapping_singly().open().unwrap());
    let mut region = Region::builder(&host).reserve(granules(4)).build().unwrap();
    for end in [1, 2] {
        region.grow_to(granules(end)).unwrap();
    }
    let later = host.clone();
    host.during(Operation::Unmap, move || later.fail_calls(&[Operation::Unmap, Operation::Map]));
    let failed = error(region.unmap(granules(0), granules(2), IDLE));
    host.stop();
    let Detail::RollbackFailed { .. } = failed.detail() else { panic!("{failed}") };
    let error = error(region.fill(Bytes::ZERO, GRANULE, 0));
    let Detail::Poisoned { range: told, cause } = error.detail() else { panic!("{error}") };
    assert_eq!((*told, cause.matches("failed by plan").count()), (range(0, 1), 2), "{cause}");
    // The second one is as before.
    region.write(granules(1), b"x").unwrap();
    drop(region);
    // SAFETY: the region is dropped, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}

/// The core refuses most of these calls itself; programs that call a backend alone see its own errors.
#[test]
fn backend_refusals_have_errno_and_reason() {
    let host = HostConfig::new().devices(2).memory(granules(4)).open().unwrap();
    let refused = |answer: Result<()>, errno: &str, parts: &[&str]| {
        let error = answer.unwrap_err();
        assert_eq!(error.driver_error().map(|source| source.name.as_ref()), Some(errno), "{error}");
        let text = error.to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is not in {text}"));
    };
    let at = host.allocate_plain(TWO, granules(2)).unwrap();
    // SAFETY: no work uses the memory, and a wrong size frees nothing.
    let free = |at: Address, size| unsafe { host.free_plain(TWO, at, size) };
    let (size, begin) = (granules(2).to_string(), at.to_string());
    for (at, wrong) in [(at, granules(1)), (at, granules(3)), (at + granules(1), granules(1))] {
        refused(
            free(at, wrong),
            "EINVAL",
            &["free: ", "no plain allocation of this size begins there", &wrong.to_string()],
        );
    }
    let full = create(&host, TWO, granules(3)).map(drop);
    refused(
        full,
        "ENOMEM",
        &["create", "device 1 is out of memory", "requested 6 MiB, free 4 MiB of 8 MiB", "used up"],
    );
    free(at, granules(2)).unwrap();
    refused(free(at, granules(2)), "EINVAL", &[&begin, &size]);

    let shared = create_as(&host, granules(1), Properties::on(ONE).shareable()).unwrap();
    let fd = shared.export().unwrap();
    // SAFETY: the backend compares the size itself.
    let imported = unsafe { host.import(fd.as_fd(), granules(2), &shared.properties()) };
    refused(imported.map(drop), "EINVAL", &["import", "the exported memory has 2 MiB, not 4 MiB"]);

    let mut range = Range::new(&host, granules(2));
    let place = range.inner.range().to_string();
    let (one, two) = (create(&host, ONE, granules(1)).unwrap(), create(&host, ONE, granules(2)).unwrap());
    let outside = format!("the part is not in the reservation {place}");
    refused(range.map(granules(1), &two), "EINVAL", &["map: ", &outside]);
    refused(range.map(granules(2), &one), "EINVAL", &["map: ", &outside]);
    range.map(granules(1), &one).unwrap();
    refused(range.unmap(granules(1), granules(2)), "EINVAL", &["unmap: ", &outside]);
    refused(range.unmap(granules(1), Bytes::ZERO), "EINVAL", &["unmap: ", &outside]);
    refused(
        range.unmap(Bytes::ZERO, granules(2)),
        "EINVAL",
        &["unmap: ", "not one or several whole mappings"],
    );
    refused(range.access(Bytes::ZERO, ONE).map(drop), "EINVAL", &["nothing is mapped there"]);
    refused(
        range.write(ONE, Bytes::ZERO, b"x"),
        "EFAULT",
        &["nothing is mapped at", &range.at(Bytes::ZERO).to_string()],
    );
    range.grant(granules(1), granules(1), TWO, Access::Read).unwrap();
    let denied = format!("device 1 has read at {} and would need read and write", range.at(granules(1)));
    refused(range.write(TWO, granules(1), b"x"), "EACCES", &[&denied]);
    range.unmap(granules(1), granules(1)).unwrap();
}
