//! Captures: which calls invalidate which of them, and the graphs that they create.

use crate::child::{Case, case, with};
use crate::rig::{Cuda, G, ILLEGAL_ADDRESS, INVALID_VALUE, NOT_READY};
use std::thread;

pub(crate) const CASES: &[Case] = &[
    case("each_call_spoils_what_was_measured", each_call_spoils_what_was_measured),
    case("the_default_stream_tells_of_blocking_captures", the_default_stream_tells_of_blocking_captures),
    case("a_graph_does_what_was_captured_at_each_launch", a_graph_does_what_was_captured_at_each_launch),
    case("a_launch_can_be_captured", a_launch_can_be_captured),
    case("unknown_graphs_are_refused", unknown_graphs_are_refused),
    with(&[("WORK_DELAY", "50ms")], "unmapping_under_a_graph_is_a_fault", unmapping_under_a_graph_is_a_fault),
    with(&[("WORK_DELAY", "50ms")], "contexts_wait_for_their_own_work", contexts_wait_for_their_own_work),
];

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const NON_BLOCKING: usize = 1;
const DISABLE_TIMING: usize = 2;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const IMPLICIT: u32 = 906;

/// Sets the thread's mode while `act` runs.
fn in_mode(cuda: &Cuda, mut mode: u32, act: impl FnOnce()) {
    let exchange = [(&raw mut mode).addr()];
    cuda.ok("cuThreadExchangeStreamCaptureMode", &exchange);
    act();
    cuda.ok("cuThreadExchangeStreamCaptureMode", &exchange);
}

/// Ends a capture, and returns the graph or the code.
#[track_caller]
fn end(cuda: &Cuda, stream: usize) -> Result<usize, u32> {
    let mut graph = 0usize;
    match cuda.call("cuStreamEndCapture", &[stream, (&raw mut graph).addr()]) {
        0 => Ok(graph),
        code => Err(code),
    }
}

/// The objects that calls need.
struct Objects {
    event: usize,
    stream: usize,
    base: usize,
    other: usize,
    current: usize,
}

type Call = fn(&Cuda, &Objects) -> u32;

/// Calls in the order of the measurement.
const CALLS: [(&str, Call); 17] = [
    ("EventQuery", |cuda, has| cuda.call("cuEventQuery", &[has.event])),
    ("EventSynchronize", |cuda, has| cuda.call("cuEventSynchronize", &[has.event])),
    ("StreamQuery", |cuda, has| cuda.call("cuStreamQuery", &[has.stream])),
    ("StreamSynchronize", |cuda, has| cuda.call("cuStreamSynchronize", &[has.stream])),
    ("StreamSynchronize(legacy)", |cuda, _| cuda.call("cuStreamSynchronize", &[0])),
    ("MemAlloc", |cuda, _| {
        let mut at = 0usize;
        let code = cuda.call("cuMemAlloc_v2", &[(&raw mut at).addr(), G]);
        if code == 0 { cuda.call("cuMemFree_v2", &[at]) } else { code }
    }),
    ("MemHostAlloc", |cuda, _| {
        let mut at = 0usize;
        let code = cuda.call("cuMemHostAlloc", &[(&raw mut at).addr(), G, 0]);
        if code == 0 { cuda.call("cuMemFreeHost", &[at]) } else { code }
    }),
    ("CtxSynchronize", |cuda, _| cuda.call("cuCtxSynchronize", &[])),
    ("CtxSynchronize(other)", |cuda, has| {
        cuda.ok("cuCtxSetCurrent", &[has.other]);
        let code = cuda.call("cuCtxSynchronize", &[]);
        cuda.ok("cuCtxSetCurrent", &[has.current]);
        code
    }),
    ("EventRecord", |cuda, has| cuda.call("cuEventRecord", &[has.event, has.stream])),
    ("EventRecord(legacy)", |cuda, has| cuda.call("cuEventRecord", &[has.event, 0])),
    ("StreamIsCapturing(legacy)", |cuda, _| {
        let mut state = 0u32;
        cuda.call("cuStreamIsCapturing", &[0, (&raw mut state).addr()])
    }),
    ("MemcpyDtoH", |cuda, has| {
        let mut byte = [0u8];
        cuda.call("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), has.base, 1])
    }),
    ("MemsetD8", |cuda, has| cuda.call("cuMemsetD8_v2", &[has.base, 1, G])),
    ("StreamWaitEvent", |cuda, has| cuda.call("cuStreamWaitEvent", &[has.stream, has.event, 0])),
    ("virtual memory", |cuda, _| {
        let base = cuda.mapped(G);
        cuda.take_away(base, G);
        0
    }),
    ("StreamCreate", |cuda, _| {
        let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
        cuda.call("cuStreamDestroy_v2", &[stream])
    }),
];

/// A capturing stream, and the calling thread.
#[derive(Debug)]
struct Setting {
    /// The flags with which the stream was created.
    flags: usize,
    /// The mode of the capture.
    mode: u32,
    /// Whether the calling thread captures.
    own: bool,
    /// Whether it is in relaxed mode.
    relaxed: bool,
}

/// Returns the code of a call, and whether it invalidates the capture, as measured on an H200 with driver 580.159 (CUDA
/// 13.0).
fn measured(call: &str, setting: &Setting) -> (u32, bool) {
    let blocking = setting.flags != NON_BLOCKING;
    let unsafe_call =
        !setting.relaxed && (setting.mode == GLOBAL || setting.mode == THREAD_LOCAL && setting.own);
    match call {
        "CtxSynchronize" => (UNSUPPORTED, true),
        "StreamIsCapturing(legacy)" if blocking => (IMPLICIT, false),
        "EventRecord(legacy)" | "StreamSynchronize(legacy)" | "MemcpyDtoH" | "MemsetD8" if blocking => {
            (IMPLICIT, true)
        }
        "EventQuery"
        | "EventSynchronize"
        | "StreamQuery"
        | "StreamSynchronize"
        | "StreamSynchronize(legacy)"
        | "MemAlloc"
        | "MemHostAlloc"
            if unsafe_call =>
        {
            (UNSUPPORTED, true)
        }
        _ => (0, false),
    }
}

/// Makes the call of a setting, on the thread that it names.
fn act(cuda: &Cuda, call: Call, has: &Objects, setting: &Setting) -> u32 {
    let here = || {
        let mut code = 0;
        let its = if setting.relaxed { RELAXED } else { GLOBAL };
        in_mode(cuda, its, || code = call(cuda, has));
        code
    };
    if setting.own {
        return here();
    }
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            cuda.ok("cuCtxSetCurrent", &[has.current]);
            here()
        });
        other.join().unwrap()
    })
}

fn each_call_spoils_what_was_measured(cuda: &Cuda) {
    cuda.init();
    let current = cuda.enter(0);
    let mut popped = 0usize;
    let other = cuda.get("cuCtxCreate_v2", &[0, 0]);
    cuda.ok("cuCtxPopCurrent_v2", &[(&raw mut popped).addr()]);
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    let event = cuda.get("cuEventCreate", &[DISABLE_TIMING]);
    let has = Objects { event, stream, base: cuda.mapped(G), other, current };
    for flags in [NON_BLOCKING, 0] {
        let captured = cuda.get("cuStreamCreate", &[flags]);
        for (name, call) in CALLS {
            for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
                for (own, relaxed) in [(true, false), (true, true), (false, false), (false, true)] {
                    let setting = Setting { flags, mode, own, relaxed };
                    cuda.ok("cuStreamBeginCapture_v2", &[captured, mode as usize]);
                    let code = act(cuda, call, &has, &setting);
                    let ended = end(cuda, captured);
                    let (expected, spoils) = measured(name, &setting);
                    assert_eq!(
                        (code, ended.err()),
                        (expected, spoils.then_some(INVALIDATED)),
                        "{name}, {setting:?}"
                    );
                    ended.into_iter().for_each(|graph| cuda.ok("cuGraphDestroy", &[graph]));
                }
            }
        }
        cuda.ok("cuStreamDestroy_v2", &[captured]);
    }
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.ok("cuEventDestroy_v2", &[event]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(has.base, G);
    cuda.ok("cuCtxDestroy_v2", &[other]);
}

fn the_default_stream_tells_of_blocking_captures(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let event = cuda.get("cuEventCreate", &[DISABLE_TIMING]);
    let blocking = cuda.get("cuStreamCreate", &[0]);
    let mut state = 0u32;
    let asked = [0, (&raw mut state).addr()];
    cuda.ok("cuStreamBeginCapture_v2", &[blocking, GLOBAL as usize]);
    cuda.answers("cuStreamIsCapturing", &asked, IMPLICIT);
    cuda.answers("cuStreamIsCapturing", &[1, asked[1]], IMPLICIT);
    // The query does not use the stream, and invalidates nothing.
    cuda.ok("cuGraphDestroy", &[end(cuda, blocking).unwrap()]);
    cuda.ok("cuStreamIsCapturing", &asked);
    // Each use does.
    let uses: [(&str, &[usize]); 4] = [
        ("cuEventRecord", &[event, 0]),
        ("cuStreamWaitEvent", &[0, event, 0]),
        ("cuStreamSynchronize", &[0]),
        ("cuStreamQuery", &[1]),
    ];
    for (call, arguments) in uses {
        cuda.ok("cuStreamBeginCapture_v2", &[blocking, RELAXED as usize]);
        in_mode(cuda, RELAXED, || cuda.answers(call, arguments, IMPLICIT));
        assert_eq!(end(cuda, blocking), Err(INVALIDATED), "{call}");
    }
    // The thread's own default stream blocks as well. Another context's default stream does not report it.
    cuda.ok("cuStreamBeginCapture_v2", &[2, RELAXED as usize]);
    cuda.answers("cuStreamIsCapturing", &asked, IMPLICIT);
    let mut popped = 0usize;
    let other = cuda.get("cuCtxCreate_v2", &[0, 0]);
    cuda.ok("cuStreamIsCapturing", &asked);
    cuda.ok("cuCtxPopCurrent_v2", &[(&raw mut popped).addr()]);
    cuda.ok("cuGraphDestroy", &[end(cuda, 2).unwrap()]);
    cuda.ok("cuEventDestroy_v2", &[event]);
    cuda.ok("cuStreamDestroy_v2", &[blocking]);
    cuda.ok("cuCtxDestroy_v2", &[other]);
}

/// Captures a graph that fills a granule with a memset, and its first half with a kernel.
fn graph(cuda: &Cuda, stream: usize, base: usize, write: usize, seed: u64) -> usize {
    cuda.ok("cuStreamBeginCapture_v2", &[stream, RELAXED as usize]);
    cuda.ok("cuMemsetD8Async", &[base, 7, G, stream]);
    cuda.launch(write, stream, &[base as u64, G as u64 / 16, seed]);
    let graph = end(cuda, stream).unwrap();
    let exec = cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
    cuda.ok("cuGraphDestroy", &[graph]);
    exec
}

fn bytes(cuda: &Cuda, at: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    cuda.ok("cuMemcpyDtoH_v2", &[bytes.as_mut_ptr().addr(), at, bytes.len()]);
    bytes
}

fn a_graph_does_what_was_captured_at_each_launch(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (write, _) = cuda.kernels();
    let (base, stream) = (cuda.mapped(G), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    let exec = graph(cuda, stream, base, write, 3);
    assert_eq!(cuda.counts().graphs, 1);
    let word = 3u64.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let first = (word ^ (word >> 32)).to_le_bytes();
    for _ in 0..2 {
        cuda.ok("cuMemsetD8_v2", &[base, 0, G]);
        cuda.ok("cuStreamSynchronize", &[0]);
        assert_eq!((bytes(cuda, base), bytes(cuda, base + G / 2)), ([0; 8], [0; 8]));
        cuda.ok("cuGraphLaunch", &[exec, stream]);
        cuda.ok("cuStreamSynchronize", &[stream]);
        assert_eq!((bytes(cuda, base), bytes(cuda, base + G / 2)), (first, [7; 8]));
    }
    cuda.ok("cuGraphExecDestroy", &[exec]);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(base, G);
}

fn a_launch_can_be_captured(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (write, _) = cuda.kernels();
    let (base, stream) = (cuda.mapped(G), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    let inner = graph(cuda, stream, base, write, 3);
    cuda.ok("cuMemsetD8_v2", &[base, 0, G]);
    cuda.ok("cuStreamBeginCapture_v2", &[stream, RELAXED as usize]);
    cuda.ok("cuGraphLaunch", &[inner, stream]);
    let outer = end(cuda, stream).unwrap();
    let exec = cuda.get("cuGraphInstantiateWithFlags", &[outer, 0]);
    cuda.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(bytes(cuda, base + G / 2), [0; 8], "it has already run");
    cuda.ok("cuGraphLaunch", &[exec, stream]);
    cuda.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(bytes(cuda, base + G / 2), [7; 8]);
    cuda.ok("cuGraphDestroy", &[outer]);
    [exec, inner].iter().for_each(|exec| cuda.ok("cuGraphExecDestroy", &[*exec]));
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(base, G);
}

fn unknown_graphs_are_refused(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let mut exec = 0usize;
    cuda.refuses("cuGraphInstantiateWithFlags", &[(&raw mut exec).addr(), 0x10, 0], INVALID_VALUE);
    cuda.refuses("cuGraphLaunch", &[0x10, 0], INVALID_VALUE);
    cuda.refuses("cuGraphDestroy", &[0x10], INVALID_VALUE);
    cuda.refuses("cuGraphExecDestroy", &[0x10], INVALID_VALUE);
}

fn unmapping_under_a_graph_is_a_fault(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (write, _) = cuda.kernels();
    let (base, stream) = (cuda.mapped(G), cuda.get("cuStreamCreate", &[NON_BLOCKING]));
    let exec = graph(cuda, stream, base, write, 3);
    cuda.ok("cuGraphLaunch", &[exec, stream]);
    cuda.take_away(base, G);
    cuda.answers("cuStreamSynchronize", &[stream], ILLEGAL_ADDRESS);
    cuda.answers("cuCtxSynchronize", &[], ILLEGAL_ADDRESS);
    cuda.ok("cuGraphExecDestroy", &[exec]);
    cuda.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
}

fn contexts_wait_for_their_own_work(cuda: &Cuda) {
    cuda.init();
    let primary = cuda.enter(0);
    let base = cuda.mapped(G);
    let stream = cuda.get("cuStreamCreate", &[NON_BLOCKING]);
    cuda.ok("cuMemsetD8Async", &[base, 1, G, stream]);
    let mut popped = 0usize;
    let other = cuda.get("cuCtxCreate_v2", &[0, 0]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.ok("cuCtxPopCurrent_v2", &[(&raw mut popped).addr()]);
    assert_eq!(popped, other);
    cuda.answers("cuStreamQuery", &[stream], NOT_READY);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.ok("cuStreamQuery", &[stream]);
    assert_eq!(cuda.get("cuCtxGetCurrent", &[]), primary);
    cuda.ok("cuStreamDestroy_v2", &[stream]);
    cuda.take_away(base, G);
    cuda.ok("cuCtxDestroy_v2", &[other]);
}
