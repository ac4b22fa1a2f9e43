//! An event that fails when it is told to.
#![allow(unsafe_code)] // implements traits that make promises

use super::fault_plan::Plan;
use gpu_vmm_core::{Event, Result, Stream};
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
        self.plan.call("record event")?;
        self.inner.record(stream)
    }

    fn is_done(&self) -> Result<bool> {
        self.plan.call("ask event")?;
        self.inner.is_done()
    }

    fn wait(&self) -> Result<()> {
        self.plan.call("wait for event")?;
        self.inner.wait()
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        self.plan.call("hold by event")?;
        self.inner.hold(stream)
    }
}
