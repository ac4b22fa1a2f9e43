//! Multicast objects, of which the stand-in keeps a record.

use crate::child::{Case, case};
use crate::rig::{BLOCK, Cuda, G, ILLEGAL_STATE, INVALID_VALUE, NOT_PERMITTED};

pub(crate) const CASES: &[Case] =
    &[case("an_objects_life", an_objects_life), case("calls_have_an_order", calls_have_an_order)];

/// `CUmulticastObjectProp`: devices, size, kinds of handle, flags.
fn properties(devices: u64, size: usize, handle_types: u64) -> [u64; 4] {
    [devices, size as u64, handle_types, 0]
}

fn an_objects_life(cuda: &Cuda) {
    cuda.init();
    let wanted = properties(2, BLOCK, 1);
    let granularity = cuda.get("cuMulticastGetGranularity", &[wanted.as_ptr().addr(), 0]);
    assert!(BLOCK.is_multiple_of(granularity));
    let object = cuda.get("cuMulticastCreate", &[wanted.as_ptr().addr()]);
    for device in 0..2 {
        cuda.ok("cuMulticastAddDevice", &[object, device]);
    }
    let memory = [cuda.create(0, BLOCK), cuda.create(1, BLOCK)];
    cuda.ok("cuMulticastBindMem", &[object, 0, memory[0], 0, BLOCK, 0]);
    let base = cuda.reserve(2 * BLOCK);
    cuda.map(base, BLOCK, memory[1]);
    cuda.ok("cuMulticastBindAddr", &[object, 0, base, BLOCK, 0]);
    cuda.map(base + BLOCK, BLOCK, object);
    cuda.grant(base + BLOCK, BLOCK, 0, 3);
    cuda.unmap(base, 2 * BLOCK);
    cuda.free(base, 2 * BLOCK);
    for (device, handle) in memory.into_iter().enumerate() {
        cuda.ok("cuMulticastUnbind", &[object, device, 0, BLOCK]);
        cuda.release(handle);
    }
    cuda.release(object);
}

fn calls_have_an_order(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let mut create = |wanted: [u64; 4], code| {
        cuda.refuses("cuMulticastCreate", &[(&raw mut out).addr(), wanted.as_ptr().addr()], code);
    };
    for wanted in [properties(0, G, 1), properties(3, G, 1), properties(2, G + 1, 1), properties(2, 0, 1)] {
        create(wanted, INVALID_VALUE);
    }
    let fabric = properties(2, G, 8);
    cuda.answers("cuMulticastCreate", &[(&raw mut out).addr(), fabric.as_ptr().addr()], NOT_PERMITTED);

    let object = cuda.get("cuMulticastCreate", &[properties(2, BLOCK, 1).as_ptr().addr()]);
    let memory = cuda.create(0, BLOCK);
    cuda.ok("cuMulticastAddDevice", &[object, 0]);
    cuda.refuses("cuMulticastAddDevice", &[object, 0], INVALID_VALUE);
    // Not all devices are added.
    cuda.refuses("cuMulticastBindMem", &[object, 0, memory, 0, BLOCK, 0], ILLEGAL_STATE);
    let base = cuda.reserve(BLOCK);
    cuda.refuses("cuMemMap", &[base, BLOCK, 0, object, 0], ILLEGAL_STATE);
    cuda.ok("cuMulticastAddDevice", &[object, 1]);
    // Offset, the memory's offset, size, flags.
    for [offset, from, size, flags] in
        [[4096, 0, G, 0], [0, 4096, G, 0], [0, 0, 4096, 0], [G, 0, BLOCK, 0], [0, G, BLOCK, 0], [0, 0, G, 1]]
    {
        cuda.refuses("cuMulticastBindMem", &[object, offset, memory, from, size, flags], INVALID_VALUE);
    }
    cuda.ok("cuMulticastBindMem", &[object, 0, memory, 0, G, 0]);
    cuda.refuses("cuMulticastBindMem", &[object, 0, memory, G, G, 0], INVALID_VALUE);
    cuda.refuses("cuMulticastUnbind", &[object, 0, 0, BLOCK], INVALID_VALUE);
    cuda.refuses("cuMulticastBindMem", &[memory, 0, memory, 0, G, 0], INVALID_VALUE);
    // Released with something bound.
    cuda.accepts("cuMemRelease", &[object]);
    cuda.release(memory);
    cuda.free(base, BLOCK);
}
