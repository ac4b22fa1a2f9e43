//! Captures: which calls invalidate which of them, as measured. The conformance suite launches graphs.

use crate::rig::{Cuda, G};
use gpu_vmm_test_settings::cases;
use std::thread;

cases! {
    each_call_spoils_what_was_measured;
}

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
                    // A query answers for the capture alone, if nothing runs that an earlier call left.
                    cuda.ok("cuCtxSynchronize", &[]);
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
