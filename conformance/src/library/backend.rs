//! Rule 9: a backend's information about itself, its devices and their capabilities is true.

use crate::case::cases;
use crate::library::tools::has;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{
    Access, Address, Bytes, Capability, Detail, DeviceId, DeviceUuid, Error, Feature, Operation,
    PhysicalMemory, Placement, Properties, Region,
};
use gpu_vmm_testkit::TestKit;
use std::collections::HashSet;

cases! { "backend":
    /// Each capability is listed once, with a reason if the device lacks it, and virtual memory is available.
    capabilities_have_reasons,
    /// Repeated queries for capabilities return the same results and allocate no memory.
    capabilities_stay_the_same,
    /// Reported capabilities work: sharing by descriptor, fixed addresses, read-only access, access to a peer.
    capabilities_are_true,
    /// Each listed quirk applies to this driver's version, is listed once, and states its effect, its handling and the evidence
    /// for it.
    quirks_have_evidence,
    /// The backend reports the driver's version and library, a clone of the backend reports the same, and its `Debug` is one line.
    the_driver_is_reported,
    /// Devices are numbered in order. Each has a name, memory, and a granularity that is a power of two and divides the unit
    /// of addresses.
    devices_are_described,
    /// A device's UUID, if it has one, differs from the UUIDs of all other devices and is the same in every process.
    numbers_of_devices with tells_the_numbers,
    /// A device's free memory is at most its total memory, and changes by the size of each allocation.
    memory_is_reported,
    /// A device can access its own memory, and every query about a device that does not exist returns an error.
    questions_about_devices,
    /// Another backend is another instance, and this one refuses its memory.
    instances_differ,
}

fn capabilities<B: TestKit>(subject: &Subject<B>) -> Vec<Capability> {
    subject.backend.capabilities(subject.device).unwrap()
}

fn capabilities_have_reasons<B: TestKit>(subject: &Subject<B>) {
    let capabilities = capabilities(subject);
    let listed: Vec<Feature> = capabilities.iter().map(|capability| capability.feature).collect();
    assert_eq!(listed.len(), Feature::ALL.len(), "{listed:?}");
    for feature in Feature::ALL {
        assert!(listed.contains(feature), "{feature} is not listed");
    }
    for capability in &capabilities {
        let is_explained = capability.available || !capability.note.is_empty();
        assert!(is_explained, "{} is missing without a reason", capability.feature);
    }
    assert!(capabilities.iter().any(|found| found.feature == Feature::VirtualMemory && found.available));
}

fn capabilities_stay_the_same<B: TestKit>(subject: &Subject<B>) {
    let said = || -> Vec<(Feature, bool)> {
        capabilities(subject).iter().map(|found| (found.feature, found.available)).collect()
    };
    let first = said();
    let free = subject.free();
    for _ in 0..3 {
        assert_eq!(said(), first);
    }
    assert_eq!(subject.free(), free);
}

fn capabilities_are_true<B: TestKit>(subject: &Subject<B>) {
    let capabilities = capabilities(subject);
    let says = |feature| capabilities.iter().any(|found| found.feature == feature && found.available);
    let shareable =
        PhysicalMemory::create(&subject.backend, subject.unit(), subject.properties().shareable());
    assert_eq!(says(Feature::FileDescriptor), shareable.is_ok_and(|memory| memory.export().is_ok()));
    if says(Feature::FixedAddress) {
        let hole: Address = subject.hole(1);
        assert_eq!(subject.region(1).at(Placement::Exact(hole)).build().unwrap().address(), hole);
    }
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    region.write_pattern(subject.device, Bytes(0), subject.unit(), 1).unwrap();
    let read_only = region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read);
    assert_eq!(says(Feature::ReadOnlyAccess), read_only.is_ok());
    assert!(has(subject, &region, 1));
    let device = subject.device;
    let others = subject.backend.devices().iter().filter(|other| other.id != device);
    let reaches = others.filter(|other| subject.backend.can_access(device, other.id).unwrap()).count();
    assert_eq!(says(Feature::PeerAccess), reaches > 0);
}

fn quirks_have_evidence<B: TestKit>(subject: &Subject<B>) {
    let version = subject.backend.driver().version_number;
    let mut ids = HashSet::new();
    for quirk in subject.backend.quirks() {
        assert!(quirk.is_in(version), "{} is not of version {version}", quirk.id);
        assert!(ids.insert(quirk.id), "{} is there twice", quirk.id);
        for text in [quirk.id, quirk.effect, quirk.handling, quirk.evidence] {
            assert!(!text.is_empty(), "{quirk:?}");
        }
    }
}

fn the_driver_is_reported<B: TestKit>(subject: &Subject<B>) {
    let driver = subject.backend.driver();
    assert!(driver.version_number > 0 && !driver.library.is_empty(), "{driver:?}");
    assert!(driver.version.contains(|letter: char| letter.is_ascii_digit()), "{driver:?}");
    let clone = subject.backend.clone();
    assert_eq!(clone.driver().version, driver.version);
    assert_eq!(clone.instance(), subject.backend.instance());
    assert_eq!(clone.vendor(), subject.backend.vendor());
    let line = format!("{clone:?}");
    assert!(!line.contains('\n'), "{line}");
}

fn devices_are_described<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.backend.reservation_unit();
    assert!(subject.backend.granularity().divides(unit.bytes()));
    for (number, device) in (0..).zip(subject.backend.devices()) {
        assert_eq!(device.id, DeviceId(number));
        if let Some(reason) = &device.unusable {
            assert!(!reason.is_empty(), "{} is unusable without a reason", device.id);
            continue;
        }
        assert!(!device.name.is_empty() && !device.total_memory.is_zero(), "{device:?}");
        assert!(device.granularity.bytes().0.is_power_of_two(), "{device:?}");
        assert!(device.granularity.divides(unit.bytes()), "{device:?}, and {unit:?}");
    }
}

/// Returns the UUID of each device, which all processes share.
fn numbers<B: TestKit>(subject: &Subject<B>) -> Vec<Option<DeviceUuid>> {
    subject.backend.devices().iter().map(|device| device.uuid).collect()
}

fn numbers_of_devices<B: TestKit>(subject: &Subject<B>) {
    let ours = numbers(subject);
    let known: HashSet<DeviceUuid> = ours.iter().copied().flatten().collect();
    assert_eq!(known.len(), ours.iter().flatten().count(), "two devices have the same UUID: {ours:?}");
    let mut child = subject.child();
    assert_eq!(child.receive::<Vec<Option<DeviceUuid>>>(), ours);
    child.finish();
}

fn tells_the_numbers<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    peer.send(numbers(subject));
}

fn memory_is_reported<B: TestKit>(subject: &Subject<B>) {
    let info = || subject.backend.memory_info(subject.device).unwrap();
    let before = info();
    assert!(before.free <= before.total && !before.free.is_zero(), "{before:?}");
    let memory = subject.memory(2);
    let after = info();
    assert_eq!((after.total, before.free - after.free), (before.total, memory.size()));
    drop(memory);
    assert_eq!(info(), before);
}

fn questions_about_devices<B: TestKit>(subject: &Subject<B>) {
    let (backend, missing) = (&subject.backend, DeviceId(99));
    assert!(backend.can_access(subject.device, subject.device).unwrap());
    let is_missing = |operation: Operation, answer: Option<Error>| {
        let error = answer.expect("an error");
        let Detail::NoSuchDevice { device, vendor, count } = error.detail() else { panic!("{error}") };
        let expected = (missing, backend.vendor(), backend.devices().len() as u32);
        assert_eq!((*device, *vendor, *count), expected);
        assert_eq!(error.operation(), operation);
    };
    is_missing(Operation::QueryMemory, backend.memory_info(missing).err());
    is_missing(Operation::QueryCapabilities, backend.capabilities(missing).err());
    is_missing(Operation::QueryDevice, backend.device(Operation::QueryDevice, missing).err());
    is_missing(Operation::WaitForDevice, backend.synchronize(missing).err());
    is_missing(Operation::CreateStream, backend.copy_stream(missing).err());
    for (device, owner) in [(subject.device, missing), (missing, subject.device), (missing, missing)] {
        is_missing(Operation::QueryPeerAccess, backend.can_access(device, owner).err());
    }
    let granularity = backend.granularity_of(Operation::QueryGranularity, &Properties::on(missing));
    is_missing(Operation::QueryGranularity, granularity.err());
    is_missing(
        Operation::Reserve,
        Region::builder(backend).on(missing).reserve(subject.unit()).build().err(),
    );
}

fn instances_differ<B: TestKit>(subject: &Subject<B>) {
    let Some(foreign) = subject.target.foreign() else {
        crate::subject::skip("no other backend is built in")
    };
    assert_ne!(foreign.instance(), subject.backend.instance());
    let on = gpu_vmm_core::Properties::on(DeviceId(0));
    let memory = PhysicalMemory::create(&foreign, foreign.granularity().bytes(), on).unwrap();
    let mut region = subject.region(1).build().unwrap();
    let error = region.map(Bytes(0), &memory).unwrap_err();
    assert!(matches!(error.detail(), Detail::ForeignHandle { .. }), "{error}");
    assert_eq!(region.mapped(), Bytes(0));
}
