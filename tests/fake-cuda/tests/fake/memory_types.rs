//! Memory of the host, compression, fabric handles, descriptors for other drivers.

use crate::child::{Case, case, with};
use crate::rig::{
    BLOCK, Cuda, G, HOST, HOST_NUMA, INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED, READ, READ_WRITE,
    description, properties, properties_at as at,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) const CASES: &[Case] = &[
    case("memory_of_the_host_is_not_the_devices", memory_of_the_host_is_not_the_devices),
    case("memory_of_the_host_has_its_rules", memory_of_the_host_has_its_rules),
    case("the_cpu_is_named_by_either_type_of_place", the_cpu_is_named_by_either_type_of_place),
    case("what_the_cpu_may_is_what_it_can", what_the_cpu_may_is_what_it_can),
    with(&[("VERSION", "12.1")], "the_host_came_with_12_2", the_host_came_with_12_2),
    case("compression_is_told", compression_is_told),
    case("fabric_handles_are_not_permitted", fabric_handles_are_not_permitted),
    with(&[("FABRIC", "1")], "fabric_handles_name_memory", fabric_handles_name_memory),
    case("dma_bufs_are_of_devices_memory", dma_bufs_are_of_devices_memory),
    case("each_device_has_a_number", each_device_has_a_number),
];

/// The calling thread's node, which is not a valid location here.
const HOST_NUMA_CURRENT: u32 = 4;

fn memory_of_the_host_is_not_the_devices(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let before = cuda.free_memory();
    // Memory anywhere on the host is reported with its node.
    for (wanted, told) in [(at(HOST, 0, 0), at(HOST_NUMA, 0, 0)), (at(HOST_NUMA, 0, 1), at(HOST_NUMA, 0, 1))]
    {
        let granularity = cuda.get("cuMemGetAllocationGranularity", &[wanted.as_ptr().addr(), 0]);
        assert_eq!(granularity, G);
        let handle = cuda.create_as(wanted);
        assert_eq!(cuda.free_memory(), before);
        assert_eq!(cuda.told(handle), told);
        cuda.release(handle);
    }
    // Another process, or this one, identifies the memory by its descriptor.
    let handle = cuda.create_as(at(HOST_NUMA, 0, 1));
    let fd = cuda.export(handle);
    let import = cuda.get("cuMemImportFromShareableHandle", &[fd, 1]);
    assert_eq!(cuda.told(import), at(HOST_NUMA, 0, 0));
    // SAFETY: the call has just created it.
    unsafe { libc::close(fd as i32) };
    cuda.release(import);
    cuda.release(handle);
}

fn memory_of_the_host_has_its_rules(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    let flagged = |flags| {
        let mut wanted = at(HOST_NUMA, 0, 0);
        wanted[6] = flags;
        wanted
    };
    // Memory anywhere on the host cannot be shared; none is compressed or flagged for RDMA; the current node cannot be
    // requested.
    for wrong in
        [at(HOST, 0, 1), at(HOST, 0, 8), flagged(0x0001), flagged(0x0100), at(HOST_NUMA_CURRENT, 0, 0)]
    {
        cuda.refuses("cuMemCreate", &[out, G, wrong.as_ptr().addr(), 0], INVALID_VALUE);
    }
    // A program finds out the nodes by requesting memory on one.
    for node in [1, 7] {
        cuda.answers("cuMemCreate", &[out, G, at(HOST_NUMA, node, 0).as_ptr().addr(), 0], INVALID_VALUE);
    }
    // The granularity is reported even so.
    for wrong in [at(HOST, 0, 1), flagged(0x0101)] {
        assert_eq!(cuda.get("cuMemGetAllocationGranularity", &[wrong.as_ptr().addr(), 0]), G);
    }
}

fn the_cpu_is_named_by_either_type_of_place(cuda: &Cuda) {
    cuda.init();
    let bases = [at(HOST, 0, 0), at(HOST_NUMA, 0, 0), properties(0, 0)].map(|wanted| cuda.mapped_as(wanted));
    let [host, node, device] = bases;
    let mut out = 0usize;
    for base in [host, node] {
        for (kind, id, allowed) in [(HOST, 0, READ), (HOST_NUMA, 0, READ_WRITE), (HOST_NUMA, 1, READ)] {
            cuda.ok("cuMemSetAccess", &[base, G, [kind, id, allowed].as_ptr().addr(), 1]);
            // The number of the node is ignored.
            assert_eq!((cuda.cpu_may(base, HOST_NUMA), cuda.access(base, 0)), (allowed as usize, 3));
        }
        let current = [HOST_NUMA_CURRENT, 0, READ];
        cuda.refuses("cuMemSetAccess", &[base, G, current.as_ptr().addr(), 1], INVALID_VALUE);
        cuda.refuses(
            "cuMemGetAccess",
            &[(&raw mut out).addr(), current.as_ptr().addr(), base],
            INVALID_VALUE,
        );
        cuda.let_cpu(base, HOST, 0);
    }
    // It gets no access to a device's memory.
    for kind in [HOST, HOST_NUMA] {
        let wrong = [kind, 0, READ];
        cuda.refuses("cuMemSetAccess", &[device, G, wrong.as_ptr().addr(), 1], NOT_SUPPORTED);
    }
    assert_eq!(cuda.cpu_may(device, HOST_NUMA), 0);
    // Both devices get access as to any memory.
    let both = [description(0, READ), description(1, READ_WRITE)].concat();
    cuda.ok("cuMemSetAccess", &[node, G, both.as_ptr().addr(), 2]);
    assert_eq!((cuda.access(node, 0), cuda.access(node, 1), cuda.cpu_may(node, HOST_NUMA)), (1, 3, 0));
    for base in bases {
        cuda.take_away(base, G);
    }
}

fn what_the_cpu_may_is_what_it_can(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let base = cuda.mapped_as(at(HOST_NUMA, 0, 0));
    cuda.ok("cuMemsetD8_v2", &[base, 7, G]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.let_cpu(base, HOST_NUMA, READ_WRITE);
    assert_eq!(cuda.cpu_may(base, HOST_NUMA), 3);
    let seen = std::ptr::with_exposed_provenance_mut::<u8>(base);
    // SAFETY: the CPU may read and write it, and no device is working.
    unsafe {
        assert_eq!(seen.add(G - 1).read(), 7);
        seen.write(8);
    }
    let mut byte = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), base, 1]);
    assert_eq!(byte, [8]);
    // Addresses that the CPU may use are host addresses as well.
    cuda.ok("cuMemcpyHtoD_v2", &[base + 1, base, 1]);
    cuda.ok("cuCtxSynchronize", &[]);
    // SAFETY: as above.
    assert_eq!(unsafe { seen.add(1).read() }, 8);

    let is_mapped = |protection: &str| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{base:x}-")) && line.contains(protection))
    };
    assert!(is_mapped(" rw-s "));
    cuda.let_cpu(base, HOST_NUMA, READ);
    assert!(is_mapped(" r--s ") && cuda.cpu_may(base, HOST_NUMA) == 1);
    cuda.let_cpu(base, HOST_NUMA, 0);
    assert!(is_mapped(" ---p "));
    cuda.let_cpu(base, HOST_NUMA, READ);
    cuda.unmap(base, G);
    assert!(is_mapped(" ---p "), "unmapping removes the CPU's access too");
    cuda.free(base, G);
}

fn the_host_came_with_12_2(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let wanted = at(HOST_NUMA, 0, 0);
    cuda.refuses("cuMemCreate", &[(&raw mut out).addr(), G, wanted.as_ptr().addr(), 0], INVALID_VALUE);
    let mut says = 0i32;
    cuda.answers("cuDeviceGetAttribute", &[(&raw mut says).addr(), 134, 0], INVALID_VALUE);
}

/// Quirk `compression-gives-way` shows them together.
fn compression_is_told(cuda: &Cuda) {
    cuda.init();
    // Compression, and RDMA in the next byte.
    for flags in [0x0000, 0x0001, 0x0100] {
        let mut wanted = properties(0, 1);
        wanted[6] = flags;
        let handle = cuda.create_as(wanted);
        let fd = cuda.export(handle);
        let import = cuda.get("cuMemImportFromShareableHandle", &[fd, 1]);
        for handle in [handle, import] {
            assert_eq!(cuda.told(handle)[6], flags);
            cuda.release(handle);
        }
        // SAFETY: the call has just created it.
        unsafe { libc::close(fd as i32) };
    }
}

fn fabric_handles_are_not_permitted(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    for wanted in [properties(0, 8), properties(0, 9), at(HOST_NUMA, 0, 8)] {
        cuda.answers("cuMemCreate", &[out, G, wanted.as_ptr().addr(), 0], NOT_PERMITTED);
    }
    let bytes = [0u8; 64];
    cuda.answers("cuMemImportFromShareableHandle", &[out, bytes.as_ptr().addr(), 8], NOT_PERMITTED);
}

fn fabric_handles_name_memory(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let before = cuda.free_memory();
    let handle = cuda.create_as(properties(0, 9));
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
    // The memory of these handles is gone; other bytes never named any.
    let mut none = 0usize;
    for wrong in [bytes, [0; 64], [0xff; 64]] {
        let arguments = [(&raw mut none).addr(), wrong.as_ptr().addr(), 8];
        cuda.answers("cuMemImportFromShareableHandle", &arguments, INVALID_VALUE);
    }
    // Memory that was not created for fabric handles has none.
    let plain = cuda.create_shareable(G);
    let arguments = [bytes.as_mut_ptr().addr(), plain, 8, 0];
    cuda.refuses("cuMemExportToShareableHandle", &arguments, INVALID_VALUE);
    cuda.release(plain);
    assert_eq!(cuda.free_memory(), before);
}

fn dma_bufs_are_of_devices_memory(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let base = cuda.reserve(BLOCK);
    // Two adjacent mappings and one after a hole, without any access.
    for place in [0, 1, 3] {
        let handle = cuda.create(0, G);
        cuda.map(base + place * G, G, handle);
        cuda.release(handle);
    }
    let mut fd = -1i32;
    let out = (&raw mut fd).addr();
    for (offset, length) in [(0, G), (4096, 4096), (0, 2 * G), (G / 2, G)] {
        cuda.ok("cuMemGetHandleForAddressRange", &[out, base + offset, length, 1, 0]);
        // SAFETY: the call has just created it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor is open, and both calls only query it.
        let (size, flags) = unsafe {
            let fd = fd.as_raw_fd();
            (libc::lseek(fd, 0, libc::SEEK_END), libc::fcntl(fd, libc::F_GETFD))
        };
        assert_eq!((size as usize, flags), (length, libc::FD_CLOEXEC));
    }
    // A hole; ranges of partial pages.
    for (offset, length) in [(0, 4 * G), (0, 4095), (1, 4096), (0, 0)] {
        cuda.refuses("cuMemGetHandleForAddressRange", &[out, base + offset, length, 1, 0], INVALID_VALUE);
    }
    // Addresses on the PCIe bus are not supported.
    cuda.answers("cuMemGetHandleForAddressRange", &[out, base, G, 1, 1], NOT_SUPPORTED);
    cuda.unmap(base, 2 * G);
    cuda.unmap(base + 3 * G, G);
    cuda.free(base, BLOCK);
    for wanted in [at(HOST, 0, 0), at(HOST_NUMA, 0, 1)] {
        let base = cuda.mapped_as(wanted);
        cuda.refuses("cuMemGetHandleForAddressRange", &[out, base, G, 1, 0], INVALID_VALUE);
        cuda.take_away(base, G);
    }
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
