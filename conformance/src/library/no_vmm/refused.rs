//! Operations that need virtual memory management: each is refused with the reason, and changes nothing.
#![allow(unsafe_code)] // imports memory

use super::{filled, has_one_allocation};
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    Access, Address, BackingStore, BankedRegion, Bytes, Detail, DeviceId, Error, FabricHandle, MovePath,
    Operation, PageList, PhysicalMemory, Placement, Region, RegionBuilder,
};
use gpu_vmm_testkit::TestKit;

cases! { "no_vmm":
    /// Mapping, unmapping, access, swaps, suspending, moving to a device and dma-bufs are refused with the device and the reason.
    operations,
    /// Memory cannot be created without an address, nor in a page list or a bank, and memory of a region cannot be mapped or exported.
    physical_memory,
    /// A place, a guard, memory with further properties and access of other devices are refused when a region is built.
    settings,
}

/// Checks that a call was refused because the device has no virtual memory management, and that the error says so.
#[track_caller]
fn is_refused<B: TestKit, T>(subject: &Subject<B>, answer: gpu_vmm_core::Result<T>) {
    let device = subject.backend.device(Operation::QueryDevice, subject.device).unwrap();
    let reason = device.no_virtual_memory.clone().unwrap();
    let answer = answer.map(drop);
    refused!(answer, Detail::Unsupported { .. }, subject.device, "has no virtual memory management", reason);
}

fn operations<B: TestKit>(subject: &Subject<B>) {
    let (mut region, mut other) = (filled(subject, 1), filled(subject, 2));
    let (address, size) = (region.address(), subject.unit());
    let memory = region.mappings().next().unwrap().memory.clone();
    let store = BackingStore::pinned(&subject.backend, size).unwrap();
    is_refused(subject, region.map(Bytes(0), &memory));
    is_refused(subject, region.map_with_access(size, std::slice::from_ref(&memory), subject.device, RW));
    is_refused(subject, region.unmap(Bytes(0), size, idle()));
    is_refused(subject, region.set_access(Bytes(0), size, subject.device, Access::Read));
    is_refused(subject, region.swap(Bytes(0), &mut other, Bytes(0), size, idle()));
    is_refused(subject, region.swap_all(&mut other, idle()));
    is_refused(subject, region.grow_with(std::slice::from_ref(&memory)));
    is_refused(subject, region.suspend(&store, idle()));
    is_refused(subject, region.suspend_into(&store, idle(), &mut Vec::new()));
    is_refused(subject, region.move_to_device(subject.device, MovePath::Fastest(None), idle()));
    is_refused(subject, region.apply_layout(Operation::Map, &[], idle()));
    is_refused(subject, region.apply_layout_elsewhere(Operation::Map, &[], Placement::Anywhere, idle()));
    is_refused(subject, region.check_usable(Operation::ShareRegion));
    #[cfg(unix)]
    is_refused(subject, region.dma_bufs(Bytes(0), size));
    if subject.backend.devices().len() > 1 {
        is_refused(subject, region.grow_to_on(DeviceId(1), subject.units(2)));
    }
    assert_eq!(region.address(), address);
    for (seed, region) in (1..).zip([&region, &other]) {
        has_one_allocation(region, size);
        subject.check(region, Bytes(0), size, seed);
    }
}

fn physical_memory<B: TestKit>(subject: &Subject<B>) {
    let (size, properties) = (subject.unit(), subject.properties());
    is_refused(subject, PhysicalMemory::create(&subject.backend, size, properties));
    let list = PageList::new(&subject.backend, size, properties, size).unwrap();
    is_refused(subject, list.take(size));
    is_refused(subject, BankedRegion::build(subject.region(1)));
    let region = filled(subject, 1);
    let memory = region.mappings().next().unwrap().memory.clone();
    assert_eq!((memory.size(), memory.device()), (size, subject.device));
    #[cfg(unix)]
    is_refused(subject, memory.export());
    is_refused(subject, memory.export_fabric());
    let (backend, none) = (&subject.backend, FabricHandle([0; FabricHandle::LENGTH]));
    // SAFETY: no handle reaches the driver, here and below.
    is_refused(subject, unsafe { PhysicalMemory::import_fabric(backend, &none, size, properties) });
    #[cfg(unix)]
    {
        let file = std::fs::File::open("/dev/null").unwrap();
        let descriptor = std::os::fd::AsFd::as_fd(&file);
        // SAFETY: as above.
        is_refused(subject, unsafe { PhysicalMemory::import(backend, descriptor, size, properties) });
    }
    is_refused(subject, memory.check_belongs_to(Operation::Map, &subject.backend));
    assert!(!memory.is_exported());
}

fn settings<B: TestKit>(subject: &Subject<B>) {
    let builder = || subject.region(1);
    let exact = Placement::Exact(Address(0x1000_0000_0000));
    let shareable = subject.properties().shareable();
    let refusals: [(RegionBuilder<'_, B>, &str); 7] = [
        (builder().at(exact), "an exact address"),
        (builder().at(Placement::Restorable), "a restorable address"),
        (builder().portable(), "portable or guarded addresses"),
        (builder().guarded(), "portable or guarded addresses"),
        (builder().memory(shareable), "memory with further properties"),
        (builder().memory(subject.properties().remote_dma()), "memory with further properties"),
        (builder().access(subject.device, Access::Read), "access of other devices"),
    ];
    for (refused, what) in refusals {
        let error: Error = refused.build().map(drop).unwrap_err();
        assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        refused!(Err::<(), _>(error), Detail::Unsupported { .. }, subject.device, what);
    }
    // The access that the owner has anyway can be named.
    drop(builder().access(subject.device, RW).build().unwrap());
    // Wishes that a driver may not fulfil are accepted.
    let wishes = builder().at(Placement::Prefer(Address(0x1000_0000_0000)));
    let mut region: Region<B> = wishes.memory(subject.properties().compressible()).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    assert!(!region.mappings().next().unwrap().memory.properties().compressible);
}
