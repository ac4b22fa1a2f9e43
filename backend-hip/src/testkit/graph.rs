//! Captures by the test kit, and their graphs.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{self, hipError_t, hipGraphExec_t, hipStreamCaptureMode};
use crate::quirks::{SPOILT_CAPTURE_STAYS, workaround_enabled};
use crate::stream::{needed, raw};
use gpu_vmm_core::testkit::{CaptureMode, Graph};
use gpu_vmm_core::{DeviceId, Operation, Result, Stream};
use std::ptr::null_mut;
use std::sync::Arc;

/// An executable graph, and the device of the stream that captured it. In a forked child dropping it does nothing.
#[derive(Debug)]
struct HipGraph {
    driver: Arc<Driver>,
    device: DeviceId,
    exec: hipGraphExec_t,
    launch: ffi::hipGraphLaunch,
    destroy: ffi::hipGraphExecDestroy,
}

// SAFETY: HIP takes a graph from any thread; this crate never dereferences the pointer.
unsafe impl Send for HipGraph {}

/// Begins a capture.
///
/// # Safety
///
/// As for [`TestKit::begin_capture`](gpu_vmm_core::testkit::TestKit::begin_capture).
pub(crate) unsafe fn begin(
    driver: &Driver,
    device: DeviceId,
    stream: Stream<'_>,
    mode: CaptureMode,
) -> Result<()> {
    const OPERATION: Operation = Operation::BeginCapture;
    let begin = needed(OPERATION, "hipStreamBeginCapture", driver.hip.hipStreamBeginCapture)?;
    let _current = driver.on(OPERATION, device)?;
    // SAFETY: the stream is alive; the caller promises to end the capture.
    let code = unsafe { begin(raw(stream), hipStreamCaptureMode(mode.number())) };
    driver.check(OPERATION, "hipStreamBeginCapture", code, || format!("{stream:?}, {mode:?}"))
}

/// Ends a capture and instantiates its graph.
pub(crate) fn end(driver: &Arc<Driver>, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
    const OPERATION: Operation = Operation::EndCapture;
    let hip = &driver.hip;
    let end = needed(OPERATION, "hipStreamEndCapture", hip.hipStreamEndCapture)?;
    let instantiate = needed(OPERATION, "hipGraphInstantiateWithFlags", hip.hipGraphInstantiateWithFlags)?;
    let destroy_graph = needed(OPERATION, "hipGraphDestroy", hip.hipGraphDestroy)?;
    let launch = needed(OPERATION, "hipGraphLaunch", hip.hipGraphLaunch)?;
    let destroy = needed(OPERATION, "hipGraphExecDestroy", hip.hipGraphExecDestroy)?;
    let _current = driver.on(OPERATION, device)?;
    let (mut graph, mut exec) = (null_mut(), null_mut());
    // SAFETY: the stream is alive, and HIP writes one graph.
    let code = unsafe { end(raw(stream), &raw mut graph) };
    if let Err(error) = driver.check(OPERATION, "hipStreamEndCapture", code, || format!("{stream:?}")) {
        if code == hipError_t::hipErrorStreamCaptureInvalidated && workaround_enabled(&SPOILT_CAPTURE_STAYS) {
            revive(driver, OPERATION, stream)?;
        }
        return Err(error);
    }
    let _relaxed = driver.relax(OPERATION)?;
    // SAFETY: the graph was created above and is destroyed once; HIP writes one executable graph.
    let (made, destroyed) = unsafe { (instantiate(&raw mut exec, graph, 0), destroy_graph(graph)) };
    driver.check(OPERATION, "hipGraphInstantiateWithFlags", made, String::new)?;
    let ready = HipGraph { driver: Arc::clone(driver), device, exec, launch, destroy };
    driver.check(OPERATION, "hipGraphDestroy", destroyed, String::new)?;
    Ok(Box::new(ready))
}

/// Makes a stream usable after its invalidated capture has ended (quirk `spoilt-capture-stays`): begins and ends an
/// empty capture.
fn revive(driver: &Driver, operation: Operation, stream: Stream<'_>) -> Result<()> {
    let begin = needed(operation, "hipStreamBeginCapture", driver.hip.hipStreamBeginCapture)?;
    let end = needed(operation, "hipStreamEndCapture", driver.hip.hipStreamEndCapture)?;
    let destroy = needed(operation, "hipGraphDestroy", driver.hip.hipGraphDestroy)?;
    let mut graph = null_mut();
    // SAFETY: the stream is alive and captures nothing valid; HIP writes one graph, which is destroyed once if there is one.
    let (ended, destroyed) = unsafe {
        let began = begin(raw(stream), hipStreamCaptureMode::hipStreamCaptureModeRelaxed);
        driver.check(operation, "hipStreamBeginCapture", began, || format!("{stream:?}"))?;
        let ended = end(raw(stream), &raw mut graph);
        (ended, if graph.is_null() { hipError_t::hipSuccess } else { destroy(graph) })
    };
    driver.check(operation, "hipStreamEndCapture", ended, || format!("{stream:?}"))?;
    driver.check(operation, "hipGraphDestroy", destroyed, String::new)
}

impl Graph for HipGraph {
    unsafe fn launch(&self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::LaunchGraph;
        let _current = self.driver.on(OPERATION, self.device)?;
        // SAFETY: the graph and the stream are alive; the caller promises that the memory of the work is valid.
        let code = unsafe { (self.launch)(self.exec, raw(stream)) };
        self.driver.check(OPERATION, "hipGraphLaunch", code, || format!("{stream:?}"))
    }
}

impl HipGraph {
    fn end(&self) -> Result<()> {
        const OPERATION: Operation = Operation::DestroyGraph;
        let _current = self.driver.on(OPERATION, self.device)?;
        // SAFETY: this module created the graph, which is destroyed once; its launches have finished, as their callers
        // promised.
        let code = unsafe { (self.destroy)(self.exec) };
        self.driver.check(OPERATION, "hipGraphExecDestroy", code, String::new)
    }
}

impl Drop for HipGraph {
    fn drop(&mut self) {
        self.driver.log_end(self.end());
    }
}
