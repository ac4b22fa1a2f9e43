//! Driver calls that fail by chance.

use gpu_vmm_core::{Detail, DriverError, Error, Operation, Result};
use shuttle::rand::{Rng, thread_rng};
use std::io;

/// Which calls fail, each once in so many times; zero for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chance {
    /// What concerns streams and events: recording, asking, and whether a stream captures.
    pub streams: u32,
    /// What brings memory: creating and mapping it, and reserving addresses.
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
    let source = DriverError::system(operation.name(), &io::Error::other("it fails by chance"));
    Err(Error::new(operation, Detail::Driver { source, context: "a schedule".to_owned() }))
}
