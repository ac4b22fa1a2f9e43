//! The side of an exchange that imports another process's region.

use crate::PeerError;
use crate::manifest::printable;
use crate::message::Message;
use crate::socket::Wait;
use crate::sources::{Sources, import_new, keep, receive_claim, wanted};
use crate::wire::{out_of_turn, receive_whole};
use crate::{Channel, ImportOptions};
use gpu_vmm_core::extend::{MappedMemory, span};
use gpu_vmm_core::{
    Address, Backend, Bytes, Detail, Error, GrowthKind, Operation, Placement, Region, Result, WaitFor,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// A change of the exporter's region, which has been checked and can be [applied](ImportedRegion::apply).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The number of the change, from 1 on.
    pub revision: u64,
    /// The address of the region in the exporter.
    pub address: Address,
    /// The end of its last mapping, in bytes from that address.
    pub end: Bytes,
}

/// An event from the exporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The exporter has published a change of its region.
    Changed(Change),
    /// The exporter asks this importer to release the memory: [`ImportedRegion::release`].
    ReleaseRequested,
    /// The exporter has ended the exchange or has died. The memory of this region stays mapped, with its contents.
    Gone,
}

/// A region that maps another process's memory, in the same order and at an address of its own.
///
/// Use [`ImportedRegion::region`] like any other region. [`ImportedRegion::next`] receives the changes that the exporter
/// publishes, and [`ImportedRegion::apply`] applies all received changes at once. The region does not change before that.
///
/// Dropping it releases the memory and ends the exchange. [`ImportedRegion::release`] also reports that to the exporter, and
/// [`ImportedRegion::detach`] keeps the memory. If the exporter dies, the memory stays mapped, with its contents.
///
/// # Thread safety
///
/// As for a [`Region`]: calls that take `&self` may run at the same time, and threads that share it and apply changes have it in a lock.
#[derive(Debug)]
pub struct ImportedRegion<B: Backend> {
    // Dropped before the channel, by whose end the exporter learns that the memory is released.
    region: Region<B>,
    sources: Sources<B>,
    import: ImportOptions,
    /// The revision that was received last.
    revision: u64,
    /// The revision that the region has.
    applied: u64,
    /// A message that must still be sent, because the exporter did not read in time.
    pending: Option<Message>,
    over: bool,
    channel: Channel,
}

impl ImportOptions {
    /// Imports the region that the exporter at the other end of `channel` shares, as one contiguous range. Waits for its
    /// description as long as the [channel's limit](Channel::wait) allows. CUDA: `cuMemImportFromShareableHandle`; HIP:
    /// `hipMemImportFromShareableHandle`.
    ///
    /// The whole description is checked before the first descriptor is imported.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`], [`PeerError::Gone`], [`PeerError::BadMessage`]; [`Detail::Mismatch`] for memory of another
    /// vendor, of a device that this process does not see, or of another granularity; [`Detail::Unaligned`] if another
    /// device of this process has a larger granularity; [`Detail::AddressTaken`] if a chosen address is not free;
    /// [`Detail::PeerUnreachable`]; errors of the driver. Then nothing is mapped or held, the exporter receives the error's
    /// text, and the channel is closed.
    pub fn receive<B: Backend>(&self, backend: &B, mut channel: Channel) -> Result<ImportedRegion<B>> {
        match self.try_receive(backend, &mut channel) {
            Ok((region, sources)) => {
                let mut imported = ImportedRegion {
                    region,
                    sources,
                    import: *self,
                    revision: 0,
                    applied: 0,
                    pending: None,
                    over: false,
                    channel,
                };
                imported.send(Operation::ReceiveRegion, Message::Applied { revision: 0 });
                Ok(imported)
            }
            Err(error) => {
                // If this cannot be sent at once, the exporter still sees the channel closed.
                channel.set_wait(Duration::ZERO);
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
        span!(ReceiveRegion);
        let mut sources = Sources::default();
        receive_claim(operation, backend, channel, &begin, 0, &mut sources)?;
        let new = import_new(backend, &sources)?;
        let wanted = wanted(self, &sources, &new);
        let region = self.region(operation, backend, sources.base(), &wanted)?;
        keep(&mut sources, new);
        Ok((region, sources))
    }
}

impl<B: Backend> ImportedRegion<B> {
    /// Returns the region.
    #[must_use]
    pub const fn region(&self) -> &Region<B> {
        &self.region
    }

    /// Returns the region, to write to it or to set access.
    ///
    /// The exporter determines the mappings. Applying a change reverts those that the caller changed here: mappings that
    /// were removed are mapped again, mappings that were added are removed.
    #[must_use]
    pub const fn region_mut(&mut self) -> &mut Region<B> {
        &mut self.region
    }

    /// Returns true while the exchange goes on and the exporter has its end open, as [`Channel::is_connected`] says. Does not
    /// block. Messages that the exporter sent before its end can still be received with [`ImportedRegion::next`].
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.over && self.channel.is_connected()
    }

    /// Returns the channel to the exporter.
    #[must_use]
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits up to `wait` for the next event, and returns `None` if none arrives. With [`Duration::ZERO`] it returns at once,
    /// with an event if one has arrived. After the end of the exchange it always returns [`Event::Gone`].
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] and [`Detail::Mismatch`] for an invalid change; [`PeerError::TimedOut`] if a change did not
    /// arrive whole within the [channel's limit](Channel::wait). The region keeps its memory, and the exchange is over.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Event>> {
        let operation = Operation::Receive;
        self.send_pending(operation);
        if self.over {
            return Ok(Some(Event::Gone));
        }
        let wait = Wait::new(operation, "message from the exporter", wait);
        let event = match receive_whole(&mut self.channel, &wait) {
            Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => return Ok(None),
            Err(error) => Err(error),
            Ok((message, _)) => self.handle(operation, message),
        };
        match event {
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

    /// Returns true if changes were received that are not applied yet.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.applied < self.revision
    }

    /// Applies all changes that were received, as one transaction, at the address that the region has. If they go beyond the
    /// reservation, reserves the addresses behind it that are needed. Waits as `done` says before it unmaps memory. The
    /// exporter receives the outcome, success or failure.
    ///
    /// # Errors
    ///
    /// [`Detail::AddressTaken`] if the addresses behind the reservation are not free; [`Detail::CrossesReservation`] if a new
    /// mapping would lie in two reservations; [`Detail::Unaligned`] if the address is not a multiple of the new memory's
    /// granularity; [`Detail::Mismatch`] if the region must be [at the exporter's address](ImportOptions::same_address) and
    /// that has changed: [`ImportedRegion::apply_or_move`] handles these four. Otherwise errors of the wait and of the driver.
    /// The region is as before, and the caller can try again.
    pub fn apply(&mut self, done: WaitFor<'_>) -> Result<GrowthKind> {
        let operation = Operation::ApplyChange;
        self.apply_by(operation, |it, wanted| it.arrange(operation, wanted, done))
    }

    /// Applies all changes like [`ImportedRegion::apply`], and moves the region if it must: to the exporter's address if the
    /// region was imported [at that](ImportOptions::same_address), otherwise to a range of at least twice the size that the
    /// driver chooses. After a move, which returns [`GrowthKind::Remapped`], pointers into the old range are invalid.
    ///
    /// # Errors
    ///
    /// Those of [`ImportedRegion::apply`] except the four that a move avoids; [`Detail::AddressTaken`] if the region must be
    /// at the exporter's address and that is not free.
    pub fn apply_or_move(&mut self, done: WaitFor<'_>) -> Result<GrowthKind> {
        let operation = Operation::ApplyChange;
        self.apply_by(operation, |it, wanted| it.arrange_or_move(operation, wanted, done))
    }

    /// Unmaps and releases the memory, frees the addresses, and reports it to the exporter. Waits as `done` says before that.
    /// A clone of a mapping's [`PhysicalMemory`](gpu_vmm_core::PhysicalMemory) still holds its memory.
    ///
    /// # Errors
    ///
    /// Those of [`Region::close`], which the exporter sees as [`ReleaseOutcome::Kept`](crate::ReleaseOutcome::Kept);
    /// [`PeerError::TimedOut`] if the exporter does not read. It is no error if the exporter is gone.
    pub fn release(self, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::ReleaseImport;
        let Self { region, sources, mut channel, over, .. } = self;
        span!(ReleaseImport, address = %region.address(), bytes = region.mapped().0);
        let closed = region.close(done);
        drop(sources);
        if over {
            return closed;
        }
        let message = if closed.is_ok() { Message::Released } else { Message::Kept };
        let reported = channel.send(operation, &message, &[]);
        closed.and(match reported {
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => Ok(()),
            other => other,
        })
    }

    /// Ends the exchange and returns the region with its memory. Changes that were not applied are lost.
    #[must_use]
    pub fn detach(mut self) -> Region<B> {
        self.leave(Operation::ReleaseImport);
        self.region
    }

    fn handle(&mut self, operation: Operation, message: Message) -> Result<Event> {
        match message {
            Message::Begin(begin) => {
                let revision = self.revision + 1;
                receive_claim(
                    operation,
                    self.region.backend(),
                    &mut self.channel,
                    &begin,
                    revision,
                    &mut self.sources,
                )?;
                self.revision = revision;
                let (address, end) = (self.sources.base(), self.sources.end());
                Ok(Event::Changed(Change { revision, address, end }))
            }
            Message::ReleaseRequested => Ok(Event::ReleaseRequested),
            other => out_of_turn(operation, &other, "a change"),
        }
    }

    /// Applies the received changes with `arrange`, and sends the exporter the outcome.
    fn apply_by(
        &mut self,
        operation: Operation,
        arrange: impl FnOnce(&mut Self, &[MappedMemory<B>]) -> Result<GrowthKind>,
    ) -> Result<GrowthKind> {
        if !self.is_behind() {
            return Ok(GrowthKind::Within);
        }
        span!(ApplyChange, address = %self.region.address(), revision = self.revision);
        let applied = import_new(self.region.backend(), &self.sources).and_then(|new| {
            let wanted = wanted(&self.import, &self.sources, &new);
            arrange(self, &wanted).map(|grown| (grown, new))
        });
        let revision = self.revision;
        match applied {
            Ok((grown, new)) => {
                keep(&mut self.sources, new);
                self.applied = revision;
                self.send(operation, Message::Applied { revision });
                Ok(grown)
            }
            Err(error) => {
                self.send(operation, refusal(revision, &error));
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
        let (address, theirs) = (self.region.address(), self.sources.base());
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
                Placement::Exact(self.sources.base())
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

    /// Sends a message, or keeps it for later if the exporter does not read in time. If the exporter is gone, a later call notices.
    fn send(&mut self, operation: Operation, message: Message) {
        self.pending = Some(message);
        self.send_pending(operation);
    }

    fn send_pending(&mut self, operation: Operation) {
        if let Some(message) = self.pending.take_if(|_| !self.over)
            && let Err(error) = self.channel.send(operation, &message, &[])
            && matches!(error.extension(), Some(PeerError::TimedOut { .. }))
        {
            self.pending = Some(message);
        }
    }

    /// Ends the exchange and keeps the memory.
    fn leave(&mut self, operation: Operation) {
        if !self.over {
            self.send(operation, Message::Kept);
            self.over = true;
        }
    }
}

impl<B: Backend> AsFd for ImportedRegion<B> {
    /// Returns the channel's socket, [to wait on](Channel#waiting-with-poll-or-epoll).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl<B: Backend> AsRawFd for ImportedRegion<B> {
    /// Returns the channel's socket, [to wait on](Channel#waiting-with-poll-or-epoll).
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

/// Returns the message that reports an error to the exporter.
fn refusal(revision: u64, error: &Error) -> Message {
    Message::Refused { revision, why: printable(&error.to_string()) }
}
