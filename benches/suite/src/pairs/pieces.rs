//! Ranges with many handles, by the library and by the driver's own calls.

use crate::raw::{Handle, Raw};
use crate::scene::Scene;
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Address, Bytes, DeviceId, Region};
use gpu_vmm_testkit::TestKit;

/// Grows a region to a size, by `piece` at a time.
pub(super) fn grow_by<B: TestKit>(region: &mut Region<B>, piece: Bytes, size: Bytes) -> StepResult {
    while region.end() < size {
        region.grow_to(region.end() + piece)?;
    }
    Ok(())
}

/// Fails if a region does not have the pattern that was written.
pub(super) fn has_pattern<B: TestKit>(
    region: &Region<B>,
    device: DeviceId,
    size: Bytes,
    seed: u64,
) -> StepResult {
    match region.count_wrong(device, Bytes::ZERO, size, seed)? {
        0 => Ok(()),
        wrong => Err(Stop::Failed(format!("{wrong} words of {size} have changed"))),
    }
}

/// The same number of handles by the driver's own calls: only the necessary ones.
pub(super) struct ByHand {
    raw: Raw,
    at: Address,
    piece: Bytes,
    count: u64,
    pub(super) handles: Vec<Handle>,
    /// The number of mapped handles, from the first one on.
    mapped: u64,
    /// Whether one call unmaps all.
    unmaps_runs: bool,
}

impl ByHand {
    /// Reserves the addresses.
    pub(super) fn new<B: TestKit>(scene: &Scene<'_, B>, size: Bytes, piece: Bytes) -> StepResult<Self> {
        let (raw, unmaps_runs) = (scene.raw.clone(), scene.backend.unmaps_runs());
        let (at, count) = (raw.reserve(size)?, size.0 / piece.0);
        Ok(Self { raw, at, piece, count, handles: Vec::new(), mapped: 0, unmaps_runs })
    }

    /// Creates as many handles as the addresses can hold, each by this call.
    pub(super) fn create(&mut self, call: fn(&Raw, Bytes) -> StepResult<Handle>) -> StepResult {
        for _ in 0..self.count {
            self.handles.push(call(&self.raw, self.piece)?);
        }
        Ok(())
    }

    pub(super) fn map(&mut self) -> StepResult {
        for handle in &self.handles {
            self.raw.map(self.at + Bytes(self.piece.0 * self.mapped), *handle)?;
            self.mapped += 1;
        }
        self.raw.open(self.at, Bytes(self.piece.0 * self.mapped))
    }

    pub(super) fn unmap(&mut self) -> StepResult {
        let at_once = if self.unmaps_runs { self.mapped.max(1) } else { 1 };
        while self.mapped > 0 {
            let left = self.mapped - at_once;
            self.raw.unmap(self.at + Bytes(self.piece.0 * left), Bytes(self.piece.0 * at_once))?;
            self.mapped = left;
        }
        Ok(())
    }

    pub(super) fn release(&mut self) -> StepResult {
        self.handles.drain(..).try_for_each(|handle| self.raw.release(handle))
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // Memory that cannot be freed is missing in the next pair, which reports it.
        let size = Bytes(self.piece.0 * self.count);
        let _ = self.unmap().and_then(|()| self.release());
        let _ = self.raw.free_addresses(self.at, size);
    }
}
