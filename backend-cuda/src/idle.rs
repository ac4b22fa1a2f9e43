//! Waiting for a device or a stream, and querying whether a stream captures.
//!
//! A device's work is in contexts. This process can have work in the primary context, in those that a backend was [opened
//! with](crate::lease), and in the calling thread's current one. It cannot find any others.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::ffi::{CAPTURE_NONE, CuContext, CuResult, CuStream};
use gpu_vmm_core::{Detail, DeviceId, Error, ErrorKind, Operation, Result, Stream};

/// The results of calls in several contexts of a device.
///
/// No work runs in a context that has died. Callers treat a lost device as idle, so the loss is reported only for the context that
/// this backend uses, after the wait for the others. The loss of another context is its owner's concern.
struct Answers {
    own: Option<CuContext>,
    lost: Option<Error>,
}

impl Answers {
    fn add(&mut self, context: CuContext, answer: Result<()>) -> Result<()> {
        match answer {
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                if self.own == Some(context) {
                    self.lost = Some(error);
                }
                Ok(())
            }
            other => other,
        }
    }

    fn end(self) -> Result<()> {
        self.lost.map_or(Ok(()), Err)
    }
}

impl Opened {
    /// Calls `act` in each context of a device in which this process can have work, with that context current.
    pub(crate) fn in_contexts_of(
        &self,
        operation: Operation,
        device: DeviceId,
        mut act: impl FnMut(CuContext) -> Result<()>,
    ) -> Result<()> {
        self.for_contexts_of(operation, device, |context| {
            let _entered = self.enter(operation, context)?;
            act(context)
        })
    }

    /// Calls `act` for each of these contexts. They stay alive until it returns.
    pub(crate) fn for_contexts_of(
        &self,
        operation: Operation,
        device: DeviceId,
        mut act: impl FnMut(CuContext) -> Result<()>,
    ) -> Result<()> {
        let own = self.existing_context(operation, device)?.map(|context| context.raw);
        let mut answers = Answers { own, lost: None };
        let primary = self.existing_primary(operation, device)?.map(|context| context.raw);
        if let Some(primary) = primary {
            answers.add(primary, act(primary))?;
        }
        let leases = self.driver.leases.of(device);
        let mut done = Vec::with_capacity(leases.len());
        for lease in &leases {
            let context = lease.context();
            if Some(context) == primary || done.contains(&context) {
                continue;
            }
            if let Some(answer) = lease.hold(|| act(context)) {
                answers.add(context, answer)?;
                done.push(context);
            }
        }
        match self.current_of(operation, device)? {
            Some(context) if Some(context) != primary && !done.contains(&context) => {
                answers.add(context, act(context))?;
            }
            _ => {}
        }
        answers.end()
    }

    /// Returns the calling thread's current context, if it belongs to the device.
    fn current_of(&self, operation: Operation, device: DeviceId) -> Result<Option<CuContext>> {
        let mut current = CuContext::NULL;
        // SAFETY: the pointer is valid for one context.
        let result = unsafe { (self.functions().ctx_get_current)(&raw mut current) };
        self.check(operation, "cuCtxGetCurrent", result, || "this thread".into())?;
        if current == CuContext::NULL {
            return Ok(None);
        }
        let mut raw = -1;
        // SAFETY: the pointer is valid for one CUdevice, and a context is current.
        let result = unsafe { (self.functions().ctx_get_device)(&raw mut raw) };
        if result == CuResult::CONTEXT_IS_DESTROYED {
            return Ok(None);
        }
        self.check(operation, "cuCtxGetDevice", result, || format!("context {current:?}"))?;
        Ok((raw == self.state(operation, device)?.raw).then_some(current))
    }

    pub(crate) fn wait_for_device(&self, device: DeviceId) -> Result<()> {
        const OPERATION: Operation = Operation::WaitForDevice;
        self.in_contexts_of(OPERATION, device, |context| {
            self.check_default(OPERATION)?;
            // SAFETY: a context is current.
            let result = unsafe { (self.functions().ctx_synchronize)() };
            self.check(OPERATION, "cuCtxSynchronize", result, || format!("{device}, context {context:?}"))
        })
    }

    pub(crate) fn wait_for_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> {
        const OPERATION: Operation = Operation::WaitForStream;
        self.here(OPERATION)?;
        self.state(OPERATION, device)?;
        let stream = CuStream(stream.as_raw());
        let wait = |_| {
            if self.captures_here(OPERATION, stream)? {
                return Err(Error::new(OPERATION, Detail::Capturing { source: None }));
            }
            self.finish(OPERATION, stream)
        };
        if stream.is_default() {
            return self.in_contexts_of(OPERATION, device, wait);
        }
        let context = self.context_of(OPERATION, stream)?;
        let _entered = self.enter(OPERATION, context)?;
        wait(context)
    }

    /// Returns whether a stream captures. For a default stream: whether it captures in any context that the handle can mean, or
    /// whether work on it would break the capture of another stream.
    pub(crate) fn captures(&self, stream: Stream<'_>) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryCapture;
        self.here(OPERATION)?;
        let stream = CuStream(stream.as_raw());
        if !stream.is_default() {
            // Pools query before each request, so the query is a single call unless the current context is in the way.
            let mut status = CAPTURE_NONE;
            // SAFETY: the stream is live, and the pointer is valid for one number.
            let result = unsafe { (self.functions().stream_is_capturing)(stream, &raw mut status) };
            let of_context =
                [CuResult::INVALID_CONTEXT, CuResult::INVALID_HANDLE, CuResult::CONTEXT_IS_DESTROYED];
            if !of_context.contains(&result) {
                self.check(OPERATION, "cuStreamIsCapturing", result, || format!("stream {stream:?}"))?;
                return Ok(status != CAPTURE_NONE);
            }
            // The driver may refuse to return the context of a stream whose capture was invalidated.
            let context = match self.context_of(OPERATION, stream) {
                Err(error) if matches!(error.detail(), Detail::Capturing { .. }) => return Ok(true),
                other => other?,
            };
            let _entered = self.enter(OPERATION, context)?;
            return self.captures_here(OPERATION, stream);
        }
        let mut any = false;
        for device in &self.driver.devices {
            self.in_contexts_of(OPERATION, device.id, |_| {
                any |= self.would_break(OPERATION, stream)?;
                Ok(())
            })?;
        }
        Ok(any)
    }

    /// Returns whether a stream of the current context captures, or whether work on it would break a capture.
    fn would_break(&self, operation: Operation, stream: CuStream) -> Result<bool> {
        match self.captures_here(operation, stream) {
            Err(error) if matches!(error.detail(), Detail::Capturing { .. }) => Ok(true),
            answer => answer,
        }
    }

    /// Refuses work on the current context's default stream while it would break the capture of a blocking stream. The query itself
    /// breaks none.
    pub(crate) fn check_default(&self, operation: Operation) -> Result<()> {
        self.captures_here(operation, CuStream::NULL).map(drop)
    }

    /// Returns whether a stream of the current context captures. For the default stream, returns [`Detail::Capturing`] while a
    /// blocking stream of the context captures (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`).
    fn captures_here(&self, operation: Operation, stream: CuStream) -> Result<bool> {
        let mut status = CAPTURE_NONE;
        // SAFETY: the stream is live, or is the default one of the current context; the pointer is valid for one number.
        let result = unsafe { (self.functions().stream_is_capturing)(stream, &raw mut status) };
        self.check(operation, "cuStreamIsCapturing", result, || format!("stream {stream:?}"))?;
        Ok(status != CAPTURE_NONE)
    }

    /// Waits for a stream of the current context.
    pub(crate) fn finish(&self, operation: Operation, stream: CuStream) -> Result<()> {
        let _relaxed = self.relax(operation)?;
        // SAFETY: the stream is live, or is the default one of the current context.
        let result = unsafe { (self.functions().stream_synchronize)(stream) };
        self.check(operation, "cuStreamSynchronize", result, || format!("stream {stream:?}"))
    }

    /// Waits for the work that a call of this backend has just queued on the current context's default stream.
    pub(crate) fn finish_default(&self, operation: Operation) -> Result<()> {
        self.finish(operation, CuStream::NULL)
    }
}
