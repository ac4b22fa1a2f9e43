//! Blocks that are lent to the types of another library.
#![allow(unsafe_code)] // promises that the lent memory stays valid

use crate::Block;
use gpu_vmm_core::extend::LendMemory;
use gpu_vmm_core::{Access, Address, Backend, Detail, Error, Grant, OffsetRange, Operation, Result, Stream};

// SAFETY: a block's addresses belong to it until it is dropped. They are reused only after the work of the streams that
// `lend` accepts. A suspension of its tag waits for the devices; the block keeps its addresses then, with nothing mapped
// there.
unsafe impl<B: Backend> LendMemory for Block<B> {
    type Backend = B;

    fn lender(&self, operation: Operation) -> Result<B> {
        Ok(self.inner().core(operation)?.backend.clone())
    }

    fn lend(
        &self,
        operation: Operation,
        range: OffsetRange,
        grant: Grant,
        stream: Stream<'_>,
    ) -> Result<Address> {
        self.check(operation, range)?;
        self.check_usable(operation)?;
        let Grant { device, access: need } = grant;
        let core = self.inner().core(operation)?;
        if device != core.settings.memory.device {
            let have = Access::None;
            return Err(Error::new(operation, Detail::NoAccess { device, offset: range.offset, have, need }));
        }
        if !core.streams.known(stream).is_some_and(|index| self.is_used_on(index)) {
            let (raw, own) = (stream.as_raw(), self.stream().as_raw());
            let reason = format!(
                "the block is for stream {own:?} and has no use on stream {raw:?} recorded; call record_use with that stream \
                 first, or allocate the block for it"
            );
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        Ok(self.address() + range.offset)
    }
}
