//! Multicast objects, by raw calls: the fake driver's checks, and that a store reaches all members.

use crate::child::{Case, case, with};
use crate::rig::{
    BLOCK, Cuda, G, ILLEGAL_ADDRESS, ILLEGAL_STATE, INVALID_DEVICE, INVALID_VALUE, M, NOT_PERMITTED,
    NOT_SUPPORTED, READ_WRITE,
};

pub(crate) const CASES: &[Case] = &[
    case("a_store_reaches_the_memory_of_all_devices", a_store_reaches_all),
    case("an_object_takes_stores_of_kernels_alone", an_object_takes_stores_alone),
    case("a_store_where_nothing_is_bound_faults", a_store_where_nothing_is_bound_faults),
    case("objects_have_to_be_described_rightly", objects_have_to_be_described_rightly),
    case("all_devices_are_added_first", all_devices_are_added_first),
    case("bindings_are_checked", bindings_are_checked),
    case("what_is_bound_by_address_is_checked", what_is_bound_by_address_is_checked),
    case("an_object_is_mapped_whole_and_bound_before_it_is_used", an_object_is_mapped_whole_and_bound_before),
    case("what_goes_back_goes_in_order", what_goes_back_goes_in_order),
    case("an_import_is_the_same_object", an_import_is_the_same_object),
    with(&[("MULTICAST", "0")], "devices_without_it_have_no_objects", devices_without_it_have_no_objects),
];

/// `CUmulticastObjectProp`: devices, size, handle types, flags.
fn properties(devices: u64, size: usize, handle_types: u64) -> [u64; 4] {
    [devices, size as u64, handle_types, 0]
}

fn create(cuda: &Cuda, devices: u64, size: usize, handle_types: u64) -> usize {
    cuda.get("cuMulticastCreate", &[properties(devices, size, handle_types).as_ptr().addr()])
}

/// Creates an object of both devices.
fn of_both(cuda: &Cuda, size: usize) -> usize {
    let object = create(cuda, 2, size, 0);
    for device in 0..2 {
        cuda.ok("cuMulticastAddDevice", &[object, device]);
    }
    object
}

/// Creates memory of a device, and binds all of it at offset 0.
fn bound(cuda: &Cuda, object: usize, device: u32, size: usize) -> usize {
    let memory = cuda.create(device, size);
    cuda.ok("cuMulticastBindMem", &[object, 0, memory, 0, size, 0]);
    memory
}

fn unbind(cuda: &Cuda, object: usize, device: usize, offset: usize, size: usize) {
    cuda.ok("cuMulticastUnbind", &[object, device, offset, size]);
}

/// Unbinds the whole memory of both devices, and releases all.
fn give_back(cuda: &Cuda, object: usize, memory: [usize; 2], size: usize) {
    for (device, memory) in memory.into_iter().enumerate() {
        unbind(cuda, object, device, 0, size);
        cuda.release(memory);
    }
    cuda.release(object);
}

fn a_store_reaches_all(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let object = of_both(cuda, BLOCK);
    let memory = [bound(cuda, object, 0, BLOCK), cuda.create(1, BLOCK)];
    // The second device's memory in two pieces, in the opposite order.
    let half = BLOCK / 2;
    cuda.ok("cuMulticastBindMem", &[object, 0, memory[1], half, half, 0]);
    cuda.ok("cuMulticastBindMem", &[object, half, memory[1], 0, half, 0]);
    let base = cuda.reserve(3 * BLOCK);
    cuda.map(base, BLOCK, object);
    cuda.grant(base, BLOCK, 0, READ_WRITE);
    let own = [base + BLOCK, base + 2 * BLOCK];
    for (at, memory) in own.into_iter().zip(memory) {
        cuda.map(at, BLOCK, memory);
        cuda.grant(at, BLOCK, 0, READ_WRITE);
    }
    let (write, count) = cuda.kernels();
    cuda.launch(write, 0, &[base as u64, (BLOCK / 8) as u64, 7]);
    let counters = cuda.get("cuMemAlloc_v2", &[16]);
    cuda.ok("cuMemsetD8_v2", &[counters, 0, 16]);
    cuda.launch(count, 0, &[own[0] as u64, (BLOCK / 8) as u64, 7, counters as u64]);
    // The pattern's second half equals the pattern of a seed `words` later.
    let words = (half / 8) as u64;
    cuda.launch(count, 0, &[own[1] as u64, words, 7 + words, counters as u64]);
    cuda.launch(count, 0, &[(own[1] + half) as u64, words, 7, counters as u64]);
    let mut counted = [u64::MAX; 2];
    cuda.ok("cuMemcpyDtoH_v2", &[(&raw mut counted).addr(), counters, 16]);
    assert_eq!(counted, [2 * (BLOCK / 8) as u64, 0], "all words of both are checked, and none is wrong");
    cuda.ok("cuMemFree_v2", &[counters]);
    cuda.take_away(base, 3 * BLOCK);
    for offset in [0, half] {
        unbind(cuda, object, 1, offset, half);
    }
    unbind(cuda, object, 0, 0, BLOCK);
    cuda.release_all(&memory);
    cuda.release(object);
}

fn an_object_takes_stores_alone(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let object = of_both(cuda, BLOCK);
    let memory = [0, 1].map(|device| bound(cuda, object, device, BLOCK));
    let base = cuda.reserve(BLOCK);
    cuda.map(base, BLOCK, object);
    cuda.grant(base, BLOCK, 0, READ_WRITE);
    // The driver's own copies and fills are refused.
    let mut word = 0u64;
    cuda.answers("cuMemsetD8_v2", &[base, 1, 8], INVALID_VALUE);
    cuda.answers("cuMemcpyDtoH_v2", &[(&raw mut word).addr(), base, 8], INVALID_VALUE);
    cuda.answers("cuMemcpyHtoD_v2", &[base, (&raw const word).addr(), 8], INVALID_VALUE);
    // A load is a fault.
    let (_, count) = cuda.kernels();
    cuda.launch(count, 0, &[base as u64, 1, 7, base as u64]);
    cuda.answers("cuCtxSynchronize", &[], ILLEGAL_ADDRESS);
    cuda.take_away(base, BLOCK);
    give_back(cuda, object, memory, BLOCK);
}

fn a_store_where_nothing_is_bound_faults(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let object = of_both(cuda, BLOCK);
    let whole = bound(cuda, object, 0, BLOCK);
    let part = bound(cuda, object, 1, M);
    let base = cuda.reserve(BLOCK);
    cuda.map(base, BLOCK, object);
    cuda.grant(base, BLOCK, 0, READ_WRITE);
    let (write, _) = cuda.kernels();
    cuda.launch(write, 0, &[base as u64, (M / 8) as u64, 7]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.launch(write, 0, &[base as u64, (M / 8 + 1) as u64, 7]);
    cuda.answers("cuCtxSynchronize", &[], ILLEGAL_ADDRESS);
    cuda.take_away(base, BLOCK);
    unbind(cuda, object, 0, 0, BLOCK);
    unbind(cuda, object, 1, 0, M);
    cuda.release_all(&[whole, part, object]);
}

fn objects_have_to_be_described_rightly(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    let flags = [2, M as u64, 0, 1];
    for wanted in [
        properties(0, M, 1),
        properties(3, M, 1),
        properties(2, G, 1),
        properties(2, M + 1, 1),
        properties(2, 0, 1),
        properties(2, M, 2),
        flags,
    ] {
        cuda.refuses("cuMulticastCreate", &[out, wanted.as_ptr().addr()], INVALID_VALUE);
    }
    let wanted = properties(2, M, 1);
    cuda.refuses("cuMulticastCreate", &[0, wanted.as_ptr().addr()], INVALID_VALUE);
    cuda.refuses("cuMulticastCreate", &[out, 0], INVALID_VALUE);
    let fabric = properties(2, M, 8);
    cuda.answers("cuMulticastCreate", &[out, fabric.as_ptr().addr()], NOT_PERMITTED);
    // The size in a query of the granularity need not be a multiple of it.
    let any = properties(2, G, 1);
    assert_eq!(cuda.get("cuMulticastGetGranularity", &[any.as_ptr().addr(), 0]), M);
    let recommended = cuda.get("cuMulticastGetGranularity", &[any.as_ptr().addr(), 1]);
    assert!(recommended > M && recommended.is_multiple_of(M));
    cuda.refuses("cuMulticastGetGranularity", &[out, any.as_ptr().addr(), 2], INVALID_VALUE);
    let none = properties(2, 0, 1);
    cuda.refuses("cuMulticastGetGranularity", &[out, none.as_ptr().addr(), 0], INVALID_VALUE);
}

fn all_devices_are_added_first(cuda: &Cuda) {
    cuda.init();
    let object = create(cuda, 2, M, 0);
    let (memory, base) = (cuda.create(0, M), cuda.reserve(BLOCK));
    cuda.ok("cuMulticastAddDevice", &[object, 0]);
    cuda.refuses("cuMulticastAddDevice", &[object, 0], INVALID_VALUE);
    cuda.refuses("cuMulticastAddDevice", &[object, 2], INVALID_DEVICE);
    cuda.refuses("cuMulticastAddDevice", &[memory, 1], INVALID_VALUE);
    // NVIDIA's driver waits here.
    cuda.refuses("cuMulticastBindMem", &[object, 0, memory, 0, M, 0], ILLEGAL_STATE);
    cuda.refuses("cuMemMap", &[base, M, 0, object, 0], ILLEGAL_STATE);
    cuda.ok("cuMulticastAddDevice", &[object, 1]);
    cuda.ok("cuMulticastBindMem", &[object, 0, memory, 0, M, 0]);
    unbind(cuda, object, 0, 0, M);
    // A team of one device is complete with one.
    let alone = create(cuda, 1, M, 0);
    cuda.ok("cuMulticastAddDevice", &[alone, 1]);
    cuda.refuses("cuMulticastAddDevice", &[alone, 0], INVALID_VALUE);
    cuda.refuses("cuMulticastBindMem", &[alone, 0, memory, 0, M, 0], INVALID_VALUE);
    cuda.release_all(&[object, alone, memory]);
    cuda.free(base, BLOCK);
}

fn bindings_are_checked(cuda: &Cuda) {
    cuda.init();
    let object = of_both(cuda, 2 * M);
    let memory = cuda.create(0, 2 * M);
    let bind = |numbers: [usize; 4]| {
        let [offset, from, size, flags] = numbers;
        [object, offset, memory, from, size, flags]
    };
    // Offset, the memory's offset, size, flags.
    for numbers in [
        [G, 0, M, 0],
        [0, G, M, 0],
        [0, 0, G, 0],
        [0, 0, 0, 0],
        [M, 0, 2 * M, 0],
        [0, M, 2 * M, 0],
        [2 * M, 0, M, 0],
        [0, 2 * M, M, 0],
        [usize::MAX - M + 1, 0, M, 0],
        [0, 0, M, 1],
    ] {
        cuda.refuses("cuMulticastBindMem", &bind(numbers), INVALID_VALUE);
    }
    cuda.ok("cuMulticastBindMem", &bind([M, 0, M, 0]));
    cuda.refuses("cuMulticastBindMem", &bind([0, 0, 2 * M, 0]), INVALID_VALUE);
    cuda.refuses("cuMulticastBindMem", &bind([M, M, M, 0]), INVALID_VALUE);
    cuda.ok("cuMulticastBindMem", &bind([0, M, M, 0]));
    cuda.refuses("cuMulticastBindMem", &[memory, 0, memory, 0, M, 0], INVALID_VALUE);
    cuda.refuses("cuMulticastBindMem", &[object, 0, object, 0, M, 0], INVALID_VALUE);
    cuda.refuses("cuMulticastBindMem", &[object, 0, 5, 0, M, 0], INVALID_VALUE);
    for [device, offset, size] in [[0, 0, 2 * M], [0, M, G], [1, 0, M], [0, G, M]] {
        cuda.refuses("cuMulticastUnbind", &[object, device, offset, size], INVALID_VALUE);
    }
    cuda.refuses("cuMulticastUnbind", &[object, 2, 0, M], INVALID_DEVICE);
    unbind(cuda, object, 0, 0, M);
    unbind(cuda, object, 0, M, M);
    cuda.refuses("cuMulticastUnbind", &[object, 0, 0, M], INVALID_VALUE);
    // An exportable object requires exportable memory.
    let shared = create(cuda, 1, M, 1);
    cuda.ok("cuMulticastAddDevice", &[shared, 0]);
    cuda.refuses("cuMulticastBindMem", &[shared, 0, memory, 0, M, 0], INVALID_VALUE);
    let shareable = cuda.create_shareable(M);
    cuda.ok("cuMulticastBindMem", &[shared, 0, shareable, 0, M, 0]);
    unbind(cuda, shared, 0, 0, M);
    cuda.release_all(&[object, memory, shared, shareable]);
}

fn what_is_bound_by_address_is_checked(cuda: &Cuda) {
    cuda.init();
    let object = of_both(cuda, 2 * M);
    let base = cuda.mapped(2 * M);
    let bind = |offset, at, size, flags| [object, offset, at, size, flags];
    cuda.refuses("cuMulticastBindAddr", &bind(0, base + 2 * M, M, 0), INVALID_VALUE);
    cuda.refuses("cuMulticastBindAddr", &bind(0, base + M, 2 * M, 0), INVALID_VALUE);
    cuda.refuses("cuMulticastBindAddr", &bind(0, base + G, M, 0), INVALID_VALUE);
    cuda.refuses("cuMulticastBindAddr", &bind(0, base, M, 1), INVALID_VALUE);
    cuda.ok("cuMulticastBindAddr", &bind(0, base + M, M, 0));
    unbind(cuda, object, 0, 0, M);
    cuda.take_away(base, 2 * M);
    cuda.release(object);
}

fn an_object_is_mapped_whole_and_bound_before(cuda: &Cuda) {
    cuda.init();
    let object = of_both(cuda, 2 * M);
    let base = cuda.reserve(BLOCK);
    cuda.refuses("cuMemMap", &[base, M, 0, object, 0], NOT_SUPPORTED);
    cuda.refuses("cuMemMap", &[base + G, 2 * M, 0, object, 0], INVALID_VALUE);
    cuda.map(base, 2 * M, object);
    let first = bound(cuda, object, 0, 2 * M);
    let description = crate::rig::description(0, READ_WRITE);
    let grant = [base, 2 * M, description.as_ptr().addr(), 1];
    // The second device has bound nothing: NVIDIA's driver waits here.
    cuda.refuses("cuMemSetAccess", &grant, ILLEGAL_STATE);
    let second = bound(cuda, object, 1, 2 * M);
    cuda.ok("cuMemSetAccess", &grant);
    cuda.unmap(base, 2 * M);
    cuda.free(base, BLOCK);
    give_back(cuda, object, [first, second], 2 * M);
    // A device outside of the team gets no access.
    let alone = create(cuda, 1, M, 0);
    cuda.ok("cuMulticastAddDevice", &[alone, 1]);
    let memory = bound(cuda, alone, 1, M);
    let base = cuda.reserve(M);
    cuda.map(base, M, alone);
    cuda.refuses("cuMemSetAccess", &[base, M, description.as_ptr().addr(), 1], INVALID_DEVICE);
    cuda.take_away(base, M);
    unbind(cuda, alone, 1, 0, M);
    cuda.release_all(&[memory, alone]);
}

fn what_goes_back_goes_in_order(cuda: &Cuda) {
    cuda.init();
    let object = of_both(cuda, M);
    let memory = [0, 1].map(|device| bound(cuda, object, device, M));
    let base = cuda.reserve(M);
    cuda.map(base, M, object);
    // The object is still mapped.
    cuda.accepts("cuMulticastUnbind", &[object, 0, 0, M]);
    // The second device's memory is still bound.
    cuda.accepts("cuMemRelease", &[memory[1]]);
    cuda.release(memory[0]);
    cuda.unmap(base, M);
    assert_eq!(cuda.counts().bindings, 1);
    cuda.accepts("cuMemRelease", &[object]);
    assert_eq!(cuda.counts().bindings, 0);
    // Released while it is mapped.
    let object = of_both(cuda, M);
    cuda.map(base, M, object);
    cuda.accepts("cuMemRelease", &[object]);
    cuda.take_away(base, M);
}

fn an_import_is_the_same_object(cuda: &Cuda) {
    cuda.init();
    let unshared = create(cuda, 1, M, 0);
    let mut fd = -1i32;
    let fd = (&raw mut fd).addr();
    cuda.refuses("cuMemExportToShareableHandle", &[fd, unshared, 1, 0], INVALID_VALUE);
    let object = create(cuda, 2, M, 1);
    let descriptor = cuda.export(object);
    let import = cuda.get("cuMemImportFromShareableHandle", &[descriptor, 1]);
    // SAFETY: the descriptor is this case's own.
    unsafe { libc::close(descriptor as i32) };
    cuda.refuses("cuMemExportToShareableHandle", &[fd, import, 1, 0], INVALID_VALUE);
    assert_ne!(import, object);
    // Each adds one.
    cuda.ok("cuMulticastAddDevice", &[object, 0]);
    cuda.ok("cuMulticastAddDevice", &[import, 1]);
    cuda.refuses("cuMulticastAddDevice", &[import, 0], INVALID_VALUE);
    let memory = cuda.create_shareable_on(1, M);
    cuda.ok("cuMulticastBindMem", &[import, 0, memory, 0, M, 0]);
    // It exists as long as it has a handle.
    cuda.release(object);
    unbind(cuda, import, 1, 0, M);
    cuda.release_all(&[memory, import, unshared]);
}

fn devices_without_it_have_no_objects(cuda: &Cuda) {
    cuda.init();
    assert_eq!(cuda.get("cuDeviceGetAttribute", &[132, 0]), 0);
    let mut out = 0usize;
    let wanted = properties(2, M, 0);
    for function in ["cuMulticastCreate", "cuMulticastGetGranularity"] {
        cuda.refuses(function, &[(&raw mut out).addr(), wanted.as_ptr().addr(), 0], NOT_SUPPORTED);
    }
}
