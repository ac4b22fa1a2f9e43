//! Two devices.

use super::rules;
use crate::driver::lab::{Lab, Mapping, grant_to, place};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, Prop};
use std::os::fd::AsRawFd;

rules! { "peer":
    /// Each device has its own access: granting it to the owner grants it to no other device.
    none_at_first,
    /// One call grants access to several devices, and each of them can use the memory.
    both_in_one_call,
    /// Access can be granted to one device after another, and both can use the memory.
    one_after_the_other ["owner-last"],
    /// Memory is allocated on the device that the properties name, whichever device is current.
    create_elsewhere ["create-on-current-device"],
    /// The properties of imported memory name the device that owns it, whichever device is current.
    import_elsewhere ["import-on-current-device"],
    /// Another device's memory can be mapped at the same address, and both devices can use it.
    moved_at_one_address,
    /// Memory of several devices can be mapped side by side in one reservation, each accessible to its own device.
    side_by_side,
    /// AMD's tests: a device with access can copy to and from memory whose owner has no access.
    copy_by_a_peer ["copy-by-source"],
    /// A device without access cannot fill another device's memory, and the attempt grants no access.
    fill_without_access ["fill-opens-access", "read-only-is-hardware"],
}

/// Checks that each of some devices, in turn, can fill a mapping and that all of them read the bytes.
fn used_by_each(lab: &Lab, seen: &mut Seen, mapping: &Mapping<'_>, devices: &[i32]) {
    for (value, writer) in (1..).zip(devices) {
        lab.make_current(*writer);
        seen.accepted(&format!("a fill by device {writer}"), lab.set(mapping.at, value, mapping.size));
        for reader in devices {
            lab.make_current(*reader);
            let read = lab.read(mapping.at + mapping.size as u64 - 64, 64);
            if let Some(read) = seen.accepted(&format!("a copy by device {reader}"), read) {
                seen.holds(read == [value; 64], || {
                    format!("device {reader} reads {read:?} where device {writer} wrote {value}")
                });
            }
        }
    }
    lab.make_current(lab.device);
}

fn expect(lab: &Lab, seen: &mut Seen, mapping: &Mapping<'_>, device: i32, flags: i32) {
    if let Some(found) = seen.accepted("the access", lab.get_access(place(device), mapping.at)) {
        seen.holds(found == flags, || format!("device {device} has access {found} instead of {flags}"));
    }
}

fn none_at_first(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    expect(lab, seen, &mapping, lab.device, abi::RW);
    expect(lab, seen, &mapping, other, abi::NONE);
}

fn both_in_one_call(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    let both = [lab.grant(abi::RW), grant_to(other, abi::RW)];
    if seen.accepted("two devices", lab.set_access(mapping.at, mapping.size, &both)).is_some() {
        expect(lab, seen, &mapping, lab.device, abi::RW);
        expect(lab, seen, &mapping, other, abi::RW);
        used_by_each(lab, seen, &mapping, &[lab.device, other]);
    }
}

fn one_after_the_other(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 9, mapping.size));
    let set = lab.set_access(mapping.at, mapping.size, &[grant_to(other, abi::RW)]);
    if seen.accepted("the other device, after the owner", set).is_some() {
        expect(lab, seen, &mapping, lab.device, abi::RW);
        let read = seen.accepted("a copy", lab.read(mapping.at, 64));
        seen.holds(read.is_none_or(|read| read == [9; 64]), || "the bytes have changed".to_owned());
        used_by_each(lab, seen, &mapping, &[lab.device, other]);
    }
}

fn create_elsewhere(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let size = 64 << 20;
    let free = || {
        [lab.device, other].map(|device| {
            lab.make_current(device);
            lab.memory_info().0
        })
    };
    let before = free();
    lab.make_current(lab.device);
    let memory = lab.must(lab.create(size, &lab.prop_of(other), 0));
    let during = free();
    lab.make_current(lab.device);
    let took = |place: usize| during[place] + size / 2 <= before[place];
    seen.holds(took(1) && !took(0), || {
        format!(
            "device {other} was named with device {} current; free memory was {before:?} and is {during:?}",
            lab.device
        )
    });
    drop(memory);
}

fn import_elsewhere(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Host, "the importing process chooses the device");
    let other = lab.other_device();
    let memory = lab.must(lab.create(lab.unit, &lab.shareable(), 0));
    let fd = lab.must(lab.export(memory.handle, abi::DESCRIPTOR, 0));
    lab.make_current(other);
    if let Some(imported) = seen.accepted("the import", lab.import(fd.as_raw_fd()))
        && let Some(prop) = seen.accepted("its properties", lab.properties(imported.handle))
    {
        seen.holds(prop.location == place(lab.device), || {
            format!("the driver reports {:?} for memory of device {}", prop.location, lab.device)
        });
    }
    lab.make_current(lab.device);
}

/// Creates memory on a device while that device is current: another rule checks which device must be current.
fn memory_of(lab: &Lab, device: i32) -> crate::driver::lab::Memory<'_> {
    lab.make_current(device);
    let memory = lab.must(lab.create(lab.unit, &Prop { ..lab.prop_of(device) }, 0));
    lab.make_current(lab.device);
    memory
}

fn moved_at_one_address(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let reserved = lab.addresses(1);
    for owner in [lab.device, other, lab.device] {
        let memory = memory_of(lab, owner);
        let mapping = lab.map(reserved.base, &memory);
        // The owner is last.
        let peer = if owner == other { lab.device } else { other };
        let both = [grant_to(peer, abi::RW), grant_to(owner, abi::RW)];
        seen.accepted("access for both", lab.set_access(mapping.at, mapping.size, &both));
        used_by_each(lab, seen, &mapping, &[lab.device, other]);
    }
}

fn side_by_side(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let reserved = lab.addresses(2);
    let pieces = [memory_of(lab, lab.device), memory_of(lab, other)];
    let mappings = [0, 1].map(|place| lab.map(reserved.at(place), &pieces[place]));
    for (mapping, device) in mappings.iter().zip([lab.device, other]) {
        let set = lab.set_access(mapping.at, mapping.size, &[grant_to(device, abi::RW)]);
        seen.accepted("each its own device's access", set);
        used_by_each(lab, seen, mapping, &[device]);
    }
}

fn copy_by_a_peer(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    lab.must(lab.set_access(mapping.at, mapping.size, &[grant_to(other, abi::RW)]));
    lab.make_current(other);
    let bytes = vec![7; lab.unit];
    seen.accepted("a copy to it", lab.write(mapping.at, &bytes));
    if let Some(read) = seen.accepted("a copy from it", lab.read(mapping.at, bytes.len())) {
        seen.holds(read == bytes, || "other bytes were read than were written".to_owned());
    }
    lab.make_current(lab.device);
}

fn fill_without_access(lab: &Lab, seen: &mut Seen) {
    let other = lab.other_device();
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    lab.make_current(other);
    if !seen.refused("a fill", lab.set(mapping.at, 8, mapping.size), REFUSAL) {
        seen.deviates("the driver did not refuse it");
    }
    lab.make_current(lab.device);
    expect(lab, seen, &mapping, other, abi::NONE);
}
