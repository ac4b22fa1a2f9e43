//! Two adjacent reservations: one begins where the other ends.
//!
//! The documentation requires a range in "an address reservation": neither driver is required to treat two reservations as one.

use super::rules;
use crate::driver::lab::{Lab, Mapping};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_testkit::raw::abi;

rules! { "adjacent":
    /// A mapping lies in one reservation: a mapping across the border of two is refused.
    map ["map-beyond-reservation", "one-reservation"],
    /// A range lies in one reservation: one call does not set the access of two mappings on both sides of the border.
    set_access ["one-reservation"],
    /// A range lies in one reservation: one call does not unmap two mappings on both sides of the border.
    unmap ["unmap-one-mapping", "one-reservation"],
    /// A fill or a copy may span all mapped and accessible memory, even across two reservations.
    copy ["one-reservation"],
    /// Each reservation is freed separately: freeing both in one call is refused.
    free ["free-ignores-size"],
    /// HIP's guide: hints at its end can extend a reservation; the driver may follow each hint.
    extend,
}

fn map(lab: &Lab, seen: &mut Seen) {
    let (first, second) = lab.neighbours();
    let memory = lab.memory(2);
    let at = second.base - lab.unit as u64;
    match lab.map_raw(at, memory.size, 0, memory.handle, 0) {
        Err(refusal) => drop(seen.refused("across the border", Err::<(), _>(refusal), REFUSAL)),
        Ok(()) if !lab.is_mapped(at) => seen.deviates("across the border: success, and nothing is mapped"),
        Ok(()) => {
            seen.lenient("across the border: success");
            let mapping = Mapping::new(lab, at, memory.size);
            seen.accepted("its access", lab.set_access(at, mapping.size, &[lab.grant(abi::RW)]));
            seen.accepted("its bytes", lab.set(at, 7, mapping.size));
        }
    }
    drop(first);
}

/// Creates a mapping on each side of the border, without access.
fn beside<'a>(lab: &'a Lab, border: u64) -> [Mapping<'a>; 2] {
    [border - lab.unit as u64, border].map(|at| lab.map(at, &lab.memory(1)))
}

fn set_access(lab: &Lab, seen: &mut Seen) {
    let (_first, second) = lab.neighbours();
    let mappings = beside(lab, second.base);
    let set = lab.set_access(mappings[0].at, 2 * lab.unit, &[lab.grant(abi::RW)]);
    if seen.refused("both sides of the border", set, REFUSAL) {
        seen.shows("refused");
    } else {
        for mapping in &mappings {
            let flags = seen.accepted("the access of each", lab.access_at(mapping.at));
            seen.holds(flags == Some(abi::RW), || format!("the access of one is {flags:?}"));
        }
    }
}

fn unmap(lab: &Lab, seen: &mut Seen) {
    let (_first, second) = lab.neighbours();
    let (before, _) = lab.memory_info();
    let mappings = beside(lab, second.base);
    if seen.refused("both sides of the border", lab.unmap(mappings[0].at, 2 * lab.unit), REFUSAL) {
        seen.shows("refused");
        return;
    }
    let (after, _) = lab.memory_info();
    seen.holds(after + lab.unit > before, || {
        format!("free memory was {before} bytes before and is {after} now: some of it is lost")
    });
    for mapping in mappings {
        seen.holds(!lab.is_mapped(mapping.at), || format!("the mapping at {:#x} is still known", mapping.at));
        mapping.forget();
    }
}

fn copy(lab: &Lab, seen: &mut Seen) {
    let (first, second) = lab.neighbours();
    // All of the first and a part of the second: more than either reservation holds.
    let pieces = [lab.must(lab.create(first.size, &lab.prop(), 0)), lab.memory(1)];
    let _mappings = [lab.map_rw(first.base, &pieces[0]), lab.map_rw(second.base, &pieces[1])];
    let (start, bytes) = (first.base, vec![7; first.size + lab.unit]);
    seen.accepted("a fill across the border", lab.set(start, 6, bytes.len()));
    if seen.accepted("a copy to both sides", lab.write(start, &bytes)).is_some()
        && let Some(read) = seen.accepted("a copy from both sides", lab.read(start, bytes.len()))
    {
        seen.holds(read == bytes, || "other bytes were read than were written".to_owned());
    }
}

fn free(lab: &Lab, seen: &mut Seen) {
    let (first, second) = lab.neighbours();
    let answer = lab.address_free(first.base, first.size + second.size);
    if answer.is_ok() {
        seen.deviates("both in one call: success");
        first.forget();
        second.forget();
        return;
    }
    seen.refused("both in one call", answer, REFUSAL);
    for one in [first, second] {
        let (base, size) = (one.base, one.size);
        one.forget();
        seen.accepted("each by itself", lab.address_free(base, size));
    }
}

fn extend(lab: &Lab, seen: &mut Seen) {
    const TIMES: usize = 16;
    let (first, second) = lab.neighbours();
    let mut all = vec![first, second];
    for _ in 0..TIMES {
        let end = all.last().expect("two").end();
        let answer = lab.reserve(lab.stretch, 0, end, 0);
        let Some(next) = seen.accepted("an extension", answer) else { return };
        if next.base != end {
            break;
        }
        all.push(next);
    }
    seen.note(format!(
        "{} of {TIMES} extensions of {} bytes were at the requested address",
        all.len() - 2,
        lab.stretch
    ));
    let overlap = (1..all.len()).any(|index| all[..index].iter().any(|one| one.overlaps(&all[index])));
    seen.holds(!overlap, || "reservations overlap".to_owned());
}
