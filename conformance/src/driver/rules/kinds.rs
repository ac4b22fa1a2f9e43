//! Memory that does not belong to a device, or that parties other than devices access.

use super::rules;
use crate::driver::lab::{Lab, Memory};
use crate::driver::seen::{REFUSAL, Seen};
use crate::subject::skip;
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, AccessDesc, Code, Location, Prop};

rules! { "kinds":
    /// CUDA: memory on a NUMA node of the host has its own granularity, and devices use it like their own memory.
    host_numa,
    /// CUDA: the location type NUMA node grants the CPU access to memory on a NUMA node, and to no other memory.
    host_numa_access,
    /// CUDA: if the device's attribute says so, memory that network cards can access can be created.
    remote_dma,
}

/// Returns the node closest to the device; 0 if the system has no NUMA.
fn node(lab: &Lab) -> Location {
    const ATTRIBUTE: i32 = 134;
    Location { kind: abi::HOST_NUMA, id: lab.attribute(ATTRIBUTE).unwrap_or(0).max(0) }
}

/// Creates one unit of memory on the node, or more if its granularity is larger.
fn of_the_node<'a>(lab: &'a Lab, seen: &mut Seen) -> Memory<'a> {
    lab.only(Vendor::Cuda, "CUDA alone documents memory of a NUMA node");
    const ATTRIBUTE: i32 = 141;
    if lab.attribute(ATTRIBUTE).ok() == Some(0) {
        skip("the device has no memory of a NUMA node");
    }
    let prop = Prop { location: node(lab), ..lab.prop() };
    let granularity = match lab.granularity(&prop, abi::MINIMUM) {
        Err(refusal) if [Code::NOT_SUPPORTED, Code::INVALID_VALUE].contains(&refusal.code) => {
            skip(format!("this driver has no memory of a NUMA node: {refusal}"))
        }
        answer => lab.must(answer),
    };
    seen.holds(granularity.is_power_of_two(), || format!("its granularity is {granularity}"));
    seen.note(format!("node {}, granularity {granularity}", prop.location.id));
    lab.must(lab.create(lab.unit.next_multiple_of(granularity), &prop, 0))
}

fn host_numa(lab: &Lab, seen: &mut Seen) {
    let memory = of_the_node(lab, seen);
    let reported = lab.must(lab.properties(memory.handle));
    seen.holds(reported.location == node(lab), || format!("its place is {:?}", reported.location));
    let reserved = lab.must(lab.reserve(memory.size, 0, 0, 0));
    let mapping = lab.map_rw(reserved.base, &memory);
    seen.accepted("filling it", lab.set(mapping.at, 7, mapping.size));
    let end = mapping.at + mapping.size as u64 - 64;
    if let Some(bytes) = seen.accepted("reading it", lab.read(end, 64)) {
        seen.holds(bytes == [7; 64], || format!("{bytes:?} is read instead of sevens"));
    }
}

fn host_numa_access(lab: &Lab, seen: &mut Seen) {
    let memory = of_the_node(lab, seen);
    let (reserved, other) = (lab.must(lab.reserve(memory.size, 0, 0, 0)), lab.addresses(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    let for_cpu = AccessDesc { location: node(lab), flags: abi::RW };
    lab.must(lab.set(mapping.at, 8, mapping.size));
    let given = seen.accepted("access for the CPU", lab.set_access(mapping.at, mapping.size, &[for_cpu]));
    if given.is_some() {
        let reported = seen.accepted("asking for it", lab.get_access(node(lab), mapping.at));
        seen.holds(reported.is_none_or(|reported| reported == abi::RW), || {
            format!("the CPU's access is {reported:?}")
        });
        let byte = lab.peek(mapping.at);
        seen.holds(byte == 8, || format!("the CPU reads {byte} where the device has written 8"));
    }
    let of_device = lab.map_rw(other.base, &lab.memory(1));
    let answer = lab.set_access(of_device.at, of_device.size, &[for_cpu]);
    seen.refused("access for the CPU to a device's memory", answer, REFUSAL);
}

fn remote_dma(lab: &Lab, seen: &mut Seen) {
    lab.only(Vendor::Cuda, "HIP's flag for it does nothing");
    const ATTRIBUTE: i32 = 110;
    if lab.attribute(ATTRIBUTE).ok() != Some(1) {
        skip("the device has no such memory");
    }
    let properties = Prop { rdma: 1, ..lab.prop() };
    let Some(memory) = seen.accepted("memory for RDMA", lab.create(lab.unit, &properties, 0)) else { return };
    if let Some(reported) = seen.accepted("its properties", lab.properties(memory.handle)) {
        seen.note(format!("RDMA is read back as {}", reported.rdma));
    }
}
