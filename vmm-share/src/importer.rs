//! The side of an exchange that takes another process's region in.

use crate::PeerError;
use crate::manifest::printable;
use crate::message::Message;
use crate::socket::Wait;
use crate::sources::{Sources, import_new, keep, take_in, wanted};
use crate::wire::{out_of_turn, receive_whole};
use crate::{Channel, ImportOptions};
use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{
    Address, Backend, Bytes, Detail, Error, GrowthKind, Operation, Placement, Region, Result, WaitFor,
};
use std::time::Duration;

/// A change of the exporter's region, which has been checked and is to be [applied](ImportedRegion::apply).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// 1 for the first change, one more for each that follows.
    pub revision: u64,
    /// Where the exporter has its region now.
    pub address: Address,
    /// Where its last mapping ends now, in bytes.
    pub end: Bytes,
}

/// What has come from the exporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Its region has changed.
    Changed(Change),
    /// The exporter asks this importer to release the memory: [`ImportedRegion::release`].
    ReleaseRequested,
    /// It has ended the exchange, or has died. The memory stays as it is.
    Gone,
}

/// Another process's region in this one: its memory in the same order, at an address of its own.
///
/// [`ImportedRegion::region`] is a region as any other, and can be used as one. What the exporter changes comes with
/// [`ImportedRegion::next`], and becomes true here with [`ImportedRegion::apply`], when it suits: until then the region is as it was,
/// and several changes can be applied at once.
///
/// Dropping it gives the memory back and ends the exchange. [`ImportedRegion::release`] does the same and tells the exporter,
/// [`ImportedRegion::detach`] keeps the memory.
#[derive(Debug)]
pub struct ImportedRegion<B: Backend> {
    // The memory goes before the channel is closed, which tells the exporter that it has gone.
    region: Region<B>,
    book: Sources<B>,
    import: ImportOptions,
    /// Of what the exporter has said last.
    revision: u64,
    /// What the region is.
    applied: u64,
    /// What is still to be said, where the exporter did not read in time.
    unsaid: Option<Message>,
    over: bool,
    channel: Channel,
}

impl ImportOptions {
    /// Takes in the region that the exporter at the other end of `channel` shares: within the channel's wait, as one
    /// transaction, in one contiguous range. CUDA: `cuMemImportFromShareableHandle`, HIP: `hipMemImportFromShareableHandle`.
    ///
    /// All that the exporter says is checked before the first descriptor is imported.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`], [`PeerError::Gone`], [`PeerError::BadMessage`]; [`Detail::Mismatch`] where it is another vendor's
    /// memory, of a device that is not here, or in units that are not those here, and [`Detail::Unaligned`] where another
    /// device of this process has larger units; [`Detail::AddressTaken`] where a chosen address is not free;
    /// [`Detail::PeerUnreachable`]; what the driver answers. Nothing is left behind, the exporter is told, and the channel is
    /// closed.
    pub fn receive<B: Backend>(&self, backend: &B, mut channel: Channel) -> Result<ImportedRegion<B>> {
        match self.try_receive(backend, &mut channel) {
            Ok((region, book)) => {
                let mut imported = ImportedRegion {
                    region,
                    book,
                    import: *self,
                    revision: 0,
                    applied: 0,
                    unsaid: None,
                    over: false,
                    channel,
                };
                imported.say(Operation::ReceiveRegion, Message::Applied { revision: 0 });
                Ok(imported)
            }
            Err(error) => {
                // If the exporter cannot be told, it sees the channel closed.
                let _ = channel.send(Operation::ReceiveRegion, &refusal(0, &error), &[]);
                Err(error)
            }
        }
    }

    fn try_receive<B: Backend>(&self, backend: &B, channel: &mut Channel) -> Result<(Region<B>, Sources<B>)> {
        let operation = Operation::ReceiveRegion;
        let wait = Wait::new(operation, "shared region", channel.wait());
        let (message, _) = receive_whole(channel, &wait)?;
        let Message::Begin(begin) = message else {
            return out_of_turn(operation, &message, "a shared region");
        };
        let mut book = Sources::default();
        take_in(operation, backend, channel, &begin, 0, &mut book)?;
        let new = import_new(backend, &book)?;
        let wanted = wanted(self, &book, &new);
        let region = self.region(operation, backend, book.base(), &wanted)?;
        keep(&mut book, new);
        Ok((region, book))
    }
}

impl<B: Backend> ImportedRegion<B> {
    /// The region.
    #[must_use]
    pub const fn region(&self) -> &Region<B> {
        &self.region
    }

    /// The region, to be written to, and to say who has access.
    ///
    /// What is mapped in it is the exporter's to say: where it is changed by hand, applying a change puts it right. What was
    /// unmapped is mapped again, and what was mapped beside goes.
    #[must_use]
    pub const fn region_mut(&mut self) -> &mut Region<B> {
        &mut self.region
    }

    /// The channel, for who is at its other end, and to wait for what the exporter says together with other things.
    #[must_use]
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits for what the exporter says next; `None` where it says nothing for so long. After the end of the exchange it
    /// is always [`Event::Gone`].
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] and [`Detail::Mismatch`] for a change that cannot be, [`PeerError::TimedOut`] where only some of a
    /// change came within the channel's wait. The region is as before, with the memory that it has, and the exchange is over.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Event>> {
        let operation = Operation::Receive;
        self.say_again(operation);
        if self.over {
            return Ok(Some(Event::Gone));
        }
        let wait = Wait::new(operation, "word of the exporter", wait);
        let heard = match receive_whole(&mut self.channel, &wait) {
            Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => return Ok(None),
            Err(error) => Err(error),
            Ok((message, _)) => self.hear(operation, message),
        };
        match heard {
            Ok(event) => Ok(Some(event)),
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                self.over = true;
                Ok(Some(Event::Gone))
            }
            Err(error) => {
                self.leave(operation);
                Err(error)
            }
        }
    }

    /// True where the exporter has told of changes that are not applied yet.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.applied < self.revision
    }

    /// Makes the region what the exporter has told last, at the address that it has: one transaction for all changes that
    /// have come. Where they go beyond the reservation, just what is needed is reserved behind it. What goes is waited for
    /// as `done` says. The exporter is told, of success and of failure.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] where the addresses behind the reservation are not free, [`Detail::CrossesReservation`] where a new
    /// mapping would lie in two reservations, [`Detail::Unaligned`] if its memory is of a larger granularity than the
    /// address is a multiple of, [`Detail::Mismatch`] where the region is to be [where the exporter's
    /// is](ImportOptions::same_address) and that has moved: for these there is [`ImportedRegion::apply_or_move`]. Else what waiting or
    /// the driver answers. The region is as before, and it can be tried again.
    pub fn apply(&mut self, done: WaitFor<'_>) -> Result<GrowthKind> {
        let operation = Operation::ApplyChange;
        self.apply_by(operation, |it, wanted| it.arrange(operation, wanted, done))
    }

    /// The same, at another address if it must be: where the exporter has its region if this one is to be there too, else
    /// in a range of at least twice the size wherever the driver likes. Pointers into the old range are void; the result
    /// tells.
    ///
    /// # Errors
    ///
    /// Those of [`ImportedRegion::apply`] but the four that it is for; [`Detail::AddressTaken`] where the region has to be at the
    /// exporter's address and cannot.
    pub fn apply_or_move(&mut self, done: WaitFor<'_>) -> Result<GrowthKind> {
        let operation = Operation::ApplyChange;
        self.apply_by(operation, |it, wanted| it.arrange_or_move(operation, wanted, done))
    }

    /// Unmaps everything, gives the memory and the addresses back, and tells the exporter. Devices are waited for as `done`
    /// says. A [`PhysicalMemory`](gpu_vmm_core::PhysicalMemory) that was cloned from a mapping has its memory still.
    ///
    /// # Errors
    ///
    /// Those of [`Region::close`]; the exporter is then told that the memory is kept. [`PeerError::TimedOut`] where the
    /// exporter cannot be told, since it does not read; one that is gone need not know.
    pub fn release(self, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::ReleaseImport;
        let Self { region, book, mut channel, over, .. } = self;
        let closed = region.close(done);
        drop(book);
        if over {
            return closed;
        }
        let message = if closed.is_ok() { Message::Released } else { Message::Kept };
        let told = channel.send(operation, &message, &[]);
        closed.and(match told {
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => Ok(()),
            other => other,
        })
    }

    /// Ends the exchange and keeps the region, which is the caller's alone from now on. Changes that are not applied are
    /// lost.
    #[must_use]
    pub fn detach(mut self) -> Region<B> {
        self.leave(Operation::ReleaseImport);
        self.region
    }

    fn hear(&mut self, operation: Operation, message: Message) -> Result<Event> {
        match message {
            Message::Begin(begin) => {
                let revision = self.revision + 1;
                take_in(
                    operation,
                    self.region.backend(),
                    &mut self.channel,
                    &begin,
                    revision,
                    &mut self.book,
                )?;
                self.revision = revision;
                let (address, end) = (self.book.base(), self.book.end());
                Ok(Event::Changed(Change { revision, address, end }))
            }
            Message::ReleaseRequested => Ok(Event::ReleaseRequested),
            other => out_of_turn(operation, &other, "a change"),
        }
    }

    /// Applies what was told last, by `arrange`, and tells the exporter of the outcome.
    fn apply_by(
        &mut self,
        operation: Operation,
        arrange: impl FnOnce(&mut Self, &[MappedMemory<B>]) -> Result<GrowthKind>,
    ) -> Result<GrowthKind> {
        if !self.is_behind() {
            return Ok(GrowthKind::Within);
        }
        let applied = import_new(self.region.backend(), &self.book).and_then(|new| {
            let wanted = wanted(&self.import, &self.book, &new);
            arrange(self, &wanted).map(|grown| (grown, new))
        });
        let revision = self.revision;
        match applied {
            Ok((grown, new)) => {
                keep(&mut self.book, new);
                self.applied = revision;
                self.say(operation, Message::Applied { revision });
                Ok(grown)
            }
            Err(error) => {
                self.say(operation, refusal(revision, &error));
                Err(error)
            }
        }
    }

    fn arrange(
        &mut self,
        operation: Operation,
        wanted: &[MappedMemory<B>],
        done: WaitFor<'_>,
    ) -> Result<GrowthKind> {
        let (address, theirs) = (self.region.address(), self.book.base());
        if self.import.is_as_exported() && address != theirs {
            let (theirs, ours) = (theirs.to_string(), format!("the region here is at {address}"));
            return Err(Error::new(operation, Detail::Mismatch { what: "address", theirs, ours }));
        }
        let reserved = self.region.reserved();
        self.region.apply_layout(operation, wanted, done)?;
        Ok(if self.region.reserved() > reserved { GrowthKind::Extended } else { GrowthKind::Within })
    }

    fn arrange_or_move(
        &mut self,
        operation: Operation,
        wanted: &[MappedMemory<B>],
        done: WaitFor<'_>,
    ) -> Result<GrowthKind> {
        let arranged = self.arrange(operation, wanted, done);
        let as_exported = self.import.is_as_exported();
        let placement = match arranged.as_ref().map_err(Error::detail) {
            Err(Detail::Mismatch { what: "address", .. }) if as_exported => {
                Placement::Exact(self.book.base())
            }
            Err(
                Detail::AddressTaken { .. }
                | Detail::CrossesReservation { .. }
                | Detail::Unaligned { what: "address", .. },
            ) if !as_exported => Placement::Anywhere,
            _ => return arranged,
        };
        self.region.apply_layout_elsewhere(operation, wanted, placement, done)?;
        Ok(GrowthKind::Remapped)
    }

    /// Says something. What the exporter does not read in time is said later; one that is gone is noticed later.
    fn say(&mut self, operation: Operation, message: Message) {
        self.unsaid = Some(message);
        self.say_again(operation);
    }

    fn say_again(&mut self, operation: Operation) {
        if let Some(message) = self.unsaid.take_if(|_| !self.over)
            && let Err(error) = self.channel.send(operation, &message, &[])
            && matches!(error.extension(), Some(PeerError::TimedOut { .. }))
        {
            self.unsaid = Some(message);
        }
    }

    /// Ends the exchange with the memory kept.
    fn leave(&mut self, operation: Operation) {
        if !self.over {
            self.say(operation, Message::Kept);
            self.over = true;
        }
    }
}

/// What the exporter is told of an error.
fn refusal(revision: u64, error: &Error) -> Message {
    Message::Refused { revision, why: printable(&error.to_string()) }
}
