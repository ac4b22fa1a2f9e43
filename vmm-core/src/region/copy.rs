//! Copies from region to region by the devices, without the host in between.
#![allow(unsafe_code)]

use super::Region;
use super::data::Accessor;
use super::table::Mapping;
use crate::driver::{Backend, check_same};
use crate::memory::Segment;
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
#[allow(unused_imports)] // named in documentation
use crate::types::Error;
use crate::types::{Access, Bytes, Operation, Result};

impl<B: Backend> Region<B> {
    /// Copies a part of another region into this one and waits until it is there. CUDA: `cuMemcpyDtoD`; HIP: `hipMemcpyDtoD`.
    /// Does not wait for work that is queued on streams.
    ///
    /// The device that owns the destination memory makes the copy and needs read access to the source. Between two devices this
    /// is a peer copy over the link between them.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`] for a region of another backend; [`Detail::OutOfRange`], [`Detail::NotMapped`],
    /// [`Detail::NoAccess`] for either side, also for a copy from host memory into host memory that the CPU may only read; or the driver's
    /// error. Some of the bytes may then have been written.
    ///
    /// ```
    /// # use gpu_vmm_core::{Access, Backend, Bytes, DeviceId, Region, Result};
    /// # fn example<B: Backend>(backend: &B) -> Result<()> {
    /// let size = Bytes::mib(64);
    /// let mut near = Region::builder(backend).on(DeviceId(0)).reserve(size).build()?;
    /// let mut far = Region::builder(backend).on(DeviceId(1)).reserve(size);
    /// let mut far = far.access(DeviceId(0), Access::Read).build()?;
    /// near.grow_to(size)?;
    /// far.grow_to(size)?;
    /// near.copy_from(Bytes(0), &far, Bytes(0), size)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_from(&mut self, offset: Bytes, source: &Self, from: Bytes, length: Bytes) -> Result<()> {
        let operation = Operation::Copy;
        check_same(operation, &source.backend, &self.backend)?;
        let targets = self.segments(operation, offset, length, Access::ReadWrite, Accessor::Owner)?;
        let of_host = |(_, mapping): (Bytes, &Mapping<B>)| mapping.memory.properties().location.is_host();
        if source.layout.table.touching(from, length).any(of_host) {
            self.check_cpu_may_write(operation, offset, length)?;
        }
        let mut steps: Vec<(Segment, Segment)> = Vec::new();
        let mut done = Bytes::ZERO;
        for target in targets {
            let by = Accessor::Device(target.device);
            let mut at = target.address;
            for part in source.segments(operation, from + done, target.length, Access::Read, by)? {
                steps.push((Segment { address: at, length: part.length, device: target.device }, part));
                at = at + part.length;
            }
            done += target.length;
        }
        for (to, part) in steps {
            // SAFETY: both sides are mapped, each in one reservation; the device owns the destination, may write it, and may read
            // the source. They do not overlap: a region is not borrowed twice, and two regions have no address in common.
            unsafe { self.backend.copy(to.device, to.address, part.address, to.length) }?;
        }
        Ok(())
    }
}
