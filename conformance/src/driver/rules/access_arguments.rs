//! Access: invalid arguments.

use super::rules;
use crate::driver::lab::calls::Null;
use crate::driver::lab::{Lab, grant_to, place};
use crate::driver::seen::{NO_DEVICE, REFUSAL, Seen};
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, AccessDesc, Location};

rules! { "access":
    /// Address 0, a size of 0, zero descriptors and a null pointer to them are refused.
    set_null,
    /// A null pointer for the flags or the location is refused.
    get_null,
    /// Setting access for a device that does not exist is refused.
    set_no_device,
    /// Reading the access of a device that does not exist is refused.
    get_no_device,
    /// Setting access for a location type that does not exist is refused.
    set_no_place ["access-unchecked"],
    /// Setting access other than none, read, or read and write is refused.
    set_no_access ["access-unchecked"],
    /// Setting the host's access to a device's memory: CUDA refuses it as not supported, and HIP's guide does not mention it.
    set_host ["host-access-appears"],
}

fn set_null(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    let grant = [lab.grant(abi::RW)];
    seen.refused("address 0", lab.set_access(0, mapping.size, &grant), REFUSAL);
    seen.refused("a size of 0", lab.set_access(mapping.at, 0, &grant), REFUSAL);
    seen.refused("no descriptions", lab.set_access(mapping.at, mapping.size, &[]), REFUSAL);
    seen.refused("a null pointer", lab.with_null(Null::SetAccess(mapping.at)), REFUSAL);
}

fn get_null(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    seen.refused("a null pointer for the flags", lab.with_null(Null::GetAccess(mapping.at)), REFUSAL);
    seen.refused("a null pointer for the place", lab.with_null(Null::GetAccessPlace(mapping.at)), REFUSAL);
}

fn set_no_device(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    for device in [lab.device_count(), -1] {
        let set = lab.set_access(mapping.at, mapping.size, &[grant_to(device, abi::RW)]);
        seen.refused(&format!("device {device}"), set, NO_DEVICE);
    }
}

fn get_no_device(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    for device in [lab.device_count(), -1] {
        seen.refused(&format!("device {device}"), lab.get_access(place(device), mapping.at), NO_DEVICE);
    }
}

/// Sets an invalid access on a mapping without access. If the driver accepts it, records the resulting access.
fn set_wrong(lab: &Lab, seen: &mut Seen, what: &str, desc: AccessDesc) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    if seen.refused(what, lab.set_access(mapping.at, mapping.size, &[desc]), NO_DEVICE) {
        return;
    }
    match lab.access_at(mapping.at) {
        Ok(abi::NONE) => {}
        Ok(flags) => seen.deviates(format!("the access of device {} is {flags} afterwards", lab.device)),
        Err(refusal) => seen.deviates(format!("then {refusal}")),
    }
}

fn set_no_place(lab: &Lab, seen: &mut Seen) {
    for kind in [abi::NOWHERE, 0x77] {
        let location = Location { kind, id: lab.device };
        set_wrong(lab, seen, &format!("a place of type {kind:#x}"), AccessDesc { location, flags: abi::RW });
    }
}

fn set_no_access(lab: &Lab, seen: &mut Seen) {
    for flags in [2, 77] {
        set_wrong(lab, seen, &format!("access {flags}"), lab.grant(flags));
    }
}

fn set_host(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Host, "its devices are the host's memory already");
    let location = Location { kind: abi::HOST, id: 0 };
    set_wrong(lab, seen, "access for the host", AccessDesc { location, flags: abi::RW });
}
