//! Quirks of stream captures: calls that invalidate the capture of a stream that they do not name. `relaxed` has the
//! table of the behaviour that was observed.

use super::versions::{UNFIXED, V6_1, V7_0, V7_14, quirk};
use gpu_vmm_core::Quirk;

pub(crate) const WAITS_SPOIL_CAPTURES: Quirk = quirk(
    "waits-spoil-captures",
    (V6_1, UNFIXED),
    "hipEventSynchronize, hipStreamSynchronize, hipStreamQuery, hipMalloc, hipFree, hipHostMalloc and hipHostFree, and \
     since 7.0 hipEventQuery, fail during a capture and invalidate it: any thread's capture in global mode, the \
     calling thread's in thread-local mode",
    "the calling thread enters relaxed mode (hipThreadExchangeStreamCaptureMode) for the call, which then succeeds and \
     invalidates no capture",
    "simulated, both: tests/hsa-sim/checks/capture.c",
);

pub(crate) const DEVICE_WAIT_SPOILS_CAPTURES: Quirk = quirk(
    "device-wait-spoils-captures",
    (V6_1, UNFIXED),
    "hipDeviceSynchronize fails and invalidates every capture of the process, also in relaxed mode and for any \
     device",
    "a small allocation is made and freed in relaxed mode: hipFree also waits for the device, as AMD's header says, \
     and invalidates no capture; hipDeviceSynchronize is the fallback if no memory is left for that",
    "simulated, both: tests/hsa-sim/checks/capture.c; that hipFree waits: backend-hip/tests/hip/captures.rs",
);

pub(crate) const SPOILT_CAPTURE_STAYS: Quirk = quirk(
    "spoilt-capture-stays",
    (V6_1, V7_14),
    "after hipStreamEndCapture has reported an invalidated capture, the stream still reports that it captures \
     (invalidated) and cannot be waited for until another capture of it begins and ends; a second hipStreamEndCapture \
     crashes",
    "the test kit begins and ends an empty capture; a program's own stream is treated as capturing",
    "simulated, both: backend-hip/tests/hip/captures.rs; fixed by ROCm/rocm-systems PR #6509, which is in 7.14",
);

pub(crate) const NULL_STREAM_SPOILS_CAPTURES: Quirk = quirk(
    "null-stream-spoils-captures",
    (V6_1, UNFIXED),
    "hipMemcpy and hipMemset fail and invalidate every capture of the process, also in relaxed mode and also when the \
     capturing stream is non-blocking; hipStreamIsCapturing of the null stream reports blocking streams only",
    "gpu-vmm waits for the null stream in relaxed mode, and copies and fills on a non-blocking stream of its own",
    "simulated, both: tests/hsa-sim/checks/capture.c",
);

pub(super) const RECORDED_THERE: Quirk = quirk(
    "events-spoil-captures",
    (V6_1, V7_0),
    "while a stream captures, hipEventQuery and hipEventSynchronize of an event that was recorded on it earlier fail \
     (hipErrorCapturedEvent) and invalidate the capture, also in relaxed mode",
    "such an event counts as unfinished while its stream captures, and waiting for it is an error; a capture that \
     begins between this check and hipEventQuery is still invalidated. The check is hipStreamIsCapturing, which \
     returns hipErrorContextIsDestroyed for a destroyed stream; 7.2.4 dereferences the pointer and crashes, so it is \
     not called there",
    "simulated, 6.4.3: tests/hsa-sim/checks/capture.c; 7.2.4 answers in relaxed mode and invalidates nothing",
);

pub(super) const READS_STREAM: Quirk = quirk(
    "event-reads-its-stream",
    (V6_1, V7_0),
    "hipEventQuery and hipEventSynchronize read the capture status of the stream that the event was recorded on last, \
     also after that was destroyed: they read freed memory, return hipErrorCapturedEvent for it, and write to it",
    "hipStreamIsCapturing is asked first; the event of a destroyed stream counts as done, because hipStreamDestroy waits \
     for the stream's work. hipStreamDestroy removes the stream before it waits: the last event of a stream that a pool \
     forgets is therefore recorded again on a stream of gpu-vmm's, which waits for the first record",
    "simulated, 6.4.3: wrong errors for 100 of 30,000 events on destroyed streams (backend-hip/tests/hip/events.rs); \
     7.2.4: none; read in clr of 6.4 (hip_event.cpp, hip_stream.cpp)",
);
