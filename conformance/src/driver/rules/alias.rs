//! One allocation mapped at several addresses.

use super::rules;
use crate::driver::lab::{Lab, Mapping, Memory};
use crate::driver::seen::Seen;
use gpu_vmm_testkit::raw::abi;

rules! { "alias":
    /// Memory can be mapped at several addresses; a write through one address is read through the others.
    same_bytes,
    /// The addresses can be adjacent: one range then contains the same bytes twice.
    side_by_side,
    /// Access belongs to the mapping: setting it at one address does not change another mapping of the same memory.
    access_of_each,
    /// Unmapping one address leaves the other mappings usable and the memory allocated.
    unmap_one,
}

/// Maps memory at each of these addresses, readable and writable.
fn aliases<'a>(lab: &'a Lab, memory: &Memory<'_>, at: &[u64]) -> Vec<Mapping<'a>> {
    at.iter().map(|at| lab.map_rw(*at, memory)).collect()
}

fn all_read(lab: &Lab, seen: &mut Seen, aliases: &[Mapping<'_>], value: u8) {
    for alias in aliases {
        for place in [0, alias.size as u64 - 64] {
            if let Some(read) = seen.accepted("a copy", lab.read(alias.at + place, 64)) {
                seen.holds(read == [value; 64], || format!("{read:?} at {:#x} instead of {value}", alias.at));
            }
        }
    }
}

fn same_bytes(lab: &Lab, seen: &mut Seen) {
    let reserved = [lab.addresses(2), lab.addresses(2), lab.addresses(2)];
    let memory = lab.memory(2);
    let aliases = aliases(lab, &memory, &reserved.each_ref().map(|one| one.base));
    for (value, alias) in (1..).zip(&aliases) {
        lab.must(lab.set(alias.at, value, alias.size));
        all_read(lab, seen, &aliases, value);
    }
}

fn side_by_side(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(2), lab.memory(1));
    let aliases = aliases(lab, &memory, &[reserved.base, reserved.at(1)]);
    seen.accepted("a fill of the first", lab.set(reserved.base, 1, lab.unit));
    all_read(lab, seen, &aliases, 1);
    seen.accepted("a fill of both", lab.set(reserved.base, 2, reserved.size));
    all_read(lab, seen, &aliases, 2);
}

fn access_of_each(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(3), lab.memory(1));
    let mappings = [0, 1, 2].map(|place| lab.map(reserved.at(place), &memory));
    let flags = [abi::RW, abi::NONE, abi::READ];
    for (mapping, flags) in mappings.iter().zip(flags) {
        lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(flags)]));
    }
    for (mapping, flags) in mappings.iter().zip(flags) {
        if let Some(found) = seen.accepted("the access", lab.access_at(mapping.at)) {
            seen.holds(found == flags, || format!("access {found} where {flags} was set"));
        }
    }
}

fn unmap_one(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(4), lab.memory(1));
    let mut aliases = aliases(lab, &memory, &[reserved.base, reserved.at(2), reserved.at(3)]);
    drop(memory);
    lab.must(lab.set(reserved.base, 7, lab.unit));
    for _ in 0..2 {
        let first = aliases.remove(0);
        let (at, size) = (first.at, first.size);
        first.forget();
        seen.accepted("unmapping one", lab.unmap(at, size));
        all_read(lab, seen, &aliases, 7);
    }
}
