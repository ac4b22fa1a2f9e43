//! Page-locked memory and asynchronous copies: the rules, and gpu-vmm-cuda's copies.

use crate::child::{Case, case, with};
use crate::rig::{
    ALREADY_REGISTERED, Cuda, G, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_VALUE, NOT_READY, NOT_REGISTERED,
    READ_WRITE, SUCCESS,
};
use gpu_vmm_core::{
    Address, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, ErrorKind, Operation, Region,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_testkit::{TestKit, Walked};
use std::time::{Duration, Instant};

/// Enough time to look while work runs.
const SLOW: &[(&str, &str)] = &[("WORK_DELAY", "100ms")];
const NON_BLOCKING: usize = 1;
const PORTABLE: usize = 1;

pub(crate) const CASES: &[Case] = &[
    case("it_is_memory_of_the_process", it_is_memory_of_the_process),
    with(SLOW, "copies_go_on_beside_the_program", copies_go_on_beside_the_program),
    with(SLOW, "copies_without_a_stream_wait", copies_without_a_stream_wait),
    with(SLOW, "it_is_pageable_in_another_context_unless_portable", it_is_pageable_elsewhere),
    with(SLOW, "it_is_not_given_back_under_a_copy", it_is_not_given_back_under_a_copy),
    case("copies_do_not_reach_over_its_border", copies_do_not_reach_over_its_border),
    case("kernels_walk_lists", kernels_walk_lists),
    with(SLOW, "a_copy_stream_copies_beside_the_program", a_copy_stream_copies_beside_the_program),
    case("pinning_makes_no_context_where_there_is_one", pinning_makes_no_context_where_there_is_one),
    with(SLOW, "memory_of_the_program_is_registered", memory_of_the_program_is_registered),
    with(
        &[("FAIL", "cuMemHostRegister_v2:1:801,cuMemHostAlloc:1:2")],
        "a_pin_that_fails_says_so",
        a_pin_that_fails_says_so,
    ),
    with(
        &[("FAIL", "cuMemHostRegister_v2:1+:801")],
        "what_cannot_be_registered_is_allocated",
        what_cannot_be_registered_is_allocated,
    ),
    with(
        &[("FAIL", "cuStreamCreate:1:2")],
        "a_copy_stream_that_fails_says_so",
        a_copy_stream_that_fails_says_so,
    ),
    with(&[("FAIL", "cuMemcpyDtoHAsync_v2:1:1")], "a_copy_that_fails_says_so", a_copy_that_fails_says_so),
    with(
        &[("FAIL", "cuMemFreeHost:1:1,cuMemHostUnregister:1:1")],
        "giving_back_that_fails_is_logged",
        giving_back_that_fails,
    ),
    with(
        &[("FAIL", "cuMemFreeHost:1:1")],
        "little_memory_is_the_drivers_own",
        little_memory_is_the_drivers_own,
    ),
    case("a_list_that_leaves_its_memory_loses_the_device", a_list_that_leaves_its_memory),
];

#[track_caller]
fn host(cuda: &Cuda, size: usize, flags: usize) -> usize {
    cuda.get("cuMemHostAlloc", &[size, flags])
}

/// Reads a byte of the host that a copy may be changing.
fn byte(at: usize) -> u8 {
    // SAFETY: cases read their own page-locked memory.
    unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }
}

fn set(at: usize, size: usize, value: u8) {
    // SAFETY: as above.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(value, size) };
}

fn it_is_memory_of_the_process(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    cuda.refuses("cuMemHostAlloc", &[out, G, PORTABLE], INVALID_CONTEXT);
    cuda.enter(0);
    let at = host(cuda, G + 1, PORTABLE);
    assert!(at.is_multiple_of(4096));
    set(at, G + 1, 7);
    assert_eq!((byte(at + G), cuda.counts().pinned), (7, 1));
    cuda.refuses("cuMemHostAlloc", &[out, 0, PORTABLE], INVALID_VALUE);
    cuda.refuses("cuMemHostAlloc", &[out, G, 8], INVALID_VALUE);
    cuda.refuses("cuMemFreeHost", &[at + 1], INVALID_VALUE);
    cuda.ok("cuMemFreeHost", &[at]);
    cuda.refuses("cuMemFreeHost", &[at], INVALID_VALUE);
    // A context frees its allocations when it is destroyed.
    let own = cuda.get("cuCtxCreate_v2", &[0, 0]);
    host(cuda, G, 0);
    cuda.ok("cuCtxDestroy_v2", &[own]);
    assert_eq!(cuda.counts().pinned, 0);
}

fn copies_go_on_beside_the_program(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, at) = (cuda.mapped(2 * G), host(cuda, 2 * G, 0));
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    set(at, 2 * G, 1);
    cuda.ok("cuMemcpyHtoDAsync_v2", &[base, at, 2 * G, stream]);
    cuda.ok("cuMemcpyDtoHAsync_v2", &[at, base + G, G, stream]);
    cuda.answers("cuStreamQuery", &[stream], NOT_READY);
    // The copy reads the bytes when the stream reaches it.
    set(at, 2 * G, 2);
    cuda.ok("cuStreamSynchronize", &[stream]);
    let mut seen = [0u8; 2];
    cuda.ok("cuMemcpyDtoH_v2", &[seen.as_mut_ptr().addr(), base + 2 * G - 2, 2]);
    assert_eq!((seen, byte(at), byte(at + 2 * G - 1)), ([2, 2], 2, 2));
    // A copy to pageable memory waits.
    cuda.ok("cuMemcpyDtoHAsync_v2", &[seen.as_mut_ptr().addr(), base, 2, stream]);
    cuda.ok("cuStreamQuery", &[stream]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.ok("cuMemFreeHost", &[at]);
    cuda.take_away(base, 2 * G);
}

fn copies_without_a_stream_wait(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, at) = (cuda.mapped(G), host(cuda, G, 0));
    set(at, G, 1);
    cuda.ok("cuMemcpyHtoD_v2", &[base, at, G]);
    cuda.ok("cuStreamQuery", &[0]);
    set(at, G, 2);
    cuda.ok("cuMemcpyDtoH_v2", &[at, base, G]);
    assert_eq!((byte(at), byte(at + G - 1)), (1, 1));
    cuda.ok("cuMemFreeHost", &[at]);
    cuda.take_away(base, G);
}

fn it_is_pageable_elsewhere(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let [own, portable] = [0, PORTABLE].map(|flags| host(cuda, G, flags));
    cuda.enter(1);
    let base = cuda.get("cuMemAlloc_v2", &[G]);
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    cuda.ok("cuMemcpyDtoHAsync_v2", &[own, base, G, stream]);
    cuda.ok("cuStreamQuery", &[stream]);
    cuda.ok("cuMemcpyDtoHAsync_v2", &[portable, base, G, stream]);
    cuda.answers("cuStreamQuery", &[stream], NOT_READY);
    cuda.ok("cuStreamSynchronize", &[stream]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.ok("cuMemFree_v2", &[base]);
    [own, portable].iter().for_each(|at| cuda.ok("cuMemFreeHost", &[*at]));
}

fn it_is_not_given_back_under_a_copy(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, at) = (cuda.mapped(G), host(cuda, G, 0));
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    cuda.ok("cuMemcpyHtoDAsync_v2", &[base, at, G, stream]);
    cuda.accepts("cuMemFreeHost", &[at]);
    cuda.ok("cuStreamQuery", &[stream]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(base, G);
}

fn copies_do_not_reach_over_its_border(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, at) = (cuda.mapped(2 * G), host(cuda, G, 0));
    cuda.ok("cuMemcpyDtoH_v2", &[at + 1, base, G - 1]);
    cuda.refuses("cuMemcpyDtoH_v2", &[at + 1, base, G], INVALID_VALUE);
    cuda.refuses("cuMemcpyHtoD_v2", &[base, at - 1, 2], INVALID_VALUE);
    cuda.ok("cuMemFreeHost", &[at]);
    cuda.take_away(base, 2 * G);
}

fn kernels_walk_lists(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let walk = cuda.kernel(c"gpu_vmm_walk_list");
    let (base, results) = (cuda.mapped(2 * G), cuda.get("cuMemAlloc_v2", &[16]));
    // Three nodes, of which the second crosses the border of two granules.
    let (one, two, three) = (base, base + G - 8, base + 64);
    let nodes = [(one, two, 1u64), (two, three, 10), (three, 0, u64::MAX)];
    for (at, next, value) in nodes {
        let node = [next as u64, value];
        cuda.ok("cuMemcpyHtoD_v2", &[at, node.as_ptr().addr(), 16]);
    }
    let walked = |head: usize, most: u64| {
        let mut walked = [9u64; 2];
        cuda.launch(walk, 0, &[head as u64, most, results as u64, results as u64 + 8]);
        cuda.ok("cuMemcpyDtoH_v2", &[walked.as_mut_ptr().addr(), results, 16]);
        walked
    };
    assert_eq!(walked(one, 100), [3, 10]);
    assert_eq!(walked(one, 2), [2, 11]);
    assert_eq!(walked(two, u64::MAX), [2, 9]);
    assert_eq!([walked(0, 9), walked(one, 0)], [[0; 2]; 2]);
    // A node at an unmapped address.
    cuda.grant(base, 2 * G, 0, READ_WRITE);
    cuda.launch(walk, 0, &[(base + 2 * G) as u64, 1, results as u64, results as u64 + 8]);
    cuda.answers("cuCtxSynchronize", &[], ILLEGAL_ADDRESS);
    assert_eq!(cuda.call("cuDevicePrimaryCtxRelease_v2", &[0]), SUCCESS);
    cuda.take_away(base, 2 * G);
}

const DEVICE: DeviceId = DeviceId(0);
const SIZE: Bytes = Bytes::mib(2);

fn region(backend: &CudaBackend, device: DeviceId) -> Region<CudaBackend> {
    let mut region = Region::builder(backend).on(device).reserve(Bytes::mib(32)).build().unwrap();
    region.grow_to(SIZE).unwrap();
    region
}

fn a_copy_stream_copies_beside_the_program(cuda: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    // Memory of the process that is registered, and less than a large page, which the driver allocates.
    let little = Bytes(SIZE.0 / 2);
    for (device, size) in [(DEVICE, SIZE), (DeviceId(1), SIZE), (DEVICE, little), (DeviceId(1), little)] {
        let mut region = region(&backend, device);
        region.write_pattern(device, Bytes::ZERO, size, 1).unwrap();
        // Allocated in device 0's context, for copies by any device.
        let pinned = backend.pin(size).unwrap();
        let mut copy_stream = backend.copy_stream(device).unwrap();
        let at = pinned.start().as_ptr();
        set(at.expose_provenance(), size.0 as usize, 0xEE);
        // SAFETY: both sides are of this size and unused until the copy stream has finished.
        unsafe { copy_stream.copy_to_host(at, region.address(), size) }.unwrap();
        assert_eq!(byte(at.expose_provenance()), 0xEE, "the copy was waited for");
        copy_stream.finish().unwrap();
        region.fill(Bytes::ZERO, SIZE, 0).unwrap();
        let began = Instant::now();
        // SAFETY: as above.
        unsafe { copy_stream.copy_from_host(region.address(), at, size) }.unwrap();
        assert!(began.elapsed() < Duration::from_millis(80), "the copy was waited for");
        // Dropping it waits as well.
        drop(copy_stream);
        assert!(began.elapsed() >= Duration::from_millis(100), "the copy was not waited for");
        assert_eq!(region.count_wrong(device, Bytes::ZERO, size, 1).unwrap(), 0);
    }
    assert_eq!((backend.drop_log().count(), cuda.violations()), (0, 0));
}

fn pinning_makes_no_context_where_there_is_one(cuda: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    let mut region = region(&backend, DeviceId(1));
    region.fill(Bytes::ZERO, SIZE, 0).unwrap();
    let pinned = backend.pin(SIZE).unwrap();
    assert_eq!((cuda.counts().contexts, cuda.counts().pinned), (1, 1));
    drop(pinned);
    let error = backend.pin(Bytes::ZERO).map(drop).unwrap_err();
    assert_eq!(
        (error.operation(), error.kind()),
        (Operation::PinMemory, ErrorKind::InvalidArgument),
        "{error}"
    );
    let error = backend.copy_stream(DeviceId(2)).map(drop).unwrap_err();
    assert_eq!(
        (error.operation(), error.kind()),
        (Operation::CreateStream, ErrorKind::NoSuchDevice),
        "{error}"
    );
    assert_eq!(backend.drop_log().count(), 0);
}

fn answered(error: &Error) -> (&'static str, i64) {
    let source = error.driver_error().unwrap();
    (source.call, source.code)
}

fn a_pin_that_fails_says_so(_: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    let error = backend.pin(SIZE).unwrap_err();
    assert_eq!(answered(&error), ("cuMemHostAlloc", 2));
    assert!(error.to_string().contains("the host is out of memory (requested 2 MiB"), "{error}");
    backend.pin(SIZE).unwrap();
}

fn what_cannot_be_registered_is_allocated(cuda: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    let pinned = backend.pin(SIZE).unwrap();
    assert_eq!(cuda.counts().pinned, 1);
    // This call frees only memory that was allocated.
    cuda.enter(0);
    cuda.ok("cuMemFreeHost", &[pinned.start().as_ptr().expose_provenance()]);
    std::mem::forget(pinned);
}

fn memory_of_the_program_is_registered(cuda: &Cuda) {
    cuda.init();
    let mut own = vec![1u8; 3 * G];
    let at = own.as_mut_ptr().expose_provenance();
    cuda.refuses("cuMemHostRegister_v2", &[at, G, PORTABLE], INVALID_CONTEXT);
    cuda.enter(0);
    for wrong in [[0, G, PORTABLE], [at, 0, PORTABLE], [at, G, 16]] {
        cuda.refuses("cuMemHostRegister_v2", &wrong, INVALID_VALUE);
    }
    cuda.ok("cuMemHostRegister_v2", &[at + G, G, PORTABLE]);
    for twice in [[at, G + 1, PORTABLE], [at + 2 * G - 1, 1, PORTABLE], [at + G, G, PORTABLE]] {
        cuda.refuses("cuMemHostRegister_v2", &twice, ALREADY_REGISTERED);
    }
    // Copies of it are asynchronous, and copies of the bytes beside it are not.
    let (base, stream) = (cuda.mapped(G), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    cuda.ok("cuMemcpyHtoDAsync_v2", &[base, at + G, G, stream]);
    cuda.answers("cuStreamQuery", &[stream], NOT_READY);
    cuda.ok("cuStreamSynchronize", &[stream]);
    cuda.ok("cuMemcpyDtoHAsync_v2", &[at, base, G, stream]);
    cuda.ok("cuStreamQuery", &[stream]);
    // It is freed by its own call alone, once.
    cuda.refuses("cuMemFreeHost", &[at + G], INVALID_VALUE);
    cuda.ok("cuMemHostUnregister", &[at + G]);
    cuda.refuses("cuMemHostUnregister", &[at + G], NOT_REGISTERED);
    let allocated = host(cuda, G, 0);
    cuda.refuses("cuMemHostUnregister", &[allocated], NOT_REGISTERED);
    cuda.ok("cuMemFreeHost", &[allocated]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(base, G);
    assert_eq!(cuda.counts().pinned, 0);
}

fn a_copy_stream_that_fails_says_so(_: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    assert_eq!(answered(&backend.copy_stream(DEVICE).unwrap_err()), ("cuStreamCreate", 2));
    backend.copy_stream(DEVICE).unwrap();
}

fn a_copy_that_fails_says_so(_: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    let (region, pinned) = (region(&backend, DEVICE), backend.pin(SIZE).unwrap());
    let mut copy_stream = backend.copy_stream(DEVICE).unwrap();
    // SAFETY: both sides are of this size and unused until the copy stream has finished.
    let error =
        unsafe { copy_stream.copy_to_host(pinned.start().as_ptr(), region.address(), SIZE) }.unwrap_err();
    assert_eq!(answered(&error), ("cuMemcpyDtoHAsync_v2", 1));
    copy_stream.finish().unwrap();
}

fn giving_back_that_fails(cuda: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    let pinned = backend.pin(SIZE).unwrap();
    let at = pinned.start().as_ptr().expose_provenance();
    drop(pinned);
    let error = backend.drop_log().take_last().unwrap();
    assert_eq!((answered(&error), backend.drop_log().count()), (("cuMemHostUnregister", 1), 1));
    // The driver still has the memory, and so has the process.
    cuda.enter(0);
    set(at, SIZE.0 as usize, 1);
    cuda.ok("cuMemHostUnregister", &[at]);
}

/// Less than a large page is not registered.
fn little_memory_is_the_drivers_own(cuda: &Cuda) {
    let (backend, size) = (CudaBackend::open().unwrap(), Bytes::mib(1));
    let pinned = backend.pin(size).unwrap();
    let at = pinned.start().as_ptr().expose_provenance();
    assert_eq!((pinned.size(), cuda.counts().pinned), (size, 1));
    set(at, size.0 as usize, 1);
    drop(pinned);
    let error = backend.drop_log().take_last().unwrap();
    assert_eq!((answered(&error), error.operation()), (("cuMemFreeHost", 1), Operation::FreePinned));
    assert!(error.to_string().contains("1 MiB of the host"), "{error}");
    cuda.enter(0);
    cuda.ok("cuMemFreeHost", &[at]);
}

fn a_list_that_leaves_its_memory(cuda: &Cuda) {
    let backend = CudaBackend::open().unwrap();
    let mut region = region(&backend, DEVICE);
    let (pinned, copy_stream) = (backend.pin(SIZE).unwrap(), backend.copy_stream(DEVICE).unwrap());
    let nowhere = region.address() + SIZE;
    let bytes: Vec<u8> = [nowhere.0, 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
    region.write(Bytes::ZERO, &bytes).unwrap();
    // SAFETY: the second node is reserved and not mapped, on purpose: the process ends after this case.
    let walk = |head, most| unsafe { backend.walk_list(DEVICE, head, most) };
    assert_eq!(walk(region.address(), 1).unwrap(), Walked { nodes: 1, sum: 5 });
    let unaligned = walk(region.address() + Bytes(4), 1);
    assert!(
        matches!(unaligned.as_ref().map_err(Error::detail), Err(Detail::Unaligned { what: "address", .. })),
        "{unaligned:?}"
    );
    assert_eq!(walk(Address(0), 9).unwrap(), Walked::default());
    let error = walk(region.address(), 2).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::DeviceLost { .. }) && error.operation() == Operation::WalkList,
        "{error}"
    );
    // Page-locked memory and copy streams that were freed with the context are dropped without an error.
    assert!(matches!(
        backend.copy_stream(DEVICE).as_ref().map_err(Error::detail),
        Err(Detail::DeviceLost { .. })
    ));
    drop((pinned, copy_stream));
    assert_eq!((backend.drop_log().count(), cuda.counts().pinned), (0, 0));
    // The word for the result could not be freed.
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
}
