//! Fills and copies of memory without the required access.
//!
//! Neither vendor documents the error. CUDA's driver and AMD's tests for NVIDIA return an invalid-value error. Callers rely on
//! the refusal, not on the code.

use super::rules;
use crate::driver::lab::{Lab, Mapping};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "reach":
    /// Read-only memory can be read.
    read_of_read_only,
    /// A fill of memory without access is refused, and the device stays usable.
    fill_without_access ["read-only-is-hardware"],
    /// A copy out of memory without access is refused, and the device stays usable.
    read_without_access ["read-only-is-hardware"],
    /// A fill of read-only memory is refused, and the memory is unchanged.
    fill_of_read_only ["read-only-is-hardware"],
    /// A copy into read-only memory is refused, and the memory is unchanged.
    write_to_read_only ["read-only-is-hardware"],
    /// Fills and copies of reserved addresses without a mapping are refused.
    nothing_mapped,
    /// Fills and copies of unmapped addresses are refused.
    after_unmap,
    /// A fill that begins in a mapping and ends in an unmapped range is refused.
    past_mapping ["read-only-is-hardware"],
}

/// Checks that the device still works, and that `mapping` has its old contents.
fn lives(lab: &Lab, seen: &mut Seen, mapping: &Mapping<'_>, value: u8) {
    seen.accepted("waiting for the device afterwards", lab.synchronize());
    lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]));
    if let Some(read) = seen.accepted("a copy afterwards", lab.read(mapping.at, 64)) {
        seen.holds(read == [value; 64], || format!("{read:?} is there afterwards"));
    }
}

/// Runs work on memory filled with 7 that has this access.
fn with_access<T>(
    lab: &Lab,
    seen: &mut Seen,
    flags: i32,
    what: &str,
    work: impl FnOnce(&Mapping<'_>) -> crate::driver::lab::CallResult<T>,
) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    lab.must(lab.set_access(mapping.at, mapping.size, &[lab.grant(flags)]));
    if !seen.refused(what, work(&mapping), REFUSAL) {
        seen.deviates("the driver did not refuse it");
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
    seen.holds(!refused.contains(&false), || {
        "the driver reported success for work it cannot have done".to_owned()
    });
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
        seen.deviates("the driver reported success for work it cannot have done");
    }
    seen.accepted("waiting for the device afterwards", lab.synchronize());
}
