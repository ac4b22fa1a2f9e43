//! Where memory is, and what is asked for beside that.

use super::{refused, works};
use crate::case::cases;
use crate::library::sharing::import_of;
use crate::library::tools::told;
use crate::peer::Peer;
use crate::subject::{Subject, note, or_skip, skip};
use gpu_vmm_core::{Bytes, Capability, Detail, DeviceId, Feature, Location, PhysicalMemory, Properties};
use gpu_vmm_testkit::TestKit;

cases! { "kinds":
    /// Memory of the host can be mapped for a device, where the device is said to have such.
    host_memory,
    /// Memory of one of the host's NUMA nodes can be mapped for a device, where the device is said to have such; and of a
    /// node that is not there nowhere.
    host_node_memory,
    /// Memory that is asked for as compressible can be used, and says whether it is so: where the device has it.
    compressible,
    /// Memory that is asked for as reachable by network cards says that it is so where the device has it, and else is
    /// refused or says that it is not.
    remote_dma,
    /// Memory that was asked for with flags that exclude each other says which it has, and says the same where it is imported.
    flags_that_exclude_each_other,
    /// Memory of the host that is to be exported can be used, or is refused with a reason.
    shareable_host_memory,
    /// Where the host has too little memory, the error has the host's numbers.
    more_than_the_host_has,
    /// What a device was asked while it had no memory left is not held against it when it has.
    asked_on_a_full_device with asks_on_a_full_device,
    /// What a device was asked before it was used, when not all can be tried, is found out again when it has been.
    asked_before_use with asks_before_use,
    /// Memory tells what it is: whose, where, and as what it can be exported.
    properties_are_told,
}

/// Works, or is refused, as the capability says; it is told back as it was asked for.
fn as_told<B: TestKit>(subject: &Subject<B>, feature: Feature, properties: Properties) {
    let told = told(subject, feature);
    note(format!("{feature}: {}", if told.available { "there" } else { "not there" }));
    if told.available {
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
    let available = told(subject, Feature::Compression).available;
    let memory = works(subject, subject.properties().compressible());
    assert_eq!(memory.properties(), Properties { compressible: available, ..subject.properties() });
}

fn remote_dma<B: TestKit>(subject: &Subject<B>) {
    let available = told(subject, Feature::RemoteDma).available;
    let asked = subject.properties().remote_dma();
    match PhysicalMemory::create(&subject.backend, subject.granules(1), asked) {
        Ok(memory) => {
            assert_eq!(memory.properties().remote_dma, available);
            drop(memory);
            works(subject, asked);
        }
        Err(_) => {
            assert!(!available);
            refused(subject, asked);
        }
    }
}

fn properties_are_told<B: TestKit>(subject: &Subject<B>) {
    let plain = subject.properties();
    assert_eq!(works(subject, plain).properties(), plain);
    if told(subject, Feature::FileDescriptor).available {
        assert_eq!(works(subject, plain.shareable()).properties(), plain.shareable());
    }
    for device in subject.backend.devices().iter().filter(|device| device.unusable.is_none()) {
        assert_eq!(subject.piece_on(device.id, 1).properties(), Properties::on(device.id));
    }
}

fn flags_that_exclude_each_other<B: TestKit>(subject: &Subject<B>) {
    let asked = subject.properties().shareable().compressible().remote_dma();
    let memory = or_skip(PhysicalMemory::create(&subject.backend, subject.granules(1), asked));
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
    let told = told(subject, Feature::HostNodeMemory);
    if !told.available {
        skip(told.note);
    }
    let properties = subject.properties().located(Location::HostNode(0));
    let size = Bytes::gib(1 << 20);
    let error = PhysicalMemory::create(&subject.backend, size, properties).unwrap_err();
    if let Detail::OutOfMemory { device, requested, free, total, .. } = error.detail() {
        assert_eq!((*device, *requested), (DeviceId::HOST, size));
        assert!(!total.is_zero() && free <= total && *total < size, "{free} of {total}");
    }
}

/// Which of its features a device is said to have.
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
    // It may be an error, and whatever is found is of now.
    drop(subject.backend.capabilities(subject.device));
    drop(taken);
    peer.send(features(subject));
}

fn asked_before_use<B: TestKit>(subject: &Subject<B>) {
    let [asked, unasked] = [true, false].map(|first| {
        let mut child = subject.child();
        child.send(first);
        let found = child.receive::<Vec<String>>();
        child.finish();
        found
    });
    assert_eq!(asked, unasked);
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
