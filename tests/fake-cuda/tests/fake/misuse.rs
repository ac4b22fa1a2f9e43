//! Misuse that the fake driver counts, so that tests of gpu-vmm fail: wrong arguments, memory that is unmapped under work, host memory
//! that is freed under a copy. The rules of `gpu-vmm conformance` show what the calls do.

use crate::rig::{
    BLOCK, Cuda, G, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_VALUE, READ, description, properties,
};
use gpu_vmm_test_settings::cases;

const NON_BLOCKING: usize = 1;

cases! {
    wrong_arguments_are_refused;
    unmapping_under_work_faults [WORK_DELAY = "100ms"];
    freeing_host_memory_under_a_copy_counts [WORK_DELAY = "100ms"];
}

fn wrong_arguments_are_refused(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    // Size, alignment, hint, flags.
    for arguments in [[0, 0, 0, 0], [G, 3, 0, 0], [G, 0, 0x1234, 0], [G, 0, 0, 1]] {
        let all: Vec<usize> = [out].into_iter().chain(arguments).collect();
        cuda.refuses("cuMemAddressReserve", &all, INVALID_VALUE);
    }
    let right = properties(0, 0);
    for (size, flags) in [(0, 0), (G + 1, 0), (G, 1)] {
        cuda.refuses("cuMemCreate", &[out, size, right.as_ptr().addr(), flags], INVALID_VALUE);
    }
    cuda.refuses("cuMemCreate", &[out, G, properties(9, 0).as_ptr().addr(), 0], INVALID_DEVICE);
    cuda.refuses("cuMemCreate", &[out, G, 0, 0], INVALID_VALUE);
    cuda.refuses("cuMemCreate", &[0, G, right.as_ptr().addr(), 0], INVALID_VALUE);
    // Type, handle types of Windows, location, compression, reserved fields.
    for (place, value) in [(0, 9), (1, 2), (2, 9), (2, 0), (6, 2), (7, 1)] {
        let mut wrong = right;
        wrong[place] = value;
        cuda.refuses("cuMemCreate", &[out, G, wrong.as_ptr().addr(), 0], INVALID_VALUE);
    }
    let base = cuda.mapped(BLOCK);
    for (device, access, code) in [(0, 2, INVALID_VALUE), (9, 3, INVALID_DEVICE)] {
        let wrong = description(device, access);
        cuda.refuses("cuMemSetAccess", &[base, BLOCK, wrong.as_ptr().addr(), 1], code);
    }
    let right = description(0, READ);
    cuda.refuses("cuMemSetAccess", &[base, BLOCK, right.as_ptr().addr(), 0], INVALID_VALUE);
    cuda.refuses("cuMemSetAccess", &[base, G, right.as_ptr().addr(), 1], INVALID_VALUE);
    assert_eq!(cuda.access(base, 0), 3);
    cuda.take_away(base, BLOCK);
}

fn unmapping_under_work_faults(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, stream) = (cuda.mapped(BLOCK), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    cuda.ok("cuMemsetD8Async", &[base, 1, BLOCK, stream]);
    cuda.take_away(base, BLOCK);
    cuda.answers("cuStreamSynchronize", &[stream], ILLEGAL_ADDRESS);
    cuda.answers("cuStreamDestroy_v2", &[stream], ILLEGAL_ADDRESS);
}

fn freeing_host_memory_under_a_copy_counts(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, at) = (cuda.mapped(G), cuda.get("cuMemHostAlloc", &[G, 0]));
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    cuda.ok("cuMemcpyHtoDAsync_v2", &[base, at, G, stream]);
    cuda.accepts("cuMemFreeHost", &[at]);
    cuda.ok("cuStreamQuery", &[stream]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(base, G);
}
