//! Builds a [`Trace`] from events, and checks them.

use crate::error::Wrong;
use crate::event::{Event, Trace};
use std::collections::HashMap;

type Answer<T = ()> = Result<T, Wrong>;

/// The state of a block at the current event.
#[derive(Clone, Copy, Debug)]
enum Block {
    Live {
        slot: u32,
        bytes: u64,
        line: u32,
    },
    /// `event` is the position of its free.
    Freed {
        event: u32,
        line: u32,
    },
    Ready {
        line: u32,
    },
}

/// Adds one event after the other. Errors name the lines that the caller gives.
#[derive(Debug)]
pub(crate) struct Builder {
    trace: Trace,
    blocks: HashMap<u64, Block>,
    streams: HashMap<u64, u16>,
    free_slots: Vec<u32>,
    live: u64,
    /// The block that the previous event freed.
    just_freed: Option<u64>,
    any_ready: bool,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let trace = Trace {
            events: Vec::new(),
            slots: 0,
            fences: 0,
            streams: vec![0],
            allocations: 0,
            frees: 0,
            peak: 0,
            recording: None,
        };
        Self {
            trace,
            blocks: HashMap::new(),
            streams: HashMap::from([(0, 0)]),
            free_slots: Vec::new(),
            live: 0,
            just_freed: None,
            any_ready: false,
        }
    }

    /// Returns the number of allocations and frees so far.
    pub(crate) const fn operations(&self) -> u64 {
        self.trace.allocations + self.trace.frees
    }

    /// Returns the whole trace.
    pub(crate) fn finish(mut self) -> Trace {
        if self.any_ready {
            let never = self.blocks.values().filter_map(|block| match block {
                Block::Freed { event, .. } => Some(*event),
                _ => None,
            });
            let mut never: Vec<u32> = never.collect();
            never.sort_unstable();
            for event in never {
                self.fence(event);
            }
        }
        self.trace.events.shrink_to_fit();
        self.trace
    }

    pub(crate) fn allocate(&mut self, line: u32, id: u64, bytes: u64, stream: u64) -> Answer {
        match self.blocks.get(&id) {
            _ if bytes == 0 => return Err(Wrong::Nothing { id }),
            Some(Block::Live { line, .. } | Block::Freed { line, .. } | Block::Ready { line }) => {
                return Err(Wrong::AllocatedTwice { id, before: *line });
            }
            None => {}
        }
        self.live = self.live.checked_add(bytes).ok_or(Wrong::TooMuch)?;
        self.trace.peak = self.trace.peak.max(self.live);
        let stream = self.stream(stream)?;
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                self.trace.slots += 1; // never more than lines
                self.trace.slots - 1
            }
        };
        self.blocks.insert(id, Block::Live { slot, bytes, line });
        self.trace.allocations += 1;
        self.push(Event::Allocate { slot, stream, bytes });
        self.just_freed = None;
        Ok(())
    }

    pub(crate) fn free(&mut self, line: u32, id: u64) -> Answer {
        let (slot, bytes) = match self.blocks.get(&id) {
            Some(Block::Live { slot, bytes, .. }) => (*slot, *bytes),
            Some(Block::Freed { line: before, .. } | Block::Ready { line: before }) => {
                return Err(Wrong::FreedTwice { id, before: *before });
            }
            None => return Err(Wrong::Unknown { event: 'f', id }),
        };
        self.live -= bytes;
        self.free_slots.push(slot);
        self.trace.frees += 1;
        let event = self.push(Event::Free { slot });
        self.blocks.insert(id, Block::Freed { event, line });
        self.just_freed = Some(id);
        Ok(())
    }

    pub(crate) fn ready(&mut self, line: u32, id: u64) -> Answer {
        let event = match self.blocks.get(&id) {
            Some(Block::Freed { event, .. }) => *event,
            Some(Block::Live { line: allocated, .. }) => {
                return Err(Wrong::InUse { id, allocated: *allocated });
            }
            Some(Block::Ready { line: before }) => return Err(Wrong::ReadyTwice { id, before: *before }),
            None => return Err(Wrong::Unknown { event: 'r', id }),
        };
        self.any_ready = true;
        self.blocks.insert(id, Block::Ready { line });
        if self.just_freed.take() != Some(id) {
            let fence = self.fence(event);
            self.push(Event::Done { fence });
        }
        Ok(())
    }

    /// Makes the block that an event frees wait for a fence.
    fn fence(&mut self, event: u32) -> u32 {
        let fence = self.trace.fences;
        self.trace.fences += 1; // never more than lines
        if let Some(event) = self.trace.events.get_mut(event as usize)
            && let Event::Free { slot } = *event
        {
            *event = Event::FreeAfter { slot, fence };
        }
        fence
    }

    fn push(&mut self, event: Event) -> u32 {
        self.trace.events.push(event);
        self.trace.events.len() as u32 - 1 // never more than lines
    }

    /// Returns the index of a stream among all of them.
    fn stream(&mut self, number: u64) -> Answer<u16> {
        if let Some(stream) = self.streams.get(&number) {
            return Ok(*stream);
        }
        let limit = u64::from(u16::MAX);
        let place = u16::try_from(self.trace.streams.len())
            .map_err(|_| Wrong::TooMany { limit, what: "streams besides the default one" })?;
        self.trace.streams.push(number);
        self.streams.insert(number, place);
        Ok(place)
    }
}
