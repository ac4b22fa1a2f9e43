//! The side of an exchange that has a region and shares it.

use crate::Channel;
use crate::PeerError;
use crate::exporter_state::ExporterState;
use crate::manifest::{Origin, printable};
use crate::message::Message;
use crate::socket::Wait;
use crate::wire::{out_of_turn, receive_whole, send};
#[cfg(doc)]
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Backend, Error, Operation, Region, Result};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How it ended with an importer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReleaseOutcome {
    /// It has unmapped everything and given the memory back, and says so.
    Released,
    /// It goes on with the memory and takes part no more.
    Kept,
    /// It has died, or closed its end without a word. One that has died or dropped what it had has given the memory back by
    /// that; one that could not use what it was told may still have it.
    Gone,
}

/// A region that is shared, as one importer is told of it.
///
/// There is one for each importer, on a [`Channel`] of its own. The region stays the caller's: it is used, grown and shrunk
/// as any other, and [`Exporter::publish`] tells the importer what has changed. Nothing here keeps memory: what the region
/// has dropped is the importer's alone, until that learns of it.
///
/// Dropping an exporter ends the exchange, and so does the death of its process: the importer keeps what it has.
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
    told: ExporterState<B>,
    /// Of what was told last.
    revision: u64,
    /// The last one that the importer has.
    applied: Option<u64>,
    /// What it answered last where it could not.
    refused: Option<(u64, String)>,
    asked: bool,
    end: Option<End>,
}

/// Why nothing more is said.
#[derive(Clone, Copy, Debug)]
enum End {
    Said(ReleaseOutcome),
    /// A message could not be sent whole, or one came that cannot be used.
    Broken,
}

impl<B: Backend> Exporter<B> {
    /// Describes a region to the importer at the other end of `channel`, with a descriptor for each piece of its memory. It
    /// does not wait for an answer: [`Exporter::wait_applied`] does.
    ///
    /// Each piece takes a descriptor in both processes until it has been imported, so the limit of open files
    /// (`RLIMIT_NOFILE`) has to be above the number of pieces.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::export`](gpu_vmm_core::PhysicalMemory::export) for memory that was not created
    /// [shareable](gpu_vmm_core::Properties::shareable), or was itself imported and the driver exports such memory no more
    /// (CUDA); [`Detail::Unsupported`] where a device has no UUID; [`Detail::Poisoned`]. Then nothing was sent.
    /// [`PeerError::Gone`], and [`PeerError::TimedOut`] where the importer does not read.
    pub fn share(channel: Channel, region: &Region<B>) -> Result<Self> {
        let mut exporter = Self {
            channel,
            told: ExporterState::new(),
            revision: 0,
            applied: None,
            refused: None,
            asked: false,
            end: None,
        };
        exporter.tell(Operation::ShareRegion, region, 0)?;
        Ok(exporter)
    }

    /// Tells the importer what has changed in the region since it was last told: mappings that are gone, memory and
    /// mappings that are new, another address. True where there was anything to say; nothing to say is nothing sent.
    ///
    /// # Errors
    ///
    /// Those of [`Exporter::share`]. Where nothing was sent, it can be published again.
    pub fn publish(&mut self, region: &Region<B>) -> Result<bool> {
        let operation = Operation::Publish;
        self.check_open(operation)?;
        // What has been answered is taken in, so that the importer has room to answer.
        let all = Wait::new(operation, "end of the answers", self.channel.wait());
        loop {
            match self.hear(&Wait::new(operation, "answer", Duration::ZERO)) {
                Ok(()) => all.left()?,
                Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => break,
                Err(error) => return Err(error),
            };
            self.check_open(operation)?;
        }
        self.tell(operation, region, self.revision + 1)
    }

    /// Waits until the importer has all that it was told: the region as it was when it was shared or last published.
    ///
    /// # Errors
    ///
    /// [`PeerError::Refused`] with the importer's words where it could not; it may try again, and this can be asked again.
    /// [`PeerError::Gone`], [`PeerError::TimedOut`], [`PeerError::BadMessage`].
    pub fn wait_applied(&mut self, wait: Duration) -> Result<()> {
        let operation = Operation::WaitApplied;
        let wait = Wait::new(operation, "answer to what was shared", wait);
        self.hear_until(&wait, |it| {
            if it.applied == Some(it.revision) {
                return Ok(Some(()));
            }
            match it.refused.take_if(|(revision, _)| *revision == it.revision) {
                Some((_, why)) => Err(Error::of_extension(operation, PeerError::Refused { why })),
                None => Ok(None),
            }
        })
    }

    /// Asks the importer to release the memory. Further calls send nothing.
    ///
    /// # Errors
    ///
    /// [`PeerError::Gone`], and [`PeerError::TimedOut`] where the importer does not read.
    pub fn request_release(&mut self) -> Result<()> {
        let operation = Operation::RequestRelease;
        self.check_open(operation)?;
        if !self.asked {
            self.say(|channel| channel.send(operation, &Message::ReleaseRequested, &[]))?;
            self.asked = true;
        }
        Ok(())
    }

    /// Waits until the importer has released the memory, asked or not, or is gone.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`] where it has not, [`PeerError::BadMessage`] for what no importer says; [`PeerError::Gone`] where
    /// the exchange has ended with an error before.
    pub fn wait_released(&mut self, wait: Duration) -> Result<ReleaseOutcome> {
        let operation = Operation::WaitReleased;
        let wait = Wait::new(operation, "report that the memory was released", wait);
        self.hear_until(&wait, |it| match it.end {
            Some(End::Said(how)) => Ok(Some(how)),
            _ => Ok(None),
        })
    }

    /// The channel, for who is at its other end, and to wait for what the importer says together with other things.
    #[must_use]
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Describes what is new as this revision.
    fn tell(&mut self, operation: Operation, region: &Region<B>, revision: u64) -> Result<bool> {
        let news = self.told.news(operation, region)?;
        if revision > 0 && self.told.has_all(&news) {
            return Ok(false);
        }
        let descriptors: Vec<OwnedFd> =
            news.memory.iter().map(|memory| memory.export()).collect::<Result<_>>()?;
        let origin = Origin::of(region.backend());
        self.say(|channel| send(channel, operation, (origin, revision), &news.claim, &descriptors))?;
        self.told.note(news);
        self.revision = revision;
        Ok(true)
    }

    /// Says something; where that fails some of it may have been said, so nothing more is.
    fn say(&mut self, say: impl FnOnce(&mut Channel) -> Result<()>) -> Result<()> {
        say(&mut self.channel).inspect_err(|error| self.end = Some(end_of(error)))
    }

    /// Refuses to go on where the exchange is over.
    fn check_open(&self, operation: Operation) -> Result<()> {
        let why = match self.end {
            None => return Ok(()),
            Some(End::Said(ReleaseOutcome::Released)) => "it has released the memory",
            Some(End::Said(ReleaseOutcome::Kept)) => "it keeps the memory and takes part no more",
            Some(End::Said(ReleaseOutcome::Gone)) => "",
            Some(End::Broken) => "the exchange has ended with an error",
        };
        Err(Error::of_extension(operation, PeerError::Gone { why: why.to_owned() }))
    }

    /// Takes messages in until there is what is waited for.
    fn hear_until<T>(&mut self, wait: &Wait, found: impl Fn(&mut Self) -> Result<Option<T>>) -> Result<T> {
        let mut in_time = Ok(());
        loop {
            if let Some(found) = found(self)? {
                return Ok(found);
            }
            in_time?;
            self.check_open(wait.operation)?;
            self.hear(wait)?;
            // An importer that says much and nothing to the point is not waited for longer than a silent one.
            in_time = wait.left().map(|_| ());
        }
    }

    /// Takes one message of the importer in, or the end of the channel.
    fn hear(&mut self, wait: &Wait) -> Result<()> {
        let heard = receive_whole(&mut self.channel, wait)
            .and_then(|(message, _)| self.take(wait.operation, message));
        match heard {
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                self.end = Some(End::Said(ReleaseOutcome::Gone))
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

    fn take(&mut self, operation: Operation, message: Message) -> Result<()> {
        match message {
            Message::Applied { revision } if self.is_awaited(revision) => self.applied = Some(revision),
            Message::Refused { revision, why } if self.is_awaited(revision) => {
                self.refused = Some((revision, printable(&why)));
            }
            Message::Applied { revision } | Message::Refused { revision, .. } => {
                let (applied, last) = (self.applied, self.revision);
                let why =
                    format!("an answer to revision {revision}; {last} is the last, {applied:?} applied");
                return Err(Error::of_extension(operation, PeerError::BadMessage { why }));
            }
            Message::Released => self.end = Some(End::Said(ReleaseOutcome::Released)),
            Message::Kept => self.end = Some(End::Said(ReleaseOutcome::Kept)),
            other => return out_of_turn(operation, &other, "an answer"),
        }
        Ok(())
    }

    /// True for what was told and is not applied yet.
    fn is_awaited(&self, revision: u64) -> bool {
        revision <= self.revision && self.applied.is_none_or(|applied| applied < revision)
    }
}

fn end_of(error: &Error) -> End {
    match error.extension() {
        Some(PeerError::Gone { .. }) => End::Said(ReleaseOutcome::Gone),
        _ => End::Broken,
    }
}
