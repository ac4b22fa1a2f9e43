//! The descriptors that network cards are given: one for a whole part where the driver makes it, else several.
//!
//! CUDA makes one dma-buf of any run of one device's memory with the same properties, HIP one of each handle's memory.
//! Which of it a driver does is seen by asking it.
#![allow(unsafe_code)]

use super::Region;
use super::spans::Cut;
use crate::driver::{Backend, Reservation};
use crate::types::{Bytes, Detail, DeviceId, Error, ErrorKind, OffsetRange, Operation, Result};
use std::os::fd::OwnedFd;

/// A dma-buf for some of a region, for RDMA registration (`ibv_reg_dmabuf_mr`).
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor. It is closed when this is dropped.
    pub fd: OwnedFd,
    /// Where the memory begins in the region, in bytes. In the dma-buf it begins at 0.
    pub offset: Bytes,
    /// How much memory it is.
    pub length: Bytes,
}

impl<B: Backend> Region<B> {
    /// Dma-bufs for a part, in order and without a gap: one for all of it where the driver can, else a plan of pieces.
    /// CUDA: `cuMemGetHandleForAddressRange`, HIP: `hipMemGetHandleForAddressRange`.
    ///
    /// The part is cut where a reservation ends and where the memory is another device's or has other properties. What is
    /// left is one dma-buf each, or one for each mapping where the driver does not make one of several.
    ///
    /// They stand for the memory that is mapped now. Whatever maps or unmaps in the part, or moves the region, makes them
    /// void: they must be asked for again, and registered again.
    ///
    /// # Errors
    ///
    /// Those of [`Region::unmap`] for a part that is not made of whole mappings without a hole, [`Detail::Unsupported`] with
    /// the reason where the driver has no dma-bufs, or what the driver answers.
    pub fn dma_bufs(&self, offset: Bytes, length: Bytes) -> Result<Vec<DmaBuf>> {
        let operation = Operation::ExportDmaBuf;
        self.check_part(operation, offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        let mut made = Vec::new();
        for cut in self.layout.spans.cut(offset, length) {
            for run in self.runs_of_one_kind(cut) {
                self.dma_bufs_of_run(cut, &run, &mut made)?;
            }
        }
        Ok(made)
    }

    /// The mappings of a cut, in runs of one device's memory with the same properties.
    fn runs_of_one_kind(&self, cut: Cut) -> Vec<Vec<OffsetRange>> {
        let mut runs: Vec<Vec<OffsetRange>> = Vec::new();
        let mut kind = None;
        for (offset, mapping) in self.layout.table.touching(cut.range.offset, cut.range.length) {
            let part = OffsetRange { offset, length: mapping.length() };
            let properties = mapping.memory.properties();
            match runs.last_mut() {
                Some(run) if kind == Some(properties) => run.push(part),
                _ => runs.push(vec![part]),
            }
            kind = Some(properties);
        }
        runs
    }

    fn dma_bufs_of_run(&self, cut: Cut, run: &[OffsetRange], made: &mut Vec<DmaBuf>) -> Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        match self.dma_buf(cut, OffsetRange { offset: first.offset, length: last.end() - first.offset }) {
            Ok(one) => made.push(one),
            Err(error) if run.len() == 1 || error.kind() == ErrorKind::DeviceLost => {
                return Err(error);
            }
            Err(_) => {
                for part in run {
                    made.push(self.dma_buf(cut, *part)?);
                }
            }
        }
        Ok(())
    }

    /// One dma-buf for a part of a cut.
    fn dma_buf(&self, cut: Cut, part: OffsetRange) -> Result<DmaBuf> {
        let cut = Cut { range: part, ..cut };
        let limit = self.reserved();
        let (offset, length) = (part.offset, part.length);
        let (reservation, at) = self.layout.spans.reservation_at(cut).ok_or_else(|| {
            Error::new(
                Operation::ExportDmaBuf,
                Detail::OutOfRange { range: OffsetRange { offset, length }, limit },
            )
        })?;
        let owner = self.mapping_at(offset).map_or(DeviceId(0), |mapping| mapping.memory.device());
        // SAFETY: whole mappings without a hole, in one reservation, of one device's memory with the same properties.
        let fd = unsafe { reservation.dma_buf(owner, at, length) }?;
        for (_, mapping) in self.layout.table.touching(offset, length) {
            mapping.memory.mark_exported();
        }
        Ok(DmaBuf { fd, offset, length })
    }
}
