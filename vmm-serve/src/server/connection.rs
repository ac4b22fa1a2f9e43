//! One client: its channel, what it wants, and the messages that it has not received yet.

use super::books::{Handle, place_of};
use super::job::Job;
use super::peer::Peer;
use super::program::{Program, Waits, Wanted};
use super::region::{Layout, Waiting};
use super::{OPERATION, PAUSE, ServerOptions, is_timed_out};
use crate::ServeError;
use crate::protocol::{LeaseKind, Reply, Request, WITH_PROGRAMS};
use gpu_vmm_core::{Backend, Result};
use gpu_vmm_share::Channel;
use gpu_vmm_share::extend::{MAX_DESCRIPTORS, Wait, keep, receive, send};
use rustix::net::{Shutdown, shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time in which a client must say what it wants.
const TO_ASK: Duration = Duration::from_secs(30);

/// The time in which a client must receive the last message.
const TO_LEAVE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Connection<B: Backend> {
    pub(super) channel: Channel,
    pub(super) peer: Peer,
    /// The version of the protocol, once it is known.
    pub(super) version: u16,
    pub(super) role: Role<B>,
    queue: VecDeque<Outgoing<B>>,
    /// Nothing is sent before this.
    pub(super) paused: Option<Instant>,
    /// True if the connection ends when the queue is empty.
    ends: bool,
}

/// What a client wants.
#[derive(Debug)]
pub(super) enum Role<B: Backend> {
    /// It has not said which versions it speaks.
    New {
        since: Instant,
    },
    /// It has no lease.
    Idle {
        since: Instant,
    },
    /// It gets a list as soon as the programs have reported.
    Lists {
        since: Instant,
    },
    Waits(Waiting),
    Leases(Box<Lease<B>>),
    Program(Box<Program>),
}

/// A lease of a client.
#[derive(Debug)]
pub(super) struct Lease<B: Backend> {
    pub(super) name: String,
    /// The number of the region.
    pub(super) region: u64,
    pub(super) kind: LeaseKind,
    /// The epoch that was sent, and the handles of it.
    pub(super) sent: u64,
    pub(super) sent_handles: Vec<u64>,
    /// The layout that was sent, by the epoch of its commit.
    pub(super) layout: Option<Arc<Layout>>,
    /// The epoch that the client has mapped.
    pub(super) applied: u64,
    /// All memory that the client may have.
    pub(super) holds: Vec<Arc<Handle<B>>>,
    /// A writer's new memory, by its index in the region.
    pub(super) fresh: BTreeMap<u32, Arc<Handle<B>>>,
    pub(super) job: Option<Job<B>>,
    /// True if the region was dropped.
    pub(super) is_dropped: bool,
}

#[derive(Debug)]
struct Outgoing<B: Backend> {
    reply: Reply,
    sources: Vec<Source<B>>,
}

/// The owner of a descriptor that goes along with a message.
#[derive(Debug)]
pub(super) enum Source<B: Backend> {
    Handle(Arc<Handle<B>>),
    Layout(Arc<Layout>),
}

impl<B: Backend> Source<B> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Handle(handle) => handle.descriptor.as_fd(),
            Self::Layout(layout) => layout.file.as_fd(),
        }
    }
}

impl<B: Backend> Connection<B> {
    pub(super) fn new(mut channel: Channel) -> Result<Self> {
        // No call waits for a client.
        channel.set_wait(Duration::ZERO);
        let peer = Peer::of(&channel)?;
        let role = Role::New { since: Instant::now() };
        Ok(Self { channel, peer, version: 0, role, queue: VecDeque::new(), paused: None, ends: false })
    }

    /// Returns a message that has arrived, with its descriptors. `None` if there is none, or if the client has not received the
    /// replies to earlier ones, so that they cannot pile up.
    pub(super) fn receive(&mut self) -> Result<Option<(Request, Vec<OwnedFd>)>> {
        if self.ends || self.has_queue() {
            return Ok(None);
        }
        match receive(&mut self.channel, &Wait::new(OPERATION, "request", Duration::ZERO)) {
            Ok(message) => Ok(Some(message)),
            Err(error) if is_timed_out(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the client has ended its lease before its connection. That message can be behind others which were not
    /// received because the client has not received the replies. Nothing is sent or received afterwards.
    pub(super) fn has_released(&mut self) -> bool {
        // No more arrives after this, so that the loop ends.
        let _ = shutdown(&self.channel, Shutdown::Both);
        while let Ok((request, descriptors)) =
            receive::<Request>(&mut self.channel, &Wait::new(OPERATION, "request", Duration::ZERO))
        {
            keep(&mut self.channel, descriptors);
            if request == Request::Release {
                return true;
            }
        }
        false
    }

    /// Queues a message without descriptors.
    pub(super) fn put(&mut self, reply: Reply) {
        self.put_with(reply, Vec::new());
    }

    pub(super) fn put_with(&mut self, reply: Reply, sources: Vec<Source<B>>) {
        self.queue.push_back(Outgoing { reply, sources });
    }

    /// Queues handles, each with its index in the region.
    pub(super) fn put_handles(&mut self, handles: &[(u32, Arc<Handle<B>>)]) {
        for some in handles.chunks(MAX_DESCRIPTORS) {
            let pieces = some.iter().map(|(index, handle)| handle.described(*index)).collect();
            let sources = some.iter().map(|(_, handle)| Source::Handle(Arc::clone(handle))).collect();
            self.put_with(Reply::Handles(pieces), sources);
        }
    }

    /// Refuses a request and goes on.
    pub(super) fn refuse(&mut self, error: ServeError) {
        self.put(Reply::Refused(if self.version < WITH_PROGRAMS {
            error.known_before_programs()
        } else {
            error
        }));
    }

    /// Refuses whatever the client wants, and ends.
    pub(super) fn refuse_all(&mut self, options: &ServerOptions) {
        let (what, limit) = ("clients of one user".to_owned(), options.clients_per_user() as u64);
        self.refuse(ServeError::Limit { what, limit });
        self.end_when_sent();
    }

    pub(super) fn end_when_sent(&mut self) {
        self.ends = true;
        self.role = Role::Idle { since: Instant::now() };
    }

    /// Returns the messages that the client has not received yet.
    pub(super) fn queue(&self) -> impl Iterator<Item = (&Reply, &[Source<B>])> {
        self.queue.iter().map(|one| (&one.reply, one.sources.as_slice()))
    }

    /// Returns true if the connection ends when the queue is empty.
    pub(super) const fn ends(&self) -> bool {
        self.ends
    }

    /// Returns the handles that are under way.
    #[cfg(test)]
    pub(super) fn queued_handles(&self) -> impl Iterator<Item = &Arc<Handle<B>>> {
        self.queue.iter().flat_map(|one| &one.sources).filter_map(|source| match source {
            Source::Handle(handle) => Some(handle),
            Source::Layout(_) => None,
        })
    }

    pub(super) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if everything is sent and nothing else will come.
    pub(super) fn is_over(&self) -> bool {
        self.ends && self.queue.is_empty()
    }

    /// Sends what the client has room for.
    pub(super) fn send_queue(&mut self) -> Result<()> {
        while self.paused.is_none()
            && let Some(Outgoing { reply, sources }) = self.queue.front()
        {
            let descriptors: Vec<BorrowedFd<'_>> = sources.iter().map(Source::descriptor).collect();
            match send(&mut self.channel, OPERATION, reply, &descriptors) {
                Ok(()) => drop(self.queue.pop_front()),
                Err(error) if is_timed_out(&error) => {
                    self.paused = Some(Instant::now() + PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true if the server can create memory for it.
    pub(super) fn has_job(&self) -> bool {
        self.lease().and_then(|lease| lease.job.as_ref()).is_some_and(|job| job.lacks.is_none())
    }

    /// Returns its request for a part of a budget, if it waits.
    pub(super) fn waits(&self) -> Option<Waits<'_>> {
        match &self.role {
            Role::Program(program) => Some(Waits {
                wanted: program.wants.as_ref()?,
                place: program.place,
                priority: program.priority,
                is_writers: false,
                passes: program.grant.left() > 0,
            }),
            Role::Leases(lease) => {
                let job = lease.job.as_ref()?;
                let place = place_of(&job.properties);
                let wanted = job.lacks.as_ref()?;
                Some(Waits { wanted, place, priority: 0, is_writers: true, passes: true })
            }
            _ => None,
        }
    }

    pub(super) fn wanted_mut(&mut self) -> Option<&mut Wanted> {
        match &mut self.role {
            Role::Program(program) => program.wants.as_mut(),
            Role::Leases(lease) => lease.job.as_mut()?.lacks.as_mut(),
            _ => None,
        }
    }

    /// Returns the time at which the client has asked too late, or its wait is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.role {
            Role::New { since } | Role::Idle { since } => {
                Some(*since + if self.ends { TO_LEAVE } else { TO_ASK })
            }
            Role::Waits(wait) => Some(wait.until),
            Role::Leases(_) | Role::Program(_) | Role::Lists { .. } => None,
        }
    }

    pub(super) fn lease(&self) -> Option<&Lease<B>> {
        match &self.role {
            Role::Leases(lease) => Some(lease),
            _ => None,
        }
    }

    pub(super) fn program(&self) -> Option<&Program> {
        match &self.role {
            Role::Program(program) => Some(program),
            _ => None,
        }
    }

    pub(super) fn program_mut(&mut self) -> Option<&mut Program> {
        match &mut self.role {
            Role::Program(program) => Some(program),
            _ => None,
        }
    }

    pub(super) fn lease_mut(&mut self) -> Option<&mut Lease<B>> {
        match &mut self.role {
            Role::Leases(lease) => Some(lease),
            _ => None,
        }
    }
}

impl<B: Backend> Lease<B> {
    /// Forgets memory that the client has unmapped: all that is not of the epoch that was sent last, nor new.
    pub(super) fn forget_unmapped(&mut self) {
        let Self { holds, sent_handles, fresh, .. } = self;
        let kept: std::collections::BTreeSet<u64> =
            sent_handles.iter().copied().chain(fresh.values().map(|handle| handle.id)).collect();
        holds.retain(|handle| kept.contains(&handle.id));
    }
}
