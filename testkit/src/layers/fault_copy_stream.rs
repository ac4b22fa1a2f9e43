//! A copy stream that fails on demand.
#![allow(unsafe_code)]

use super::fault_plan::Plan;
use gpu_vmm_core::{Address, Bytes, CopyStream, Event, Operation, Result};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FaultCopyStream {
    inner: Box<dyn CopyStream>,
    plan: Arc<Plan>,
}

impl FaultCopyStream {
    pub(super) fn new(inner: Box<dyn CopyStream>, plan: &Arc<Plan>) -> Self {
        Self { inner, plan: Arc::clone(plan) }
    }
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl CopyStream for FaultCopyStream {
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()> {
        let _call = self.plan.call(Operation::QueueCopyToHost)?;
        // SAFETY: the caller's promises are passed on; so below.
        unsafe { self.inner.copy_to_host(to, from, length) }
    }

    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()> {
        let _call = self.plan.call(Operation::QueueCopyFromHost)?;
        // SAFETY: as above.
        unsafe { self.inner.copy_from_host(to, from, length) }
    }

    unsafe fn hold(&mut self, event: &dyn Event) -> Result<()> {
        // An event of this layer plans the call itself.
        // SAFETY: the caller's promise.
        unsafe { self.inner.hold(event) }
    }

    unsafe fn record(&mut self, event: &mut dyn Event) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.inner.record(event) }
    }

    fn finish(&mut self) -> Result<()> {
        let planned = self.plan.call(Operation::FinishCopies);
        // The queued copies must have finished before any code accesses the memory, also if the call fails.
        self.inner.finish().and(planned.map(drop))
    }
}
