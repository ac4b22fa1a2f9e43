//! A region's life, by gpu-vmm-core: it must succeed on every version.

use crate::child::Case;
use crate::rig::{FAR, Must, ONE, Rig, UNIT, ZERO, alignment, units};
use gpu_vmm_core::{
    Access, Address, Backend, Bytes, Capability, CopyCalls, Detail, DeviceId, DriverInfo, Error, Evidence,
    Feature, GrowthKind, HandleTypes, MemoryCalls, Operation, PhysicalMemory, Placement, Properties, Region,
    Reservation, SyncCalls, WaitFor,
};
use gpu_vmm_hip::HipBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::TestKit;
use std::os::fd::AsFd;

const RW: Access = Access::ReadWrite;

cases! {
    life;
    unequal_steps;
    aliases;
    remapped;
    two_devices;
    shared;
    out_of_memory;
    rounds;
    capabilities;
    staged;
    done_at_once;
    walked;
    read_only_for_the_owner;
    adopted;
    plain_is_not_adopted;
    first_device_has_no_virtual_memory [WITHOUT_VMM = "1"] => beside;
}

/// For the parent: prints the quirks of the version.
pub(crate) const QUIRKS: Case = Case {
    name: "quirks",
    settings: &[],
    run: |rig| rig.backend.quirks().iter().for_each(|quirk| println!("{}", quirk.id)),
};

/// For the parent: a machine with more devices than gpu-vmm can name.
pub(crate) const MANY_DEVICES: Case = Case {
    name: "many_devices",
    settings: &[("DEVICES", "130")],
    run: |rig| {
        assert_eq!(rig.backend.devices().len(), DeviceId::LIMIT as usize);
        assert_eq!(rig.backend.devices().last().expect("a device").id, DeviceId(DeviceId::LIMIT - 1));
        let error = rig.backend.synchronize(DeviceId(DeviceId::LIMIT)).expect_err("it is not listed");
        assert!(matches!(error.detail(), Detail::NoSuchDevice { count: DeviceId::LIMIT, .. }), "{error:?}");
    },
};

const fn not_opened(name: &'static str, settings: &'static [(&'static str, &'static str)]) -> Case {
    Case { name, settings, run: |_| {} }
}

/// For the parent: each fails when it opens the backend, with these parts in the error.
pub(crate) const FAILED_STARTS: [(Case, &[&str]); 6] = [
    (not_opened("no_device", &[("DEVICES", "0")]), &["hipGetDeviceCount returned success and 0"]),
    (
        not_opened("odd_granularity", &[("GRANULARITY_KB", "3072")]),
        &["hipMemGetAllocationGranularity returned 3 MiB for device 0, not a power of two"],
    ),
    (not_opened("init", &[("FAILS", "hipInit")]), &["hipInit", "999", "has no device"]),
    (
        not_opened("device_count", &[("FAILS", "hipGetDeviceCount")]),
        &["hipGetDeviceCount", "999", "has no device"],
    ),
    (
        not_opened("version", &[("FAILS", "hipRuntimeGetVersion")]),
        &["hipRuntimeGetVersion", "999", "needs 6.1 or later"],
    ),
    (not_opened("device_name", &[("FAILS", "hipDeviceGetName")]), &["hipDeviceGetName", "999", "device 0"]),
];

/// Makes a device write both ends of every unit, and then all devices with access read all of them.
pub(crate) fn check(region: &mut Region<HipBackend>, by: DeviceId, offset: Bytes, length: Bytes, seed: u64) {
    const END: Bytes = Bytes::kib(4);
    let ends = || {
        let starts = (offset.0..(offset + length).0).step_by(UNIT).map(Bytes);
        starts.flat_map(|start| [start, start + (units(1) - END)])
    };
    for end in ends() {
        region.write_pattern(by, end, END, seed + end.0).must("written");
    }
    for end in ends() {
        for device in [ZERO, ONE].into_iter().filter(|device| region.access(end, *device) != Access::None) {
            let wrong = region.count_wrong(device, end, END, seed + end.0).must("read");
            assert_eq!(wrong, 0, "wrong words, read by {device}");
        }
    }
}

/// Memory that was created and mapped without a region is adopted, and refused on versions on which that is not safe.
pub(crate) fn adopted(rig: &mut Rig) {
    let backend = &rig.backend;
    // SAFETY: whole units, and one mapping where nothing is mapped.
    let (handle, mut theirs) = unsafe {
        let handle = backend.create(units(2), &Properties::on(ONE)).must("memory");
        let mut theirs = backend.reserve(units(2), alignment(), None).must("addresses");
        theirs.map(Bytes::ZERO, &handle).must("mapped");
        (handle, theirs)
    };
    // SAFETY: nothing else unmaps it.
    let adopt = |address| unsafe { PhysicalMemory::adopt(backend, address) };
    match adopt(theirs.range().base + units(1)).map_err(Error::into_detail) {
        Ok(memory) => {
            assert_eq!((memory.size(), memory.properties()), (units(2), Properties::on(ONE)));
            let mut region = rig.region(2).on(ONE).build().must("addresses");
            region.map_with_access(Bytes::ZERO, &[memory], ONE, RW).must("mapped");
            region.write(Bytes::ZERO, &[7]).must("written");
        }
        Err(Detail::Unsupported { reason }) => {
            assert!(reason.contains("7.15 and later"), "{reason}");
            assert!(rig.has("retain-does-not-count") || rig.has("retain-of-plain-crashes"));
        }
        Err(detail) => panic!("{detail}"),
    }
    // SAFETY: no work uses it.
    unsafe { theirs.unmap(Bytes::ZERO, units(2)) }.must("unmapped");
    if !rig.has("retain-does-not-count") && !rig.has("retain-of-plain-crashes") {
        fails!(adopt(theirs.range().base), NoMemoryAt);
    }
    drop((handle, theirs));
}

/// A plain allocation has no handle.
pub(crate) fn plain_is_not_adopted(rig: &mut Rig) {
    let at = rig.backend.allocate_plain(ZERO, units(1)).must("a plain allocation");
    // SAFETY: nothing else frees it.
    let adopted = unsafe { PhysicalMemory::adopt(&rig.backend, at) };
    if rig.has("retain-does-not-count") || rig.has("retain-of-plain-crashes") {
        fails!(adopted, Unsupported);
    } else {
        fails!(adopted, NoMemoryAt);
    }
    // SAFETY: it was allocated so, and no work uses it.
    unsafe { rig.backend.free_plain(ZERO, at, units(1)) }.must("freed");
}

/// Runs on a machine whose first device has no virtual memory management.
fn beside(rig: &mut Rig) {
    let reason = rig.backend.devices()[0].no_virtual_memory.clone().expect("a reason");
    assert!(reason.contains("hipDeviceAttributeVirtualMemoryManagementSupported (89) is 0"), "{reason}");
    fails!(PhysicalMemory::create(&rig.backend, units(1), Properties::on(ZERO)), Unsupported);
    // Nothing is tried on it: the reason is all that is known.
    let found = rig.backend.capabilities(ZERO).must("the reason alone");
    let only = Capability::no(Feature::VirtualMemory, Evidence::Attribute, &reason);
    assert_eq!(format!("{found:?}"), format!("{:?}", [only]));
    assert!(rig.backend.capabilities(ONE).must("those of the other device").len() > 1);
    let host = rig.backend.check_host_access(Operation::SetAccess, &Properties::on(ONE));
    assert_eq!(host.is_ok(), !rig.has("host-access-appears"), "{host:?}");
    let mut plain = rig.region(1).build().must("a plain region");
    plain.grow_to(units(1)).must("a plain allocation");
    assert!(plain.is_plain());
    // The other device has its own state, and works.
    let mut region = rig.region(2).on(ONE).build().must("addresses");
    region.grow_to(units(2)).must("growth");
    assert!(!region.is_plain());
    fails!(region.set_access(Bytes::ZERO, units(2), ZERO, Access::Read), Unsupported);
    fails!(region.grow_to_on(ZERO, units(3)), Unsupported);
    fails!(plain.grow_to_on(ONE, units(3)), Unsupported);
    let memory = plain.mappings().next().expect("a mapping").memory.clone();
    fails!(region.map(Bytes::ZERO, &memory), Unsupported);
    drop((plain, memory));
    check(&mut region, ONE, Bytes::ZERO, units(2), 1);
    region.close(WaitFor::all_devices()).must("closed");
}

fn life(rig: &mut Rig) {
    let before = rig.free(ZERO);
    let mut region = rig.region(32).at(Placement::Exact(FAR)).build().must("addresses at the hint");
    assert_eq!(region.address(), FAR);
    fails!(rig.region(1).at(Placement::Exact(FAR)).build(), AddressTaken);
    region.map(units(4), &rig.memory(ZERO, 2)).must("mapped");
    fails!(region.write(units(4), b"x"), NoAccess);
    region.set_access(units(4), units(2), ZERO, RW).must("access");
    check(&mut region, ZERO, units(4), units(2), 1);
    region.write(units(5) - Bytes(2), b"here").must("written");
    let mut bytes = [0; 4];
    region.read(units(5) - Bytes(2), &mut bytes).must("read");
    assert_eq!(&bytes, b"here");
    region.fill(units(4), Bytes(16), 7).must("filled");
    region.set_access(units(4), units(2), ZERO, Access::Read).must("less access");
    fails!(region.write(units(4), b"x"), NoAccess);
    region.unmap(units(4), units(2), WaitFor::all_devices()).must("unmapped");
    assert_eq!(region.mapped(), Bytes::ZERO);
    region.close(WaitFor::all_devices()).must("closed");
    if !rig.has("release-frees-nothing") {
        assert_eq!(rig.free(ZERO), before);
    }
}

/// Grows in steps of all sizes, changes the access of mappings in between, and shrinks.
pub(crate) fn unequal_steps(rig: &mut Rig) {
    let mut region = rig.region(64).build().must("addresses");
    for (step, end) in [1, 2, 5, 6, 13].into_iter().enumerate() {
        let growth = region.grow_to(units(end)).unwrap_or_else(|error| panic!("step {step}: {error}"));
        assert_eq!(growth.how, GrowthKind::Within);
        check(&mut region, ZERO, Bytes::ZERO, units(end), step as u64);
    }
    // Different access and a hole require calls for single mappings.
    region.set_access(units(2), units(3), ZERO, Access::Read).must("access of one mapping");
    region.unmap(units(1), units(1), WaitFor::all_devices()).must("a hole");
    region.grow_to(units(16)).must("growth behind a hole");
    check(&mut region, ZERO, units(5), units(11), 9);
    let shrunk = region.shrink_to(units(6), WaitFor::all_devices()).must("shrunk");
    assert_eq!(shrunk.end, units(6));
    region.grow_to(units(11)).must("and grown again");
    check(&mut region, ZERO, units(5), units(6), 10);
}

fn aliases(rig: &mut Rig) {
    let mut region = rig.region(8).build().must("addresses");
    let memory = rig.memory(ZERO, 2);
    for offset in [0, 2, 5] {
        region.map(units(offset), &memory).must("mapped");
        region.set_access(units(offset), units(2), ZERO, RW).must("access");
    }
    drop(memory);
    check(&mut region, ZERO, units(2), units(2), 3);
    region.write_pattern(ZERO, units(2), units(2), 3).must("written");
    for offset in [0, 5] {
        assert_eq!(region.count_wrong(ZERO, units(offset), units(2), 3).must("read"), 0, "an alias");
    }
    region.unmap(Bytes::ZERO, units(4), WaitFor::all_devices()).must("two of them unmapped");
    assert_eq!(region.count_wrong(ZERO, units(5), units(2), 3).must("read"), 0);
}

fn remapped(rig: &mut Rig) {
    let mut region = rig.region(4).at(Placement::Exact(FAR)).build().must("addresses");
    let behind = Placement::Exact(Address(FAR.0 + units(4).0));
    let other = rig.region(1).at(behind).build().must("addresses behind");
    region.grow_to(units(1)).must("growth");
    region.grow_to(units(4)).must("growth");
    region.write_pattern(ZERO, Bytes::ZERO, units(4), 5).must("written");
    let growth = region.grow_or_move(units(9), WaitFor::all_devices()).must("moved");
    assert_eq!(growth.how, GrowthKind::Remapped);
    assert_eq!(region.count_wrong(ZERO, Bytes::ZERO, units(4), 5).must("read"), 0);
    check(&mut region, ZERO, units(4), units(5), 6);
    drop(other);
    drop(rig.region(4).at(Placement::Exact(FAR)).build().must("the old addresses"));
    // With free addresses after it, it grows in place.
    let free = Placement::Exact(Address(FAR.0 << 1));
    let mut full = rig.region(4).at(free).build().must("addresses");
    full.grow_to(units(4)).must("growth");
    assert_eq!(full.grow_to(units(6)).must("growth across").how, GrowthKind::Extended);
    check(&mut full, ZERO, units(2), units(4), 8);
}

pub(crate) fn two_devices(rig: &mut Rig) {
    peers(rig);
    on_its_device(rig);
    between(rig);
    let mut region = rig.region(8).build().must("addresses");
    for (offset, owner, peer) in [(0, ZERO, ONE), (1, ONE, ZERO), (2, ZERO, ONE)] {
        region.map(units(offset), &rig.memory(owner, 1)).must("mapped");
        region.set_access(units(offset), units(1), peer, Access::Read).must("the peer's access");
        region.set_access(units(offset), units(1), owner, RW).must("the owner's access");
    }
    for (offset, owner) in [(0, ZERO), (1, ONE), (2, ZERO)] {
        check(&mut region, owner, units(offset), units(1), offset);
    }
    region.write(units(1) - Bytes(4), &[8; 9]).must("written over the border of two devices' memory");
}

/// Grows memory on one device, with access for both.
pub(crate) fn peers(rig: &mut Rig) {
    for (owner, peer) in [(ZERO, ONE), (ONE, ZERO)] {
        let mut region = rig.region(8).on(owner).access(peer, RW).build().must("addresses");
        for end in [1, 3, 4] {
            region.grow_to(units(end)).must("growth");
        }
        check(&mut region, owner, Bytes::ZERO, units(4), 4);
    }
}

/// Gives a peer access after the owner has used the memory.
pub(crate) fn late_peer(rig: &mut Rig) {
    let mut region = rig.region(8).on(ZERO).build().must("addresses");
    for end in [1, 3] {
        region.grow_to(units(end)).must("growth");
    }
    region.set_access(units(1), units(2), ZERO, Access::Read).must("the owner's access changed");
    region.set_access(Bytes::ZERO, units(3), ONE, RW).must("a peer later");
    let rights =
        [Bytes::ZERO, units(1)].map(|offset| (region.access(offset, ZERO), region.access(offset, ONE)));
    assert_eq!(rights, [(RW, RW), (Access::Read, RW)]);
    region.set_access(units(1), units(2), ZERO, RW).must("the owner's access restored");
    check(&mut region, ZERO, Bytes::ZERO, units(3), 5);
}

/// Checks that memory is on the requested device.
pub(crate) fn on_its_device(rig: &mut Rig) {
    let before = (rig.free(ZERO), rig.free(ONE));
    let memory = rig.memory(ONE, 3);
    let after = (rig.free(ZERO), rig.free(ONE));
    assert_eq!(after, (before.0, before.1 - units(3)), "free memory after 6 MiB of device 1 were taken");
    drop(memory);
}

/// Copies by device 1 from memory of device 0 that it may read, while device 0 may not write the target.
pub(crate) fn between(rig: &mut Rig) {
    let mut from = rig.region(2).on(ZERO).access(ONE, Access::Read).build().must("addresses");
    let mut to = rig.region(2).on(ONE).build().must("addresses");
    from.grow_to(units(2)).must("growth");
    to.grow_to(units(2)).must("growth");
    from.write_pattern(ZERO, Bytes::ZERO, units(2), 12).must("written");
    // SAFETY: both are mapped; device 1 may read the one and owns the other.
    unsafe { rig.backend.copy(ONE, to.address(), from.address(), units(2)) }.must("copied");
    assert_eq!(to.count_wrong(ONE, Bytes::ZERO, units(2), 12).must("read"), 0);
}

/// Exports memory as a descriptor, imports it, and closes the descriptor at once.
pub(crate) fn shared(rig: &mut Rig) {
    let properties = Properties::on(ONE).shareable();
    let memory = PhysicalMemory::create(&rig.backend, units(2), properties);
    if !rig.shares() {
        fails!(memory, Unsupported);
        return;
    }
    let memory = memory.must("memory");
    let two_types = properties.exported_as(HandleTypes::FABRIC);
    let error = PhysicalMemory::create(&rig.backend, units(2), two_types).expect_err("two handle types");
    assert!(error.to_string().contains("one handle type only; file descriptor and fabric handle"), "{error}");
    let mut region = rig.region(4).on(ONE).build().must("addresses");
    region.map(Bytes::ZERO, &memory).must("mapped");
    region.set_access(Bytes::ZERO, units(2), ONE, RW).must("access");
    region.write_pattern(ONE, Bytes::ZERO, units(2), 6).must("written");
    let fd = memory.export().must("exported");
    let asked = properties.compressible().remote_dma();
    // SAFETY: memory of this size and device, as just exported.
    let imported = unsafe { PhysicalMemory::import(&rig.backend, fd.as_fd(), units(2), asked) };
    drop(fd);
    if rig.has("import-form-unknown") {
        fails!(imported, Unsupported);
        return;
    }
    let imported = imported.must("imported");
    // HIP ignores the flags of memory, whether it is created or imported.
    let created = PhysicalMemory::create(&rig.backend, units(1), asked).must("memory");
    assert_eq!((imported.properties(), imported.properties().compressible), (created.properties(), false));
    drop(created);
    rig.left.physical += usize::from(rig.has("import-leaks"));
    region.map(units(2), &imported).must("mapped");
    region.set_access(units(2), units(2), ONE, RW).must("access to the import");
    let owner = rig.owner(region.address() + units(2));
    assert_eq!(owner, 1, "the device that HIP reports for the import");
    assert_eq!(region.count_wrong(ONE, units(2), units(2), 6).must("read"), 0, "the same memory");
    region.fill(units(3), Bytes(8), 1).must("filled");
    assert_eq!(region.count_wrong(ONE, Bytes::ZERO, units(2), 6).must("read"), 1, "seen through the other");
}

fn out_of_memory(rig: &mut Rig) {
    let before = rig.backend.memory_info(ZERO).must("numbers");
    let most = Bytes(before.free.0 - units(4).0);
    let memory = PhysicalMemory::create(&rig.backend, most, Properties::on(ZERO)).must("nearly all");
    let error = PhysicalMemory::create(&rig.backend, units(8), Properties::on(ZERO)).expect_err("no more");
    let Detail::OutOfMemory { requested, free, total, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((*requested, *free, *total), (units(8), units(4), before.total));
    let mut region = rig.region(16).build().must("addresses");
    region.grow_to(units(2)).must("growth");
    fails!(region.grow_to(units(10)), OutOfMemory);
    assert_eq!(region.end(), units(2), "as before");
    check(&mut region, ZERO, Bytes::ZERO, units(2), 3);
    drop(memory);
    if !rig.has("release-frees-nothing") {
        region.grow_to(units(10)).must("there is memory again");
    }
}

/// Frees addresses and reserves them again, at once.
pub(crate) fn rounds(rig: &mut Rig) {
    for round in 0..40 {
        let mut region = rig.region(4).build().must("addresses");
        region.grow_to(units(1)).must("growth");
        check(&mut region, ZERO, Bytes::ZERO, units(1), round);
    }
}

fn capabilities(rig: &mut Rig) {
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let found = |feature| all.iter().find(|one| one.feature == feature).expect("each is reported");
    for feature in
        [Feature::VirtualMemory, Feature::FixedAddress, Feature::ReadOnlyAccess, Feature::PeerAccess]
    {
        assert!(found(feature).available, "{feature}: {}", found(feature).note);
    }
    let keeps = rig.has("release-frees-nothing") || rig.has("memory-stays-until-free");
    let note = &found(Feature::VirtualMemory).note;
    assert_eq!(note.contains("NOT"), keeps, "{note}");
    for (feature, missing) in [
        (Feature::FileDescriptor, !rig.shares() || rig.has("import-form-unknown")),
        (Feature::HostAccess, rig.has("host-access-appears")),
        (Feature::HostMemory, rig.has("host-memory-is-the-devices")),
        (Feature::HostNodeMemory, rig.has("host-memory-is-the-devices")),
        (Feature::DmaBuf, false),
        (Feature::RemoteDma, rig.backend.driver().version_number < 71_400_000),
        (Feature::FabricHandle, true),
    ] {
        assert_eq!(found(feature).available, !missing, "{feature}: {}", found(feature).note);
    }
    let taken = " was requested and returned; a hint that is taken yields another address";
    let fixed = found(Feature::FixedAddress).note.strip_suffix(taken).map(|at| at.strip_prefix("0x"));
    let is_number = |digits| u64::from_str_radix(digits, 16).is_ok_and(|at| at > 0);
    assert!(fixed.flatten().is_some_and(is_number), "{}", found(Feature::FixedAddress).note);
    let by_dma_buf = "network cards use a dma-buf of the memory, which works with and without this property";
    let note = &found(Feature::RemoteDma).note;
    assert_eq!(note == by_dma_buf, found(Feature::RemoteDma).available, "{note}");
    let old = rig.has("host-access-appears");
    for (feature, evidence) in [
        (Feature::HostAccess, if old { Evidence::Version } else { Evidence::Trial }),
        (Feature::DmaBuf, Evidence::Trial),
        (Feature::RemoteDma, Evidence::Attribute),
        (Feature::FabricHandle, Evidence::Attribute),
        (Feature::Multicast, Evidence::Design),
    ] {
        assert_eq!(found(feature).found_by, evidence, "{feature}: {}", found(feature).note);
    }
    let DriverInfo { version, library, .. } = rig.backend.driver();
    assert_eq!(format!("{:?}", rig.backend), format!("HIP {version} from {library}, devices: 2"));
    // This driver has no capture modes.
    assert!(rig.backend.queries_spoil_captures());
    let at = rig.backend.allocate_plain(ZERO, units(1)).must("a plain allocation");
    // SAFETY: allocated above.
    unsafe { rig.backend.free_plain(ZERO, at, units(1)) }.must("and freed");
}

/// Copies each device's memory to page-locked memory and back, on a stream and by plain copies.
pub(crate) fn staged(rig: &mut Rig) {
    let pinned = rig.backend.pin(units(2)).must("pinned");
    let start = pinned.start().as_ptr();
    for device in [ZERO, ONE] {
        let mut region = rig.region(2).on(device).build().must("addresses");
        region.grow_to(units(2)).must("growth");
        check(&mut region, device, Bytes::ZERO, units(2), 1);
        // SAFETY: no other code uses the pinned memory, and copies on the copy stream are waited for before it is used.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, 2 * UNIT) };
        region.read(Bytes::ZERO, bytes).must("read");
        region.fill(Bytes::ZERO, units(2), 0).must("filled");
        region.write(Bytes::ZERO, bytes).must("written");
        let plain = bytes.to_vec();
        bytes.fill(0);
        let mut copy_stream = rig.backend.copy_stream(device).must("a copy_stream");
        // SAFETY: all of it is mapped for the device.
        unsafe {
            copy_stream.copy_to_host(start, region.address(), units(2)).must("queued");
            copy_stream.finish().must("finished");
            assert!(bytes == plain, "other bytes came");
            region.fill(Bytes::ZERO, units(2), 0).must("filled");
            copy_stream.copy_from_host(region.address(), start, units(2)).must("queued");
        }
        drop(copy_stream);
        let mut again = vec![0; 2 * UNIT];
        region.read(Bytes::ZERO, &mut again).must("read");
        assert!(again == plain, "other bytes are there");
    }
}

/// A copy or fill is done when its call returns: another stream, which waits for nothing, sees the bytes.
fn done_at_once(rig: &mut Rig) {
    let pinned = rig.backend.pin(units(1)).must("pinned");
    let start = pinned.start().as_ptr();
    for device in [ZERO, ONE] {
        let mut region = rig.region(2).on(device).build().must("addresses");
        region.grow_to(units(2)).must("growth");
        let (first, second) = (region.address(), region.address() + units(1));
        let mut copy_stream = rig.backend.copy_stream(device).must("a copy stream");
        let mut see = |at, value: u8, what: &str| {
            // SAFETY: the region is mapped for the device, and no other code uses the pinned memory.
            let bytes = unsafe {
                copy_stream.copy_to_host(start, at, units(1)).must("queued");
                copy_stream.finish().must("finished");
                std::slice::from_raw_parts(start, UNIT)
            };
            assert!(bytes.iter().all(|byte| *byte == value), "{what} by {device} is not done");
        };
        // SAFETY: both units are mapped for the device.
        unsafe {
            rig.backend.fill(device, first, units(1), 3).must("filled");
            see(first, 3, "a fill");
            rig.backend.copy(device, second, first, units(1)).must("copied");
            see(second, 3, "a copy");
            rig.backend.copy_from_host(device, first, &[4; UNIT]).must("written");
            see(first, 4, "a copy from the host");
        }
    }
}

fn walked(rig: &mut Rig) {
    let mut region = rig.region(2).build().must("addresses");
    region.grow_to(units(2)).must("growth");
    let (first, second) = (region.address() + units(1), region.address());
    for (at, node) in [(units(1), [second.0, 40]), (Bytes::ZERO, [0u64, 2])] {
        region.write(at, &[node[0].to_ne_bytes(), node[1].to_ne_bytes()].concat()).must("written");
    }
    // SAFETY: the list that was just written.
    let walked = unsafe { rig.backend.walk_list(ZERO, first, 9) }.must("walked");
    assert_eq!((walked.nodes, walked.sum), (2, 42));
}

/// A device writes memory that its owner may only read. HIP 6 would have the owner do it, so such copies are refused.
fn read_only_for_the_owner(rig: &mut Rig) {
    let mut region = rig.region(1).on(ONE).access(ZERO, RW).build().must("addresses");
    region.grow_to(units(1)).must("growth");
    check(&mut region, ONE, Bytes::ZERO, units(1), 1);
    region.set_access(Bytes::ZERO, units(1), ONE, Access::Read).must("less access");
    let pinned = rig.backend.pin(units(1)).must("pinned");
    let (start, at) = (pinned.start().as_ptr(), region.address());
    let mut copy_stream = rig.backend.copy_stream(ZERO).must("a copy stream");
    let plain = vec![7; UNIT];
    // SAFETY: the region is mapped for both devices, and the copy stream is waited for before the pinned memory is used.
    let written = unsafe {
        start.write_bytes(7, UNIT);
        let queued = copy_stream.copy_from_host(at, start, units(1));
        copy_stream.finish().must("finished");
        [queued, rig.backend.copy_from_host(ZERO, at, &plain)]
    };
    let mut expected = plain;
    for written in written {
        if rig.has("copy-by-source") {
            fails!(written, Unsupported);
            region.read(Bytes::ZERO, &mut expected).must("read");
            assert_eq!(
                region.count_wrong(ONE, Bytes::ZERO, Bytes::kib(4), 1).must("read"),
                0,
                "it was written"
            );
        } else {
            written.must("written");
        }
    }
    // The owner may read, so reading is not refused.
    let mut read = vec![0; UNIT];
    // SAFETY: as above.
    unsafe {
        copy_stream.copy_to_host(start, at, units(1)).must("queued");
        copy_stream.finish().must("finished");
        rig.backend.copy_to_host(ZERO, &mut read, at).must("read");
        assert!(std::slice::from_raw_parts(start, UNIT) == expected && read == expected, "other bytes came");
    }
    // Without access of the owner, reading is refused too.
    region.set_access(Bytes::ZERO, units(1), ONE, Access::None).must("no access");
    // SAFETY: as above.
    let answers = unsafe {
        let queued = copy_stream.copy_to_host(start, at, units(1));
        copy_stream.finish().must("finished");
        [queued, rig.backend.copy_to_host(ZERO, &mut read, at)]
    };
    for answer in answers {
        if rig.has("copy-by-source") {
            fails!(answer, Unsupported);
        } else {
            answer.must("read");
        }
    }
}
