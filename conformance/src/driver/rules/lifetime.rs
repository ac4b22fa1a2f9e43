//! The lifetime of memory, and the references that keep it.

use super::rules;
use crate::driver::lab::calls::Null;
use crate::driver::lab::{Lab, Mapping};
use crate::driver::seen::{REFUSAL, Seen};
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::Code;

rules! { "lifetime":
    /// A handle can be released while its memory is mapped: the memory stays allocated and usable.
    release_while_mapped,
    /// Releasing handle 0 is refused.
    release_null,
    /// CUDA: releasing an invalid handle is undefined; the driver refuses the second release of a handle.
    release_twice,
    /// The handle retained at any address of a mapping is the handle that was mapped.
    retain_is_the_handle,
    /// Each retained handle needs a release of its own: until then the memory stays allocated.
    retain_counts ["retain-does-not-count"],
    /// The handle of an address can be retained after the handle has been released.
    retain_after_release ["retain-does-not-count"],
    /// An address where nothing is mapped has no handle, and a null pointer is refused.
    retain_of_nothing,
    /// An address of a plain allocation has no handle.
    retain_of_plain ["retain-does-not-count", "retain-of-plain-crashes"],
    /// Plain freeing is for plain allocations: freeing mapped memory is refused, and the mapping stays.
    plain_free ["hipfree-succeeds"],
    /// Plain freeing is for plain allocations: freeing reserved addresses without a mapping is refused.
    plain_free_of_nothing,
}

/// Large enough to be distinguished from other processes' allocations.
const LARGE: usize = 64 << 20;

fn release_while_mapped(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(2), lab.memory(2));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    let handle = memory.handle;
    memory.forget();
    seen.accepted("the release", lab.release(handle));
    // If the driver had freed the memory too early, it would assign it to these allocations.
    let _others = [lab.memory(2), lab.memory(2)];
    if let Some(read) =
        seen.accepted("a copy afterwards", lab.read(mapping.at + mapping.size as u64 - 64, 64))
    {
        seen.holds(read == [7; 64], || format!("{read:?} was read afterwards"));
    }
    seen.accepted("a fill afterwards", lab.set(mapping.at, 8, mapping.size));
}

fn release_null(lab: &Lab, seen: &mut Seen) {
    seen.refused("handle 0", lab.release(0), REFUSAL);
}

fn release_twice(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Hip, "it is undefined, and HIP uses memory that it has freed already");
    let memory = lab.memory(1);
    let handle = memory.handle;
    memory.forget();
    lab.must(lab.release(handle));
    seen.refused("the second release", lab.release(handle), REFUSAL);
}

fn retain_is_the_handle(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(2), lab.memory(2));
    let mapping = lab.map(reserved.base, &memory);
    let inside = [0, 100, lab.unit as u64, mapping.size as u64 - 1];
    for offset in inside {
        let Some(handle) = seen.accepted("its handle", lab.retain(mapping.at + offset)) else { continue };
        seen.holds(handle == memory.handle, || {
            format!("{handle:#x} at offset {offset:#x}, where {:#x} is mapped", memory.handle)
        });
        // If the driver does not count retained handles, a release would be one too many.
        if lab.is(Vendor::Cuda) {
            seen.accepted("its release", lab.release(handle));
        }
    }
    if !lab.is(Vendor::Cuda) {
        // At most one reference leaks for each handle; whether the driver counted it is unknown.
        lab.spoil();
    }
}

/// Maps memory, retains its handle, and observes what keeps the memory. This is safe if the driver does not count retained
/// handles: the rule releases the created handle first, and the retained one only if the memory is still allocated.
fn retain_counts(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.must(lab.reserve(LARGE, 0, 0, 0));
    let memory = lab.must(lab.create(LARGE, &lab.prop(), 0));
    let mapping = lab.map(reserved.base, &memory);
    let Some(handle) = seen.accepted("the handle", lab.retain(mapping.at)) else { return };
    drop(memory);
    let (held, _) = lab.memory_info();
    drop(mapping);
    let (unmapped, _) = lab.memory_info();
    if unmapped >= held + LARGE / 2 {
        seen.deviates("the memory was freed with its mapping, though its handle had been retained");
        return;
    }
    seen.accepted("the release of the retained handle", lab.release(handle));
    let (released, _) = lab.memory_info();
    seen.holds(released >= held + LARGE / 2, || "the release does not free the memory either".to_owned());
}

fn retain_after_release(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(4), lab.memory(2));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    drop(memory);
    let Some(handle) = seen.accepted("its handle", lab.retain(mapping.at + 100)) else { return };
    let mapped = lab.map_raw(reserved.at(2), mapping.size, 0, handle, 0);
    if seen.accepted("mapping it", mapped).is_some() {
        let second = Mapping::new(lab, reserved.at(2), mapping.size);
        lab.must(lab.set_access(second.at, second.size, &[lab.grant(1)]));
        let read = lab.must(lab.read(second.at, 64));
        seen.holds(read == [7; 64], || format!("{read:?} is there"));
    }
    if lab.is(Vendor::Cuda) {
        seen.accepted("its release", lab.release(handle));
    } else {
        seen.shows("not released, since it may not have counted");
        lab.spoil();
    }
}

fn retain_of_nothing(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    seen.refused("address 0", lab.retain(0), REFUSAL);
    seen.refused("reserved addresses", lab.retain(reserved.base), REFUSAL);
    let mapping = lab.map(reserved.base, &memory);
    seen.refused("a null pointer", lab.with_null(Null::Retain(mapping.at)), REFUSAL);
    drop(mapping);
    seen.refused("an unmapped range", lab.retain(reserved.base), REFUSAL);
}

fn retain_of_plain(lab: &Lab, seen: &mut Seen) {
    let plain = lab.allocate(lab.unit);
    seen.refused("a plain allocation", lab.retain(plain.address), REFUSAL);
}

/// The errors that HIP's reference lists for a pointer outside its allocations.
const NOT_PLAIN: &[Code] = &[Code::INVALID_VALUE, Code::NOT_SUPPORTED, Code(17)];

fn plain_free(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    lab.must(lab.set(mapping.at, 7, mapping.size));
    if seen.refused("mapped memory", lab.free(mapping.at), NOT_PLAIN) {
        let read = seen.accepted("a copy afterwards", lab.read(mapping.at, 64));
        seen.holds(read.is_none_or(|read| read == [7; 64]), || "other bytes are there afterwards".to_owned());
        return;
    }
    let known = if lab.is_mapped(mapping.at) { "still known" } else { "known no more" };
    seen.deviates(format!("the mapping is {known}"));
    mapping.forget();
    memory.forget();
    reserved.forget();
}

fn plain_free_of_nothing(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(1);
    seen.refused("reserved addresses", lab.free(reserved.base), NOT_PLAIN);
}
