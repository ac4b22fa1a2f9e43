//! What the stores have in common that contents reach through a staging ring.

use crate::types::{Bytes, Detail, Error, OffsetRange, Operation, Result};
use enum_dispatch::enum_dispatch;

/// A stream of bytes that several threads write and read, each in its own range.
#[enum_dispatch]
pub(super) trait Store {
    fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()>;

    fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()>;

    /// The largest number of bytes that should be written at a time.
    fn write_size(&self) -> Bytes {
        Bytes(u64::MAX)
    }

    /// Waits for writes that can still fail.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

pub(super) fn outside(at: Bytes) -> Error {
    Error::new(
        Operation::KeepContents,
        Detail::OutOfRange { range: OffsetRange { offset: at, length: Bytes(1) }, limit: at },
    )
}
