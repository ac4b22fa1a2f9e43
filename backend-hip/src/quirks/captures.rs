//! The entries about captures: calls that spoil the capture of a stream that they do not name. `relaxed` has the table of
//! what was seen.

use super::versions::{UNFIXED, V6_1, V7_0, quirk};
use gpu_vmm_core::Quirk;

pub(crate) const WAITS_SPOIL_CAPTURES: Quirk = quirk(
    "waits-spoil-captures",
    (V6_1, UNFIXED),
    "hipEventSynchronize, hipStreamSynchronize, hipStreamQuery, hipMalloc, hipFree, hipHostMalloc and hipHostFree, and from \
     7.0 on hipEventQuery, fail and spoil a capture in global mode of any thread, and one in thread-local mode of the calling \
     thread",
    "the calling thread is in relaxed mode (hipThreadExchangeStreamCaptureMode) for the call, which then does neither",
    "simulated, both: tests/hsa-sim/checks/capture.c",
);

pub(crate) const DEVICE_WAIT_SPOILS_CAPTURES: Quirk = quirk(
    "device-wait-spoils-captures",
    (V6_1, UNFIXED),
    "hipDeviceSynchronize fails and spoils every capture of the process, in relaxed mode as well, whichever device it is for",
    "a small allocation is made and freed in relaxed mode: hipFree waits for the device too, by AMD's header, and spoils \
     none; hipDeviceSynchronize if no memory is left for that",
    "simulated, both: tests/hsa-sim/checks/capture.c; that hipFree waits: backend-hip/tests/hip/captures.rs",
);

pub(crate) const SPOILT_CAPTURE_STAYS: Quirk = quirk(
    "spoilt-capture-stays",
    (V6_1, UNFIXED),
    "after hipStreamEndCapture has reported a spoilt capture, the stream still says that it captures (invalidated) and \
     refuses to be waited for, until another capture of it has begun and ended; hipStreamEndCapture once more crashes",
    "the test kit captures nothing for a moment; of a program's stream it is believed that it captures",
    "simulated, both: backend-hip/tests/hip/captures.rs",
);

pub(crate) const NULL_STREAM_SPOILS_CAPTURES: Quirk = quirk(
    "null-stream-spoils-captures",
    (V6_1, UNFIXED),
    "hipMemcpy and hipMemset fail and spoil every capture of the process, in relaxed mode as well, though the stream that \
     captures is a non-blocking one; hipStreamIsCapturing of the null stream reports blocking streams alone",
    "the null stream is waited for in relaxed mode, and copies and fills are done by a stream that is apart from it",
    "simulated, both: tests/hsa-sim/checks/capture.c",
);

pub(super) const RECORDED_THERE: Quirk = quirk(
    "events-spoil-captures",
    (V6_1, V7_0),
    "while a stream captures, hipEventQuery and hipEventSynchronize of an event that was recorded on it before fail \
     (hipErrorCapturedEvent) and spoil the capture, in relaxed mode as well",
    "such an event is not done while its stream captures, and waiting for it is an error; a capture that begins between this \
     question and hipEventQuery is still spoilt. The question is hipStreamIsCapturing, which answers \
     hipErrorContextIsDestroyed for a stream that is gone; 7.2.4 follows the pointer and crashes, and is not asked",
    "simulated, 6.4.3: tests/hsa-sim/checks/capture.c; 7.2.4 answers, in relaxed mode, and spoils nothing",
);
