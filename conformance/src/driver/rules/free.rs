//! Freeing addresses.

use super::rules;
use crate::driver::lab::{Lab, Reserved};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "free":
    /// The size must match the reservation's size: a smaller size is refused, and the reservation stays.
    size_less ["free-ignores-size"],
    /// The size must match the reservation's size: a larger size is refused, and the reservation stays.
    size_more ["free-ignores-size"],
    /// The address must be the reservation's first: an address inside is refused, and the reservation stays.
    inner_address ["free-ignores-size"],
    /// Address 0 and size 0 are refused.
    null,
    /// An address that was never reserved is refused.
    unknown ["free-of-unknown"],
    /// Freed addresses are no longer a reservation: freeing them again is refused.
    twice ["free-of-unknown"],
    /// Freeing a reservation that contains a mapping is refused; the reservation and the mapping stay.
    while_mapped ["free-while-mapped"],
    /// Freed addresses can be reserved and used again.
    again ["free-races"],
}

/// Returns true if memory can still be mapped in the reservation. Then the rule may free it.
fn still_there(lab: &Lab, seen: &mut Seen, reserved: &Reserved<'_>) -> bool {
    let memory = lab.memory(1);
    let mapped = lab.map_raw(reserved.base, memory.size, 0, memory.handle, 0);
    let there = mapped.is_ok() && lab.is_mapped(reserved.base);
    seen.holds(there, || "nothing could be mapped in the reservation afterwards".to_owned());
    if there {
        lab.must(lab.unmap(reserved.base, memory.size));
    }
    there
}

fn wrong(lab: &Lab, seen: &mut Seen, what: &str, at: impl Fn(&Reserved<'_>) -> (u64, usize)) {
    let reserved = lab.addresses(4);
    let (base, size) = at(&reserved);
    let answer = lab.address_free(base, size);
    if answer.is_ok() {
        seen.deviates(format!("{what}: success"));
        reserved.forget();
    } else {
        seen.refused(what, answer, REFUSAL);
        if !still_there(lab, seen, &reserved) {
            reserved.forget();
        }
    }
}

fn size_less(lab: &Lab, seen: &mut Seen) {
    wrong(lab, seen, "half of the size", |reserved| (reserved.base, reserved.size / 2));
}

fn size_more(lab: &Lab, seen: &mut Seen) {
    wrong(lab, seen, "twice the size", |reserved| (reserved.base, reserved.size * 2));
}

fn inner_address(lab: &Lab, seen: &mut Seen) {
    wrong(lab, seen, "the second half", |reserved| (reserved.at(2), reserved.size / 2));
}

fn null(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(1);
    seen.refused("address 0", lab.address_free(0, lab.unit), REFUSAL);
    seen.refused("size 0", lab.address_free(reserved.base, 0), REFUSAL);
    still_there(lab, seen, &reserved);
}

fn unknown(lab: &Lab, seen: &mut Seen) {
    let answer = lab.address_free(lab.nowhere(), lab.unit);
    if !seen.refused("an address that is not reserved", answer, REFUSAL) {
        seen.deviates("success although there was nothing to free");
    }
}

fn twice(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(1);
    let (base, size) = (reserved.base, reserved.size);
    reserved.forget();
    lab.must(lab.address_free(base, size));
    if !seen.refused("the second time", lab.address_free(base, size), REFUSAL) {
        seen.deviates("success although there was nothing to free");
    }
}

fn while_mapped(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(2);
    let memory = lab.memory(1);
    let mapping = lab.map_rw(reserved.base, &memory);
    let answer = lab.address_free(reserved.base, reserved.size);
    if !seen.refused("with a mapping", answer, REFUSAL) {
        seen.deviates("the driver freed addresses that are in use");
    }
    if seen.is_deviation() {
        // The driver's state is unknown, so the rule makes no further call on these objects.
        memory.forget();
        mapping.forget();
        reserved.forget();
        return;
    }
    seen.accepted("access to the mapping afterwards", lab.access_at(mapping.at))
        .into_iter()
        .for_each(|flags| seen.holds(flags == abi::RW, || format!("the access is {flags} afterwards")));
    seen.accepted("setting it afterwards", lab.set(mapping.at, 7, mapping.size));
    mapping.forget();
    if seen.accepted("unmapping afterwards", lab.unmap(reserved.base, memory.size)).is_some() {
        let (base, size) = (reserved.base, reserved.size);
        reserved.forget();
        seen.accepted("freeing afterwards", lab.address_free(base, size));
    }
}

fn again(lab: &Lab, seen: &mut Seen) {
    // HIP 6 loses the race within some tens of rounds.
    for round in 0..300 {
        let reserved = lab.addresses(1);
        let (base, size) = (reserved.base, reserved.size);
        reserved.forget();
        let memory = lab.memory(1);
        let mapping = lab.map_rw(base, &memory);
        seen.accepted("a copy", lab.write(mapping.at, &vec![1; size]));
        drop((mapping, memory));
        seen.accepted(&format!("round {round}"), lab.address_free(base, size));
    }
}
