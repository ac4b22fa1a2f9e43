//! Patterns in regions, written and checked by a device.
#![allow(unsafe_code)]

use super::{PATTERN_WORD, TestKit};
use crate::memory::Segment;
use crate::region::{Accessor, BankedRegion, Region, check_aligned};
#[allow(unused_imports)] // named in documentation
use crate::types::Detail;
#[allow(unused_imports)] // named in documentation
use crate::types::Error;
use crate::types::{Access, Bytes, DeviceId, Granularity, Operation, Result};

impl<B: TestKit> Region<B> {
    /// Writes the [pattern](super::pattern_word) of a seed, beginning with word 0 at `offset`, by `device` itself (with a kernel
    /// if the backend has kernels), and waits.
    ///
    /// # Errors
    ///
    /// [`Detail::Unaligned`] if the part does not consist of words of 8 bytes, [`Detail::OutOfRange`], [`Detail::NotMapped`],
    /// [`Detail::NoAccess`], or the driver's error.
    pub fn write_pattern(&mut self, device: DeviceId, offset: Bytes, length: Bytes, seed: u64) -> Result<()> {
        for (part, seed) in
            self.pattern_parts(Operation::WritePattern, device, offset, length, seed, Access::ReadWrite)?
        {
            // SAFETY: the part is mapped and the device may write all of it.
            unsafe { self.backend().write_pattern(device, part.address, part.length, seed) }?;
        }
        Ok(())
    }

    /// Returns the number of words of a part that differ from those that [`Region::write_pattern`] writes with this seed, counted
    /// by `device` itself.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write_pattern`], and [`Detail::DriverContractViolated`] if not all words were checked.
    pub fn count_wrong(&self, device: DeviceId, offset: Bytes, length: Bytes, seed: u64) -> Result<u64> {
        let mut parts =
            self.pattern_parts(Operation::CheckPattern, device, offset, length, seed, Access::Read)?;
        parts.try_fold(0, |wrong, (part, seed)| {
            // SAFETY: the part is mapped and the device may read all of it.
            Ok(wrong + unsafe { self.backend().count_wrong(device, part.address, part.length, seed) }?)
        })
    }

    /// Splits a part into segments, each with the seed that continues the pattern there: the pattern depends only on seed +
    /// index.
    fn pattern_parts(
        &self,
        operation: Operation,
        device: DeviceId,
        offset: Bytes,
        length: Bytes,
        seed: u64,
        need: Access,
    ) -> Result<impl Iterator<Item = (Segment, u64)>> {
        self.backend().device(operation, device)?;
        self.check_inside(operation, offset, length)?;
        if let Some(granularity) = Granularity::new(PATTERN_WORD) {
            check_aligned(operation, "offset", offset.0, granularity)?;
            check_aligned(operation, "length", length.0, granularity)?;
        }
        let segments = self.segments(operation, offset, length, need, Accessor::Device(device))?;
        let mut words = 0;
        Ok(segments.into_iter().map(move |part| {
            let seed = seed.wrapping_add(words);
            words += part.length.0 / PATTERN_WORD.0;
            (part, seed)
        }))
    }
}

impl<B: TestKit> BankedRegion<B> {
    /// Writes the pattern to the selected bank as [`Region::write_pattern`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write_pattern`].
    pub fn write_pattern(&mut self, device: DeviceId, offset: Bytes, length: Bytes, seed: u64) -> Result<()> {
        self.region_mut().write_pattern(device, offset, length, seed)
    }
}
