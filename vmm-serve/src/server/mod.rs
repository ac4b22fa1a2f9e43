//! The server: one thread, which waits for all of its sockets at once.
//!
//! Only the end of a connection, in [`leave`], can take as long as its client likes, and has a thread of its own.
//!
//! All state is in the [`Server`], so there is no lock. A driver call is made in one place ([`jobs`]), for one handle at a time, so
//! that other clients are served between the handles of a large region. No call waits for a client.

mod books;
mod commit;
mod connection;
mod descriptors;
mod devices;
mod grants;
mod handover;
mod job;
mod jobs;
mod leave;
mod list;
mod options;
mod peer;
mod pressure;
mod program;
mod programs;
mod region;
mod requests;
mod state;
mod takeover;

pub use options::ServerOptions;

use crate::protocol::Reply;
use books::{Book, Books};
use connection::{Connection, Role};
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Backend, DeviceId, Operation, Result};
use gpu_vmm_share::{Allowed, Listener, PeerError};
use leave::{Closing, Lingering};
use pressure::Pressure;
use programs::TO_RETURN;
use region::Regions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OPERATION: Operation = Operation::Serve;

/// The number of connections that are accepted, and of messages of one client that are handled, before others have their turn.
const AT_A_TIME: usize = 16;

/// The pause after a failure to accept a connection, or to send although the socket has room: too many descriptors are open, or are
/// under way to clients, and the kernel does not report when there are fewer.
const PAUSE: Duration = Duration::from_millis(5);

/// A server that keeps memory and lends it to clients.
///
/// Call [`step`](Self::step) in a loop. The server ends when it is dropped: its clients keep the memory that they have mapped.
///
/// ```no_run
/// # mod gpu_vmm { pub use gpu_vmm_serve as serve; pub use gpu_vmm_core::Backend; pub use gpu_vmm_share as share; }
/// # fn example<B: gpu_vmm::Backend>(backend: B) -> gpu_vmm_core::Result<()> {
/// use gpu_vmm::serve::{Server, ServerOptions};
/// use gpu_vmm::share::Listener;
/// use std::time::Duration;
///
/// let listener = Listener::replace_stale("/run/user/1000/gpu-vmm.sock")?;
/// let mut server = Server::new(backend, listener, ServerOptions::default());
/// loop {
///     server.step(Duration::from_secs(60))?;
/// }
/// # }
/// ```
///
/// # What it holds
///
/// It creates memory and exports it. That needs no context of a device, so an idle server has no memory of its own on a device. For
/// each handle it keeps one open descriptor: the limit of open files (`RLIMIT_NOFILE`) bounds the memory by 256 MiB for each. Some of
/// them are left for clients.
#[derive(Debug)]
pub struct Server<B: Backend> {
    backend: B,
    listener: Listener,
    options: ServerOptions,
    books: Books,
    /// The sizes of all layouts, which are memory of the host.
    layouts: Arc<Book>,
    regions: Regions<B>,
    /// By their numbers, which grow: the order in which they came.
    connections: BTreeMap<u64, Connection<B>>,
    lingering: Vec<Lingering<B>>,
    /// By their devices: what programs that wait are about to get.
    pressures: BTreeMap<DeviceId, Pressure>,
    closing: Vec<Closing>,
    /// The number of the next connection, region or handle. Numbers are used once.
    next: u64,
    /// The connection whose handle was created last.
    worked: u64,
    /// True if a connection has ended since requests for memory were served last: they may have room now.
    has_ended: bool,
    /// No connection is accepted before this.
    paused: Option<Instant>,
    /// When requests for memory were served last. A moment after it is still to come, even if it has passed meanwhile.
    pressed: Instant,
    /// Until then, pools can come back that a killed server knew.
    returns_until: Instant,
    /// True if pools have joined soon with memory, as after the end of an earlier server that handed nothing over.
    is_again: bool,
    /// True if another process has taken over.
    is_over: bool,
}

impl<B: Backend> Server<B> {
    /// Creates a server without regions.
    ///
    /// The listener's socket decides which users can connect: its permissions are the operating system's check, and each
    /// region's [`Mode`](crate::Mode) the server's.
    pub fn new(backend: B, listener: Listener, options: ServerOptions) -> Self {
        Self {
            books: Books::new(&backend),
            backend,
            listener,
            options,
            layouts: Arc::default(),
            regions: Regions::default(),
            connections: BTreeMap::new(),
            lingering: Vec::new(),
            pressures: BTreeMap::new(),
            closing: Vec::new(),
            next: 1,
            worked: 0,
            has_ended: false,
            paused: None,
            pressed: Instant::now(),
            returns_until: Instant::now() + TO_RETURN,
            is_again: false,
            is_over: false,
        }
    }

    /// Returns the listener.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Waits up to `wait` until something happens, and handles it. Returns early, also when a signal has arrived.
    ///
    /// What a client does is never an error of this call.
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`](gpu_vmm_core::Detail::Driver) if the kernel refuses `poll`.
    pub fn step(&mut self, wait: Duration) -> Result<()> {
        if self.is_over {
            return Ok(());
        }
        let ready = self.poll(self.next_wait(wait))?;
        // First, while their places are those of the list: a pool that joins again leaves it.
        self.end_lingering(&ready.ended);
        if ready.listener {
            self.accept();
        }
        for id in ready.connections {
            self.receive(id);
            if self.is_over {
                return Ok(());
            }
        }
        ready.gone.into_iter().for_each(|id| self.end(id));
        self.work();
        self.grant();
        self.press();
        self.end_lists();
        self.offer_epochs();
        self.send_all();
        self.end_late();
        Ok(())
    }

    /// Returns the time until the server must act by itself.
    fn next_wait(&self, wait: Duration) -> Duration {
        if self.has_ended {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let mut wait = wait;
        let mut until = |at: Instant| wait = wait.min(at.saturating_duration_since(now));
        for connection in self.connections.values() {
            if connection.has_job() {
                return Duration::ZERO;
            }
            connection.deadline().into_iter().for_each(&mut until);
            connection.paused.into_iter().for_each(&mut until);
            if let Role::Lists { since } = connection.role {
                until(since + list::TO_REPORT);
            }
        }
        self.paused.into_iter().for_each(&mut until);
        self.press_at().into_iter().for_each(until);
        wait
    }

    fn poll(&mut self, wait: Duration) -> Result<Ready> {
        let now = Instant::now();
        self.paused.take_if(|until| *until <= now);
        let mut sockets = Vec::with_capacity(self.connections.len() + self.lingering.len() + 1);
        for connection in self.connections.values_mut() {
            connection.paused.take_if(|until| *until <= now);
        }
        for connection in self.connections.values() {
            // The end of a client is always reported.
            let events = match (connection.has_queue(), connection.paused) {
                (false, _) => PollFlags::IN,
                (true, None) => PollFlags::OUT,
                (true, Some(_)) => PollFlags::empty(),
            };
            sockets.push(PollFd::from_borrowed_fd(connection.channel.as_fd(), events));
        }
        // A forked child of a client that has ended can have its socket.
        let processes =
            self.connections.iter().filter_map(|(id, one)| Some((*id, one.peer.handle.as_ref()?)));
        let (of_processes, processes): (Vec<u64>, Vec<_>) = processes.unzip();
        sockets.extend(processes.into_iter().map(|process| PollFd::new(process, PollFlags::IN)));
        for lingering in &self.lingering {
            sockets.push(PollFd::from_borrowed_fd(lingering.process.as_fd(), PollFlags::IN));
        }
        let accepts = self.paused.is_none() && self.connections.len() < self.options.clients;
        if accepts {
            sockets.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        }
        // A duration beyond the kernel's clock is no limit.
        let limit = Timespec::try_from(wait).ok();
        match poll(&mut sockets, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            // The system has no memory for the call, or has lowered the limit of open files. The memory of the regions stays.
            Err(Errno::NOMEM | Errno::INVAL) => {
                std::thread::sleep(PAUSE);
                return Ok(Ready::default());
            }
            Err(errno) => {
                return Err(failed(OPERATION, "poll", errno, format!("{} descriptors", sockets.len())));
            }
        }
        let has = |socket: &PollFd<'_>, events| socket.revents().intersects(events);
        let some = PollFlags::IN | PollFlags::OUT | PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        let (clients, rest) = sockets.split_at(self.connections.len());
        let (processes, rest) = rest.split_at(of_processes.len());
        let (lingering, listener) = rest.split_at(self.lingering.len());
        let gone = of_processes.into_iter().zip(processes).filter(|(_, process)| has(process, some));
        let came = self.connections.keys().zip(clients).filter(|(_, socket)| has(socket, some));
        let ended = lingering.iter().enumerate().filter(|(_, process)| has(process, some));
        Ok(Ready {
            listener: listener.first().is_some_and(|socket| has(socket, some)),
            connections: came.map(|(id, _)| *id).collect(),
            gone: gone.map(|(id, _)| id).collect(),
            ended: ended.map(|(place, _)| place).collect(),
        })
    }

    fn accept(&mut self) {
        for _ in 0..AT_A_TIME {
            if self.connections.len() >= self.options.clients {
                return;
            }
            match self.listener.accept(Allowed::any(), Duration::ZERO) {
                Ok(channel) => {
                    // Its process may have ended, or have no room for the answer: then it is closed.
                    let Ok(mut connection) = Connection::new(channel) else { continue };
                    let user = connection.peer.user;
                    let (same, limit) = (self.clients_of(user), self.options.clients_per_user());
                    if same >= limit + self.options.refusals_per_user() {
                        self.close(user, connection.channel);
                        continue;
                    }
                    if same >= limit {
                        connection.refuse_all(&self.options);
                    }
                    let id = self.number();
                    self.connections.insert(id, connection);
                }
                Err(error) if is_timed_out(&error) => return,
                Err(error) if error.extension::<PeerError>().is_some() => {}
                // Most probably too many descriptors are open.
                Err(_) => {
                    self.paused = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    fn receive(&mut self, id: u64) {
        for _ in 0..AT_A_TIME {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            match connection.receive() {
                Ok(Some((request, descriptors))) => self.handle(id, request, descriptors),
                Ok(None) => return,
                Err(_) => return self.end(id),
            }
        }
    }

    fn send_all(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let sent = connection.send_queue();
            if sent.is_err() || connection.is_over() {
                self.end(id);
            }
        }
    }

    /// Ends connections that have not said what they want in time, and waits that are over.
    fn end_late(&mut self) {
        let now = Instant::now();
        let late = self.connections.iter().filter(|(_, one)| one.deadline().is_some_and(|at| at <= now));
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in late {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            match std::mem::replace(&mut connection.role, Role::Idle { since: now }) {
                Role::Waits(wait) => {
                    let why = self.regions.why_busy(&wait, &connection.peer);
                    connection.put(Reply::Refused(why));
                    let _ = connection.send_queue();
                }
                _ => self.end(id),
            }
        }
    }

    /// Returns a number that was not used yet.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

/// What poll has reported.
#[derive(Debug, Default)]
struct Ready {
    listener: bool,
    connections: Vec<u64>,
    /// Connections of processes that have ended.
    gone: Vec<u64>,
    /// Places in the list of processes that linger, in ascending order.
    ended: Vec<usize>,
}

/// Returns true if a call found nothing that has arrived, or no room to send.
fn is_timed_out(error: &gpu_vmm_core::Error) -> bool {
    matches!(error.extension(), Some(PeerError::TimedOut { .. }))
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod tests;
