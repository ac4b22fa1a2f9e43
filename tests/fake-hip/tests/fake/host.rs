//! The host: its access to a device's memory, its own memory mapped for devices, and descriptors of ranges.

use crate::flow::check;
use crate::rig::{Must, ONE, Rig, ZERO, found, units};
use gpu_vmm_core::{
    Access, Address, Alignment, Backend, Bytes, DeviceId, Feature, Grant, Location, MemoryCalls, Operation,
    PhysicalMemory, Properties, Reservation, WaitFor,
};
use gpu_vmm_test_settings::cases;
use std::os::fd::AsRawFd;

const RW: Access = Access::ReadWrite;
const HOST: DeviceId = DeviceId::HOST;

cases! {
    host_access => access;
    host_memory => memory;
    ranges;
}

/// Grows in steps of unequal sizes, which HIP 7.2 refuses in its own order. Then the CPU reads data of a device, and the
/// device reads data of the CPU.
pub(crate) fn access(rig: &mut Rig) {
    let mut region = rig.region(16).build().must("addresses");
    for end in [1, 3, 4, 9] {
        region.grow_to(units(end)).must("growth");
    }
    check(&mut region, ZERO, Bytes::ZERO, units(9), 1);
    let given = region.set_access(units(1), units(2), HOST, RW);
    if rig.has("host-access-appears") {
        fails!(given, Unsupported); // this version does not support it
        return;
    }
    given.must("the host's access");
    region.set_access(units(4), units(5), HOST, Access::Read).must("and to read");
    assert_eq!(
        [1, 4, 9].map(|end| region.access(units(end) - Bytes(1), HOST)),
        [Access::None, Access::None, Access::Read]
    );
    region.write(units(2), b"from a device").must("written");
    // SAFETY: the host has access to both, and no device uses them.
    unsafe {
        let at = (region.address() + units(2)).as_ptr::<[u8; 13]>();
        assert_eq!(&at.read(), b"from a device");
        at.write(*b"from the host");
        (region.address() + units(8)).as_ptr::<u8>().read();
    }
    let mut bytes = [0; 13];
    region.read(units(2), &mut bytes).must("read");
    assert_eq!(&bytes, b"from the host");
    region.set_access(units(1), units(2), HOST, Access::None).must("taken away");
    region.close(WaitFor::all_devices()).must("closed");
}

/// Addresses stay reserved when memory with access for the host is unmapped.
pub(crate) fn closed_again(rig: &mut Rig) {
    let mut region = rig.region(4).build().must("addresses");
    for access in [RW, Access::None] {
        region.grow_to(units(2)).must("growth");
        region.set_access(Bytes::ZERO, units(2), HOST, RW).must("the host's access");
        region.set_access(Bytes::ZERO, units(2), HOST, access).must("and what it has at the end");
        let _ = region.shrink_to(Bytes::ZERO, WaitFor::all_devices()).must("shrunk");
        let range = region.range();
        assert!(is_taken(range.base, range.size), "nothing is at the addresses, with {access} at the end");
    }
}

/// Memory to which HIP gave the CPU access, and that the CPU cannot use.
pub(crate) fn unusable(rig: &mut Rig) {
    for location in [Location::Host, Location::HostNode(0)] {
        let properties = Properties::on(ZERO).located(location);
        if let Ok(memory) = PhysicalMemory::create(&rig.backend, units(1), properties) {
            let mut region = rig.region(1).memory(properties).build().must("addresses");
            region.map(Bytes::ZERO, &memory).must("mapped");
            region.set_access(Bytes::ZERO, units(1), HOST, RW).must("access");
            // SAFETY: the host has access.
            unsafe { region.address().as_ptr::<u64>().write(7) };
            panic!("the CPU can use the memory");
        }
        fails!(PhysicalMemory::create(&rig.backend, units(1), properties), Unsupported);
    }
    let capabilities = rig.backend.capabilities(ZERO).must("capabilities");
    for feature in [Feature::HostAccess, Feature::HostMemory, Feature::HostNodeMemory] {
        let found = found(&capabilities, feature);
        assert!(!found.available && found.note.contains("EFAULT"), "{found:?}");
    }
}

/// Returns whether something is mapped at each page of a range.
fn is_taken(base: Address, size: Bytes) -> bool {
    let mut pages = vec![0u8; size.0 as usize / 4096];
    // SAFETY: the buffer has one byte per page; the call fails for unmapped pages.
    unsafe { libc::mincore(base.as_ptr(), size.0 as usize, pages.as_mut_ptr()) == 0 }
}

fn memory(rig: &mut Rig) {
    for location in [Location::Host, Location::HostNode(0)] {
        let before = [ZERO, ONE].map(|device| rig.free(device));
        let properties = Properties::on(ONE).located(location);
        let created = PhysicalMemory::create(&rig.backend, units(3), properties);
        assert_eq!([ZERO, ONE].map(|device| rig.free(device)), before, "no device's memory is taken");
        if rig.has("host-memory-is-the-devices") {
            fails!(created, Unsupported); // this version does not support it
            continue;
        }
        let created = created.must("memory of the host");
        assert_eq!(created.properties(), properties);
        // This driver reports the host's page, which is less than a device maps.
        let unit = rig.backend.granularity_of(Operation::QueryGranularity, &properties).must("a granularity");
        assert_eq!(unit.bytes(), units(1));
        let mut region = rig.region(4).memory(properties).build().must("addresses");
        region.map(Bytes::ZERO, &created).must("mapped");
        for device in [ONE, ZERO, HOST] {
            region.set_access(Bytes::ZERO, units(3), device, RW).must("access");
        }
        check(&mut region, ONE, Bytes::ZERO, units(3), 2);
        // SAFETY: the host has access.
        unsafe { region.address().as_ptr::<u64>().write(7) };
    }
    let nowhere = Properties::on(ZERO).located(Location::HostNode(12_345));
    fails!(PhysicalMemory::create(&rig.backend, units(1), nowhere), Unsupported); // the node does not exist
}

/// Returns the size of the file behind a descriptor, which is above the standard streams.
fn size(fd: &impl AsRawFd) -> Bytes {
    assert!(fd.as_raw_fd() > 2);
    // SAFETY: only seeks in a file.
    let end = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
    Bytes(u64::try_from(end).expect("a size"))
}

/// Exports one descriptor for each of two mappings, of which nothing is left; a range of both has none.
fn ranges(rig: &mut Rig) {
    let alignment = Alignment::new(units(1)).unwrap();
    // SAFETY: the pieces are adjacent in a reservation for both, and nothing uses them.
    unsafe {
        let mut range = rig.backend.reserve(units(3), alignment, None).must("addresses");
        for (offset, count) in [(0, 1), (1, 2)] {
            let piece = rig.backend.create(units(count), &Properties::on(ZERO)).must("memory");
            range.map(units(offset), &piece).must("mapped");
            let grant = Grant { device: ZERO, access: RW };
            range.set_access(units(offset), units(count), &[grant]).must("access");
        }
        for (offset, count) in [(0, 1), (1, 2)] {
            let fd = range.dma_buf(DeviceId(0), units(offset), units(count)).must("a descriptor");
            assert_eq!(size(&fd), units(count));
        }
        fails!(range.dma_buf(DeviceId(0), units(0), units(3)), Unsupported); // a range of two mappings has none
        range.unmap(units(0), units(1)).must("unmapped");
        range.unmap(units(1), units(2)).must("unmapped");
    }
}
