//! Mapping: the memory that is mapped.

use super::rules;
use crate::driver::lab::{Lab, Mapping};
use crate::driver::seen::{BAD_SIZE, REFUSAL, Seen};
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi;

rules! { "map":
    /// Address 0, handle 0, a size of 0 and nonzero flags are refused.
    null,
    /// The offset into the memory must currently be 0.
    offset ["offset-must-be-zero", "map-offset"],
    /// Offset and size must not exceed the memory, so a part from its beginning can be mapped.
    prefix ["offset-must-be-zero"],
    /// Mapping more than the size of the memory is refused.
    more_than_memory ["map-reports-nothing"],
    /// The size must be a multiple of the granularity.
    size_odd ["map-reports-nothing"],
    /// Memory can be mapped, used and unmapped any number of times at one address.
    many_times,
    /// Several adjacent mappings are one range: one call sets the access, or copies bytes, across all of them.
    side_by_side ["scattered-copies"],
    /// A new mapping starts without access and contains the memory's own bytes: bytes belong to the memory, not to the address.
    bytes_stay_with_memory,
}

/// Records what a call did that succeeded although the driver should have refused it.
pub(super) fn success(lab: &Lab, seen: &mut Seen, what: &str, at: u64, size: usize) {
    if lab.is_mapped(at) {
        seen.lenient(format!("{what}: success, and something is mapped"));
        drop(Mapping::new(lab, at, size));
    } else {
        seen.deviates(format!("{what}: success, and nothing is mapped"));
    }
}

fn null(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let (at, size, handle) = (reserved.base, memory.size, memory.handle);
    seen.refused("address 0", lab.map_raw(0, size, 0, handle, 0), REFUSAL);
    seen.refused("handle 0", lab.map_raw(at, size, 0, 0, 0), REFUSAL);
    seen.refused("a size of 0", lab.map_raw(at, 0, 0, handle, 0), REFUSAL);
    seen.refused("flags 1", lab.map_raw(at, size, 0, handle, 1), REFUSAL);
}

fn offset(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(2), lab.memory(2));
    for offset in [lab.unit, 4096] {
        let answer = lab.map_raw(reserved.base, lab.unit, offset, memory.handle, 0);
        if answer.is_ok() {
            success(lab, seen, &format!("offset {offset:#x}"), reserved.base, lab.unit);
        } else if seen.refused(&format!("offset {offset:#x}"), answer, REFUSAL) && offset == lab.unit {
            seen.shows("refused, as the parameter's own text says");
        }
    }
}

fn prefix(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(2), lab.memory(2));
    let answer = lab.map_raw(reserved.base, lab.unit, 0, memory.handle, 0);
    if seen.accepted("the first half", answer).is_none() {
        return;
    }
    if !lab.is_mapped(reserved.base) {
        seen.deviates("the first half: success, and nothing is mapped");
        return;
    }
    let mapping = Mapping::new(lab, reserved.base, lab.unit);
    seen.accepted("its access", lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]));
    seen.accepted("its bytes", lab.set(mapping.at, 7, mapping.size));
}

fn more_than_memory(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(4), lab.memory(1));
    let answer = lab.map_raw(reserved.base, 2 * lab.unit, 0, memory.handle, 0);
    match answer {
        Ok(()) => success(lab, seen, "twice the memory's size", reserved.base, 2 * lab.unit),
        answer => drop(seen.refused("twice the memory's size", answer, REFUSAL)),
    }
}

fn size_odd(lab: &Lab, seen: &mut Seen) {
    let least = lab.must(lab.granularity(&lab.prop(), abi::MINIMUM));
    let documented = if lab.is(Vendor::Hip) { BAD_SIZE } else { REFUSAL };
    let (reserved, memory) = (lab.addresses(4), lab.memory(2));
    let size = lab.unit + least / 2;
    match lab.map_raw(reserved.base, size, 0, memory.handle, 0) {
        Ok(()) => success(lab, seen, "half a granularity more than one", reserved.base, size),
        answer => drop(seen.refused("half a granularity more than one", answer, documented)),
    }
}

fn many_times(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    for round in 0..20_u8 {
        let mapping = lab.map_rw(reserved.base, &memory);
        lab.must(lab.set(mapping.at, round, mapping.size));
        let read = lab.must(lab.read(mapping.at + mapping.size as u64 - 64, 64));
        seen.holds(read == [round; 64], || format!("in round {round} {read:?} was read"));
    }
}

fn side_by_side(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(3);
    let pieces = [lab.memory(1), lab.memory(1), lab.memory(1)];
    // The middle is mapped last, so that its memory is not adjacent to the others'.
    let mappings = [0, 2, 1].map(|place| lab.map(reserved.at(place), &pieces[place]));
    drop(pieces);
    let set = lab.set_access(reserved.base, reserved.size, &[lab.grant(abi::RW)]);
    if seen.accepted("access for all at once", set).is_none() {
        return;
    }
    let bytes: Vec<u8> = (0..reserved.size).map(|index| (index / 4096 + index) as u8).collect();
    seen.accepted("one copy into all", lab.write(reserved.base, &bytes));
    if let Some(read) = seen.accepted("one copy out of all", lab.read(reserved.base, bytes.len())) {
        let wrong = read.iter().zip(&bytes).filter(|(read, wrote)| read != wrote).count();
        seen.holds(wrong == 0, || format!("{wrong} of {} bytes differ from those written", bytes.len()));
    }
    drop(mappings);
}

fn bytes_stay_with_memory(lab: &Lab, seen: &mut Seen) {
    let (reserved, first, second) = (lab.addresses(2), lab.memory(1), lab.memory(1));
    for (memory, value) in [(&first, 1), (&second, 2)] {
        let mapping = lab.map_rw(reserved.base, memory);
        lab.must(lab.set(mapping.at, value, mapping.size));
    }
    // The first memory is mapped at another address, and the second at the first's.
    for (memory, value, place) in [(&first, 1, 1), (&second, 2, 0), (&first, 1, 0)] {
        let mapping = lab.map(reserved.at(place), memory);
        let access = lab.must(lab.access_at(mapping.at));
        seen.holds(access == abi::NONE, || format!("a new mapping has access {access}"));
        lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::READ)]));
        let read = lab.must(lab.read(mapping.at, 64));
        seen.holds(read == [value; 64], || format!("{read:?} was read of memory filled with {value}"));
    }
}
