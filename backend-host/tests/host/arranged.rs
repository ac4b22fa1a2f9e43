//! Memory that a region is arranged from: the pieces that a resume takes out of a list, the order of mappings, and the devices
//! that may have access.

use crate::{GRANULE, ONE, SMALL, TWO};
use gpu_vmm_core::extend::{MappedMemory, RegionSettings};
use gpu_vmm_core::{
    Access, AccessMap, Address, BackingStore, Bytes, Detail, Error, ErrorKind, GrowthKind, Location,
    Operation, PhysicalMemory, Placement, Properties, Region, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

fn memory(host: &HostBackend, granules: u64) -> PhysicalMemory<HostBackend> {
    PhysicalMemory::create(host, Bytes(granules * GRANULE.0), Properties::on(ONE)).unwrap()
}

/// Only memory of the same backend, size and properties that nothing else holds is taken; all other stays in the list.
#[test]
fn a_resume_takes_what_fits() {
    let (host, other) = (HostConfig::new().open().unwrap(), HostConfig::new().open().unwrap());
    let mut region = Region::builder(&host).reserve(Bytes(2 * GRANULE.0)).build().unwrap();
    region.grow_to(Bytes(2 * GRANULE.0)).unwrap();
    region.suspend(&BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    let shared = memory(&host, 2);
    let shareable =
        PhysicalMemory::create(&host, Bytes(2 * GRANULE.0), Properties::on(ONE).shareable()).unwrap();
    let stay = [memory(&other, 2), shared.clone(), shareable, memory(&host, 1), memory(&host, 3)];
    let stays: Vec<_> = stay.iter().map(PhysicalMemory::id).collect();
    let mut list: Vec<_> = stay.into();
    let fits = memory(&host, 2);
    let id = fits.id();
    list.insert(2, fits);
    region.resume_from(&mut list).unwrap();
    assert_eq!(region.mappings().map(|mapping| mapping.memory.id()).collect::<Vec<_>>(), [id]);
    let mut left: Vec<_> = list.iter().map(PhysicalMemory::id).collect();
    assert_eq!(left.len(), stays.len());
    left.retain(|id| !stays.contains(id));
    assert!(left.is_empty(), "{left:?}");
    // With nothing that fits, new memory is created.
    region.suspend(&BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    region.resume_from(&mut list).unwrap();
    assert_eq!(list.len(), stays.len());
    assert!(!stays.contains(&region.mapping_at(Bytes::ZERO).unwrap().memory.id()));
}

/// Mappings that are out of order or overlap are refused for every way to arrange them, before the driver.
#[test]
fn mappings_must_be_in_order() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let create = |granules: u64| {
        PhysicalMemory::create(&host, Bytes(granules * GRANULE.0), Properties::on(ONE)).unwrap()
    };
    let access = AccessMap::NONE.with(ONE, Access::ReadWrite);
    let wanted = |offsets: [u64; 2]| {
        offsets.map(|granule| MappedMemory { offset: Bytes(granule * GRANULE.0), memory: create(2), access })
    };
    let mut region = Region::builder(&host).reserve(Bytes(8 * GRANULE.0)).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let operation = Operation::ApplyChange;
    for offsets in [[2, 0], [0, 1], [3, 3]] {
        let wanted = wanted(offsets);
        let maps = host.made(Operation::Map);
        let here = region.apply_layout(operation, &wanted, WaitFor::all_devices()).unwrap_err();
        let elsewhere = region
            .apply_layout_elsewhere(operation, &wanted, Placement::Anywhere, WaitFor::all_devices())
            .unwrap_err();
        for error in [here, elsewhere] {
            assert_eq!((error.operation(), error.kind()), (operation, ErrorKind::AlreadyMapped), "{error}");
        }
        assert_eq!((host.made(Operation::Map), region.mappings().count()), (maps, 1));
    }
    let wanted = wanted([0, 3]);
    region.apply_layout_elsewhere(operation, &wanted, Placement::Anywhere, WaitFor::all_devices()).unwrap();
    let found: Vec<_> = region.mappings().map(|mapping| (mapping.offset, mapping.memory.id())).collect();
    assert_eq!(found, wanted.map(|one| (one.offset, one.memory.id())));
}

/// Memory of another backend and offsets between granules are refused for every way to arrange mappings.
#[test]
fn what_is_arranged_must_fit_the_region() {
    let (host, other) = (HostConfig::new().open().unwrap(), HostConfig::new().open().unwrap());
    let mut region = Region::builder(&host).reserve(Bytes(8 * GRANULE.0)).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    let (operation, before) = (Operation::ApplyChange, region.range());
    let one = |offset, memory| MappedMemory { offset, memory, access: AccessMap::NONE };
    let wrong = [one(GRANULE, memory(&other, 1)), one(GRANULE + Bytes::kib(64), memory(&host, 1))];
    for wanted in wrong.iter().map(std::slice::from_ref) {
        let here = region.apply_layout(operation, wanted, WaitFor::all_devices()).unwrap_err();
        let elsewhere = region
            .apply_layout_elsewhere(operation, wanted, Placement::Anywhere, WaitFor::all_devices())
            .unwrap_err();
        for error in [here, elsewhere] {
            let is_right = match wanted[0].offset == GRANULE {
                true => matches!(error.detail(), Detail::ForeignHandle { .. }),
                false => matches!(error.detail(), Detail::Unaligned { what: "offset", .. }),
            };
            assert!(is_right && error.operation() == operation, "{error}");
        }
        assert_eq!((region.range(), region.end()), (before, GRANULE));
    }
}

/// A region that can be restored elsewhere has larger granules than its driver needs.
#[test]
fn memory_below_granularity_is_not_arranged() {
    let host = HostConfig::new().granularity(SMALL).open().unwrap();
    let mut region = Region::builder(&host).reserve(GRANULE).portable().build().unwrap();
    let memory = PhysicalMemory::create(&host, SMALL, Properties::on(ONE)).unwrap();
    let wanted = [MappedMemory { offset: Bytes::ZERO, memory, access: AccessMap::NONE }];
    let error = region.apply_layout(Operation::ApplyChange, &wanted, WaitFor::all_devices()).unwrap_err();
    let Detail::Unaligned { what, value, granularity } = error.detail() else { panic!("{error}") };
    assert_eq!((*what, *value, granularity.bytes()), ("length", SMALL.0, GRANULE));
}

/// The second mapping is of the same device and has other access.
#[test]
fn arranged_mappings_need_devices_with_access() {
    let host = HostConfig::new().devices(2).without_peers().open().unwrap();
    let mut region = Region::builder(&host).reserve(GRANULE + GRANULE).build().unwrap();
    let own = AccessMap::NONE.with(ONE, Access::ReadWrite);
    let wanted = [(Bytes::ZERO, own), (GRANULE, own.with(TWO, Access::Read))]
        .map(|(offset, access)| MappedMemory { offset, memory: memory(&host, 1), access });
    let error = region.apply_layout(Operation::ApplyChange, &wanted, WaitFor::all_devices()).unwrap_err();
    assert!(matches!(error.detail(), Detail::PeerUnreachable { device: TWO, owner: ONE }), "{error}");
    assert_eq!((error.operation(), region.mapped()), (Operation::ApplyChange, Bytes::ZERO));
}

/// Access for a device that cannot reach the memory is refused before the driver, and changes nothing.
#[test]
fn access_is_set_for_devices_with_reach() {
    let set = |host: &FaultInject<HostBackend>, region: &mut Region<FaultInject<HostBackend>>, access| {
        let before = host.made(Operation::SetAccess);
        // SAFETY: no work uses the region.
        let answer = unsafe { region.set_access_at_once(Bytes::ZERO, GRANULE, access) };
        answer.map(|()| host.made(Operation::SetAccess) - before)
    };
    let both = AccessMap::NONE.with(ONE, Access::ReadWrite).with(TWO, Access::Read);
    for reaches in [true, false] {
        let config = HostConfig::new().devices(2);
        let config = if reaches { config } else { config.without_peers() };
        let host = FaultInject::new(config.open().unwrap());
        let mut region = Region::builder(&host).reserve(GRANULE).build().unwrap();
        region.grow_to(GRANULE).unwrap();
        let answer = set(&host, &mut region, both);
        if reaches {
            // The owner has its access already.
            assert_eq!(answer.unwrap(), 1);
            assert_eq!(region.access(Bytes::ZERO, TWO), Access::Read);
            assert_eq!(set(&host, &mut region, both).unwrap(), 0);
        } else {
            let error = answer.unwrap_err();
            assert!(
                matches!(error.detail(), Detail::PeerUnreachable { device: TWO, owner: ONE })
                    && error.operation() == Operation::SetAccess,
                "{error}"
            );
            assert_eq!(region.access(Bytes::ZERO, TWO), Access::None);
            // Growth has set the owner's.
            assert_eq!(host.made(Operation::SetAccess), 1);
        }
        assert_eq!(region.access(Bytes::ZERO, ONE), Access::ReadWrite);
    }
}

/// A part must be whole mappings, as for a change that waits.
#[test]
fn access_is_set_for_whole_mappings() {
    let host = HostConfig::new().open().unwrap();
    let mut region = Region::builder(&host).reserve(Bytes(4 * GRANULE.0)).build().unwrap();
    region.grow_to(Bytes(2 * GRANULE.0)).unwrap();
    let read = AccessMap::NONE.with(ONE, Access::Read);
    let parts = [
        (Bytes::ZERO, Bytes::ZERO, ErrorKind::InvalidArgument),
        (Bytes::ZERO, Bytes(1), ErrorKind::Unaligned),
        (Bytes::ZERO, Bytes(8 * GRANULE.0), ErrorKind::OutOfRange),
        (Bytes::ZERO, GRANULE, ErrorKind::InvalidArgument),
        (GRANULE + GRANULE, GRANULE, ErrorKind::NotMapped),
    ];
    for (offset, length, kind) in parts {
        // SAFETY: no work uses the region.
        let error = unsafe { region.set_access_at_once(offset, length, read) }.unwrap_err();
        assert_eq!((error.operation(), error.kind()), (Operation::SetAccess, kind), "{error}");
    }
    assert_eq!(region.access(Bytes::ZERO, ONE), Access::ReadWrite);
    // SAFETY: as above.
    unsafe { region.set_access_at_once(Bytes::ZERO, GRANULE + GRANULE, read) }.unwrap();
    let access: Vec<_> = region.layout().map(|one| (one.offset, one.access)).collect();
    assert_eq!(access, [(Bytes::ZERO, read)]);
}

#[test]
fn a_region_with_settings_needs_a_reservation() {
    let host = HostConfig::new().open().unwrap();
    let settings = Region::builder(&host).reserve(GRANULE).build().unwrap().settings();
    // The owner's access is the default, and no setting.
    assert_eq!(settings.access, AccessMap::NONE);
    let operation = Operation::Restore;
    let none = Region::with_settings(operation, &host, &settings, Placement::Anywhere, &[]).unwrap_err();
    assert!(matches!(none.detail(), Detail::ZeroSize), "{none}");
}

#[test]
fn region_device_keeps_other_memory_properties() {
    let host = HostConfig::new().devices(2).open().unwrap();
    let builder = Region::builder(&host).memory(Properties::on(ONE).shareable()).on(TWO).reserve(GRANULE);
    assert_eq!(builder.build().unwrap().settings().memory, Properties::on(TWO).shareable());
}

/// No border of two reservations lies inside a granule, whatever the sizes are.
#[test]
fn configured_reservations_are_rounded_up() {
    let host = HostConfig::new().open().unwrap();
    let settings = Region::builder(&host).reserve(GRANULE).build().unwrap().settings();
    let place = Placement::Exact(Address(0x2700_0000_0000));
    let sizes = [Bytes(1), GRANULE + Bytes(1), GRANULE];
    let region = Region::with_settings(Operation::Restore, &host, &settings, place, &sizes).unwrap();
    let reserved: Vec<_> = region.reservations().map(|range| range.size / GRANULE).collect();
    assert_eq!(reserved, [1, 2, 1]);
}

#[test]
fn settings_keep_a_region_below_its_limit() {
    let host = HostConfig::new().open().unwrap();
    let limit = Address(0x2800_0000_0000);
    let region = Region::builder(&host).reserve(GRANULE).build().unwrap();
    let settings = RegionSettings { below: Some(limit), ..region.settings() };
    assert_eq!(region.settings().below, None);
    let at = |first: Address, sizes: &[Bytes]| {
        let made =
            Region::with_settings(Operation::Restore, &host, &settings, Placement::Exact(first), sizes);
        made.map(|region| region.settings().below).map_err(Error::into_detail)
    };
    let last = Address(limit.0 - GRANULE.0);
    assert_eq!(at(last, &[GRANULE]).unwrap(), Some(limit));
    for sizes in [&[GRANULE + GRANULE][..], &[GRANULE, GRANULE]] {
        assert!(matches!(at(last, sizes), Err(Detail::NotBelow { .. })), "{sizes:?}");
    }
    let anywhere = Placement::Anywhere;
    let placed = Region::with_settings(Operation::Restore, &host, &settings, anywhere, &[GRANULE]).unwrap();
    assert!(placed.range().end() <= limit, "{:?}", placed.range());
}

/// Memory of the caller ends at the end of the reservation or behind it, and a plain region takes none.
#[test]
fn growth_with_memory_reports_how_it_grew() {
    let host = HostConfig::new().open().unwrap();
    let at = Placement::Exact(Address(0x2300_0000_0000));
    let mut region = Region::builder(&host).reserve(Bytes(2 * GRANULE.0)).at(at).build().unwrap();
    let grown = [memory(&host, 1), memory(&host, 1), memory(&host, 2)].map(|memory| {
        let grown = region.grow_with(&[memory]).unwrap();
        (grown.how, grown.address, grown.end.0 / GRANULE.0, grown.added.0 / GRANULE.0)
    });
    let address = region.address();
    let (within, extended) = (GrowthKind::Within, GrowthKind::Extended);
    assert_eq!(grown, [(within, address, 1, 1), (within, address, 2, 1), (extended, address, 4, 2)]);
    let names = [within, extended, GrowthKind::Remapped, GrowthKind::Copied].map(GrowthKind::name);
    assert_eq!(names, ["within", "extended", "remapped", "copied"]);

    let host = HostConfig::new().without_virtual_memory().open().unwrap();
    let mut plain = Region::builder(&host).build().unwrap();
    let error = plain.grow_with(&[]).unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    assert_eq!(error.operation(), Operation::Grow);
}

/// The old mappings cannot be removed, and neither can the new ones.
#[test]
fn failed_move_rollback_reports_both_errors() {
    let host = FaultInject::new(HostConfig::new().open().unwrap());
    let mut region = Region::builder(&host).reserve(GRANULE).guarded().build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region.write(Bytes::ZERO, b"kept").unwrap();
    let before = region.range();
    host.fail_calls(&[Operation::Unmap]);
    let error = region.grow_or_move(GRANULE + GRANULE, WaitFor::all_devices()).unwrap_err();
    host.stop();
    assert!(matches!(error.detail(), Detail::RollbackFailed { .. }), "{error}");
    assert_eq!((region.range(), region.end()), (before, GRANULE));
    let mut bytes = [0; 4];
    region.read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    drop(region);
    // SAFETY: the region is dropped, and no device uses host memory.
    unsafe { host.reclaim() }.unwrap();
}

#[test]
fn idle_plain_region_moves_without_wait() {
    let host = FaultInject::new(HostConfig::new().without_virtual_memory().open().unwrap());
    let mut region = Region::builder(&host).build().unwrap();
    region.grow_to(GRANULE).unwrap();
    // SAFETY: no work uses the region.
    let grown = region.grow_or_move(GRANULE + GRANULE, unsafe { WaitFor::nothing() }).unwrap();
    assert_eq!((grown.how, host.made(Operation::WaitForDevice)), (GrowthKind::Copied, 0));
    region.grow_or_move(GRANULE + GRANULE + GRANULE, WaitFor::all_devices()).unwrap();
    assert_eq!(host.made(Operation::WaitForDevice), 1);
}

/// The region's own first address is aligned, not its guard's.
#[test]
fn region_moves_to_aligned_address() {
    let large = Bytes::mib(64);
    let host = HostConfig::new().memory(Bytes::mib(256)).host_granularity(large).open().unwrap();
    let properties = Properties::on(ONE).located(Location::Host);
    let memory = PhysicalMemory::create(&host, large, properties).unwrap();
    let wanted = [MappedMemory { offset: Bytes::ZERO, memory, access: AccessMap::NONE }];
    for guard in [Bytes::ZERO, GRANULE, Bytes::ZERO, GRANULE, Bytes::ZERO, GRANULE] {
        // Without an alignment, the addresses of most rounds would not suit.
        let mut region = Region::builder(&host).reserve(GRANULE).guard(guard).build().unwrap();
        assert_eq!(region.granularity().bytes(), GRANULE);
        let operation = Operation::ApplyChange;
        region
            .apply_layout_elsewhere(operation, &wanted, Placement::Anywhere, WaitFor::all_devices())
            .unwrap();
        assert!(region.address().is_aligned_to(large), "{}", region.address());
        assert!(region.guard() >= guard && region.mapped() == large);
    }
}
