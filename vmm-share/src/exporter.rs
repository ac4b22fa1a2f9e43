//! The side of an exchange that shares its region.

use crate::Channel;
use crate::PeerError;
use crate::exporter_state::ExporterState;
use crate::manifest::{Origin, printable};
use crate::message::Message;
use crate::socket::Wait;
use crate::wire::{out_of_turn, receive_whole, send};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::extend::span;
use gpu_vmm_core::{Backend, Error, Operation, Region, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// The way in which an exchange with an importer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReleaseOutcome {
    /// The importer has reported that it unmapped and released the memory.
    Released,
    /// The importer has reported that it keeps the memory and ends the exchange.
    Kept,
    /// The importer has died or closed its end without a report. If it died or dropped its [`ImportedRegion`], its memory
    /// is released; if it refused a message of this side, it may still hold the memory.
    ///
    /// [`ImportedRegion`]: crate::ImportedRegion
    Gone,
}

/// The exporting end of a shared region, for one importer.
///
/// Each importer has an exporter and a [`Channel`] of its own. The caller owns the region and uses, grows and shrinks it as
/// any other; [`Exporter::publish`] sends the importer the changes. The exporter holds no memory: memory that the region
/// unmaps stays alive only in the importer, until that applies the change.
///
/// Dropping the exporter ends the exchange, and so does the death of its process; the importer keeps its memory.
/// If the importer dies, the region is unaffected, and can be shared with another importer on another channel.
///
/// # Thread safety
///
/// Any thread may have the exporter, one at a time. [`Exporter::publish`] reads the region, which no other thread changes meanwhile.
/// Waiting for the importer needs no region.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, Properties, DeviceId, Region, Result};
/// # use gpu_vmm_share::{Exporter, Channel};
/// # use std::time::Duration;
/// # fn example<B: Backend>(backend: &B, channel: Channel) -> Result<()> {
/// let memory = Properties::on(DeviceId(0)).shareable();
/// let mut region = Region::builder(backend).memory(memory).build()?;
/// region.grow_to(Bytes::mib(64))?;
/// let mut exporter = Exporter::share(channel, &region)?;
/// region.grow_to(Bytes::mib(128))?;
/// exporter.publish(&region)?;
/// exporter.wait_applied(Duration::from_secs(10))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Exporter<B: Backend> {
    channel: Channel,
    state: ExporterState<B>,
    /// The revision that was sent last.
    revision: u64,
    /// The revision that the importer applied last.
    applied: Option<u64>,
    /// The revision that the importer refused last, and its reason.
    refused: Option<(u64, String)>,
    release_requested: bool,
    end: Option<End>,
}

/// The reason why no more messages are sent.
#[derive(Clone, Copy, Debug)]
enum End {
    Outcome(ReleaseOutcome),
    /// A message could not be sent whole, or an invalid one was received.
    Broken,
}

impl<B: Backend> Exporter<B> {
    /// Sends the importer at the other end of `channel` a description of a region, with a descriptor for each piece of
    /// memory. Does not wait until the importer has mapped it: [`Exporter::wait_applied`] does.
    ///
    /// Each piece takes a descriptor in both processes until it has been imported, so the limit of open files
    /// (`RLIMIT_NOFILE`) must be above the number of pieces.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::export`](gpu_vmm_core::PhysicalMemory::export) for memory that was not created
    /// [shareable](gpu_vmm_core::Properties::shareable), or that was itself imported if the driver does not export such
    /// memory again (CUDA); [`Detail::Unsupported`] if a device has no UUID; [`Detail::Poisoned`]. In these cases nothing was
    /// sent. [`PeerError::Gone`]; [`PeerError::TimedOut`] if the importer does not read.
    pub fn share(channel: Channel, region: &Region<B>) -> Result<Self> {
        let mut exporter = Self {
            channel,
            state: ExporterState::new(),
            revision: 0,
            applied: None,
            refused: None,
            release_requested: false,
            end: None,
        };
        span!(ShareRegion, address = %region.address(), bytes = region.mapped().0);
        exporter.send_changes(Operation::ShareRegion, region, 0)?;
        Ok(exporter)
    }

    /// Sends the importer the changes of the region since the last call: removed mappings, new memory and mappings, a
    /// new address. Returns false, and sends nothing, if nothing has changed.
    ///
    /// # Errors
    ///
    /// Those of [`Exporter::share`]. If nothing was sent, the caller can try again.
    pub fn publish(&mut self, region: &Region<B>) -> Result<bool> {
        let operation = Operation::Publish;
        self.check_open(operation)?;
        span!(Publish, address = %region.address(), bytes = region.mapped().0);
        // Receives the answers that have arrived, so that the importer has room to send more.
        let all = Wait::new(operation, "end of the importer's answers", self.channel.wait());
        loop {
            match self.receive(&Wait::new(operation, "answer", Duration::ZERO)) {
                Ok(()) => all.left()?,
                Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => break,
                Err(error) => return Err(error),
            };
            self.check_open(operation)?;
        }
        self.send_changes(operation, region, self.revision + 1)
    }

    /// Waits until the importer has applied everything that was sent: the region as it was shared or last published.
    ///
    /// # Errors
    ///
    /// [`PeerError::Refused`] with the importer's reason if applying failed there; the importer may try again, and so can the
    /// caller. [`PeerError::Gone`] as soon as the importer has died or closed its end, without waiting any longer.
    /// [`PeerError::TimedOut`], [`PeerError::BadMessage`].
    pub fn wait_applied(&mut self, wait: Duration) -> Result<()> {
        let operation = Operation::WaitApplied;
        let wait = Wait::new(operation, "answer from the importer", wait);
        self.receive_until(&wait, |it| {
            if it.applied == Some(it.revision) {
                return Ok(Some(()));
            }
            match it.refused.take_if(|(revision, _)| *revision == it.revision) {
                Some((_, why)) => Err(Error::of_extension(operation, PeerError::Refused { why })),
                None => Ok(None),
            }
        })
    }

    /// Asks the importer to release the memory: its [`ImportedRegion::next`](crate::ImportedRegion::next) returns
    /// [`Event::ReleaseRequested`](crate::Event::ReleaseRequested). Further calls send nothing.
    ///
    /// # Errors
    ///
    /// [`PeerError::Gone`]; [`PeerError::TimedOut`] if the importer does not read.
    pub fn request_release(&mut self) -> Result<()> {
        let operation = Operation::RequestRelease;
        self.check_open(operation)?;
        if !self.release_requested {
            self.send(|channel| channel.send(operation, &Message::ReleaseRequested, &[]))?;
            self.release_requested = true;
        }
        Ok(())
    }

    /// Waits until the exchange has ended: the importer has released the memory, whether requested or not, keeps it, or is
    /// gone.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`]; [`PeerError::BadMessage`] for an invalid message; [`PeerError::Gone`] if an earlier error has
    /// ended the exchange.
    pub fn wait_released(&mut self, wait: Duration) -> Result<ReleaseOutcome> {
        let operation = Operation::WaitReleased;
        let wait = Wait::new(operation, "report that the memory was released", wait);
        self.receive_until(&wait, |it| match it.end {
            Some(End::Outcome(how)) => Ok(Some(how)),
            _ => Ok(None),
        })
    }

    /// Returns true while the exchange goes on and the importer has its end open, as [`Channel::is_connected`] says. Does not
    /// block.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.end.is_none() && self.channel.is_connected()
    }

    /// Returns the channel to the importer.
    #[must_use]
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends the changes as `revision`.
    fn send_changes(&mut self, operation: Operation, region: &Region<B>, revision: u64) -> Result<bool> {
        let changes = self.state.changes(operation, region)?;
        if revision > 0 && self.state.is_sent(&changes) {
            return Ok(false);
        }
        let descriptors: Vec<OwnedFd> =
            changes.memory.iter().map(|memory| memory.export()).collect::<Result<_>>()?;
        let origin = Origin::of(region.backend());
        self.send(|channel| send(channel, operation, (origin, revision), &changes.claim, &descriptors))?;
        self.state.record(changes);
        self.revision = revision;
        Ok(true)
    }

    /// Sends messages. If that fails, some of them may have been sent, so the exchange ends.
    fn send(&mut self, send: impl FnOnce(&mut Channel) -> Result<()>) -> Result<()> {
        send(&mut self.channel).inspect_err(|error| self.end = Some(end_of(error)))
    }

    /// Fails if the exchange is over.
    fn check_open(&self, operation: Operation) -> Result<()> {
        let why = match self.end {
            None => return Ok(()),
            Some(End::Outcome(ReleaseOutcome::Released)) => "it has released the memory",
            Some(End::Outcome(ReleaseOutcome::Kept)) => "it keeps the memory and has ended the exchange",
            Some(End::Outcome(ReleaseOutcome::Gone)) => "",
            Some(End::Broken) => "the exchange has ended with an error",
        };
        Err(Error::of_extension(operation, PeerError::Gone { why: why.to_owned() }))
    }

    /// Receives messages until `found` returns a value.
    fn receive_until<T>(&mut self, wait: &Wait, found: impl Fn(&mut Self) -> Result<Option<T>>) -> Result<T> {
        let mut in_time = Ok(());
        loop {
            if let Some(found) = found(self)? {
                return Ok(found);
            }
            in_time?;
            self.check_open(wait.operation)?;
            self.receive(wait)?;
            // The limit also ends the wait if the importer keeps sending other messages.
            in_time = wait.left().map(|_| ());
        }
    }

    /// Receives one message of the importer, or the end of the channel.
    fn receive(&mut self, wait: &Wait) -> Result<()> {
        let received = receive_whole(&mut self.channel, wait)
            .and_then(|(message, _)| self.handle(wait.operation, message));
        match received {
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                self.end = Some(End::Outcome(ReleaseOutcome::Gone))
            }
            Err(error) => {
                if !matches!(error.extension(), Some(PeerError::TimedOut { .. })) {
                    self.end = Some(End::Broken);
                }
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok(())
    }

    fn handle(&mut self, operation: Operation, message: Message) -> Result<()> {
        match message {
            Message::Applied { revision } if self.is_awaited(revision) => self.applied = Some(revision),
            Message::Refused { revision, why } if self.is_awaited(revision) => {
                self.refused = Some((revision, printable(&why)));
            }
            Message::Applied { revision } | Message::Refused { revision, .. } => {
                let (applied, last) = (self.applied, self.revision);
                let why = format!(
                    "it answers revision {revision}; the last one sent is {last}, the last one applied {applied:?}"
                );
                return Err(Error::of_extension(operation, PeerError::BadMessage { why }));
            }
            Message::Released => self.end = Some(End::Outcome(ReleaseOutcome::Released)),
            Message::Kept => self.end = Some(End::Outcome(ReleaseOutcome::Kept)),
            other => return out_of_turn(operation, &other, "an answer"),
        }
        Ok(())
    }

    /// Returns true for a revision that was sent and is not applied yet.
    fn is_awaited(&self, revision: u64) -> bool {
        revision <= self.revision && self.applied.is_none_or(|applied| applied < revision)
    }
}

impl<B: Backend> AsFd for Exporter<B> {
    /// Returns the channel's socket, [to wait on](Channel#waiting-with-poll-or-epoll).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl<B: Backend> AsRawFd for Exporter<B> {
    /// Returns the channel's socket, [to wait on](Channel#waiting-with-poll-or-epoll).
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

fn end_of(error: &Error) -> End {
    match error.extension() {
        Some(PeerError::Gone { .. }) => End::Outcome(ReleaseOutcome::Gone),
        _ => End::Broken,
    }
}
