//! Captures for the test kit, and their graphs.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::{CuContext, CuGraph, CuGraphExec, CuStream};
use gpu_vmm_core::testkit::{CaptureMode, Graph};
use gpu_vmm_core::{Detail, DeviceId, Operation, Result, Stream};
use std::sync::Arc;

/// An executable graph. In a forked child dropping does nothing.
#[derive(Debug)]
struct CudaGraph {
    backend: Arc<Opened>,
    /// The context of the stream that captured it.
    context: CuContext,
    exec: CuGraphExec,
}

impl Opened {
    /// Returns the context of a stream; for a default stream, the device's.
    pub(crate) fn context_for(
        &self,
        operation: Operation,
        device: DeviceId,
        stream: CuStream,
    ) -> Result<CuContext> {
        self.here(operation)?;
        if stream.is_default() {
            self.context(operation, device).map(|context| context.raw)
        } else {
            self.context_of(operation, stream)
        }
    }

    /// Begins a capture.
    ///
    /// # Safety
    ///
    /// As [`TestKit::begin_capture`](gpu_vmm_core::testkit::TestKit::begin_capture).
    pub(crate) unsafe fn start_capture(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        mode: CaptureMode,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::BeginCapture;
        let functions = self.graph_functions(OPERATION)?;
        let stream = CuStream(stream.as_raw());
        let _entered = self.enter(OPERATION, self.context_for(OPERATION, device, stream)?)?;
        // SAFETY: the stream is live; the caller promises to end the capture.
        let result = unsafe { (functions.stream_begin_capture)(stream, mode.number()) };
        self.check(OPERATION, "cuStreamBeginCapture_v2", result, || format!("stream {stream:?}, {mode:?}"))
    }

    /// Ends a capture and instantiates its graph.
    pub(crate) fn finish_capture(
        self: &Arc<Self>,
        device: DeviceId,
        stream: Stream<'_>,
    ) -> Result<Box<dyn Graph>> {
        const OPERATION: Operation = Operation::EndCapture;
        let functions = self.graph_functions(OPERATION)?;
        let stream = CuStream(stream.as_raw());
        // The driver may refuse to return the context of a stream whose capture was invalidated; the capture must end all the same.
        let context = match self.context_for(OPERATION, device, stream) {
            Err(error) if matches!(error.detail(), Detail::Capturing { .. }) => {
                self.context(OPERATION, device)?.raw
            }
            other => other?,
        };
        let _entered = self.enter(OPERATION, context)?;
        let mut graph = CuGraph::NULL;
        // SAFETY: the stream is live, and the pointer is valid for one graph.
        let result = unsafe { (functions.stream_end_capture)(stream, &raw mut graph) };
        self.check(OPERATION, "cuStreamEndCapture", result, || format!("stream {stream:?}"))?;
        let mut exec = CuGraphExec::NULL;
        let _relaxed = self.relax(OPERATION)?;
        // SAFETY: the graph was created above and is destroyed once; the pointer is valid for one executable graph.
        let (made, destroyed) = unsafe {
            let made = (functions.graph_instantiate)(&raw mut exec, graph, 0);
            (made, (functions.graph_destroy)(graph))
        };
        self.check(OPERATION, "cuGraphInstantiateWithFlags", made, String::new)?;
        let ready = CudaGraph { backend: Arc::clone(self), context, exec };
        self.check(OPERATION, "cuGraphDestroy", destroyed, String::new)?;
        Ok(Box::new(ready))
    }
}

impl Graph for CudaGraph {
    unsafe fn launch(&self, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::LaunchGraph;
        let functions = self.backend.graph_functions(OPERATION)?;
        let stream = CuStream(stream.as_raw());
        let context =
            if stream.is_default() { self.context } else { self.backend.context_of(OPERATION, stream)? };
        let _entered = self.backend.enter(OPERATION, context)?;
        // SAFETY: the graph and the stream are live; the caller promises that the work may access its memory.
        let result = unsafe { (functions.graph_launch)(self.exec, stream) };
        self.backend.check(OPERATION, "cuGraphLaunch", result, || format!("stream {stream:?}"))
    }
}

impl CudaGraph {
    fn end(&self) -> Result<()> {
        const OPERATION: Operation = Operation::DestroyGraph;
        let functions = self.backend.graph_functions(OPERATION)?;
        let _entered = self.backend.enter(OPERATION, self.context)?;
        // SAFETY: the graph was created here and is destroyed once; its launches have ended, by the promise of the launch.
        let result = unsafe { (functions.graph_exec_destroy)(self.exec) };
        self.backend.check(OPERATION, "cuGraphExecDestroy", result, String::new)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        self.backend.log_end(self.end());
    }
}
