//! Where memory is located, and the flags that it can be created with.

use super::{refused, works};
use crate::case::cases;
use crate::library::sharing::import_of;
use crate::library::tools::capability;
use crate::peer::Peer;
use crate::subject::{Subject, note, or_skip, skip};
use gpu_vmm_core::{
    Bytes, Capability, Detail, DeviceId, Feature, Location, Operation, PhysicalMemory, Properties,
};
use gpu_vmm_testkit::TestKit;

cases! { "kinds":
    /// If the device reports host memory, memory of the host can be mapped for the device.
    host_memory,
    /// If the device reports memory of NUMA nodes, memory of node 0 can be mapped for the device; a node that does not exist
    /// is always refused.
    host_node_memory,
    /// Memory requested as compressible is usable, and its properties say that it is compressible exactly if the device
    /// reports compression.
    compressible,
    /// Memory requested for remote DMA says that it supports remote DMA if the device reports it; otherwise it is refused or
    /// says that it does not.
    remote_dma,
    /// If requested flags exclude each other, the memory's properties say which flags it has, and an import of it says the
    /// same.
    flags_that_exclude_each_other,
    /// Host memory requested as exportable is usable, or is refused with a reason.
    shareable_host_memory,
    /// If the host has too little memory, the error has the host's numbers.
    more_than_the_host_has,
    /// Capabilities that are queried while the device has no free memory are queried again when it has some.
    asked_on_a_full_device with asks_on_a_full_device,
    /// Capabilities that are queried before the device was used are the same after use as if they had never been queried.
    asked_before_use with asks_before_use,
    /// Memory reports its properties: its device, its location and its export types.
    properties_are_reported,
}

/// Checks that memory works, with the properties that were requested, or is refused, as the capability says.
fn as_told<B: TestKit>(subject: &Subject<B>, feature: Feature, properties: Properties) {
    let capability = capability(subject, feature);
    note(format!("{feature}: {}", if capability.available { "there" } else { "not there" }));
    if capability.available {
        assert_eq!(works(subject, properties).properties(), properties);
    } else {
        refused(subject, properties);
    }
}

fn host_memory<B: TestKit>(subject: &Subject<B>) {
    as_told(subject, Feature::HostMemory, subject.properties().located(Location::Host));
}

fn host_node_memory<B: TestKit>(subject: &Subject<B>) {
    as_told(subject, Feature::HostNodeMemory, subject.properties().located(Location::HostNode(0)));
    let free = subject.free();
    for node in [1 << 20, u32::MAX] {
        let nowhere = subject.properties().located(Location::HostNode(node));
        let answer = PhysicalMemory::create(&subject.backend, subject.granules(1), nowhere);
        assert!(answer.is_err(), "memory of node {node}");
    }
    assert_eq!(subject.free(), free);
}

fn compressible<B: TestKit>(subject: &Subject<B>) {
    let available = capability(subject, Feature::Compression).available;
    let memory = works(subject, subject.properties().compressible());
    assert_eq!(memory.properties(), Properties { compressible: available, ..subject.properties() });
}

fn remote_dma<B: TestKit>(subject: &Subject<B>) {
    let available = capability(subject, Feature::RemoteDma).available;
    let wanted = subject.properties().remote_dma();
    match PhysicalMemory::create(&subject.backend, subject.granules(1), wanted) {
        Ok(memory) => {
            assert_eq!(memory.properties().remote_dma, available);
            drop(memory);
            works(subject, wanted);
        }
        Err(_) => {
            assert!(!available);
            refused(subject, wanted);
        }
    }
}

fn properties_are_reported<B: TestKit>(subject: &Subject<B>) {
    let plain = subject.properties();
    assert_eq!(works(subject, plain).properties(), plain);
    if capability(subject, Feature::FileDescriptor).available {
        assert_eq!(works(subject, plain.shareable()).properties(), plain.shareable());
    }
    for device in subject.backend.devices().iter().filter(|device| device.unusable.is_none()) {
        assert_eq!(subject.piece_on(device.id, 1).properties(), Properties::on(device.id));
    }
}

fn flags_that_exclude_each_other<B: TestKit>(subject: &Subject<B>) {
    let wanted = subject.properties().shareable().compressible().remote_dma();
    let memory = or_skip(PhysicalMemory::create(&subject.backend, subject.granules(1), wanted));
    let again = import_of(subject, or_skip(memory.export()), &memory);
    assert_eq!(again.properties().compressible, memory.properties().compressible);
}

fn shareable_host_memory<B: TestKit>(subject: &Subject<B>) {
    for location in [Location::Host, Location::HostNode(0)] {
        let properties = subject.properties().located(location).shareable();
        match PhysicalMemory::create(&subject.backend, subject.granules(1), properties) {
            Ok(memory) => {
                drop(memory);
                works(subject, properties);
            }
            Err(_) => refused(subject, properties),
        }
    }
}

fn more_than_the_host_has<B: TestKit>(subject: &Subject<B>) {
    let capability = capability(subject, Feature::HostNodeMemory);
    if !capability.available {
        skip(capability.note);
    }
    let properties = subject.properties().located(Location::HostNode(0));
    let size = Bytes::gib(1 << 20);
    let error = PhysicalMemory::create(&subject.backend, size, properties).unwrap_err();
    if let Detail::OutOfMemory { device, requested, free, total, .. } = error.detail() {
        assert_eq!((*device, *requested), (DeviceId::HOST, size));
        assert!(!total.is_zero() && free <= total && *total < size, "{free} of {total}");
    }
    assert!(
        !matches!(error.detail(), Detail::ExceedsDevice { .. }),
        "it is compared with the device's memory: {error}"
    );
}

/// Which of its features a device reports as available.
fn features<B: TestKit>(subject: &Subject<B>) -> Vec<bool> {
    let all = subject.backend.capabilities(subject.device).unwrap();
    all.into_iter().map(|found| found.available).collect()
}

fn asked_on_a_full_device<B: TestKit>(subject: &Subject<B>) {
    let mut child = subject.child();
    let found = child.receive::<Vec<bool>>();
    child.finish();
    assert_eq!(found, features(subject));
}

fn asks_on_a_full_device<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut taken = Vec::new();
    let mut units = subject.free_here().0 / subject.unit().0;
    while units > 0 {
        match PhysicalMemory::create(&subject.backend, subject.units(units), subject.properties()) {
            Ok(memory) => taken.push(memory),
            Err(_) => units /= 2,
        }
    }
    // The queries may fail; either way their results hold only for now.
    drop(subject.backend.check_host_access(Operation::QueryAccess, &subject.properties()));
    drop(subject.backend.capabilities(subject.device));
    drop(taken);
    peer.send(features(subject));
}

fn asked_before_use<B: TestKit>(subject: &Subject<B>) {
    let [first, second] = [true, false].map(|first| {
        let mut child = subject.child();
        child.send(first);
        let found = child.receive::<Vec<String>>();
        child.finish();
        found
    });
    assert_eq!(first, second);
}

fn asks_before_use<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let capabilities = || subject.backend.capabilities(subject.device).unwrap();
    if peer.receive::<bool>() {
        capabilities();
    }
    works(subject, subject.properties());
    let found = |it: Capability| format!("{}: {}, {}", it.feature, it.available, it.found_by);
    peer.send(capabilities().into_iter().map(found).collect::<Vec<_>>());
}
