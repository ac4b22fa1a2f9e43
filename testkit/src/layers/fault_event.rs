//! An event that fails on demand.
#![allow(unsafe_code)] // implements unsafe traits

use super::fault_plan::Plan;
use gpu_vmm_core::{Event, Operation, Result, Stream};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FaultEvent {
    inner: Box<dyn Event>,
    plan: Arc<Plan>,
}

impl FaultEvent {
    pub(super) fn new(inner: Box<dyn Event>, plan: &Arc<Plan>) -> Self {
        Self { inner, plan: Arc::clone(plan) }
    }
}

// SAFETY: every call is forwarded to the inner backend, or fails before it.
unsafe impl Event for FaultEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        let _call = self.plan.call(Operation::RecordEvent)?;
        self.inner.record(stream)
    }

    fn is_done(&self) -> Result<bool> {
        let _call = self.plan.call(Operation::QueryEvent)?;
        self.inner.is_done()
    }

    fn wait(&self) -> Result<()> {
        let _call = self.plan.call(Operation::WaitForEvent)?;
        self.inner.wait()
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        let _call = self.plan.call(Operation::StreamWaitEvent)?;
        self.inner.hold(stream)
    }

    fn outlive_stream(&mut self) -> Result<()> {
        let _call = self.plan.call(Operation::RecordEvent)?;
        self.inner.outlive_stream()
    }
}
