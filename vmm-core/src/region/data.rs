//! Reading and writing a region's memory, by the devices that own it.
//!
//! The owner of a mapping does the work and must have the access for it: what another device may do cannot be
//! relied on for copies (HIP 6 uses the owner's engine whatever device is current, and an engine without access ends
//! the process). Each call to a driver stays inside one reservation and one owner's memory.
#![allow(unsafe_code)]

use super::Region;
use crate::workbench::PATTERN_WORD;
use crate::{Access, Address, Backend, Bytes, DeviceId, Error, Granularity, Result, Workbench};

/// Some of a part, in one reservation and of one device's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) address: Address,
    pub(crate) length: Bytes,
    /// Whose memory it is.
    pub(crate) device: DeviceId,
}

/// Who is to have the access that is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// Each piece's own device.
    Owner,
    /// This one, whosever memory it is.
    Device(DeviceId),
}

impl<B: Backend> Region<B> {
    /// Copies bytes from the host into the region and waits until they are there. CUDA: `cuMemcpyHtoD`, HIP:
    /// `hipMemcpy`. Work that is queued on streams is not waited for.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::NotMapped`], [`Error::NoAccess`] where the device that owns the memory may
    /// not write it, or what the driver answers; then some of the bytes may have been written.
    pub fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for segment in self.segments("write", offset, length_of(bytes), Access::ReadWrite, By::Owner)? {
            let (part, behind) = rest.split_at(in_memory(segment.length, rest.len()));
            // SAFETY: the segment is mapped, in one reservation, and its owner may write it.
            unsafe { self.backend.copy_from_host(segment.device, segment.address, part) }?;
            rest = behind;
        }
        Ok(())
    }

    /// Copies bytes from the region to the host and waits until they are there. CUDA: `cuMemcpyDtoH`, HIP:
    /// `hipMemcpy`. Work that is queued on streams is not waited for.
    ///
    /// # Errors
    ///
    /// As for [`Region::write`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        let segments = self.segments("read", offset, length_of(bytes), Access::Read, By::Owner)?;
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

    /// Sets every byte of a part and waits until it is done. CUDA: `cuMemsetD8`, HIP: `hipMemset`.
    ///
    /// # Errors
    ///
    /// As for [`Region::write`].
    pub fn fill(&mut self, offset: Bytes, length: Bytes, value: u8) -> Result<()> {
        for segment in self.segments("fill", offset, length, Access::ReadWrite, By::Owner)? {
            // SAFETY: the segment is mapped, in one reservation, and its owner may write it.
            unsafe { self.backend.fill(segment.device, segment.address, segment.length, value) }?;
        }
        Ok(())
    }

    /// A part as segments that a driver's call may be given, all mapped and with the access that is needed.
    pub(crate) fn segments(
        &self,
        operation: &'static str,
        offset: Bytes,
        length: Bytes,
        need: Access,
        by: By,
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
            for (start, mapping) in self.layout.table.touching(cut.offset, cut.length) {
                let owner = mapping.memory.device();
                let device = match by {
                    By::Owner => owner,
                    By::Device(device) => device,
                };
                let have = mapping.access.get(device);
                if !need.is_within(have) {
                    return Err(Error::NoAccess { operation, device, offset: start, have, need });
                }
                let from = start.max(cut.offset);
                let length = (start + mapping.length()).min(cut.offset + cut.length) - from;
                match segments[first..].last_mut() {
                    Some(last) if last.device == owner => last.length += length,
                    _ => segments.push(Segment { address: base + from, length, device: owner }),
                }
            }
        }
        Ok(segments)
    }
}

impl<B: Workbench> Region<B> {
    /// Writes the [pattern](crate::workbench::pattern_word) of a seed, word 0 at `offset`, by `device` itself (a
    /// kernel where the backend has them), and waits.
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`] where the part is not made of words of 8 bytes, [`Error::OutOfRange`],
    /// [`Error::NotMapped`], [`Error::NoAccess`], or what the driver answers.
    pub fn write_pattern(&mut self, device: DeviceId, offset: Bytes, length: Bytes, seed: u64) -> Result<()> {
        for (part, seed) in
            self.pattern_parts("write pattern", device, offset, length, seed, Access::ReadWrite)?
        {
            // SAFETY: the part is mapped and the device may write all of it.
            unsafe { self.backend.write_pattern(device, part.address, part.length, seed) }?;
        }
        Ok(())
    }

    /// How many words of a part are not what [`Region::write_pattern`] with this seed would have written, counted by
    /// `device` itself.
    ///
    /// # Errors
    ///
    /// As for [`Region::write_pattern`].
    pub fn count_wrong(&self, device: DeviceId, offset: Bytes, length: Bytes, seed: u64) -> Result<u64> {
        let parts = self.pattern_parts("check pattern", device, offset, length, seed, Access::Read)?;
        parts.into_iter().try_fold(0, |wrong, (part, seed)| {
            // SAFETY: the part is mapped and the device may read all of it.
            Ok(wrong + unsafe { self.backend.count_wrong(device, part.address, part.length, seed) }?)
        })
    }

    /// A part cut at the seams, each piece with the seed that continues the pattern there: the pattern depends on
    /// seed + index alone.
    fn pattern_parts(
        &self,
        operation: &'static str,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
        seed: u64,
        need: Access,
    ) -> Result<Vec<(Segment, u64)>> {
        self.backend.device(operation, device)?;
        self.check_inside(operation, offset, length)?;
        if let Some(granularity) = Granularity::new(PATTERN_WORD) {
            super::check_aligned(operation, "offset", offset.0, granularity)?;
            super::check_aligned(operation, "length", length.0, granularity)?;
        }
        self.layout.table.check_mapped(operation, offset, length)?;
        for (start, mapping) in self.layout.table.touching(offset, length) {
            let have = mapping.access.get(device);
            if !need.is_within(have) {
                return Err(Error::NoAccess { operation, device, offset: start, have, need });
            }
        }
        let base = self.address();
        let cuts = self.layout.spans.cut(offset, length);
        Ok(cuts
            .map(|cut| {
                let words = (cut.offset - offset).0 / PATTERN_WORD.0;
                let part = Segment { address: base + cut.offset, length: cut.length, device };
                (part, seed.wrapping_add(words))
            })
            .collect())
    }
}

fn length_of(bytes: &[u8]) -> Bytes {
    Bytes(bytes.len() as u64)
}

/// A segment's length as an index into the host's bytes, which are no longer than memory.
fn in_memory(length: Bytes, most: usize) -> usize {
    length.to_usize().map_or(most, |length| length.min(most))
}
