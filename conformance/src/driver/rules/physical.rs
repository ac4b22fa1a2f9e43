//! Creating memory, and its properties.

use super::rules;
use crate::driver::lab::Lab;
use crate::driver::lab::calls::Null;
use crate::driver::seen::{BAD_SIZE, NO_DEVICE, REFUSAL, Seen};
use crate::subject::skip;
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, Code, Location, Prop};

rules! { "physical":
    /// The size must not be 0.
    size_zero,
    /// The size must be a multiple of the granularity: CUDA returns an invalid-value error, HIP's guide says out of memory.
    size_odd,
    /// The flags must be 0.
    flags,
    /// A null pointer for the handle or the properties is refused.
    null,
    /// A device that does not exist is refused.
    no_device,
    /// A memory type that does not exist is refused.
    no_type,
    /// A location type that does not exist is refused.
    no_place,
    /// A handle type that the system lacks, such as Windows' on Linux, is refused.
    no_handle_kind,
    /// A size that exceeds the device's memory is refused as out of memory, and no memory is lost.
    too_much,
    /// The driver counts memory from creation to release: free memory falls by the size, and then rises again.
    counted ["release-frees-nothing"],
    /// Memory can be created in every multiple of the granularity.
    multiples ["large-creates"],
    /// Neither vendor documents the contents of fresh memory.
    fresh_bytes,
    /// CUDA supports host memory; HIP's guide supports only device memory.
    host_memory,
    /// CUDA: host memory cannot be shared, so creating it with a handle type is refused.
    host_memory_shared,
    /// CUDA: creating memory on the host's current NUMA node is refused.
    host_numa_current,
    /// CUDA: if the device supports fabric handles, a process with an IMEX channel can create memory for them.
    fabric ["fabric-attribute"],
    /// CUDA: compressible memory can be requested, and its properties say whether it is compressible.
    compression,
}

fn refused(lab: &Lab, seen: &mut Seen, what: &str, prop: Prop, documented: &[Code]) {
    seen.refused(what, lab.create(lab.unit, &prop, 0), documented);
}

fn size_zero(lab: &Lab, seen: &mut Seen) {
    seen.refused("a size of 0", lab.create(0, &lab.prop(), 0), REFUSAL);
}

fn size_odd(lab: &Lab, seen: &mut Seen) {
    let documented = if lab.is(Vendor::Hip) { BAD_SIZE } else { REFUSAL };
    let least = lab.must(lab.granularity(&lab.prop(), abi::MINIMUM));
    for size in [least + 1, least - 1, least / 2] {
        seen.refused(&format!("{size} bytes"), lab.create(size, &lab.prop(), 0), documented);
    }
}

fn flags(lab: &Lab, seen: &mut Seen) {
    seen.refused("flags 1", lab.create(lab.unit, &lab.prop(), 1), REFUSAL);
}

fn null(lab: &Lab, seen: &mut Seen) {
    seen.refused("a null pointer for the handle", lab.with_null(Null::Create), REFUSAL);
    seen.refused("a null pointer for the properties", lab.with_null(Null::CreateProp), REFUSAL);
}

fn no_device(lab: &Lab, seen: &mut Seen) {
    let count = lab.device_count();
    refused(lab, seen, &format!("device {count} of {count}"), lab.prop_of(count), NO_DEVICE);
    refused(lab, seen, "device -1", lab.prop_of(-1), NO_DEVICE);
}

fn no_type(lab: &Lab, seen: &mut Seen) {
    for kind in [0, 0x77] {
        refused(lab, seen, &format!("type {kind:#x}"), Prop { kind, ..lab.prop() }, REFUSAL);
    }
}

fn no_place(lab: &Lab, seen: &mut Seen) {
    for kind in [abi::NOWHERE, 0x77] {
        let prop = Prop { location: Location { kind, id: lab.device }, ..lab.prop() };
        refused(lab, seen, &format!("a place of type {kind:#x}"), prop, NO_DEVICE);
    }
}

fn no_handle_kind(lab: &Lab, seen: &mut Seen) {
    let documented = [Code::INVALID_VALUE, Code::NOT_SUPPORTED, Code::NOT_PERMITTED];
    refused(lab, seen, "a Win32 handle", Prop { handle_types: abi::WIN32, ..lab.prop() }, &documented);
}

fn too_much(lab: &Lab, seen: &mut Seen) {
    let (before, total) = lab.memory_info();
    let size = (total + lab.unit).next_multiple_of(lab.unit);
    let more = size.max(1 << 40);
    for size in [size, more] {
        seen.refused(
            &format!("{size} bytes of {total}"),
            lab.create(size, &lab.prop(), 0),
            &[Code::OUT_OF_MEMORY],
        );
    }
    let (after, _) = lab.memory_info();
    seen.holds(before.abs_diff(after) < 64 << 20, || {
        format!("free memory was {before} bytes before and {after} after")
    });
}

/// Large enough to be distinguished from other processes' allocations.
const LARGE: usize = 64 << 20;

fn counted(lab: &Lab, seen: &mut Seen) {
    let (before, _) = lab.memory_info();
    let memory = lab.must(lab.create(LARGE, &lab.prop(), 0));
    let (during, _) = lab.memory_info();
    drop(memory);
    let (after, _) = lab.memory_info();
    let half = LARGE / 2;
    seen.holds(during + half <= before, || {
        format!("{LARGE} bytes were created, and free memory went from {before} to {during}")
    });
    seen.holds(after >= during + half, || {
        format!("{LARGE} bytes were released, and free memory went from {during} to {after}")
    });
}

fn multiples(lab: &Lab, seen: &mut Seen) {
    let least = lab.must(lab.granularity(&lab.prop(), abi::MINIMUM));
    for count in 1..=16 {
        let what = format!("{count} times the granularity");
        seen.accepted(&what, lab.create(count * least, &lab.prop(), 0));
    }
    seen.accepted("256 MiB in one piece", lab.create(256 << 20, &lab.prop(), 0));
}

fn fresh_bytes(lab: &Lab, seen: &mut Seen) {
    let reserved = lab.addresses(4);
    let is_zero = |_| {
        let memory = lab.memory(4);
        let mapping = lab.map_rw(reserved.base, &memory);
        let old = lab.must(lab.read(mapping.at, mapping.size)).iter().filter(|byte| **byte != 0).count();
        // The next round would read these bytes if the driver returned the same memory uncleared.
        lab.must(lab.set(mapping.at, 0x5a, mapping.size));
        old == 0
    };
    match (0..3).map(is_zero).filter(|zero| !zero).count() {
        0 => seen.note("zeros, in each of 3 rounds, after other bytes had been written"),
        count => seen.note(format!(
            "other bytes than zeros in {count} of 3 rounds: old contents are there to be read"
        )),
    }
}

fn host_memory(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Host, "its devices are the host's memory already");
    let prop = Prop { location: Location { kind: abi::HOST, id: 0 }, ..lab.prop() };
    let answer = lab.create(lab.unit, &prop, 0);
    if lab.is(Vendor::Hip) {
        seen.refused("host memory", answer, BAD_SIZE);
    } else {
        match answer {
            Err(refusal) if refusal.code == Code::NOT_SUPPORTED => seen.note(refusal.to_string()),
            answer => drop(seen.accepted("host memory", answer)),
        }
    }
}

fn host_memory_shared(lab: &Lab, seen: &mut Seen) {
    lab.only(Vendor::Cuda, "CUDA alone documents host memory");
    let location = Location { kind: abi::HOST, id: 0 };
    refused(lab, seen, "host memory with a descriptor", Prop { location, ..lab.shareable() }, REFUSAL);
}

fn host_numa_current(lab: &Lab, seen: &mut Seen) {
    lab.only(Vendor::Cuda, "CUDA alone documents memory of a NUMA node");
    let location = Location { kind: abi::HOST_NUMA_CURRENT, id: 0 };
    refused(lab, seen, "the current NUMA node", Prop { location, ..lab.prop() }, REFUSAL);
}

fn fabric(lab: &Lab, seen: &mut Seen) {
    lab.only(Vendor::Cuda, "CUDA alone has documented fabric handles");
    const ATTRIBUTE: i32 = 128;
    let has = lab.attribute(ATTRIBUTE).unwrap_or_else(|_| skip("this version knows no fabric handles"));
    let answer = lab.create(lab.unit, &Prop { handle_types: abi::FABRIC, ..lab.prop() }, 0);
    if has == 0 {
        seen.refused(
            "without the attribute",
            answer,
            &[Code::INVALID_VALUE, Code::NOT_SUPPORTED, Code::NOT_PERMITTED],
        );
        return;
    }
    match answer {
        // This error is documented, so the attribute alone does not promise support.
        Err(refusal) if refusal.code == Code::NOT_PERMITTED => {
            seen.shows(format!("the attribute is 1, and {refusal}"));
        }
        answer => drop(seen.accepted("with the attribute", answer)),
    }
}

fn compression(lab: &Lab, seen: &mut Seen) {
    lab.only(Vendor::Cuda, "CUDA alone documents compression");
    const ATTRIBUTE: i32 = 107;
    if lab.attribute(ATTRIBUTE).ok() != Some(1) {
        skip("the device has no compression");
    }
    let properties = Prop { compression: 1, ..lab.prop() };
    let Some(memory) = seen.accepted("memory to be compressed", lab.create(lab.unit, &properties, 0)) else {
        return;
    };
    if let Some(prop) = seen.accepted("its properties", lab.properties(memory.handle)) {
        seen.holds(prop.compression <= 1, || format!("the properties say {}", prop.compression));
        seen.note(format!("compression is read back as {}", prop.compression));
    }
}
