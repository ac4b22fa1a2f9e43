//! An event that fails when it is told to.
#![allow(unsafe_code)] // implements traits that make promises

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

// SAFETY: every call goes to the inner backend's, or fails without one.
unsafe impl Event for FaultEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        self.plan.call(Operation::RecordEvent)?;
        self.inner.record(stream)
    }

    fn is_done(&self) -> Result<bool> {
        self.plan.call(Operation::QueryEvent)?;
        self.inner.is_done()
    }

    fn wait(&self) -> Result<()> {
        self.plan.call(Operation::WaitForEvent)?;
        self.inner.wait()
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        self.plan.call(Operation::StreamWaitEvent)?;
        self.inner.hold(stream)
    }
}
