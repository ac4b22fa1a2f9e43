//! Reserving addresses.

use super::rules;
use crate::driver::lab::{Lab, calls::Null};
use crate::driver::seen::{BAD_SIZE, REFUSAL, Seen};
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, Code};

rules! { "reserve":
    /// A thread without a current device can read the granularity, reserve addresses and create memory.
    without_context,
    /// The size must not be 0.
    size_zero ["reserve-says-no-memory"],
    /// The size must be a multiple of the granularity (HIP) or of the host's page size (CUDA): one byte more is refused.
    size_odd,
    /// CUDA: the size must be a multiple of the host's page size, so one page more than the granularity is enough.
    size_of_pages ["page-is-not-enough"],
    /// The flags must be 0.
    flags,
    /// A null pointer for the address is refused.
    null,
    /// The alignment must be a power of two.
    alignment_three ["reserve-says-no-memory"],
    /// The address is a multiple of the alignment, for every power of two up to 4096.
    alignment_small,
    /// The address is a multiple of an alignment of 1 GiB.
    alignment_large ["alignment-ignored"],
    /// The address is a hint: at a free address the call succeeds, there or elsewhere.
    hint_free,
    /// The address is a hint: at the addresses that gpu-vmm uses for restorable regions the call succeeds; if the driver moves
    /// one, that region cannot be restorable.
    hint_restorable,
    /// The address is a hint: at an address in use the call succeeds elsewhere.
    hint_taken ["hint-moves", "hint-is-a-wish"],
    /// The address is a hint: directly behind a reservation the call succeeds, there or elsewhere.
    hint_behind ["addresses-in-32-mib"],
    /// The address is a hint: at an address of the process's own memory the call succeeds elsewhere.
    hint_own_memory,
    /// CUDA: the hint must be a multiple of the host's page size. HIP does not say.
    hint_odd ["hint-is-a-wish"],
    /// Addresses alone use no memory: 1 TiB can be reserved, and the device's free memory does not change.
    large,
    /// A size that exceeds the address space is refused.
    too_large,
}

fn without_context(lab: &Lab, seen: &mut Seen) {
    // A new thread has no current context, and on HIP the first device is current.
    std::thread::scope(|scope| {
        let work = || {
            let prop = lab.prop();
            seen.accepted("the granularity", lab.granularity(&prop, abi::MINIMUM));
            seen.accepted("a reservation", lab.reserve(lab.unit, 0, 0, 0));
            seen.accepted("memory", lab.create(lab.unit, &prop, 0));
        };
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn size_zero(lab: &Lab, seen: &mut Seen) {
    seen.refused("a size of 0", lab.reserve(0, 0, 0, 0), REFUSAL);
}

fn size_odd(lab: &Lab, seen: &mut Seen) {
    let documented = if lab.is(Vendor::Hip) { BAD_SIZE } else { REFUSAL };
    seen.refused("a granularity and 1 byte", lab.reserve(lab.unit + 1, 0, 0, 0), documented);
}

fn size_of_pages(lab: &Lab, seen: &mut Seen) {
    let granularity = lab.must(lab.granularity(&lab.prop(), abi::MINIMUM));
    let page = 4096_usize;
    if lab.is(Vendor::Hip) && !page.is_multiple_of(granularity) {
        seen.refused("a granularity and a page", lab.reserve(lab.unit + page, 0, 0, 0), BAD_SIZE);
    } else {
        seen.accepted("a granularity and a page", lab.reserve(lab.unit + page, 0, 0, 0));
    }
}

fn flags(lab: &Lab, seen: &mut Seen) {
    for flags in [1, 1 << 40] {
        seen.refused(&format!("flags {flags:#x}"), lab.reserve(lab.unit, 0, 0, flags), REFUSAL);
    }
}

fn null(lab: &Lab, seen: &mut Seen) {
    seen.refused("a null pointer for the address", lab.with_null(Null::Reserve), REFUSAL);
}

fn alignment_three(lab: &Lab, seen: &mut Seen) {
    seen.refused("an alignment of 3", lab.reserve(lab.unit, 3, 0, 0), REFUSAL);
}

fn alignment(lab: &Lab, seen: &mut Seen, alignment: usize) {
    let what = format!("an alignment of {alignment:#x}");
    if let Some(reserved) = seen.accepted(&what, lab.reserve(lab.unit, alignment, 0, 0)) {
        seen.holds(reserved.base.is_multiple_of(alignment as u64), || {
            format!("{what} was requested, and {:#x} returned", reserved.base)
        });
    }
}

fn alignment_small(lab: &Lab, seen: &mut Seen) {
    (1..=12).for_each(|bit| alignment(lab, seen, 1 << bit));
}

fn alignment_large(lab: &Lab, seen: &mut Seen) {
    // Several reservations, since one may be aligned by chance.
    let kept: Vec<_> = (0..3).map(|_| lab.addresses(1)).collect();
    for _ in &kept {
        alignment(lab, seen, 1 << 30);
    }
}

fn hint_free(lab: &Lab, seen: &mut Seen) {
    for hint in [0x1000_0000_0000, 0x2000_0000_0000, 0x6000_0000_0000] {
        let answer = lab.reserve(lab.stretch, 0, hint, 0);
        if let Some(reserved) = seen.accepted(&format!("the hint {hint:#x}"), answer) {
            let kept = if reserved.base == hint { "kept" } else { "moved" };
            seen.note(format!("{hint:#x} was {kept}"));
        }
    }
}

fn hint_restorable(lab: &Lab, seen: &mut Seen) {
    let places: Vec<u64> = (0..12).map(|step| 0x3800_0000_0000 + step * 0x200_0000_0000).collect();
    // All at once, as regions reserve them.
    let mut kept = Vec::new();
    let mut moved = Vec::new();
    for hint in places {
        let answer = lab.reserve(lab.stretch, 0, hint, 0);
        let Some(reserved) = seen.accepted(&format!("the hint {hint:#x}"), answer) else { continue };
        if reserved.base != hint {
            moved.push(format!("{hint:#x} to {:#x}", reserved.base));
        }
        kept.push(reserved);
    }
    if moved.is_empty() {
        seen.note("each of 12 hints from 0x380000000000 to 0x4e0000000000 was kept");
    } else {
        seen.note(format!("regions cannot be restorable everywhere: moved {}", moved.join(", ")));
    }
}

/// Reserves at a hint that overlaps `taken`. The returned address must be elsewhere; returns true if it is.
fn elsewhere(lab: &Lab, seen: &mut Seen, hint: u64, taken: std::ops::Range<u64>) -> bool {
    let Some(given) = seen.accepted(&format!("the hint {hint:#x}"), lab.reserve(lab.unit, 0, hint, 0)) else {
        return false;
    };
    let overlaps = given.base < taken.end && taken.start < given.end();
    seen.holds(!overlaps, || format!("{:#x} was returned, which is in use", given.base));
    !overlaps && given.base != hint
}

fn hint_taken(lab: &Lab, seen: &mut Seen) {
    let first = lab.addresses(2);
    for hint in [first.base, first.at(1)] {
        if elsewhere(lab, seen, hint, first.base..first.end()) {
            seen.shows("the reservation was made at another address");
        }
    }
}

fn hint_behind(lab: &Lab, seen: &mut Seen) {
    let first = lab.must(lab.reserve(lab.unit, 0, 0x3000_0000_0000, 0));
    if elsewhere(lab, seen, first.end(), first.base..first.end()) {
        seen.shows("the address behind was not returned");
    } else {
        seen.note("the address behind was returned");
    }
}

fn hint_own_memory(lab: &Lab, seen: &mut Seen) {
    let own = vec![1_u8; 4 * lab.unit];
    let start = own.as_ptr().expose_provenance() as u64;
    let hint = start.next_multiple_of(lab.unit as u64);
    if elsewhere(lab, seen, hint, start..start + own.len() as u64) {
        seen.note("the reservation was made at another address");
    }
    seen.holds(own.iter().all(|byte| *byte == 1), || "the process's own memory was changed".to_owned());
}

fn hint_odd(lab: &Lab, seen: &mut Seen) {
    let answer = lab.reserve(lab.unit, 0, 0x1234, 0);
    if lab.is(Vendor::Hip) {
        if seen.accepted("the hint 0x1234", answer).is_some() {
            seen.shows("a hint that is not a multiple of the page size was moved");
        }
    } else {
        seen.refused("the hint 0x1234", answer, REFUSAL);
    }
}

fn large(lab: &Lab, seen: &mut Seen) {
    let (before, _) = lab.memory_info();
    if let Some(_reserved) = seen.accepted("1 TiB", lab.reserve(1 << 40, 0, 0, 0)) {
        let (after, _) = lab.memory_info();
        seen.holds(before.abs_diff(after) < 64 << 20, || {
            format!("free memory was {before} bytes before and {after} after")
        });
    }
}

fn too_large(lab: &Lab, seen: &mut Seen) {
    let documented = [Code::INVALID_VALUE, Code::OUT_OF_MEMORY, Code::NOT_SUPPORTED];
    seen.refused("2^60 bytes", lab.reserve(1 << 60, 0, 0, 0), &documented);
}
