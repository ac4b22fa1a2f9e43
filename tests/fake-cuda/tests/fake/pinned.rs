//! gpu-vmm-cuda's page-locked memory and asynchronous copies.

use crate::rig::{Cuda, DEVICE, answered, open};
use gpu_vmm_core::{
    Address, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, ErrorKind, Operation, Region,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::{TestKit, Walked};
use std::time::{Duration, Instant};

cases! {
    a_copy_stream_copies_beside_the_program [WORK_DELAY = "100ms"];
    pinning_uses_the_existing_context;
    a_pin_that_fails_says_so [FAIL = "cuMemHostRegister_v2:1:801,cuMemHostAlloc:1:2"];
    what_cannot_be_registered_is_allocated [FAIL = "cuMemHostRegister_v2:1+:801"];
    a_copy_stream_that_fails_says_so [FAIL = "cuStreamCreate:1:2"];
    a_copy_that_fails_says_so [FAIL = "cuMemcpyDtoHAsync_v2:1:1"];
    failed_unpinning_is_logged [FAIL = "cuMemFreeHost:1:1,cuMemHostUnregister:1:1"];
    little_memory_is_the_drivers_own [FAIL = "cuMemFreeHost:1:1"];
    a_list_that_leaves_its_memory;
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

const SIZE: Bytes = Bytes::mib(2);

fn region(backend: &CudaBackend, device: DeviceId) -> Region<CudaBackend> {
    let mut region = Region::builder(backend).on(device).reserve(Bytes::mib(32)).build().unwrap();
    region.grow_to(SIZE).unwrap();
    region
}

fn a_copy_stream_copies_beside_the_program(cuda: &Cuda) {
    let backend = open();
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

fn pinning_uses_the_existing_context(cuda: &Cuda) {
    let backend = open();
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

fn a_pin_that_fails_says_so(_: &Cuda) {
    let backend = open();
    let error = backend.pin(SIZE).unwrap_err();
    assert_eq!(answered(&error), ("cuMemHostAlloc", 2));
    assert!(error.to_string().contains("the host is out of memory (requested 2 MiB"), "{error}");
    backend.pin(SIZE).unwrap();
}

fn what_cannot_be_registered_is_allocated(cuda: &Cuda) {
    let backend = open();
    let pinned = backend.pin(SIZE).unwrap();
    assert_eq!(cuda.counts().pinned, 1);
    // This call frees only memory that was allocated.
    cuda.enter(0);
    cuda.ok("cuMemFreeHost", &[pinned.start().as_ptr().expose_provenance()]);
    std::mem::forget(pinned);
}

fn a_copy_stream_that_fails_says_so(_: &Cuda) {
    let backend = open();
    assert_eq!(answered(&backend.copy_stream(DEVICE).unwrap_err()), ("cuStreamCreate", 2));
    backend.copy_stream(DEVICE).unwrap();
}

fn a_copy_that_fails_says_so(_: &Cuda) {
    let backend = open();
    let (region, pinned) = (region(&backend, DEVICE), backend.pin(SIZE).unwrap());
    let mut copy_stream = backend.copy_stream(DEVICE).unwrap();
    // SAFETY: both sides are of this size and unused until the copy stream has finished.
    let error =
        unsafe { copy_stream.copy_to_host(pinned.start().as_ptr(), region.address(), SIZE) }.unwrap_err();
    assert_eq!(answered(&error), ("cuMemcpyDtoHAsync_v2", 1));
    copy_stream.finish().unwrap();
}

fn failed_unpinning_is_logged(cuda: &Cuda) {
    let backend = open();
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
    let (backend, size) = (open(), Bytes::mib(1));
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
    let backend = open();
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
