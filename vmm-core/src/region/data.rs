//! Reading and writing a region's memory, by the devices that own it.
//!
//! The owner of a mapping makes the copy and needs the access for it. Copies cannot rely on another device's access: HIP 6 uses
//! the owner's engine whichever device is current, and an engine without access ends the process. Each driver call stays inside
//! one reservation and one owner's memory.
#![allow(unsafe_code)]

use super::Region;
use crate::driver::Backend;
use crate::memory::Segment;
#[allow(unused_imports)] // named in documentation
use crate::types::Properties;
use crate::types::{Access, Bytes, Detail, DeviceId, Error, Operation, Result};

/// The device that needs the access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accessor {
    /// The owner of each piece.
    Owner,
    /// The given device, for the memory of any owner.
    Device(DeviceId),
}

impl<B: Backend> Region<B> {
    /// Copies bytes from the host into the region and waits until they are there. CUDA: `cuMemcpyHtoD`; HIP: `hipMemcpy`. Does
    /// not wait for work that is queued on streams.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::NoAccess`] if the device that owns the memory may not write it, or
    /// if the CPU may only read memory of the host ([`Properties::access_for_copies`]), or the driver's error. Some of the bytes may then
    /// have been written.
    pub fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for segment in
            self.segments(Operation::Write, offset, length_of(bytes), Access::ReadWrite, Accessor::Owner)?
        {
            let (part, behind) = rest.split_at(in_memory(segment.length, rest.len()));
            // SAFETY: the segment is mapped, in one reservation, and its owner may write it.
            unsafe { self.backend.copy_from_host(segment.device, segment.address, part) }?;
            rest = behind;
        }
        Ok(())
    }

    /// Copies bytes from the region to the host and waits until they are there. CUDA: `cuMemcpyDtoH`; HIP: `hipMemcpy`. Does not
    /// wait for work that is queued on streams.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write`], with read access in place of write access.
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        let segments =
            self.segments(Operation::Read, offset, length_of(bytes), Access::Read, Accessor::Owner)?;
        let mut rest = bytes;
        for segment in segments {
            let length = in_memory(segment.length, rest.len());
            let (part, behind) = rest.split_at_mut(length);
            // SAFETY: the segment is mapped, in one reservation, and its owner may read it.
            unsafe { self.backend.copy_to_host(segment.device, part, segment.address) }?;
            rest = behind;
        }
        Ok(())
    }

    /// Sets every byte of a part to `value` and waits until that is done. CUDA: `cuMemsetD8`; HIP: `hipMemset`.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write`].
    pub fn fill(&mut self, offset: Bytes, length: Bytes, value: u8) -> Result<()> {
        for segment in self.segments(Operation::Fill, offset, length, Access::ReadWrite, Accessor::Owner)? {
            // SAFETY: the segment is mapped, in one reservation, and its owner may write it.
            unsafe { self.backend.fill(segment.device, segment.address, segment.length, value) }?;
        }
        Ok(())
    }

    /// Splits a part into segments for single driver calls. All of them are mapped and have the needed access.
    pub(crate) fn segments(
        &self,
        operation: Operation,
        offset: Bytes,
        length: Bytes,
        need: Access,
        by: Accessor,
    ) -> Result<Vec<Segment>> {
        self.check_active(operation)?;
        if length.is_zero() {
            return Ok(Vec::new());
        }
        self.check_inside(operation, offset, length)?;
        self.layout.table.check_mapped(operation, offset, length)?;
        let base = self.address();
        let mut segments: Vec<Segment> = Vec::new();
        for cut in self.layout.spans.cut(offset, length) {
            let first = segments.len();
            for (start, mapping) in self.layout.table.touching(cut.range.offset, cut.range.length) {
                let owner = mapping.memory.device();
                let device = match by {
                    Accessor::Owner => owner,
                    Accessor::Device(device) => device,
                };
                let have = mapping.access.get(device);
                if !need.is_within(have) {
                    return Err(Error::new(
                        operation,
                        Detail::NoAccess { device, offset: start, have, need },
                    ));
                }
                let from = start.max(cut.range.offset);
                let length = (start + mapping.length()).min(cut.range.offset + cut.range.length) - from;
                match segments[first..].last_mut() {
                    Some(last) if last.device == owner => last.length += length,
                    _ => segments.push(Segment { address: base + from, length, device: owner }),
                }
            }
        }
        if matches!(operation, Operation::Write | Operation::QueueCopyFromHost) {
            self.check_cpu_may_write(operation, offset, length)?;
        }
        Ok(segments)
    }

    /// Refuses a copy from the host, or from host memory, into host memory that the CPU may only read
    /// ([`Properties::access_for_copies`]).
    pub(super) fn check_cpu_may_write(
        &self,
        operation: Operation,
        offset: Bytes,
        length: Bytes,
    ) -> Result<()> {
        for (start, mapping) in self.layout.table.touching(offset, length) {
            let have = mapping.access.get(DeviceId::HOST);
            let need = mapping.memory.properties().access_for_copies(mapping.access).get(DeviceId::HOST);
            if need != have {
                let device = DeviceId::HOST;
                return Err(Error::new(operation, Detail::NoAccess { device, offset: start, have, need }));
            }
        }
        Ok(())
    }
}

fn length_of(bytes: &[u8]) -> Bytes {
    Bytes(bytes.len() as u64)
}

/// The length of a segment as an index into host memory of at most `most` bytes.
fn in_memory(length: Bytes, most: usize) -> usize {
    length.to_usize().map_or(most, |length| length.min(most))
}
