//! Access: the ranges it can be set for, and the values read back.

use super::rules;
use crate::driver::lab::{Lab, Memory, Reserved};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "access":
    /// A new mapping can be neither read nor written.
    starts_as_none,
    /// The access that was set is read back at the first byte and at the last, whatever it was before.
    round_trip,
    /// The same access can be set again, and changes nothing.
    same_again,
    /// Reading access fails where nothing is mapped: at reserved addresses, directly behind a mapping, and after unmapping.
    get_of_nothing,
    /// The range must be mapped: setting access for reserved addresses is refused.
    set_of_nothing,
    /// The range must consist of whole mappings: the first half of one is refused.
    first_half ["access-rounds-up"],
    /// The range must consist of whole mappings: the second half of one is refused.
    second_half,
    /// The range must be mapped to its end: a range that continues behind the mapping is refused.
    past_mapping ["access-over-holes"],
    /// The range must be mapped to its end: a range that continues behind the reservation is refused.
    past_reservation,
    /// One call sets the access of several adjacent mappings.
    over_mappings,
    /// The range must be fully mapped: a range with a hole is refused, and no access changes.
    over_hole ["access-over-holes"],
    /// The access of each of several adjacent mappings can be set separately, whatever their sizes.
    each_of_sizes ["access-sums"],
}

/// Returns a reservation of `2 * units` units, and memory for its first half.
fn half_mapped(lab: &Lab, units: usize) -> (Reserved<'_>, Memory<'_>) {
    (lab.addresses(2 * units), lab.memory(units))
}

fn expect(lab: &Lab, seen: &mut Seen, what: &str, at: u64, flags: i32) {
    if let Some(found) = seen.accepted(what, lab.access_at(at)) {
        seen.holds(found == flags, || format!("{what}: the access is {found} and should be {flags}"));
    }
}

fn starts_as_none(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = half_mapped(lab, 1);
    let mapping = lab.map(reserved.base, &memory);
    expect(lab, seen, "a new mapping", mapping.at, abi::NONE);
}

fn round_trip(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = half_mapped(lab, 2);
    let mapping = lab.map(reserved.base, &memory);
    for flags in [abi::RW, abi::READ, abi::RW, abi::NONE, abi::READ, abi::NONE, abi::RW] {
        let set = lab.set_access(mapping.at, mapping.size, &[lab.grant(flags)]);
        if seen.accepted(&format!("access {flags}"), set).is_some() {
            expect(lab, seen, "the first byte", mapping.at, flags);
            expect(lab, seen, "the last byte", mapping.at + mapping.size as u64 - 1, flags);
        }
    }
}

fn same_again(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = half_mapped(lab, 1);
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    for _ in 0..3 {
        let set = lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]);
        seen.accepted("the same access", set);
    }
    expect(lab, seen, "the first byte", mapping.at, abi::RW);
    let read = lab.must(lab.read(mapping.at, 64));
    seen.holds(read == [7; 64], || format!("{read:?} is there afterwards"));
}

fn get_of_nothing(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = half_mapped(lab, 1);
    seen.refused("reserved addresses", lab.access_at(reserved.base), REFUSAL);
    let mapping = lab.map(reserved.base, &memory);
    let behind = mapping.at + mapping.size as u64;
    seen.refused("the byte behind a mapping", lab.access_at(behind), REFUSAL);
    drop(mapping);
    seen.refused("an unmapped range", lab.access_at(reserved.base), REFUSAL);
}

fn set_of_nothing(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = half_mapped(lab, 1);
    let set = || lab.set_access(reserved.base, lab.unit, &[lab.grant(abi::RW)]);
    seen.refused("reserved addresses", set(), REFUSAL);
    drop(lab.map(reserved.base, &memory));
    seen.refused("an unmapped range", set(), REFUSAL);
}

/// Sets the access of a part, in units, of a mapping of two units at the start of four. Returns true if the call was refused.
fn part(lab: &Lab, seen: &mut Seen, what: &str, first: usize, units: usize) -> bool {
    let (reserved, memory) = half_mapped(lab, 2);
    let mapping = lab.map(reserved.base, &memory);
    let set = lab.set_access(reserved.at(first), units * lab.unit, &[lab.grant(abi::RW)]);
    let refused = seen.refused(what, set, REFUSAL);
    expect(lab, seen, "the mapping afterwards", mapping.at, if refused { abi::NONE } else { abi::RW });
    refused
}

fn first_half(lab: &Lab, seen: &mut Seen) {
    if !part(lab, seen, "the first half of a mapping", 0, 1) {
        seen.deviates("a range other than the half was set, since a mapping has one access");
    }
}

fn second_half(lab: &Lab, seen: &mut Seen) {
    if !part(lab, seen, "the second half of a mapping", 1, 1) {
        seen.deviates("a range other than the half was set, since a mapping has one access");
    }
}

fn past_mapping(lab: &Lab, seen: &mut Seen) {
    part(lab, seen, "a mapping and as much behind it", 0, 4);
}

fn past_reservation(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.must(lab.reserve(lab.stretch, 0, 0, 0)), lab.memory(1));
    let mapping = lab.map(reserved.end() - lab.unit as u64, &memory);
    let set = lab.set_access(mapping.at, 2 * mapping.size, &[lab.grant(abi::RW)]);
    if seen.refused("the reservation's last mapping and as much behind it", set, REFUSAL) {
        expect(lab, seen, "the mapping afterwards", mapping.at, abi::NONE);
    }
}

fn over_mappings(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(4);
    let pieces = [0, 1, 2, 3].map(|_| lab.memory(1));
    let mappings = [0, 1, 2, 3].map(|place| lab.map(reserved.at(place), &pieces[place]));
    let set = lab.set_access(reserved.base, reserved.size, &[lab.grant(abi::RW)]);
    if seen.accepted("four mappings in one call", set).is_some() {
        mappings.iter().for_each(|mapping| expect(lab, seen, "each of them", mapping.at, abi::RW));
    }
}

fn over_hole(lab: &Lab, seen: &mut Seen) {
    let (reserved, one, two) = (lab.addresses(3), lab.memory(1), lab.memory(1));
    let mappings = [lab.map(reserved.base, &one), lab.map(reserved.at(2), &two)];
    let set = lab.set_access(reserved.base, reserved.size, &[lab.grant(abi::RW)]);
    let flags =
        if seen.refused("two mappings with a hole between", set, REFUSAL) { abi::NONE } else { abi::RW };
    mappings.iter().for_each(|mapping| expect(lab, seen, "a mapping next to the hole", mapping.at, flags));
}

fn each_of_sizes(lab: &Lab, seen: &mut Seen) {
    // In no order of these sizes is each a sum of the first ones. HIP 7.0 to 7.11 would need that.
    let sizes = [3, 1, 5, 2, 4];
    let reserved = lab.addresses(sizes.iter().sum());
    let pieces = sizes.map(|units| lab.memory(units));
    let mut next = 0;
    let mappings = pieces.each_ref().map(|memory| {
        let mapping = lab.map(reserved.at(next), memory);
        next += memory.size / lab.unit;
        mapping
    });
    for mapping in &mappings {
        let set = lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]);
        seen.accepted(&format!("the mapping of {} units", mapping.size / lab.unit), set);
    }
}
