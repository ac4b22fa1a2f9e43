//! Memory of the host, compression, fabric handles.

use crate::child::{Case, case, with};
use crate::rig::{BLOCK, Cuda, G, INVALID_VALUE, NOT_PERMITTED, READ, READ_WRITE, description, properties};

pub(crate) const CASES: &[Case] = &[
    case("memory_of_the_host_is_not_the_devices", memory_of_the_host_is_not_the_devices),
    case("memory_of_the_host_has_its_rules", memory_of_the_host_has_its_rules),
    case("the_cpu_is_named_by_the_place", the_cpu_is_named_by_the_place),
    case("what_the_cpu_may_is_what_it_can", what_the_cpu_may_is_what_it_can),
    with(&[("VERSION", "12.1")], "the_host_came_with_12_2", the_host_came_with_12_2),
    case("compression_is_told", compression_is_told),
    case("fabric_handles_are_not_permitted", fabric_handles_are_not_permitted),
    with(&[("FABRIC", "1")], "fabric_handles_name_memory", fabric_handles_name_memory),
    case("each_device_has_a_number", each_device_has_a_number),
];

/// `CUmemLocationType`: the host, and one of its nodes.
const HOST: u32 = 2;
const HOST_NUMA: u32 = 3;

/// `CUmemAllocationProp` of memory in such a place.
fn at(kind: u32, id: u32, handle_types: u32) -> [u32; 8] {
    let mut wanted = properties(id, handle_types);
    wanted[2] = kind;
    wanted
}

#[track_caller]
fn create(cuda: &Cuda, wanted: [u32; 8]) -> usize {
    cuda.get("cuMemCreate", &[G, wanted.as_ptr().addr(), 0])
}

/// A reservation with such memory in it, for device 0.
#[track_caller]
fn mapped(cuda: &Cuda, wanted: [u32; 8]) -> usize {
    let (base, handle) = (cuda.reserve(BLOCK), create(cuda, wanted));
    cuda.map(base, G, handle);
    cuda.release(handle);
    cuda.grant(base, G, 0, READ_WRITE);
    base
}

#[track_caller]
fn let_cpu(cuda: &Cuda, base: usize, kind: u32, allowed: u32) {
    cuda.ok("cuMemSetAccess", &[base, G, [kind, 0, allowed].as_ptr().addr(), 1]);
}

#[track_caller]
fn cpu_may(cuda: &Cuda, base: usize, kind: u32) -> usize {
    cuda.get("cuMemGetAccess", &[[kind, 0u32].as_ptr().addr(), base])
}

fn memory_of_the_host_is_not_the_devices(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let before = cuda.free_memory();
    for wanted in [at(HOST, 0, 0), at(HOST_NUMA, 0, 1)] {
        let granularity = cuda.get("cuMemGetAllocationGranularity", &[wanted.as_ptr().addr(), 0]);
        assert_eq!(granularity, G);
        let handle = create(cuda, wanted);
        assert_eq!(cuda.free_memory(), before);
        let mut got = [0u32; 8];
        cuda.ok("cuMemGetAllocationPropertiesFromHandle", &[got.as_mut_ptr().addr(), handle]);
        assert_eq!(got, wanted);
        cuda.release(handle);
    }
    // Another process, or this one, knows it again by its descriptor.
    let handle = create(cuda, at(HOST_NUMA, 0, 1));
    let fd = cuda.export(handle);
    let import = cuda.get("cuMemImportFromShareableHandle", &[fd, 1]);
    let mut got = [0u32; 8];
    cuda.ok("cuMemGetAllocationPropertiesFromHandle", &[got.as_mut_ptr().addr(), import]);
    assert_eq!(got, at(HOST_NUMA, 0, 0));
    // SAFETY: the call has made it for its caller.
    unsafe { libc::close(fd as i32) };
    cuda.release(import);
    cuda.release(handle);
}

fn memory_of_the_host_has_its_rules(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    // What can be anywhere cannot be shared; there is one node; the current one cannot be asked for.
    for wrong in [at(HOST, 0, 1), at(HOST, 0, 8), at(HOST_NUMA, 1, 0), at(4, 0, 0)] {
        let arguments = [(&raw mut out).addr(), G, wrong.as_ptr().addr(), 0];
        cuda.refuses("cuMemCreate", &arguments, INVALID_VALUE);
    }
}

fn the_cpu_is_named_by_the_place(cuda: &Cuda) {
    cuda.init();
    let bases =
        [mapped(cuda, at(HOST, 0, 0)), mapped(cuda, at(HOST_NUMA, 0, 0)), mapped(cuda, properties(0, 0))];
    let [host, node, device] = bases;
    let mut out = 0usize;
    for (base, kind) in [(host, HOST_NUMA), (node, HOST), (device, HOST), (device, HOST_NUMA)] {
        let wrong = [kind, 0, READ];
        cuda.refuses("cuMemSetAccess", &[base, G, wrong.as_ptr().addr(), 1], INVALID_VALUE);
        cuda.refuses("cuMemGetAccess", &[(&raw mut out).addr(), wrong.as_ptr().addr(), base], INVALID_VALUE);
    }
    // Devices, both of them, have access as to any memory.
    let both = [description(0, READ), description(1, READ_WRITE)].concat();
    cuda.ok("cuMemSetAccess", &[node, G, both.as_ptr().addr(), 2]);
    assert_eq!((cuda.access(node, 0), cuda.access(node, 1), cpu_may(cuda, node, HOST_NUMA)), (1, 3, 0));
    for base in bases {
        cuda.unmap(base, G);
        cuda.free(base, BLOCK);
    }
}

fn what_the_cpu_may_is_what_it_can(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let base = mapped(cuda, at(HOST_NUMA, 0, 0));
    cuda.ok("cuMemsetD8_v2", &[base, 7, G]);
    cuda.ok("cuCtxSynchronize", &[]);
    let_cpu(cuda, base, HOST_NUMA, READ_WRITE);
    assert_eq!(cpu_may(cuda, base, HOST_NUMA), 3);
    let seen = std::ptr::with_exposed_provenance_mut::<u8>(base);
    // SAFETY: the CPU may read and write there, and no device is at work.
    unsafe {
        assert_eq!(seen.add(G - 1).read(), 7);
        seen.write(8);
    }
    let mut byte = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), base, 1]);
    assert_eq!(byte, [8]);
    // What the CPU may use is an address of the host's as well.
    cuda.ok("cuMemcpyHtoD_v2", &[base + 1, base, 1]);
    cuda.ok("cuCtxSynchronize", &[]);
    // SAFETY: as above.
    assert_eq!(unsafe { seen.add(1).read() }, 8);

    let is_mapped = |protection: &str| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{base:x}-")) && line.contains(protection))
    };
    assert!(is_mapped(" rw-s "));
    let_cpu(cuda, base, HOST_NUMA, READ);
    assert!(is_mapped(" r--s ") && cpu_may(cuda, base, HOST_NUMA) == 1);
    let_cpu(cuda, base, HOST_NUMA, 0);
    assert!(is_mapped(" ---p "));
    let_cpu(cuda, base, HOST_NUMA, READ);
    cuda.unmap(base, G);
    assert!(is_mapped(" ---p "), "unmapping takes it from the CPU too");
    cuda.free(base, BLOCK);
}

fn the_host_came_with_12_2(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let wanted = at(HOST_NUMA, 0, 0);
    cuda.refuses("cuMemCreate", &[(&raw mut out).addr(), G, wanted.as_ptr().addr(), 0], INVALID_VALUE);
    let mut says = 0i32;
    cuda.answers("cuDeviceGetAttribute", &[(&raw mut says).addr(), 134, 0], INVALID_VALUE);
}

fn compression_is_told(cuda: &Cuda) {
    cuda.init();
    for (mut wanted, given) in [(properties(0, 1), 1), (at(HOST_NUMA, 0, 1), 0)] {
        // Compression, and RDMA in the next byte.
        wanted[6] = 0x0101;
        let handle = create(cuda, wanted);
        let fd = cuda.export(handle);
        let import = cuda.get("cuMemImportFromShareableHandle", &[fd, 1]);
        for handle in [handle, import] {
            let mut got = [0u32; 8];
            cuda.ok("cuMemGetAllocationPropertiesFromHandle", &[got.as_mut_ptr().addr(), handle]);
            assert_eq!(got[6], 0x0100 | given);
            cuda.release(handle);
        }
        // SAFETY: the call has made it for its caller.
        unsafe { libc::close(fd as i32) };
    }
}

fn fabric_handles_are_not_permitted(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    for types in [8, 9] {
        let wanted = properties(0, types);
        cuda.answers("cuMemCreate", &[out, G, wanted.as_ptr().addr(), 0], NOT_PERMITTED);
    }
    let bytes = [0u8; 64];
    cuda.answers("cuMemImportFromShareableHandle", &[out, bytes.as_ptr().addr(), 8], NOT_PERMITTED);
}

fn fabric_handles_name_memory(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let before = cuda.free_memory();
    let handle = create(cuda, properties(0, 9));
    let mut bytes = [0u8; 64];
    cuda.ok("cuMemExportToShareableHandle", &[bytes.as_mut_ptr().addr(), handle, 8, 0]);
    let import = cuda.get("cuMemImportFromShareableHandle", &[bytes.as_ptr().addr(), 8]);
    assert_ne!(import, handle);
    assert_eq!(cuda.free_memory(), before - G);
    let base = cuda.reserve(BLOCK);
    for (place, handle) in [handle, import].into_iter().enumerate() {
        cuda.map(base + place * G, G, handle);
        cuda.release(handle);
    }
    cuda.grant(base, 2 * G, 0, READ_WRITE);
    cuda.ok("cuMemsetD8_v2", &[base, 9, G]);
    let mut byte = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), base + G + 77, 1]);
    assert_eq!(byte, [9]);
    cuda.unmap(base, 2 * G);
    cuda.free(base, BLOCK);
    // Nothing is left that they could name, and others never named anything.
    let mut none = 0usize;
    for wrong in [bytes, [0; 64], [0xff; 64]] {
        let arguments = [(&raw mut none).addr(), wrong.as_ptr().addr(), 8];
        cuda.answers("cuMemImportFromShareableHandle", &arguments, INVALID_VALUE);
    }
    // Memory that was not created for it has none.
    let plain = cuda.create_shareable(G);
    let arguments = [bytes.as_mut_ptr().addr(), plain, 8, 0];
    cuda.refuses("cuMemExportToShareableHandle", &arguments, INVALID_VALUE);
    cuda.release(plain);
    assert_eq!(cuda.free_memory(), before);
}

fn each_device_has_a_number(cuda: &Cuda) {
    cuda.init();
    let uuids = [0, 1].map(|device| {
        let mut uuid = [0u8; 16];
        cuda.ok("cuDeviceGetUuid_v2", &[uuid.as_mut_ptr().addr(), device]);
        uuid
    });
    assert!(uuids[0] != uuids[1] && uuids.iter().all(|uuid| *uuid != [0; 16]));
}
