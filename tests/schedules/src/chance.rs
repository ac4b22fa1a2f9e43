//! Driver calls that fail at random.

use gpu_vmm_core::{Detail, DriverError, Error, Operation, Result};
use shuttle::rand::{Rng, thread_rng};
use std::io;

/// The calls that fail, each at random once in this number of calls; 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chance {
    /// Calls about streams and events: recording, querying, and whether a stream captures.
    pub streams: u32,
    /// Calls that acquire memory: creating and mapping it, and reserving addresses.
    pub memory: u32,
}

impl Chance {
    pub(crate) fn stream_call(&self, operation: Operation) -> Result<()> {
        fails(self.streams, operation)
    }

    pub(crate) fn memory_call(&self, operation: Operation) -> Result<()> {
        fails(self.memory, operation)
    }
}

fn fails(once_in: u32, operation: Operation) -> Result<()> {
    if once_in == 0 || thread_rng().gen_range(0..once_in) > 0 {
        return Ok(());
    }
    let source = DriverError::system(operation.name(), &io::Error::other("random failure"));
    Err(Error::new(operation, Detail::Driver { source, context: "a schedule".to_owned() }))
}
