//! The beginning of a server that replaces another one.

use super::books::{Books, Handle, Promise};
use super::connection::{Connection, Lease, Role, Source};
use super::devices;
use super::job::{Job, Plan};
use super::leave::{Left, Lingering};
use super::program::{OpenQuestion, Program, Wanted};
use super::region::{Layout, Region, Regions, Waiting};
use super::state::{
    ConnectionState, HandleState, JobState, LeaseState, LingeringState, MAX_BYTES, PlanState, ProgramState,
    RegionState, RoleState, SourceState, State, VERSION, WantedState,
};
use super::{Server, ServerOptions};
use crate::client::Exchange;
use crate::protocol::{Reply, Request};
use crate::sealed;
use gpu_vmm_core::{Backend, Bytes, DeviceUuid, Granularity, Operation, Properties, Result};
use gpu_vmm_share::extend::{self, resume_channel, take_path};
use gpu_vmm_share::manifest::MemoryKind;
use gpu_vmm_share::{Allowed, Listener, PeerError};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[allow(unused_imports)] // named in documentation
use crate::ServeError;

const OPERATION: Operation = Operation::HandOver;

/// What the numbers of a state stand for in this process.
struct Known<'a, B: Backend> {
    backend: &'a B,
    exchange: &'a Exchange,
    books: &'a Books,
    to_answer: Duration,
    handles: BTreeMap<u64, Arc<Handle<B>>>,
    layouts: BTreeMap<u64, Arc<Layout>>,
}

impl<B: Backend> Server<B> {
    /// Replaces the server at `path`, such as one of an earlier version of the program: takes over its regions, its memory and its
    /// clients, who notice nothing but a pause. That server's [`is_over`](Self::is_over) is then true. It must run as the same user.
    ///
    /// If this fails, the other server goes on.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`](crate::Client::connect); [`ServeError::BadRequest`] if the other server refuses;
    /// [`PeerError::BadMessage`] for the state of an unknown version; the driver's error if memory cannot be imported.
    pub fn take_over(backend: B, path: impl AsRef<Path>, options: ServerOptions) -> Result<Self> {
        let vendor = Some(backend.vendor());
        let mut exchange = Exchange::begin(OPERATION, path.as_ref(), Allowed::same_user(), vendor)?;
        exchange.send(&Request::TakeOver, &[])?;
        let (state, descriptors) = receive(&mut exchange)?;
        let server = Self::resume(backend, options, &exchange, state, descriptors)?;
        exchange.send(&Request::Taken, &[])?;
        match exchange.receive_memory() {
            Ok((Reply::Done, _)) => Ok(server),
            Ok((other, _)) => exchange.out_of_turn(&other, "the end of the other server"),
            // It has ended, so that this one is the only one.
            Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => Ok(server),
            Err(error) => Err(error),
        }
    }

    fn resume(
        backend: B,
        options: ServerOptions,
        exchange: &Exchange,
        state: State,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || match descriptors.next() {
            Some(descriptor) => Ok(descriptor),
            None => exchange.bad("a descriptor of the state is missing".to_owned()),
        };
        let (books, of_layouts) = (Books::new(&backend), Arc::default());
        let mut listener = Listener::from_socket(next()?)?;
        let (handles, layouts) = (BTreeMap::new(), BTreeMap::new());
        let mut known = Known {
            backend: &backend,
            exchange,
            books: &books,
            to_answer: options.to_answer(),
            handles,
            layouts,
        };
        for HandleState { id, piece } in state.handles {
            let descriptor = next()?;
            let (size, properties) = piece.check(OPERATION, &backend)?;
            let memory = extend::import(&backend, descriptor.as_fd(), size, properties)?;
            let counted = Promise::of(&books.of(&properties), size.0).take(size);
            known.handles.insert(id, Arc::new(Handle { id, piece, descriptor, memory, counted }));
        }
        for layout in state.layouts {
            let (id, file, size) = (layout.id, next()?, layout.size);
            let counted = Promise::of(&of_layouts, size).take(Bytes(size));
            known.layouts.insert(id, Arc::new(Layout { id, file, size, counted }));
        }
        let mut regions = Regions::default();
        for (name, region) in state.regions {
            regions.0.insert(name, known.region(region)?);
        }
        let mut connections = BTreeMap::new();
        for (id, connection) in state.connections {
            let socket = next()?;
            connections.insert(id, known.connection(socket, connection)?);
        }
        let mut lingering = Vec::with_capacity(state.lingering.len());
        for one in state.lingering {
            let process = next()?;
            let left = match one {
                LingeringState::Lease { info, holds } => Left::Lease { info, holds: known.all(&holds)? },
                LingeringState::Program { program, user, number } => {
                    Left::Program { program: Box::new(known.program(program)?), user, number }
                }
            };
            lingering.push(Lingering { process, left });
        }
        // From here on nothing fails: if it did, the path of the other server would be removed.
        take_path(&mut listener, OsString::from_vec(state.socket).into(), state.removes);
        let mut server = Self::new(backend, listener, options);
        (server.books, server.layouts, server.regions) = (books, of_layouts, regions);
        (server.connections, server.lingering, server.next) = (connections, lingering, state.next);
        server.returns_until = Instant::now() + Duration::from_millis(state.returns_ms);
        server.is_again = state.is_again;
        // Some connections may have ended when the other server handed over.
        server.has_ended = true;
        Ok(server)
    }
}

/// Receives the state and its descriptors.
fn receive(exchange: &mut Exchange) -> Result<(State, Vec<OwnedFd>)> {
    let (reply, file) = exchange.receive_memory()?;
    let (Reply::State { descriptors: count }, Some(file)) = (&reply, file.into_iter().next()) else {
        return exchange.out_of_turn(&reply, "the server's state");
    };
    let mut descriptors = Vec::new();
    while descriptors.len() < *count as usize {
        match exchange.receive()? {
            (Reply::Descriptors { count: 1.. }, some) => descriptors.extend(some),
            (other, _) => return exchange.out_of_turn(&other, "descriptors"),
        }
    }
    let bytes = sealed::read(file, MAX_BYTES).or_else(|why| exchange.bad(why))?;
    let state = match postcard::take_from_bytes::<u32>(&bytes) {
        Ok((VERSION, rest)) => postcard::from_bytes::<State>(rest).map_err(|error| error.to_string()),
        Ok((version, _)) => Err(format!("it has version {version}, and {VERSION} is known here")),
        Err(error) => Err(error.to_string()),
    };
    let state = state.or_else(|why| exchange.bad(format!("the server's state: {why}")))?;
    let (came, expected) = (descriptors.len(), state.descriptors());
    if came != expected {
        return exchange.bad(format!("{came} descriptors came with a state of {expected}"));
    }
    Ok((state, descriptors))
}

impl<B: Backend> Known<'_, B> {
    fn handle(&self, id: u64) -> Result<Arc<Handle<B>>> {
        match self.handles.get(&id) {
            Some(handle) => Ok(Arc::clone(handle)),
            None => self.exchange.bad(format!("the state has no handle {id}")),
        }
    }

    fn all(&self, ids: &[u64]) -> Result<Vec<Arc<Handle<B>>>> {
        ids.iter().map(|id| self.handle(*id)).collect()
    }

    fn indexed<C: FromIterator<(u32, Arc<Handle<B>>)>>(&self, ids: &[(u32, u64)]) -> Result<C> {
        ids.iter().map(|(index, id)| Ok((*index, self.handle(*id)?))).collect()
    }

    fn layout(&self, id: u64) -> Result<Arc<Layout>> {
        match self.layouts.get(&id) {
            Some(layout) => Ok(Arc::clone(layout)),
            None => self.exchange.bad(format!("the state has no layout {id}")),
        }
    }

    /// Returns properties with this process's number of the device.
    fn properties(&self, device: DeviceUuid, kind: MemoryKind) -> Result<Properties> {
        devices::properties(self.backend, device, kind).or_else(|why| self.exchange.bad(why))
    }

    fn region(&self, state: RegionState) -> Result<Region<B>> {
        Ok(Region {
            id: state.id,
            owner: state.owner,
            group: state.group,
            mode: state.mode,
            address: state.address,
            size: state.size,
            properties: self.properties(state.device, state.kind)?,
            epoch: state.epoch,
            handles: self.all(&state.handles)?,
            layout: state.layout.map(|id| self.layout(id)).transpose()?,
            writer: state.writer,
        })
    }

    fn connection(&self, socket: OwnedFd, state: ConnectionState) -> Result<Connection<B>> {
        let mut connection = Connection::new(resume_channel(OPERATION, socket, state.channel)?)?;
        let now = Instant::now();
        connection.version = state.version;
        connection.role = match state.role {
            RoleState::New => Role::New { since: now },
            RoleState::Idle => Role::Idle { since: now },
            RoleState::Waits { name, kind, wait_ms, left_ms } => {
                Role::Waits(Waiting { name, kind, wait_ms, until: now + Duration::from_millis(left_ms) })
            }
            RoleState::Leases(lease) => Role::Leases(Box::new(self.lease(lease)?)),
            RoleState::Lists => Role::Lists { since: now },
            RoleState::Program(program) => Role::Program(Box::new(self.program(program)?)),
        };
        for (reply, sources) in state.queue {
            let source = |source| {
                Ok(match source {
                    SourceState::Handle(id) => Source::Handle(self.handle(id)?),
                    SourceState::Layout(id) => Source::Layout(self.layout(id)?),
                })
            };
            connection.put_with(reply, sources.into_iter().map(source).collect::<Result<_>>()?);
        }
        if state.ends {
            connection.end_when_sent();
        }
        Ok(connection)
    }

    fn lease(&self, state: LeaseState) -> Result<Lease<B>> {
        Ok(Lease {
            name: state.name,
            region: state.region,
            kind: state.kind,
            sent: state.sent,
            sent_handles: state.sent_handles,
            layout: state.layout.map(|id| self.layout(id)).transpose()?,
            applied: state.applied,
            holds: self.all(&state.holds)?,
            fresh: self.indexed(&state.fresh)?,
            job: state.job.map(|job| self.job(job)).transpose()?,
            is_dropped: state.is_dropped,
        })
    }

    fn program(&self, state: ProgramState) -> Result<Program> {
        let ProgramState { name, device, priority, granted, wants, asked, report } = state;
        let known = self.backend.devices().iter().find(|known| known.uuid == Some(device));
        let Some(place) = known.map(|known| known.id) else {
            return self.exchange.bad(format!("this process does not see the device {device}"));
        };
        let (wants, now) = (wants.map(wanted), Instant::now());
        let asked = asked.map(|(ask, is_late)| OpenQuestion { ask, until: now + self.to_answer, is_late });
        let grant = Promise::of(&self.books.at(place), granted);
        Ok(Program { name, device, place, priority, grant, wants, asked, report, described: None })
    }

    fn job(&self, state: JobState) -> Result<Job<B>> {
        let plan = match state.plan {
            PlanState::New { handle, least } => match Granularity::new(Bytes(least)) {
                Some(least) => Plan::New { handle: Bytes(handle), least },
                None => return self.exchange.bad(format!("the state has a granularity of {least:#x}")),
            },
            PlanState::Renewal(rest) => {
                Plan::Renewal(rest.into_iter().map(|(index, size)| (index, Bytes(size))).collect())
            }
        };
        let properties = self.properties(state.device, state.kind)?;
        Ok(Job {
            properties,
            promise: Promise::of(&self.books.of(&properties), state.left),
            lacks: state.lacks.map(wanted),
            made: self.indexed(&state.made)?,
            plan,
        })
    }
}

fn wanted(state: WantedState) -> Wanted {
    let now = Instant::now();
    Wanted {
        number: state.number,
        user: state.user,
        least: state.least,
        most: state.most,
        since: now.checked_sub(Duration::from_millis(state.waited_ms)).unwrap_or(now),
        until: now + Duration::from_millis(state.left_ms),
        rounds: 0,
        was_in_vain: false,
    }
}
