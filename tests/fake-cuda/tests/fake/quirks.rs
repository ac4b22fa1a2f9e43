//! Each quirk of gpu-vmm-cuda's list, shown by raw calls: behaviour observed with NVIDIA's driver, and copied by the fake
//! driver.

use crate::child::{Case, case};
use crate::rig::{
    BLOCK, Cuda, G, HOST, HOST_NUMA, INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, NOT_PERMITTED,
    NOT_READY, NOT_SUPPORTED, READ, READ_WRITE, SUCCESS, UNKNOWN, description, properties, properties_at,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) const CASES: &[Case] = &[
    case("hint-moves", &[], hint_moves),
    case("addresses-in-32-mib", &[], addresses_in_32_mib),
    case("kept-addresses-first", &[], kept_addresses_first),
    case("map-past-the-end", &[], map_past_the_end),
    case("access-over-holes", &[], access_over_holes),
    case("unmap-over-holes", &[], unmap_over_holes),
    case("unmap-does-not-wait", &[("WORK_DELAY", "200ms")], unmap_does_not_wait),
    case("offset-must-be-zero", &[], offset_must_be_zero),
    case("page-is-not-enough", &[], page_is_not_enough),
    case("host-access-not-reported", &[], host_access_not_reported),
    case("cpu-copies-to-host-memory", &[], cpu_copies_to_host_memory),
    case("compression-gives-way", &[], compression_gives_way),
    case("dma-buf-wants-a-context", &[], dma_buf_wants_a_context),
    case("compressible-has-no-dma-buf", &[], compressible_has_no_dma_buf),
    case("fabric-attribute", &[], fabric_attribute),
    case("descriptor-zero", &[], descriptor_zero),
    case("import-answers-unknown", &[], import_answers_unknown),
    case("import-does-not-export", &[], import_does_not_export),
    case("stub-library", &[("FAIL", "cuDriverGetVersion:1+:34,cuInit:1+:34")], stub_library),
    case("fork", &[], fork),
];

fn hint_moves(cuda: &Cuda) {
    cuda.init();
    let first = cuda.reserve(BLOCK);
    let second = cuda.reserve_at(first, BLOCK);
    assert_ne!(first, second);
    cuda.free(second, BLOCK);
    cuda.free(first, BLOCK);
}

fn addresses_in_32_mib(cuda: &Cuda) {
    cuda.init();
    let size = 2 * BLOCK + BLOCK / 2;
    let first = cuda.reserve(size);
    let moved = cuda.reserve_at(first + size, BLOCK);
    assert_ne!(moved, first + size);
    cuda.free(moved, BLOCK);
    let exact = cuda.reserve_at(first + 3 * BLOCK, BLOCK);
    assert_eq!(exact, first + 3 * BLOCK);
    cuda.free(exact, BLOCK);
    cuda.free(first, size);
}

fn kept_addresses_first(cuda: &Cuda) {
    cuda.init();
    let hint = 0x3800_0000_0000;
    cuda.enter(0);
    let small = cuda.reserve_at(hint, 24 << 20);
    assert_ne!(small, hint);
    cuda.free(small, 24 << 20);
    // Larger ones fill the addresses that are kept for small ones first.
    let size = 4 * BLOCK;
    let placed: Vec<usize> = (0..3).map(|_| cuda.reserve_at(hint, size)).collect();
    assert!(placed[0] != hint && placed[1] != hint && placed[2] == hint, "{placed:x?}");
    placed.into_iter().for_each(|base| cuda.free(base, size));
}

fn map_past_the_end(cuda: &Cuda) {
    cuda.init();
    let (base, handle) = (cuda.reserve(2 * BLOCK), cuda.create(0, BLOCK));
    let at = base + BLOCK + BLOCK / 2;
    cuda.accepts("cuMemMap", &[at, BLOCK, 0, handle, 0]);
    // The next reservation cannot be used, nor this one freed.
    let behind = cuda.reserve_at(base + 2 * BLOCK, BLOCK);
    assert_eq!(behind, base + 2 * BLOCK);
    cuda.refuses("cuMemMap", &[behind, BLOCK, 0, handle, 0], INVALID_VALUE);
    cuda.refuses("cuMemAddressFree", &[base, 2 * BLOCK], INVALID_VALUE);
    cuda.unmap(at, BLOCK);
    cuda.free(behind, BLOCK);
    cuda.free(base, 2 * BLOCK);
    cuda.release(handle);
}

/// Creates two mappings of a granule with a hole of a granule between them.
fn with_a_hole(cuda: &Cuda) -> usize {
    let base = cuda.reserve(BLOCK);
    for at in [base, base + 2 * G] {
        let handle = cuda.create(0, G);
        cuda.map(at, G, handle);
        cuda.release(handle);
    }
    base
}

fn access_over_holes(cuda: &Cuda) {
    cuda.init();
    let base = with_a_hole(cuda);
    cuda.accepts("cuMemSetAccess", &[base, 3 * G, description(0, READ_WRITE).as_ptr().addr(), 1]);
    assert_eq!((cuda.access(base, 0), cuda.access(base + 2 * G, 0)), (3, 3));
    cuda.unmap(base, G);
    cuda.unmap(base + 2 * G, G);
    cuda.free(base, BLOCK);
}

fn unmap_over_holes(cuda: &Cuda) {
    cuda.init();
    let base = with_a_hole(cuda);
    cuda.accepts("cuMemUnmap", &[base, 3 * G]);
    cuda.accepts("cuMemUnmap", &[base, 3 * G]);
    cuda.free(base, BLOCK);
}

fn unmap_does_not_wait(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, plain) = (cuda.mapped(BLOCK), cuda.get("cuMemAlloc_v2", &[G]));
    let stream = cuda.get("cuStreamCreate", &[1]);
    cuda.ok("cuMemsetD8Async", &[plain, 1, G, stream]);
    cuda.take_away(base, BLOCK);
    cuda.answers("cuStreamQuery", &[stream], NOT_READY);
    // cuMemFree does wait.
    cuda.ok("cuMemFree_v2", &[plain]);
    cuda.ok("cuStreamQuery", &[stream]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
}

fn offset_must_be_zero(cuda: &Cuda) {
    cuda.init();
    let (base, handle) = (cuda.reserve(BLOCK), cuda.create(0, 2 * G));
    for (size, offset) in [(2 * G, G), (2 * G, 4096), (G, 0), (4 * G, 0)] {
        cuda.refuses("cuMemMap", &[base, size, offset, handle, 0], NOT_SUPPORTED);
    }
    cuda.release(handle);
    cuda.free(base, BLOCK);
}

fn page_is_not_enough(cuda: &Cuda) {
    cuda.init();
    let mut base = 0usize;
    cuda.refuses("cuMemAddressReserve", &[(&raw mut base).addr(), G + 4096, 0, 0, 0], INVALID_VALUE);
}

fn host_access_not_reported(cuda: &Cuda) {
    cuda.init();
    for kind in [HOST, HOST_NUMA] {
        let base = cuda.mapped_as(properties_at(kind, 0, 0));
        for allowed in [0, READ, READ_WRITE] {
            cuda.let_cpu(base, HOST_NUMA, allowed);
            assert_eq!((cuda.cpu_may(base, HOST), cuda.cpu_may(base, HOST_NUMA)), (3, allowed as usize));
        }
        cuda.take_away(base, G);
    }
    // The same holds for a device's memory, which the CPU cannot access.
    let base = cuda.mapped(G);
    let wanted = [HOST, 0, READ_WRITE];
    cuda.refuses("cuMemSetAccess", &[base, G, wanted.as_ptr().addr(), 1], NOT_SUPPORTED);
    assert_eq!((cuda.cpu_may(base, HOST), cuda.cpu_may(base, HOST_NUMA)), (3, 0));
    cuda.take_away(base, G);
}

fn cpu_copies_to_host_memory(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, other) = (cuda.mapped_as(properties_at(HOST_NUMA, 0, 0)), cuda.mapped(G));
    let bytes = [7u8; 4];
    let write = [base, bytes.as_ptr().addr(), bytes.len()];
    for allowed in [0, READ_WRITE] {
        cuda.let_cpu(base, HOST_NUMA, allowed);
        cuda.ok("cuMemcpyHtoD_v2", &write);
    }
    // A real driver ends the process here.
    cuda.let_cpu(base, HOST_NUMA, READ);
    cuda.refuses("cuMemcpyHtoD_v2", &write, INVALID_VALUE);
    cuda.refuses("cuMemcpyDtoD_v2", &[base, base + 8, 4], INVALID_VALUE);
    cuda.ok("cuMemcpyDtoD_v2", &[base, other, 4]);
    cuda.ok("cuMemsetD8_v2", &[base, 1, G]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.take_away(base, G);
    cuda.take_away(other, G);
}

/// Device 0's memory with flags: compression, and RDMA in the next byte.
fn flagged(flags: u32) -> [u32; 8] {
    let mut wanted = properties(0, 0);
    wanted[6] = flags;
    wanted
}

fn compression_gives_way(cuda: &Cuda) {
    cuda.init();
    let handle = cuda.create_as(flagged(0x0101));
    assert_eq!(cuda.told(handle), flagged(0x0100));
    cuda.release(handle);
}

fn dma_buf_wants_a_context(cuda: &Cuda) {
    cuda.init();
    let (base, mut fd) = (cuda.mapped(G), -1i32);
    let range = [(&raw mut fd).addr(), base, G, 1, 0];
    cuda.refuses("cuMemGetHandleForAddressRange", &range, INVALID_CONTEXT);
    cuda.enter(0);
    cuda.ok("cuMemGetHandleForAddressRange", &range);
    // SAFETY: the call has just created it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    cuda.take_away(base, G);
}

fn compressible_has_no_dma_buf(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, mut fd) = (cuda.mapped_as(flagged(0x0001)), -1i32);
    cuda.answers("cuMemGetHandleForAddressRange", &[(&raw mut fd).addr(), base, G, 1, 0], UNKNOWN);
    cuda.take_away(base, G);
}

fn fabric_attribute(cuda: &Cuda) {
    cuda.init();
    let mut says = 0i32;
    cuda.ok("cuDeviceGetAttribute", &[(&raw mut says).addr(), 128, 0]);
    assert_eq!(says, 1);
    let (mut handle, fabric) = (0usize, properties(0, 8));
    let arguments = [(&raw mut handle).addr(), G, fabric.as_ptr().addr(), 0];
    cuda.answers("cuMemCreate", &arguments, NOT_PERMITTED);
}

fn descriptor_zero(cuda: &Cuda) {
    cuda.init();
    let handle = cuda.create_shareable(G);
    let fd = cuda.export(handle);
    // SAFETY: only this case uses the descriptor and the standard input.
    let fd = unsafe {
        libc::dup2(fd as i32, 0);
        OwnedFd::from_raw_fd(fd as i32)
    };
    let mut import = 0usize;
    cuda.refuses("cuMemImportFromShareableHandle", &[(&raw mut import).addr(), 0, 1], INVALID_VALUE);
    let import = cuda.get("cuMemImportFromShareableHandle", &[fd.as_raw_fd() as usize, 1]);
    // SAFETY: as above.
    unsafe { libc::close(0) };
    cuda.release(import);
    cuda.release(handle);
}

fn import_answers_unknown(cuda: &Cuda) {
    cuda.init();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut import = 0usize;
    for fd in [null.as_raw_fd() as usize, 99_999] {
        cuda.answers("cuMemImportFromShareableHandle", &[(&raw mut import).addr(), fd, 1], UNKNOWN);
    }
}

fn import_does_not_export(cuda: &Cuda) {
    cuda.init();
    let handle = cuda.create_shareable(G);
    let fd = cuda.export(handle);
    // SAFETY: the call has just created it.
    let _fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let import = cuda.get("cuMemImportFromShareableHandle", &[fd, 1]);
    assert_eq!(cuda.told(import), properties(0, 0));
    let mut again = -1i32;
    cuda.refuses("cuMemExportToShareableHandle", &[(&raw mut again).addr(), import, 1, 0], INVALID_VALUE);
    cuda.release(import);
    cuda.release(handle);
}

fn stub_library(cuda: &Cuda) {
    let mut version = 0i32;
    cuda.answers("cuDriverGetVersion", &[(&raw mut version).addr()], 34);
    cuda.answers("cuInit", &[0], 34);
    let error = gpu_vmm_cuda::CudaBackend::open().unwrap_err().to_string();
    assert!(error.contains("this is the toolkit's stub for linking"), "{error}");
}

fn fork(cuda: &Cuda) {
    cuda.init();
    let handle = cuda.create(0, G);
    // SAFETY: the child calls the driver, which returns at once, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let count = &mut 0i32;
        let answers = [
            cuda.call("cuMemRelease", &[handle]),
            cuda.call("cuInit", &[0]),
            cuda.call("cuDeviceGetCount", &[(&raw mut *count).addr()]),
        ];
        let right = answers == [NOT_INITIALIZED; 3];
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and the pointer is valid for one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "a call in the child returned something else");
    assert_eq!(cuda.call("cuMemRelease", &[handle]), SUCCESS);
}
