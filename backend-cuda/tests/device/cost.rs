//! The cost that the backend adds to the driver's own calls: the same cycle by both, alternating, with medians compared.
#![allow(unsafe_code)]

use crate::support::*;
use cudarc::driver::sys;
use gpu_vmm_core::{Bytes, Reservation};
use gpu_vmm_cuda::{CudaBackend, cudarc};
use std::time::{Duration, Instant};

const ROUNDS: usize = 400;

/// Create, reserve, map, set access, unmap, release and free, by the backend.
fn by_backend(backend: &CudaBackend, size: Bytes) {
    let handle = create(backend, size);
    let mut reservation = reserve(backend, size, None);
    map(&mut reservation, Bytes::ZERO, &handle);
    unmap(&mut reservation, Bytes::ZERO, size);
}

/// `CUmemAllocationProp` for memory of device 0, and `CUmemAccessDesc` for its read and write access, as words: the names of the
/// fields differ with the version of the bindings.
#[repr(C, align(8))]
struct Words<const N: usize>([u32; N]);

/// The same cycle by direct driver calls.
fn by_driver(size: Bytes) {
    static PROP: Words<8> = Words([1, 0, 1, 0, 0, 0, 0, 0]);
    static DESC: Words<3> = Words([1, 0, 3]);
    let size = size.0 as usize;
    let (mut handle, mut base) = (0, 0);
    // SAFETY: the words are the structures, in the documented order.
    let answers = unsafe {
        [
            sys::cuMemCreate(&raw mut handle, size, (&raw const PROP).cast(), 0),
            sys::cuMemAddressReserve(&raw mut base, size, size, 0, 0),
            sys::cuMemMap(base, size, 0, handle, 0),
            sys::cuMemSetAccess(base, size, (&raw const DESC).cast(), 1),
            sys::cuMemUnmap(base, size),
            sys::cuMemRelease(handle),
            sys::cuMemAddressFree(base, size),
        ]
    };
    assert!(answers.iter().all(|answer| *answer == sys::cudaError_enum::CUDA_SUCCESS), "{answers:?}");
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub(crate) fn calls_cost_what_the_drivers_own_cost(backend: &CudaBackend) {
    let size = granules(backend, 1);
    free(backend);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + 20 {
        let (by_ours, by_theirs) = if round % 2 == 0 {
            let first = timed(|| by_backend(backend, size));
            (first, timed(|| by_driver(size)))
        } else {
            let first = timed(|| by_driver(size));
            (timed(|| by_backend(backend, size)), first)
        };
        if round >= 20 {
            ours.push(by_ours);
            theirs.push(by_theirs);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("a cycle of {size}: {ours:?} by the backend, {theirs:?} by the driver alone");
    // A median of hundreds of rounds is accurate to a few per cent; the test looks for a lock, a context or a log.
    assert!(ours < theirs + theirs / 10, "{ours:?} and {theirs:?}");
    assert!(reserve(backend, size, None).range().size == size);
}
