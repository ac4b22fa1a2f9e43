//! The source of memory for requests: free frames at other addresses, or the driver.

use crate::core::{Core, Request, Shortage};
use crate::error::OutOf;
use crate::frames::FrameIndex;
use crate::space::Spot;
use crate::stream_order::StreamIndex;
use gpu_vmm_core::extend::{create_now, event, span};
use gpu_vmm_core::{Backend, Bytes, Error, Operation, Properties};
use std::ops::Range;

/// The frames that were claimed for a request.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) frames: Vec<FrameIndex>,
    /// The frames among them that existed before. The others were created for the request.
    old: Range<usize>,
}

impl<B: Backend> Core<B> {
    /// Maps memory at all pages of a place, and claims it.
    pub(crate) fn supply(&mut self, space: usize, spot: Spot, request: Request) -> Result<(), Shortage> {
        let Request { size, tag, .. } = request;
        let stream = request.order();
        span!(Allocate, bytes = size, tag = &*self.tags.get(tag).name);
        let gap = self.spaces[space].open_gap(&mut self.frames, &self.streams, (spot.offset, size), stream);
        let mut chosen = Chosen::default();
        let result = self.choose(gap.missing.len(), request, &mut chosen).and_then(|()| {
            let Self { spaces, frames, settings, calls, .. } = self;
            Ok(spaces[space].fill_gap(frames, &gap, &chosen.frames, &settings.access, calls)?)
        });
        let result = result.and_then(|()| self.scrub(space, &gap.missing, &chosen.frames, tag));
        if result.is_err() {
            self.give_up(&chosen);
            self.spaces[space].close_gap(&mut self.frames, &gap);
        } else {
            event!(
                DEBUG,
                "mapped",
                pages = chosen.frames.len(),
                from_elsewhere = chosen.old.len(),
                created = chosen.frames.len() - chosen.old.len()
            );
        }
        self.note();
        result
    }

    /// Claims `count` frames: new ones while the pool holds hardly more than it ever needed, then free ones, then new ones again.
    fn choose(&mut self, count: usize, request: Request, chosen: &mut Chosen) -> Result<(), Shortage> {
        let Request { size, tag, .. } = request;
        let stream = request.order();
        let budget = self.settings.budget;
        let room = (budget.0.saturating_sub(self.held()) / self.page) as usize;
        let beyond = count.saturating_sub(room);
        if self.free_frames(beyond, stream, tag).len() < beyond {
            return Err(Shortage::Memory(OutOf::Budget(budget)));
        }
        // This request counts as needed already.
        let needed = self.peak_needed.max(self.taken + size);
        // The first entry stands for no stream.
        let slack = needed.saturating_add(self.settings.slack(needed, self.streams.count() - 1));
        while chosen.frames.len() < count && self.held() + self.page <= slack.min(budget.0) {
            match self.create(tag, chosen) {
                Ok(()) => {}
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error.into()),
            }
        }
        let free = self.free_frames(count - chosen.frames.len(), stream, tag);
        chosen.old = chosen.frames.len()..chosen.frames.len() + free.len();
        free.iter().for_each(|frame| self.frames.claim(*frame));
        chosen.frames.extend(free);
        while chosen.frames.len() < count {
            if self.held() + self.page > budget.0 {
                return Err(Shortage::Memory(OutOf::Budget(budget)));
            }
            self.create(tag, chosen).map_err(|error| match error.is_out_of_memory() {
                true => Shortage::Memory(OutOf::Driver(error)),
                false => error.into(),
            })?;
        }
        Ok(())
    }

    /// Restores the state before: free frames are free again, and new ones return to the driver.
    pub(crate) fn give_up(&mut self, chosen: &Chosen) {
        for (index, frame) in chosen.frames.iter().enumerate() {
            if !chosen.old.contains(&index) && self.frames.get(*frame).mapped.is_empty() {
                self.calls.other += 1;
                self.frames.remove(*frame);
            } else {
                self.frames.release(*frame, self.frames.turn(*frame));
            }
        }
    }

    /// Returns free frames that a stream may use.
    fn free_frames(&self, count: usize, stream: StreamIndex, tag: u16) -> Vec<FrameIndex> {
        let Self { frames, streams, settings, .. } = self;
        if count == 0 {
            return Vec::new();
        }
        frames.spare(count, |frames, frame| {
            let turn = frames.turn(frame);
            // Scrubbing waits for no stream, so another tag's work on the frame must be done.
            let passes = settings.scrub && frames.tenant(frame) != tag;
            if passes { streams.is_done(turn) } else { streams.serves(turn, stream) }
        })
    }

    pub(crate) fn create(&mut self, tag: u16, chosen: &mut Chosen) -> Result<(), Error> {
        self.calls.create += 1;
        let plain = Properties::on(self.settings.device);
        // Under the core's lock no device is waited for.
        let create = |properties| create_now(&self.backend, Bytes(self.page), properties);
        let memory = match create(if self.settings.shareable { plain.shareable() } else { plain }) {
            Err(error) if self.settings.shareable && !error.is_out_of_memory() => {
                self.calls.create += 1;
                let memory = create(plain).map_err(|_| error)?;
                self.settings.shareable = false;
                memory
            }
            answer => answer?,
        };
        chosen.frames.push(self.frames.insert(Some(memory), tag));
        Ok(())
    }

    /// Overwrites the contents of other tags.
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
                let filled =
                    space.region_mut(Operation::Fill).and_then(|region| region.fill(offset, page, 0));
                if let Err(error) = filled {
                    // The frame still has the contents of the earlier tag.
                    self.frames.set_tenant(*frame, tenant);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
}
