//! Contexts, streams, kernels, faults, captures.

use crate::child::{Case, case, with};
use crate::rig::{
    BLOCK, Cuda, G, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, READ,
};
use std::time::{Duration, Instant};

/// Enough time to look while work runs.
const SLOW: &[(&str, &str)] = &[("WORK_DELAY", "100ms")];

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: usize = 1;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURE_INVALIDATED: u32 = 901;
const CAPTURE_IMPLICIT: u32 = 906;

pub(crate) const CASES: &[Case] = &[
    case("contexts_are_the_threads", contexts_are_the_threads),
    case("a_primary_context_ends_with_its_last_reference", a_primary_context_ends_with_its_last_reference),
    with(SLOW, "work_is_done_beside_the_program", work_is_done_beside_the_program),
    with(SLOW, "the_default_stream_and_blocking_ones_wait", the_default_stream_and_blocking_ones_wait),
    with(SLOW, "events_are_places_in_streams", events_are_places_in_streams),
    case("kernels_write_and_count", kernels_write_and_count),
    case("a_kernels_fault_ends_its_context", a_kernels_fault_ends_its_context),
    with(SLOW, "what_is_unmapped_under_work_is_a_fault", what_is_unmapped_under_work_is_a_fault),
    case("modules_are_looked_at", modules_are_looked_at),
    case("a_capture_is_spoilt_by_waiting", a_capture_is_spoilt_by_waiting),
    case("a_capture_keeps_what_could_reach_it_away", a_capture_keeps_what_could_reach_it_away),
];

fn current(cuda: &Cuda) -> usize {
    cuda.get("cuCtxGetCurrent", &[])
}

fn contexts_are_the_threads(cuda: &Cuda) {
    cuda.init();
    assert_eq!(current(cuda), 0);
    let first = cuda.get("cuDevicePrimaryCtxRetain", &[0]);
    assert_eq!(cuda.get("cuDevicePrimaryCtxRetain", &[0]), first);
    let own = cuda.get("cuCtxCreate_v2", &[0, 1]);
    assert_eq!(current(cuda), own);
    let mut device = -1i32;
    cuda.ok("cuCtxGetDevice", &[(&raw mut device).addr()]);
    assert_eq!(device, 1);
    cuda.ok("cuCtxPushCurrent_v2", &[first]);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(current(cuda), 0));
    });
    assert_eq!(cuda.get("cuCtxPopCurrent_v2", &[]), first);
    cuda.ok("cuCtxDestroy_v2", &[own]);
    assert_eq!(current(cuda), 0);
    cuda.refuses("cuCtxPushCurrent_v2", &[own], 709);
    let mut popped = 0usize;
    cuda.refuses("cuCtxPopCurrent_v2", &[(&raw mut popped).addr()], INVALID_CONTEXT);
    cuda.refuses("cuCtxDestroy_v2", &[first], INVALID_CONTEXT);
}

fn a_primary_context_ends_with_its_last_reference(cuda: &Cuda) {
    cuda.init();
    let is_active = || {
        let (mut flags, mut active) = (0u32, -1i32);
        cuda.ok("cuDevicePrimaryCtxGetState", &[0, (&raw mut flags).addr(), (&raw mut active).addr()]);
        active
    };
    assert_eq!(is_active(), 0);
    let context = cuda.enter(0);
    cuda.enter(0);
    cuda.get("cuMemAlloc_v2", &[G]);
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
    assert_eq!((is_active(), cuda.counts().plain), (1, 1));
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
    // The context's objects are destroyed with it.
    assert_eq!((is_active(), cuda.counts().plain, cuda.counts().contexts), (0, 0, 0));
    cuda.refuses("cuCtxSynchronize", &[], 709);
    cuda.refuses("cuDevicePrimaryCtxRelease_v2", &[0], INVALID_CONTEXT);
    assert_eq!(current(cuda), context);
}

fn work_is_done_beside_the_program(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, stream) = (cuda.mapped(BLOCK), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    let began = Instant::now();
    cuda.ok("cuMemsetD8Async", &[base, 7, BLOCK, stream]);
    assert!(began.elapsed() < Duration::from_millis(80), "queuing has waited");
    cuda.answers("cuStreamQuery", &[stream], NOT_READY);
    cuda.ok("cuStreamSynchronize", &[stream]);
    assert!(began.elapsed() >= Duration::from_millis(100), "waiting has not");
    cuda.ok("cuStreamQuery", &[stream]);
    let mut last = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[last.as_mut_ptr().addr(), base + BLOCK - 1, 1]);
    assert_eq!(last, [7]);
    cuda.ok("cuMemsetD8Async", &[base, 8, BLOCK, stream]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.refuses("cuStreamQuery", &[stream], INVALID_HANDLE);
    cuda.take_away(base, BLOCK);
}

fn the_default_stream_and_blocking_ones_wait(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let base = cuda.mapped(BLOCK);
    let (blocking, other) = (cuda.get("cuStreamCreate", &[0]), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    cuda.ok("cuMemsetD8Async", &[base, 1, G, blocking]);
    cuda.ok("cuMemsetD8_v2", &[base, 2, G]);
    cuda.ok("cuMemsetD8Async", &[base, 3, G, blocking]);
    cuda.ok("cuStreamSynchronize", &[0]);
    // The default stream's work has waited for the first, and the second waits for it.
    cuda.answers("cuStreamQuery", &[blocking], NOT_READY);
    cuda.ok("cuStreamSynchronize", &[blocking]);
    let mut byte = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), base, 1]);
    assert_eq!(byte, [3]);
    // The other device's stream is independent of both.
    cuda.ok("cuMemsetD8_v2", &[base, 4, G]);
    cuda.ok("cuStreamSynchronize", &[other]);
    cuda.answers("cuStreamQuery", &[0], NOT_READY);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.ok("cuStreamDestroy_v2", &[blocking]);
    cuda.ok("cuStreamDestroy_v2", &[other]);
    cuda.take_away(base, BLOCK);
}

fn events_are_places_in_streams(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let base = cuda.mapped(G);
    let [first, second] = [0; 2].map(|_| cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    let [start, end] = [0; 2].map(|_| cuda.get("cuEventCreate", &[0]));
    cuda.ok("cuEventRecord", &[start, first]);
    cuda.ok("cuMemsetD8Async", &[base, 1, G, first]);
    cuda.ok("cuEventRecord", &[end, first]);
    cuda.answers("cuEventQuery", &[end], NOT_READY);
    cuda.ok("cuStreamWaitEvent", &[second, end, 0]);
    cuda.ok("cuMemsetD8Async", &[base, 2, G, second]);
    cuda.ok("cuStreamSynchronize", &[second]);
    cuda.ok("cuEventQuery", &[end]);
    let mut time = 0f32;
    cuda.ok("cuEventElapsedTime", &[(&raw mut time).addr(), start, end]);
    assert!(time >= 100.0, "{time} ms");
    [start, end].iter().for_each(|event| cuda.ok("cuEventDestroy_v2", &[*event]));
    [first, second].iter().for_each(|stream| cuda.ok("cuStreamDestroy_v2", &[*stream]));
    cuda.take_away(base, G);
}

fn kernels_write_and_count(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (write, count) = cuda.kernels();
    let (base, counters) = (cuda.mapped(2 * G), cuda.get("cuMemAlloc_v2", &[16]));
    let words = (2 * G / 8) as u64;
    let wrong = |seed: u64| {
        let mut counted = [0u64; 2];
        cuda.ok("cuMemsetD8_v2", &[counters, 0, 16]);
        cuda.launch(count, 0, &[base as u64, words, seed, counters as u64]);
        cuda.ok("cuMemcpyDtoH_v2", &[(&raw mut counted).addr(), counters, 16]);
        let [looked_at, wrong] = counted;
        assert_eq!(looked_at, words);
        wrong
    };
    assert_eq!(wrong(1), words);
    cuda.launch(write, 0, &[base as u64, words, 1]);
    assert_eq!(wrong(1), 0);
    cuda.ok("cuMemsetD8_v2", &[base + G, 0xFF, 1]);
    assert_eq!(wrong(1), 1);
    cuda.ok("cuMemFree_v2", &[counters]);
    cuda.take_away(base, 2 * G);
}

fn a_kernels_fault_ends_its_context(cuda: &Cuda) {
    cuda.init();
    let context = cuda.enter(0);
    let (write, count) = cuda.kernels();
    let (base, words) = (cuda.mapped(G), (G / 8) as u64);
    cuda.grant(base, G, 0, READ);
    // Reading permitted memory is not a fault; zero words contain no error.
    cuda.launch(count, 0, &[base as u64, 0, 1, base as u64]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.launch(write, 0, &[base as u64, words, 1]);
    cuda.answers("cuCtxSynchronize", &[], ILLEGAL_ADDRESS);
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    cuda.answers("cuCtxSynchronize", &[], ILLEGAL_ADDRESS);
    cuda.answers("cuMemGetInfo_v2", &[out, out], ILLEGAL_ADDRESS);
    cuda.answers("cuMemAlloc_v2", &[out, G], ILLEGAL_ADDRESS);
    cuda.answers("cuMemcpyDtoH_v2", &[out, base, 1], ILLEGAL_ADDRESS);
    // The failed context can be left and entered, and its memory freed.
    assert_eq!(cuda.get("cuCtxPopCurrent_v2", &[]), context);
    cuda.ok("cuCtxPushCurrent_v2", &[context]);
    cuda.take_away(base, G);
    // The other device is not affected.
    cuda.enter(1);
    cuda.ok("cuCtxSynchronize", &[]);
}

fn what_is_unmapped_under_work_is_a_fault(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, stream) = (cuda.mapped(BLOCK), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    cuda.ok("cuMemsetD8Async", &[base, 1, BLOCK, stream]);
    cuda.take_away(base, BLOCK);
    cuda.answers("cuStreamSynchronize", &[stream], ILLEGAL_ADDRESS);
    cuda.answers("cuStreamDestroy_v2", &[stream], ILLEGAL_ADDRESS);
}

fn modules_are_looked_at(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let mut log = [0u8; 64];
    let (mut module, text) = (0usize, c".version 6.0\n.target sm_50\n");
    let (options, values) = ([5u32, 6], [log.as_mut_ptr().addr(), log.len()]);
    let lists = [options.as_ptr().addr(), values.as_ptr().addr()];
    let arguments = [(&raw mut module).addr(), text.as_ptr().addr(), 2, lists[0], lists[1]];
    cuda.answers("cuModuleLoadDataEx", &arguments, 218);
    let said = std::ffi::CStr::from_bytes_until_nul(&log).unwrap();
    assert_eq!(said, c"no .address_size 64");
    let compiled = c"\x7fELF";
    cuda.answers("cuModuleLoadData", &[(&raw mut module).addr(), compiled.as_ptr().addr()], 209);
    let (write, _) = cuda.kernels();
    // An empty grid, and the same kernel in another context.
    let parameters = [0usize; 3];
    let wrong = [write, 0, 1, 1, 32, 1, 1, 0, 0, parameters.as_ptr().addr(), 0];
    cuda.refuses("cuLaunchKernel", &wrong, INVALID_VALUE);
    cuda.enter(1);
    let foreign = [write, 1, 1, 1, 32, 1, 1, 0, 0, parameters.as_ptr().addr(), 0];
    cuda.refuses("cuLaunchKernel", &foreign, INVALID_HANDLE);
}

/// Begins a capture on a non-blocking stream.
fn capturing(cuda: &Cuda, mode: usize) -> usize {
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    cuda.ok("cuStreamBeginCapture_v2", &[stream, mode]);
    stream
}

fn state_of(cuda: &Cuda, stream: usize) -> u32 {
    let mut state = 9u32;
    cuda.ok("cuStreamIsCapturing", &[stream, (&raw mut state).addr()]);
    state
}

fn a_capture_is_spoilt_by_waiting(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, mut graph) = (cuda.mapped(G), 0usize);
    let out = (&raw mut graph).addr();
    cuda.ok("cuMemsetD8_v2", &[base, 1, G]);
    cuda.ok("cuCtxSynchronize", &[]);
    let stream = capturing(cuda, 2);
    cuda.ok("cuMemsetD8Async", &[base, 2, G, stream]);
    assert_eq!(state_of(cuda, stream), 1);
    cuda.ok("cuStreamEndCapture", &[stream, out]);
    cuda.ok("cuGraphDestroy", &[graph]);
    let mut byte = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), base, 1]);
    assert_eq!(byte, [1], "captured work is not executed");

    for wait in ["cuCtxSynchronize", "cuStreamSynchronize", "cuStreamQuery"] {
        cuda.ok("cuStreamBeginCapture_v2", &[stream, 2]);
        cuda.answers(wait, &[stream], CAPTURE_UNSUPPORTED);
        assert_eq!(state_of(cuda, stream), 2);
        cuda.answers("cuStreamEndCapture", &[stream, out], CAPTURE_INVALIDATED);
    }
    cuda.ok("cuCtxSynchronize", &[]);
    // The default stream would have to wait for a blocking stream.
    let blocking = cuda.get("cuStreamCreate", &[0]);
    cuda.ok("cuStreamBeginCapture_v2", &[blocking, 2]);
    cuda.answers("cuMemsetD8_v2", &[base, 3, G], CAPTURE_IMPLICIT);
    cuda.answers("cuStreamEndCapture", &[blocking, out], CAPTURE_INVALIDATED);
    [stream, blocking].iter().for_each(|stream| cuda.ok("cuStreamDestroy_v2", &[*stream]));
    cuda.take_away(base, G);
}

fn a_capture_keeps_what_could_reach_it_away(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (mut graph, mut plain, mut mode) = (0usize, 0usize, 2u32);
    let out = (&raw mut graph).addr();
    let allocate = [(&raw mut plain).addr(), G];
    let stream = capturing(cuda, 0);
    // Virtual memory calls work in every mode.
    let base = cuda.mapped(G);
    cuda.take_away(base, G);
    assert_eq!(state_of(cuda, stream), 1);
    cuda.answers("cuMemAlloc_v2", &allocate, CAPTURE_UNSUPPORTED);
    cuda.answers("cuStreamEndCapture", &[stream, out], CAPTURE_INVALIDATED);
    // A thread in relaxed mode may make the call, and so may all threads during a relaxed capture.
    cuda.ok("cuStreamBeginCapture_v2", &[stream, 0]);
    cuda.ok("cuThreadExchangeStreamCaptureMode", &[(&raw mut mode).addr()]);
    assert_eq!(mode, 0);
    cuda.ok("cuMemAlloc_v2", &allocate);
    cuda.ok("cuMemFree_v2", &[plain]);
    cuda.ok("cuThreadExchangeStreamCaptureMode", &[(&raw mut mode).addr()]);
    cuda.ok("cuStreamEndCapture", &[stream, out]);
    cuda.ok("cuGraphDestroy", &[graph]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
}
