//! Dma-buf descriptors for network cards: one for a whole part if the driver can make it, else several.
//!
//! CUDA makes one dma-buf of any run of one device's memory with the same properties, HIP one of each handle's memory. gpu-vmm
//! tries the whole run first.
#![allow(unsafe_code)]

use super::Region;
use super::spans::Cut;
use crate::driver::{Backend, Reservation};
use crate::trace::span;
use crate::types::{Bytes, Detail, DeviceId, Error, ErrorKind, OffsetRange, Operation, Result};
use std::os::fd::OwnedFd;

/// A dma-buf for a part of a region, for RDMA registration (`ibv_reg_dmabuf_mr`).
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor. Dropping this value closes it.
    pub fd: OwnedFd,
    /// The offset in the region, in bytes, at which the memory begins. In the dma-buf the memory begins at 0.
    pub offset: Bytes,
    /// The size of the memory in bytes.
    pub length: Bytes,
}

impl<B: Backend> Region<B> {
    /// Exports a part as dma-bufs, in order and without a gap. CUDA: `cuMemGetHandleForAddressRange`; HIP:
    /// `hipMemGetHandleForAddressRange`.
    ///
    /// The part is split where a reservation ends and where the owner or the properties of the memory change. Each such run is
    /// one dma-buf, or one for each mapping if the driver refuses the run.
    ///
    /// A dma-buf refers to the memory that is mapped now. Mapping or unmapping in the part, or moving the region, makes it
    /// invalid: export and register the part again.
    ///
    /// # Errors
    ///
    /// Those of [`Region::unmap`] for a part that does not consist of whole mappings without a hole, [`Detail::Unsupported`] with
    /// the reason if the driver has no dma-bufs, or the driver's error.
    pub fn dma_bufs(&self, offset: Bytes, length: Bytes) -> Result<Vec<DmaBuf>> {
        let operation = Operation::ExportDmaBuf;
        self.check_part(operation, offset, length)?;
        self.layout.table.check_whole(operation, offset, length)?;
        span!(ExportDmaBuf, address = %(self.address() + offset), bytes = length.0);
        let mut made = Vec::new();
        for cut in self.layout.spans.cut(offset, length) {
            for run in self.runs_of_one_kind(cut) {
                self.dma_bufs_of_run(cut, &run, &mut made)?;
            }
        }
        Ok(made)
    }

    /// The mappings of a cut, in runs of one device's memory with equal properties.
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

    /// Exports a part of a cut as one dma-buf.
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
