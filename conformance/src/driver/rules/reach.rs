//! What fills and copies do with memory that they have no access to.
//!
//! Neither documentation names an answer. CUDA's driver and AMD's tests for NVIDIA have an invalid value, and that the
//! work is refused is what a caller relies on.

use super::rules;
use crate::driver::lab::{Lab, Mapping};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "reach":
    /// Memory that can be read alone is read.
    read_of_read_only,
    /// A fill of memory without access is refused, and the device lives.
    fill_without_access ["read-only-is-hardware"],
    /// A copy out of memory without access is refused, and the device lives.
    read_without_access ["read-only-is-hardware"],
    /// A fill of memory that can be read alone is refused, and the memory stays as it was.
    fill_of_read_only ["read-only-is-hardware"],
    /// A copy into memory that can be read alone is refused, and the memory stays as it was.
    write_to_read_only ["read-only-is-hardware"],
    /// Fills and copies of reserved addresses with nothing mapped are refused.
    nothing_mapped,
    /// Fills and copies of addresses that were unmapped are refused.
    after_unmap,
    /// A fill that begins in a mapping and ends where nothing is mapped is refused.
    past_mapping ["read-only-is-hardware"],
}

/// That the device still works, and `mapping` has what it had.
fn lives(lab: &Lab, seen: &mut Seen, mapping: &Mapping<'_>, value: u8) {
    seen.accepted("waiting for the device afterwards", lab.synchronize());
    lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]));
    if let Some(read) = seen.accepted("a copy afterwards", lab.read(mapping.at, 64)) {
        seen.holds(read == [value; 64], || format!("{read:?} is there afterwards"));
    }
}

/// Tries something on memory filled with 7 that has this access.
fn with_access<T>(
    lab: &Lab,
    seen: &mut Seen,
    flags: i32,
    what: &str,
    work: impl FnOnce(&Mapping<'_>) -> crate::driver::lab::Answer<T>,
) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(flags)]));
    if !seen.refused(what, work(&mapping), REFUSAL) {
        seen.deviates("it is not refused");
    }
    lives(lab, seen, &mapping, 7);
}

fn read_of_read_only(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::READ)]));
    if let Some(read) = seen.accepted("a copy", lab.read(mapping.at, 64)) {
        seen.holds(read == [7; 64], || format!("{read:?} was read"));
    }
}

fn fill_without_access(lab: &Lab, seen: &mut Seen) {
    with_access(lab, seen, abi::NONE, "a fill", |mapping| lab.set(mapping.at, 8, mapping.size));
}

fn read_without_access(lab: &Lab, seen: &mut Seen) {
    with_access(lab, seen, abi::NONE, "a copy", |mapping| lab.read(mapping.at, mapping.size));
}

fn fill_of_read_only(lab: &Lab, seen: &mut Seen) {
    with_access(lab, seen, abi::READ, "a fill", |mapping| lab.set(mapping.at, 8, mapping.size));
}

fn write_to_read_only(lab: &Lab, seen: &mut Seen) {
    let bytes = vec![8; lab.unit];
    with_access(lab, seen, abi::READ, "a copy", |mapping| lab.write(mapping.at, &bytes));
}

fn all_refused(lab: &Lab, seen: &mut Seen, at: u64) {
    let refused = [
        seen.refused("a fill", lab.set(at, 8, lab.unit), REFUSAL),
        seen.refused("a copy to it", lab.write(at, &[8; 64]), REFUSAL),
        seen.refused("a copy from it", lab.read(at, 64), REFUSAL),
    ];
    seen.holds(!refused.contains(&false), || "they cannot have been done".to_owned());
}

fn nothing_mapped(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(1);
    all_refused(lab, seen, reserved.base);
}

fn after_unmap(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    drop(lab.map_rw(reserved.base, &memory));
    all_refused(lab, seen, reserved.base);
}

fn past_mapping(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(2), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    if !seen.refused("a fill of twice the mapping", lab.set(mapping.at, 8, 2 * mapping.size), REFUSAL) {
        seen.deviates("it cannot have been done");
    }
    seen.accepted("waiting for the device afterwards", lab.synchronize());
}
