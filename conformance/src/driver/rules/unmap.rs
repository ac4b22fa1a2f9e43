//! Unmapping.

use super::rules;
use crate::driver::lab::{Lab, Mapping, Reserved};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "unmap":
    /// Address 0 and a size of 0 are refused.
    null,
    /// The range must be all that was mapped: unmapping the first half of a mapping is refused, and the mapping stays.
    first_half ["unmap-one-mapping"],
    /// The range must be all that was mapped: unmapping the second half of a mapping is refused, and the mapping stays.
    second_half ["unmap-one-mapping"],
    /// The range must equal what was mapped: a mapping with as many unmapped bytes behind it is refused, and the mapping stays.
    past_mapping ["unmap-over-holes", "unmap-one-mapping"],
    /// The range must equal what was mapped: a range that continues behind the reservation is refused, and the mapping stays.
    past_reservation ["unmap-over-holes", "unmap-one-mapping"],
    /// Several adjacent mappings are one contiguous mapped range: one call unmaps them.
    side_by_side ["unmap-one-mapping", "memory-stays-until-free"],
    /// The range must equal what was mapped: two mappings with a hole between them are refused, and both stay.
    over_hole ["unmap-over-holes", "unmap-one-mapping"],
    /// The range must be mapped: reserved addresses without a mapping are refused.
    nothing ["unmap-over-holes", "unmap-of-nothing"],
    /// The range must be mapped: a second call for the same range is refused.
    twice ["unmap-over-holes", "unmap-of-nothing"],
    /// The range must be mapped: addresses that were never reserved are refused.
    unreserved ["unmap-of-nothing"],
    /// Memory without a handle is freed with its last mapping, even if its addresses stay reserved.
    frees_memory ["memory-stays-until-free", "release-frees-nothing"],
}

fn null(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map(reserved.base, &memory);
    seen.refused("address 0", lab.unmap(0, mapping.size), REFUSAL);
    seen.refused("a size of 0", lab.unmap(mapping.at, 0), REFUSAL);
    seen.accepted("the mapping afterwards", lab.access_at(mapping.at));
}

/// Checks that mappings filled with 7 are unchanged. Mappings that the driver no longer knows are left alone.
fn stay(lab: &Lab, seen: &mut Seen, mappings: Vec<Mapping<'_>>) {
    for mapping in mappings {
        if seen.accepted("the mapping afterwards", lab.access_at(mapping.at)).is_none() {
            mapping.forget();
            continue;
        }
        if let Some(read) = seen.accepted("its bytes afterwards", lab.read(mapping.at, 64)) {
            seen.holds(read == [7; 64], || format!("{read:?} is there afterwards"));
        }
    }
}

/// Unmaps some units of four, of which the first two are one mapping.
fn part(lab: &Lab, seen: &mut Seen, what: &str, first: usize, units: usize) {
    let (reserved, memory) = (lab.addresses(4), lab.memory(2));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    let refused = seen.refused(what, lab.unmap(reserved.at(first), units * lab.unit), REFUSAL);
    let gone = !lab.is_mapped(reserved.base) && !lab.is_mapped(reserved.at(1));
    if refused || !gone {
        seen.holds(refused, || "the mapping is still known".to_owned());
        stay(lab, seen, vec![mapping]);
    } else if units == 1 {
        // The driver forgot the whole mapping for half of its range. Whether memory stays mapped below cannot be observed here.
        seen.deviates("the whole mapping is gone");
        mapping.forget();
    } else {
        mapping.forget();
        usable(lab, seen, reserved.base);
    }
}

/// Checks that memory can be mapped again where a mapping was.
fn usable(lab: &Lab, seen: &mut Seen, at: u64) {
    let memory = lab.memory(1);
    let mapped = lab.map_raw(at, memory.size, 0, memory.handle, 0);
    let there = mapped.is_ok() && lab.is_mapped(at);
    seen.holds(there, || format!("nothing can be mapped at {at:#x} then"));
    if there {
        lab.must(lab.unmap(at, memory.size));
    }
}

fn first_half(lab: &Lab, seen: &mut Seen) {
    part(lab, seen, "the first half of a mapping", 0, 1);
}

fn second_half(lab: &Lab, seen: &mut Seen) {
    part(lab, seen, "the second half of a mapping", 1, 1);
}

fn past_mapping(lab: &Lab, seen: &mut Seen) {
    part(lab, seen, "a mapping and as much behind it", 0, 4);
}

fn past_reservation(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.must(lab.reserve(lab.stretch, 0, 0, 0)), lab.memory(1));
    let mapping = lab.map_rw(reserved.end() - lab.unit as u64, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    let answer = lab.unmap(mapping.at, 2 * mapping.size);
    if seen.refused("the reservation's last mapping and as much behind it", answer, REFUSAL) {
        stay(lab, seen, vec![mapping]);
    } else {
        seen.deviates("addresses were named that are not the reservation's");
        mapping.forget();
    }
}

/// The units of each of two mappings: enough that free memory shows whether one of them is lost.
const EACH: usize = 8;

/// Creates two mappings filled with 7, kept alive by their mappings alone: at the first of three places, and at another.
fn two<'a>(lab: &'a Lab, reserved: &Reserved<'_>, second: usize) -> Vec<Mapping<'a>> {
    let mappings = [0, second].map(|place| {
        let memory = lab.memory(EACH);
        let mapping = lab.map_rw(reserved.at(place * EACH), &memory);
        lab.must(lab.set(mapping.at, 7, mapping.size));
        mapping
    });
    mappings.into_iter().collect()
}

/// Checks that both mappings and their memory are gone.
fn gone(lab: &Lab, seen: &mut Seen, mappings: Vec<Mapping<'_>>, free_before: usize) {
    let (free, _) = lab.memory_info();
    // The handles are released, so nothing else keeps the memory.
    seen.holds(free + EACH * lab.unit > free_before, || {
        format!("free memory was {free_before} bytes before and is {free} now: some of it is lost")
    });
    for mapping in mappings {
        let at = mapping.at;
        seen.holds(!lab.is_mapped(at), || format!("the mapping at {at:#x} is still known"));
        mapping.forget();
        if !seen.is_deviation() {
            usable(lab, seen, at);
        }
    }
}

fn side_by_side(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(3 * EACH);
    let (free, _) = lab.memory_info();
    let mappings = two(lab, &reserved, 1);
    match lab.unmap(reserved.base, 2 * EACH * lab.unit) {
        Ok(()) => gone(lab, seen, mappings, free),
        Err(refusal) => seen.deviates(format!("two mappings in one call: {refusal}")),
    }
}

fn over_hole(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(3 * EACH);
    let (free, _) = lab.memory_info();
    let mappings = two(lab, &reserved, 2);
    let answer = lab.unmap(reserved.base, reserved.size);
    if seen.refused("two mappings with a hole between", answer, REFUSAL) {
        stay(lab, seen, mappings);
    } else {
        gone(lab, seen, mappings, free);
    }
}

fn nothing(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(1);
    seen.refused("reserved addresses", lab.unmap(reserved.base, reserved.size), REFUSAL);
    usable(lab, seen, reserved.base);
}

fn twice(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    lab.map(reserved.base, &memory).forget();
    lab.must(lab.unmap(reserved.base, memory.size));
    seen.refused("the second time", lab.unmap(reserved.base, memory.size), REFUSAL);
    usable(lab, seen, reserved.base);
}

fn unreserved(lab: &Lab, seen: &mut Seen) {
    seen.refused("addresses that are not reserved", lab.unmap(lab.nowhere(), lab.unit), REFUSAL);
}

fn frees_memory(lab: &Lab, seen: &mut Seen) {
    // Large enough to be distinguished from other processes' allocations.
    let size = 64 << 20;
    let reserved = lab.must(lab.reserve(size, 0, 0, 0));
    let (before, _) = lab.memory_info();
    let memory = lab.must(lab.create(size, &lab.prop(), 0));
    let mapping = lab.map(reserved.base, &memory);
    lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]));
    drop(memory);
    let (during, _) = lab.memory_info();
    drop(mapping);
    let (after, _) = lab.memory_info();
    seen.holds(during + size / 2 <= before, || {
        format!("{size} bytes are mapped, and free memory went from {before} to {during}")
    });
    seen.holds(after >= during + size / 2, || {
        format!("{size} bytes were unmapped, and free memory went from {during} to {after}")
    });
}
