//! Where memory is, and what is asked for beside that.

use super::{refused, works};
use crate::case::cases;
use crate::library::tools::told;
use crate::subject::{Subject, note};
use gpu_vmm_core::{Feature, Location, Physical, Properties, Workbench};

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
    /// Memory tells what it is: whose, where, and as what it can be exported.
    properties_are_told,
}

/// Works, or is refused, as the capability says; it is told back as it was asked for.
fn as_told<B: Workbench>(subject: &Subject<B>, feature: Feature, properties: Properties) {
    let told = told(subject, feature);
    note(format!("{feature}: {}", if told.available { "there" } else { "not there" }));
    if told.available {
        assert_eq!(works(subject, properties).properties(), properties);
    } else {
        refused(subject, properties);
    }
}

fn host_memory<B: Workbench>(subject: &Subject<B>) {
    as_told(subject, Feature::HostMemory, subject.properties().located(Location::Host));
}

fn host_node_memory<B: Workbench>(subject: &Subject<B>) {
    as_told(subject, Feature::HostNodeMemory, subject.properties().located(Location::HostNode(0)));
    let free = subject.free();
    for node in [1 << 20, u32::MAX] {
        let nowhere = subject.properties().located(Location::HostNode(node));
        let answer = Physical::create(&subject.backend, subject.granules(1), nowhere);
        assert!(answer.is_err(), "memory of node {node}");
    }
    assert_eq!(subject.free(), free);
}

fn compressible<B: Workbench>(subject: &Subject<B>) {
    let available = told(subject, Feature::Compression).available;
    let memory = works(subject, subject.properties().compressible());
    assert_eq!(memory.properties(), Properties { compressible: available, ..subject.properties() });
}

fn remote_dma<B: Workbench>(subject: &Subject<B>) {
    let available = told(subject, Feature::RemoteDma).available;
    let asked = subject.properties().remote_dma();
    match Physical::create(&subject.backend, subject.granules(1), asked) {
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

fn properties_are_told<B: Workbench>(subject: &Subject<B>) {
    let plain = subject.properties();
    assert_eq!(works(subject, plain).properties(), plain);
    if told(subject, Feature::FileDescriptor).available {
        assert_eq!(works(subject, plain.shareable()).properties(), plain.shareable());
    }
    for device in subject.backend.devices().iter().filter(|device| device.unusable.is_none()) {
        assert_eq!(subject.piece_on(device.id, 1).properties(), Properties::on(device.id));
    }
}
