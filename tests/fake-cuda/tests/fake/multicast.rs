//! Multicast objects, by raw calls: the fake driver's checks. `team` shows what objects do.

use crate::rig::{
    BLOCK, Cuda, G, ILLEGAL_STATE, INVALID_DEVICE, INVALID_VALUE, M, NOT_PERMITTED, NOT_SUPPORTED, READ_WRITE,
};
use gpu_vmm_test_settings::cases;

cases! {
    objects_have_to_be_described_rightly;
    all_devices_are_added_first;
    bindings_are_checked;
    objects_are_bound_and_mapped_whole;
    what_goes_back_goes_in_order;
}

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

fn objects_are_bound_and_mapped_whole(cuda: &Cuda) {
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
