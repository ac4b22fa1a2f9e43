//! Sharing memory as a file descriptor: exporting and importing.

use super::rules;
use crate::driver::lab::calls::Null;
use crate::driver::lab::{Lab, Memory};
use crate::driver::seen::{REFUSAL, Seen};
use crate::subject::skip;
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::ImportBy;
use gpu_vmm_testkit::raw::abi::{self, Code};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

rules! { "share":
    /// Shareable memory can be exported as a descriptor, a new one with each export.
    export ["export-is-kept"],
    /// The handle type must have been requested when the memory was created.
    export_not_asked_for,
    /// Exporting with a handle type other than the requested one is refused.
    export_other_kind,
    /// The flags must be 0.
    export_flags,
    /// A null pointer for the descriptor is refused.
    export_null ["export-to-null"],
    /// Imported memory is the same memory: a write through one handle is read through the other.
    same_bytes,
    /// A descriptor can be imported several times; each imported handle is released separately.
    import_twice,
    /// The descriptor can be closed after it has been imported.
    descriptor_closed ["import-reads-later"],
    /// The descriptor is passed by value, as a pointer.
    import_by_value ["import-wants-pointer"],
    /// Every descriptor can be imported, including number 0.
    descriptor_zero ["descriptor-zero", "import-descriptor-zero"],
    /// A descriptor of another kind of file, and a number that is not a descriptor, are refused.
    import_nonsense ["import-answers-unknown", "import-checks-nothing"],
    /// The properties of imported memory equal those of the exported memory.
    import_properties ["import-does-not-export"],
    /// A handle of shareable memory can be exported, including an imported one.
    export_of_import ["import-does-not-export", "import-is-not-exported"],
    /// Memory is freed when all of its handles, descriptors and mappings are gone, including imported ones.
    freed_after_import ["import-leaks"],
    /// The older way of sharing is for plain allocations: mapped memory is refused.
    ipc_handle ["ipc-handle-accepted"],
    /// A range of mapped memory can be exported as a dma-buf, also across several mappings of one device's memory.
    dma_buf,
}

fn shareable(lab: &Lab) -> Memory<'_> {
    match lab.create(lab.unit, &lab.shareable(), 0) {
        Err(refusal) if refusal.code == Code::NOT_SUPPORTED => {
            skip(format!("memory cannot be shared here: {refusal}"))
        }
        answer => lab.must(answer),
    }
}

fn exported(lab: &Lab, memory: &Memory<'_>) -> OwnedFd {
    lab.must(lab.export(memory.handle, abi::DESCRIPTOR, 0))
}

fn export(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    let fds = [0, 1].map(|_| seen.accepted("the export", lab.export(memory.handle, abi::DESCRIPTOR, 0)));
    if let [Some(one), Some(two)] = fds {
        seen.holds(one.as_raw_fd() != two.as_raw_fd(), || "both exports gave one descriptor".to_owned());
    }
}

fn export_not_asked_for(lab: &Lab, seen: &mut Seen) {
    seen.refused("memory that stays here", lab.export(lab.memory(1).handle, abi::DESCRIPTOR, 0), REFUSAL);
}

fn export_other_kind(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    for kind in [abi::NO_HANDLE, abi::WIN32] {
        seen.refused(&format!("kind {kind}"), lab.export(memory.handle, kind, 0), REFUSAL);
    }
}

fn export_flags(lab: &Lab, seen: &mut Seen) {
    seen.refused("flags 1", lab.export(shareable(lab).handle, abi::DESCRIPTOR, 1), REFUSAL);
}

fn export_null(lab: &Lab, seen: &mut Seen) {
    seen.refused("a null pointer", lab.with_null(Null::Export(shareable(lab).handle)), REFUSAL);
}

/// Maps allocations one after the other, fills each through one mapping and reads it through all.
fn are_one(lab: &Lab, seen: &mut Seen, pieces: &[&Memory<'_>]) {
    let reserved = lab.addresses(pieces.len());
    let mappings: Vec<_> =
        pieces.iter().enumerate().map(|(place, memory)| lab.map_rw(reserved.at(place), memory)).collect();
    for (value, written) in (1..).zip(&mappings) {
        lab.must(lab.set(written.at, value, written.size));
        for mapping in &mappings {
            let read = lab.must(lab.read(mapping.at + mapping.size as u64 - 64, 64));
            seen.holds(read == [value; 64], || format!("{read:?} is there instead of {value}"));
        }
    }
}

fn same_bytes(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    are_one(lab, seen, &[&memory, &lab.imported(&memory)]);
}

fn import_twice(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    let fd = exported(lab, &memory);
    let import = |_| seen.accepted("an import", lab.import(fd.as_raw_fd())).map(|new| new.sized(memory.size));
    let [Some(one), Some(two)] = [0, 1].map(import) else { return };
    let same = if one.handle == two.handle { "the same" } else { "another" };
    seen.note(format!("the second import has {same} handle"));
    are_one(lab, seen, &[&memory, &one, &two]);
    drop(one);
    are_one(lab, seen, &[&memory, &two]);
}

fn descriptor_closed(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    let fd = exported(lab, &memory);
    let Some(imported) = seen.accepted("the import", lab.import(fd.as_raw_fd())) else { return };
    drop(fd);
    are_one(lab, seen, &[&memory, &imported.sized(memory.size)]);
}

fn import_by_value(lab: &Lab, seen: &mut Seen) {
    if lab.imports_by() == ImportBy::Unknown {
        skip("how a descriptor is imported depends on the build, and the wrong way crashes");
    }
    let memory = shareable(lab);
    let fd = exported(lab, &memory);
    let import = lab.import_raw(fd.as_raw_fd() as usize as *mut std::ffi::c_void);
    if let Some(imported) = seen.accepted("the descriptor as a pointer", import) {
        are_one(lab, seen, &[&memory, &imported.sized(memory.size)]);
    }
}

fn descriptor_zero(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    let fd = exported(lab, &memory);
    let before = at_zero(&fd);
    let import = lab.import(0);
    at_zero(&before);
    if let Some(imported) = seen.accepted("descriptor 0", import) {
        are_one(lab, seen, &[&memory, &imported.sized(memory.size)]);
    }
}

/// Makes a descriptor number 0, and returns the previous descriptor 0.
#[allow(unsafe_code)] // no safe function takes numbers of descriptors
fn at_zero(fd: &OwnedFd) -> OwnedFd {
    // SAFETY: the new descriptor is a copy of number 0, which every process here has, and this value alone owns it.
    let before = unsafe { OwnedFd::from_raw_fd(libc::dup(0)) };
    // SAFETY: no Rust value owns number 0.
    let replaced = unsafe { libc::dup2(fd.as_raw_fd(), 0) };
    assert_eq!(replaced, 0, "descriptor 0 cannot be replaced");
    before
}

fn import_nonsense(lab: &Lab, seen: &mut Seen) {
    let documented = [Code::INVALID_VALUE, Code::NOT_SUPPORTED, Code::NOT_PERMITTED];
    let null = File::open("/dev/null").expect("/dev/null");
    for (what, fd) in
        [("a descriptor of /dev/null", null.as_raw_fd()), ("descriptor 99999, which is none", 99_999)]
    {
        seen.refused(what, lab.import(fd), &documented);
    }
}

fn import_properties(lab: &Lab, seen: &mut Seen) {
    let memory = shareable(lab);
    let imported = lab.imported(&memory);
    let Some(prop) = seen.accepted("the properties", lab.properties(imported.handle)) else { return };
    let place = prop.kind == abi::PINNED && prop.location == lab.prop().location;
    seen.holds(place, || format!("the driver reports {prop:?} for memory of device {}", lab.device));
    if prop.handle_types != abi::DESCRIPTOR {
        seen.deviates(format!("the kinds of handle are {}, and were {}", prop.handle_types, abi::DESCRIPTOR));
    }
}

fn export_of_import(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Host, "an imported handle is as shareable as its properties say");
    let imported = lab.imported(&shareable(lab));
    seen.accepted("an imported handle", lab.export(imported.handle, abi::DESCRIPTOR, 0));
}

fn freed_after_import(lab: &Lab, seen: &mut Seen) {
    let size = 64 << 20;
    let (before, _) = lab.memory_info();
    {
        let reserved = lab.must(lab.reserve(size, 0, 0, 0));
        let memory = lab.must(lab.create(size, &lab.shareable(), 0));
        let imported = lab.imported(&memory);
        drop(memory);
        drop(lab.map_rw(reserved.base, &imported));
    }
    let (after, _) = lab.memory_info();
    seen.holds(after + size / 2 >= before, || {
        format!("{size} bytes were exported and imported; free memory was {before} and is {after}")
    });
}

fn ipc_handle(lab: &Lab, seen: &mut Seen) {
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    if !seen.refused(
        "mapped memory",
        lab.ipc_handle(mapping.at),
        &[Code::INVALID_VALUE, Code::NOT_SUPPORTED, Code(17)],
    ) {
        seen.deviates("the driver returned a handle that no process can open");
    }
}

fn dma_buf(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Hip, "HIP does not say whether the range may span mappings");
    const ATTRIBUTE: i32 = 124;
    if lab.is(Vendor::Cuda) && lab.attribute(ATTRIBUTE).ok() != Some(1) {
        skip("the device has no dma-bufs");
    }
    let (reserved, one, two) = (lab.addresses(2), lab.memory(1), lab.memory(1));
    let _mappings = [lab.map_rw(reserved.base, &one), lab.map_rw(reserved.at(1), &two)];
    seen.accepted("one mapping", lab.dma_buf(reserved.base, lab.unit));
    seen.accepted("two mappings", lab.dma_buf(reserved.base, reserved.size));
}
