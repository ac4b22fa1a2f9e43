//! Mapping: the address.

use super::map::success;
use super::rules;
use crate::driver::lab::{Lab, Mapping};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "map":
    /// A part of a reservation can be mapped: at its beginning, in its middle and at its end.
    part_of_reservation,
    /// The address must be a multiple of the granularity.
    address_odd ["map-reports-nothing"],
    /// The range must be reserved.
    unreserved ["map-reports-nothing"],
    /// The range must lie in the reservation: a range that begins inside and ends behind it is refused.
    past_end ["map-past-the-end", "map-beyond-reservation"],
    /// The range must not be mapped: a second mapping at the same address is refused, and the first stays.
    onto_mapping ["map-reports-nothing"],
    /// The range must not be mapped: a range that overlaps a mapping is refused, and the mapping stays.
    overlapping ["map-reports-nothing"],
}

fn part_of_reservation(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(8);
    for place in [0, 3, 7] {
        let memory = lab.memory(1);
        let at = reserved.at(place);
        let mapped = lab.map_raw(at, memory.size, 0, memory.handle, 0);
        if seen.accepted(&format!("unit {place} of 8"), mapped).is_none() {
            continue;
        }
        let mapping = Mapping::new(lab, at, memory.size);
        let set = lab.set_access(at, mapping.size, &[lab.grant(abi::RW)]);
        if seen.accepted("access", set).is_some() {
            seen.accepted("a fill", lab.set(at, 7, mapping.size));
        }
    }
}

fn address_odd(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(4), lab.memory(1));
    let at = reserved.at(1) + 100;
    match lab.map_raw(at, memory.size, 0, memory.handle, 0) {
        Ok(()) => success(lab, seen, "100 bytes behind a granularity", at, memory.size),
        answer => drop(seen.refused("100 bytes behind a granularity", answer, REFUSAL)),
    }
}

fn unreserved(lab: &Lab, seen: &mut Seen) {
    let memory = lab.memory(1);
    match lab.map_raw(lab.nowhere(), memory.size, 0, memory.handle, 0) {
        Ok(()) => success(lab, seen, "addresses that are not reserved", lab.nowhere(), memory.size),
        answer => drop(seen.refused("addresses that are not reserved", answer, REFUSAL)),
    }
}

fn past_end(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.must(lab.reserve(2 * lab.stretch, 0, 0, 0));
    let memory = lab.memory(2);
    let at = reserved.end() - lab.unit as u64;
    let answer = lab.map_raw(at, memory.size, 0, memory.handle, 0);
    if answer.is_err() {
        seen.refused("from the last unit on", answer, REFUSAL);
        return;
    }
    seen.deviates("two units from the last one on: success, though one of them is not reserved");
    // The driver may be unable to undo the mapping. The addresses behind the reservation are not the rule's to use.
    let _ = lab.unmap(at, memory.size);
    if lab.is_mapped(at) {
        memory.forget();
        reserved.forget();
    }
}

/// Maps memory over the mapping of `first`, which must stay. The second mapping begins `units` units into the first.
fn onto(lab: &Lab, seen: &mut Seen, what: &str, units: usize) {
    let (reserved, first, second) = (lab.addresses(4), lab.memory(2), lab.memory(2));
    let mapping = lab.map_rw(reserved.base, &first);
    lab.must(lab.set(mapping.at, 1, mapping.size));
    match lab.map_raw(reserved.at(units), second.size, 0, second.handle, 0) {
        Ok(()) => seen.deviates(format!("{what}: success")),
        answer => drop(seen.refused(what, answer, REFUSAL)),
    }
    for end in [0, mapping.size as u64 - 64] {
        if let Some(read) = seen.accepted("the first mapping's bytes", lab.read(mapping.at + end, 64)) {
            seen.holds(read == [1; 64], || format!("{read:?} is there instead of the first mapping's bytes"));
        }
    }
}

fn onto_mapping(lab: &Lab, seen: &mut Seen) {
    onto(lab, seen, "a second mapping at the same place", 0);
}

fn overlapping(lab: &Lab, seen: &mut Seen) {
    onto(lab, seen, "a mapping from the middle of another on", 1);
}
