//! Where memory comes from: what is free behind other addresses, or the driver.

use crate::core::{Core, Request, Shortage};
use crate::error::OutOf;
use crate::frames::FrameIndex;
use crate::space::Spot;
use crate::turn::{StreamIndex, Turn};
use gpu_vmm_core::{Backend, Bytes, Error, Physical, Properties};

impl<B: Backend> Core<B> {
    /// Sees to it that all memory of a place is there, and claims it.
    pub(crate) fn supply(&mut self, space: usize, spot: Spot, request: Request) -> Result<(), Shortage> {
        let Request { size, stream, tag, .. } = request;
        let gap = self.spaces[space].open_gap(&mut self.frames, &self.streams, (spot.offset, size), stream);
        // What this request will take is to be counted already.
        self.peak_taken = self.peak_taken.max(self.taken + size);
        let mut chosen = Vec::with_capacity(gap.missing.len());
        let result = self.choose(gap.missing.len(), stream, tag, &mut chosen).and_then(|()| {
            let Self { spaces, frames, settings, calls, .. } = self;
            Ok(spaces[space].fill_gap(frames, &gap, &chosen, settings.device, calls)?)
        });
        let result = result.and_then(|()| self.scrub(space, &gap.missing, &chosen, tag));
        if result.is_err() {
            chosen.iter().for_each(|frame| self.frames.release(*frame, Turn::FREE));
            self.spaces[space].close_gap(&mut self.frames, &gap);
        }
        self.note();
        result
    }

    /// Claims so many frames: new ones as long as hardly more is held than was ever needed, then free ones, then new ones
    /// again.
    fn choose(
        &mut self,
        count: usize,
        stream: StreamIndex,
        tag: u16,
        chosen: &mut Vec<FrameIndex>,
    ) -> Result<(), Shortage> {
        let slack = self.peak_taken.saturating_add(self.peak_taken / self.settings.slack);
        while chosen.len() < count && self.held() + self.page <= slack.min(self.settings.budget.0) {
            match self.create(tag) {
                Ok(frame) => chosen.push(frame),
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error.into()),
            }
        }
        for frame in self.free_frames(count - chosen.len(), stream, tag) {
            self.frames.claim(frame);
            chosen.push(frame);
        }
        while chosen.len() < count {
            if self.held() + self.page > self.settings.budget.0 {
                return Err(Shortage::Memory(OutOf::Budget(self.settings.budget)));
            }
            chosen.push(self.create(tag).map_err(|error| match error.is_out_of_memory() {
                true => Shortage::Memory(OutOf::Driver(error)),
                false => error.into(),
            })?);
        }
        Ok(())
    }

    /// Free frames that a stream may use.
    fn free_frames(&self, count: usize, stream: StreamIndex, tag: u16) -> Vec<FrameIndex> {
        let Self { frames, streams, settings, .. } = self;
        if count == 0 {
            return Vec::new();
        }
        frames.oldest(count, |frames, frame| {
            let turn = frames.turn(frame);
            // Scrubbing waits for nobody, so what another tenant used has to be done with.
            let passes = settings.scrub && frames.tenant(frame) != tag;
            if passes { streams.is_done(turn) } else { streams.serves(turn, stream) }
        })
    }

    fn create(&mut self, tag: u16) -> Result<FrameIndex, Error> {
        self.calls.create += 1;
        let memory = Physical::create(&self.backend, Bytes(self.page), Properties::on(self.settings.device))?;
        Ok(self.frames.insert(memory, tag))
    }

    /// Overwrites what another tenant left.
    fn scrub(
        &mut self,
        space: usize,
        pages: &[usize],
        chosen: &[FrameIndex],
        tag: u16,
    ) -> Result<(), Shortage> {
        for (page, frame) in pages.iter().zip(chosen) {
            let tenant = self.frames.tenant(*frame);
            self.frames.set_tenant(*frame, tag);
            if self.settings.scrub && tenant != tag {
                let space = &mut self.spaces[space];
                self.calls.other += 1;
                let (offset, page) = (space.offset_of(*page), Bytes(self.page));
                let filled = space.region.fill(offset, page, 0);
                if let Err(error) = filled {
                    // Whoever has it next is another tenant too.
                    self.frames.set_tenant(*frame, tenant);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
}
