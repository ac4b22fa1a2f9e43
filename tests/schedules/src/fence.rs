//! A fence that the simulated device completes.

use crate::machine::{Machine, Tenant};
use gpu_vmm_core::Result;
use gpu_vmm_pool::Fence;
use std::sync::Arc;

/// A fence that completes when no work uses a block any more, and the device's thread has signalled it.
#[derive(Debug)]
pub(crate) struct Signal {
    machine: Arc<Machine>,
    tenant: Tenant,
}

impl Signal {
    pub(crate) fn new(machine: &Arc<Machine>, tenant: Tenant) -> Self {
        Self { machine: Arc::clone(machine), tenant }
    }
}

impl Fence for Signal {
    fn is_done(&self) -> Result<bool> {
        Ok(self.machine.is_fence_done(self.tenant))
    }

    fn wait(&self) -> Result<()> {
        self.machine.wait_until(|machine| machine.is_fence_done(self.tenant).then_some(()));
        Ok(())
    }
}
