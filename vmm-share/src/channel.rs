//! One end of an exchange between two processes, over a Unix socket.
//!
//! Each side begins with a `Hello` that contains a random number, its nonce. Each later message carries the nonce of its
//! receiver and a sequence number, so that a message that was recorded in another exchange, or sent twice, is refused.
//! After one invalid message, nothing more is accepted from that socket.

use crate::PeerError;
use crate::codec::{self, Header, Nonce, TO_ANYBODY};
use crate::message::Message;
use crate::socket::{self, Cut, Packet, Wait};
use crate::{Allowed, Credentials};
use gpu_vmm_core::extend::system::{failed, refusal};
use gpu_vmm_core::{Detail, Error, Operation, Result};
use rustix::fs::{FileType, stat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, shutdown,
    socket_with, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The default limit of every wait.
const WAIT: Duration = Duration::from_secs(30);

const CREATE: Operation = Operation::CreateChannel;
const CONNECT: Operation = Operation::Connect;

/// The event that a send waits for, if the peer does not read.
const READING: &str = "read of the message by the other process";

/// The event that the first send or receive waits for.
const GREETING: &str = "greeting from the other process";

/// One end of a connection to another process, for messages about memory and the file descriptors that go with them.
///
/// A channel is a Unix socket of type `SOCK_SEQPACKET` that passes descriptors by `SCM_RIGHTS`. It works across containers
/// that share the socket. Every wait has a limit of 30 seconds, which [`set_wait`](Self::set_wait) changes.
///
/// ```
/// # mod gpu_vmm { pub use gpu_vmm_share as share; }
/// use gpu_vmm::share::Channel;
///
/// let (ours, theirs) = Channel::pair()?;
/// assert_eq!(ours.peer().pid, std::process::id());
/// # drop(theirs);
/// # Ok::<(), gpu_vmm_core::Error>(())
/// ```
///
/// # Waiting with poll or epoll
///
/// The descriptor ([`AsFd`], [`AsRawFd`]) of a channel, an [`Exporter`](crate::Exporter) and an
/// [`ImportedRegion`](crate::ImportedRegion) is the socket. Only wait on it; do not read or write it. It becomes readable
/// (`POLLIN`) when a message arrives, including the peer's greeting, and stays readable until the message is received.
/// [`ImportedRegion::next`](crate::ImportedRegion::next) and [`Exporter::wait_applied`](crate::Exporter::wait_applied) with
/// [`Duration::ZERO`] receive it without blocking.
///
/// When the peer has closed its end or has died, poll reports `POLLHUP`, `POLLRDHUP` and `POLLIN` from then on. To wait only
/// for the end of the peer, request no events: poll always reports `POLLHUP`.
///
/// # Thread safety
///
/// Any thread may have the channel, one at a time.
///
/// # Processes that fork
///
/// A channel uses no driver, so a forked child can use it, unlike the rest of this crate: one of the two processes uses the
/// channel and the other drops its copy. If both use it, sequence numbers repeat and the peer refuses them. While any process
/// has a copy open, the peer sees the channel as connected.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: Credentials,
    wait: Duration,
    /// The nonce by which the peer addresses this side.
    ours: Nonce,
    /// The nonce by which this side addresses the peer, once it has greeted.
    theirs: Option<Nonce>,
    /// The numbers of messages sent and received, including the greetings.
    sent: u64,
    received: u64,
    /// For a pair: set when `into_socket` has taken the other end's socket.
    moved: Option<Arc<AtomicBool>>,
    /// The reason why no more messages from the peer are accepted.
    broken: Option<String>,
    /// Descriptors of the peer that this side has no use for, until the channel is dropped.
    unused: Vec<OwnedFd>,
}

/// A channel's numbers, with which another process goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChannelState {
    ours: Nonce,
    theirs: Option<Nonce>,
    sent: u64,
    received: u64,
}

impl Channel {
    /// Creates both ends of a channel, for a child process or another thread.
    ///
    /// A forked child keeps one end. [`spawn`](Self::spawn) starts a program with one end as its standard input. A program
    /// that inherits the socket of one end in another way, which neither side has used yet, calls
    /// [`from_socket`](Self::from_socket).
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`] with the kernel's error, for example if too many files are open.
    pub fn pair() -> Result<(Self, Self)> {
        let sockets = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (one, other) = sockets.map_err(|errno| failed(CREATE, "socketpair", errno, "SOCK_SEQPACKET"))?;
        let (one, other) = (Self::new(CREATE, one)?, Self::new(CREATE, other)?);
        let moved = Arc::new(AtomicBool::new(false));
        // Each end knows the other's nonce as if both had greeted.
        let (to_one, to_other) = (Some(one.ours), Some(other.ours));
        let greeted = |channel, theirs| Self {
            theirs,
            sent: 1,
            received: 1,
            moved: Some(Arc::clone(&moved)),
            ..channel
        };
        Ok((greeted(one, to_other), greeted(other, to_one)))
    }

    /// Connects to the [`Listener`](super::Listener) at `path`. Waits up to `wait` while the listener's queue is full, or the process does not
    /// listen yet.
    ///
    /// # Errors
    ///
    /// [`PeerError::NoListener`] if the path does not exist (yet); [`PeerError::StaleSocket`] if the process that listened there is
    /// gone; [`PeerError::NotAllowed`]; [`PeerError::TimedOut`]; [`Detail::Driver`] if the path is no socket or belongs to another user.
    pub fn connect(path: impl AsRef<Path>, allowed: Allowed, wait: Duration) -> Result<Self> {
        let path = path.as_ref();
        let fail = |call, errno| failed(CONNECT, call, errno, format!("{}{}", path.display(), hint(errno)));
        let address = address(CONNECT, path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|errno| fail("socket", errno))?;
        let wait = Wait::new(CONNECT, "acceptance by the listening process", wait);
        loop {
            // Limits the wait for room in the listener's queue, which poll does not report.
            let limit = Some(wait.left()?.clamp(SHORTEST, LONGEST));
            set_socket_timeout(&socket, Timeout::Send, limit)
                .map_err(|errno| fail("setsockopt(SO_SNDTIMEO)", errno))?;
            match connect(&socket, &address) {
                Ok(()) => return Self::with(CONNECT, socket, allowed),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NOENT) => {
                    let path = path.display().to_string();
                    return Err(Error::of_extension(CONNECT, PeerError::NoListener { path }));
                }
                Err(Errno::CONNREFUSED) if is_stale(path, &address) => {
                    return Err(stale(CONNECT, path, "connect", "ECONNREFUSED (111)"));
                }
                // A process has bound the path and does not listen yet, which poll does not report.
                Err(Errno::CONNREFUSED) if is_socket(path) => std::thread::sleep(SHORTEST.min(wait.left()?)),
                Err(errno) => return Err(fail("connect", errno)),
            }
        }
    }

    /// Creates a channel over a socket that this process inherited or connected itself. The peer does the same with the
    /// other end.
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`] if it is not a connected Unix socket of type `SOCK_SEQPACKET`, [`PeerError::NotAllowed`], and
    /// [`PeerError::Gone`] if the greeting cannot be sent. The socket is closed.
    pub fn from_socket(socket: OwnedFd, allowed: Allowed) -> Result<Self> {
        let fail = |call, errno| failed(CREATE, call, errno, "a connected Unix socket is needed");
        let wrong = |call, errno, description: String| {
            Error::new(
                CREATE,
                Detail::Driver {
                    source: refusal(call, errno, description),
                    context: "a connected Unix socket of kind SOCK_SEQPACKET is needed".to_owned(),
                },
            )
        };
        let kind = socket_type(&socket).map_err(|errno| fail("getsockopt(SO_TYPE)", errno))?;
        if kind != SocketType::SEQPACKET {
            let description = format!("it is of kind {}", kind.as_raw());
            return Err(wrong("getsockopt(SO_TYPE)", Errno::PROTOTYPE, description));
        }
        let family = socket_domain(&socket).map_err(|errno| fail("getsockopt(SO_DOMAIN)", errno))?;
        if family != AddressFamily::UNIX {
            let description = format!("it is of address family {}", family.as_raw());
            return Err(wrong("getsockopt(SO_DOMAIN)", Errno::PROTOTYPE, description));
        }
        getpeername(&socket).map_err(|errno| fail("getpeername", errno))?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(|errno| fail("fcntl(F_SETFD)", errno))?;
        Self::with(CREATE, socket, allowed)
    }

    /// Returns the socket, to be inherited by a program that calls [`from_socket`](Self::from_socket).
    ///
    /// This is for one end of a [`pair`](Self::pair) that neither side has used. The socket of any other channel is of no
    /// use: the peer refuses a second greeting.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        if let Some(moved) = &self.moved {
            moved.store(true, Ordering::Release);
        }
        self.socket
    }

    /// Returns true while the peer has its end open. Does not block, and receives no message.
    ///
    /// Once this is false it stays false: the peer has dropped its end or has died, or this side has refused an invalid
    /// message. Messages that the peer sent before are still received. A peer that is stopped or hangs is connected, and so
    /// is a dead one whose end another process has open, such as a forked child.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !socket::is_at_end(self.socket.as_fd())
    }

    /// Returns the identity of the peer, as the kernel reports it. For a pair, and for channels over its sockets, this is
    /// the process that created the pair.
    #[must_use]
    pub const fn peer(&self) -> Credentials {
        self.peer
    }

    /// Returns the limit of every wait for the peer.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.wait
    }

    /// Sets the limit of every wait for the peer.
    pub const fn set_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Sends a message with descriptors, of which the peer receives duplicates. A message that timed out was not sent at
    /// all, and can be sent again.
    pub(crate) fn send(
        &mut self,
        operation: Operation,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let wait = Wait::new(operation, GREETING, self.wait);
        let theirs = self.greeted(&wait)?;
        self.put(theirs, message, fds, &wait.then(READING))
    }

    /// Waits for a message. Receives one that has arrived even if the wait is over.
    ///
    /// The caller checks the kind of the message and the number of its descriptors.
    pub(crate) fn receive(&mut self, wait: &Wait) -> Result<(Message, Vec<OwnedFd>)> {
        match self.receive_as(wait)? {
            (Message::Hello { .. }, _) => Err(self.refuse(wait.operation, "a second greeting".to_owned())),
            message => Ok(message),
        }
    }

    /// Receives a message of another protocol, as [`receive`](Self::receive) does.
    pub(crate) fn receive_as<M: DeserializeOwned>(&mut self, wait: &Wait) -> Result<(M, Vec<OwnedFd>)> {
        self.greeted(wait)?;
        self.take(self.ours, wait)
    }

    /// Returns what another process needs to go on with this channel, beside the socket; `None` if no more messages are accepted. Only
    /// one of the two goes on.
    pub(crate) fn state(&self) -> Option<ChannelState> {
        let Self { ours, theirs, sent, received, broken: None, .. } = *self else { return None };
        Some(ChannelState { ours, theirs, sent, received })
    }

    /// Goes on with a channel of another process.
    pub(crate) fn resume(operation: Operation, socket: OwnedFd, state: ChannelState) -> Result<Self> {
        let ChannelState { ours, theirs, sent, received } = state;
        Ok(Self { ours, theirs, sent, received, ..Self::new(operation, socket)? })
    }

    /// Creates a channel over a socket of the right type and sends the greeting.
    pub(crate) fn with(operation: Operation, socket: OwnedFd, allowed: Allowed) -> Result<Self> {
        let mut channel = Self::new(operation, socket)?;
        allowed.check(operation, channel.peer)?;
        channel.greet(&Wait::new(operation, READING, channel.wait))?;
        Ok(channel)
    }

    /// Creates a channel over a socket that a listener has accepted. If the peer has gone already, the first use reports it.
    pub(crate) fn accepted(operation: Operation, socket: OwnedFd, allowed: Allowed) -> Result<Self> {
        let mut channel = Self::new(operation, socket)?;
        allowed.check(operation, channel.peer)?;
        match channel.greet(&Wait::new(operation, READING, channel.wait)) {
            Err(error) if !matches!(error.extension(), Some(PeerError::Gone { .. })) => Err(error),
            _ => Ok(channel),
        }
    }

    /// Keeps descriptors of the peer until the channel is dropped. Returns the number that it keeps.
    pub(crate) fn keep(&mut self, descriptors: Vec<OwnedFd>) -> usize {
        self.unused.extend(descriptors);
        self.unused.len()
    }

    fn new(operation: Operation, socket: OwnedFd) -> Result<Self> {
        let peer = Credentials::of_peer(operation, socket.as_fd())?;
        let ours = codec::new_nonce().map_err(|errno| failed(operation, "getrandom", errno, "16 bytes"))?;
        let (theirs, moved, broken, unused) = (None, None, None, Vec::new());
        Ok(Self { socket, peer, wait: WAIT, ours, theirs, sent: 0, received: 0, moved, broken, unused })
    }

    /// Returns the peer's nonce, after both have greeted.
    fn greeted(&mut self, wait: &Wait) -> Result<Nonce> {
        if let Some(why) = &self.broken {
            let why = format!("an earlier message was not accepted, so no later one is: {why}");
            return Err(Error::of_extension(wait.operation, PeerError::BadMessage { why }));
        }
        if self.moved.take_if(|moved| moved.load(Ordering::Acquire)).is_some() {
            if (self.sent, self.received) != (1, 1) {
                let why = "its end of the pair was taken out of its channel after this end had been used";
                return Err(self.refuse(wait.operation, why.to_owned()));
            }
            (self.theirs, self.sent, self.received) = (None, 0, 0);
        }
        if self.sent == 0 {
            self.greet(&wait.then(READING))?;
        }
        if let Some(theirs) = self.theirs {
            return Ok(theirs);
        }
        match self.take(TO_ANYBODY, wait)? {
            (Message::Hello { nonce }, descriptors) if descriptors.is_empty() => {
                Ok(*self.theirs.insert(nonce))
            }
            (_, descriptors) => {
                self.keep(descriptors);
                Err(self.refuse(wait.operation, "its first message is no greeting".to_owned()))
            }
        }
    }

    fn greet(&mut self, wait: &Wait) -> Result<()> {
        self.put(TO_ANYBODY, &Message::Hello { nonce: self.ours }, &[], wait)
    }

    /// Sends one message, addressed to `nonce`.
    fn put(
        &mut self,
        nonce: Nonce,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        wait: &Wait,
    ) -> Result<()> {
        let packet = codec::encode(message, nonce, self.sent, fds.len()).map_err(|why| {
            Error::new(
                wait.operation,
                Detail::Driver {
                    source: refusal("sendmsg", Errno::MSGSIZE, why),
                    context: format!("{} descriptors", fds.len()),
                },
            )
        })?;
        socket::send(self.socket.as_fd(), &packet, fds, wait)?;
        self.sent += 1;
        Ok(())
    }

    /// Receives the next message, which must be addressed to `nonce`.
    fn take<M: DeserializeOwned>(&mut self, nonce: Nonce, wait: &Wait) -> Result<(M, Vec<OwnedFd>)> {
        let Packet { bytes, fds, cut } = socket::receive(self.socket.as_fd(), wait)?;
        let descriptors = u16::try_from(fds.len()).unwrap_or(u16::MAX);
        let expected = Header { descriptors, nonce, sequence: self.received };
        let message = match cut {
            None => codec::decode(&bytes, expected),
            Some(Cut::TooLarge(why)) => Err(why),
            Some(Cut::NoDescriptors { received }) => {
                let context = format!("{received} of the descriptors of a message were received");
                let error = failed(wait.operation, "recvmsg", Errno::MFILE, context);
                self.keep(fds);
                self.refuse(wait.operation, error.to_string());
                return Err(error);
            }
        };
        match message {
            Ok(message) => {
                self.received += 1;
                Ok((message, fds))
            }
            Err(why) => {
                self.keep(fds);
                Err(self.refuse(wait.operation, why))
            }
        }
    }

    /// Ends the exchange. The peer learns it when it next sends or receives.
    fn refuse(&mut self, operation: Operation, why: String) -> Error {
        // Fails only if the peer is gone, and then the exchange is over too.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.broken = Some(why.clone());
        Error::of_extension(operation, PeerError::BadMessage { why })
    }
}

impl AsFd for Channel {
    /// Returns the socket, [to wait on](Self#waiting-with-poll-or-epoll).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    /// Returns the socket, [to wait on](Self#waiting-with-poll-or-epoll).
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The shortest limit that the kernel counts, and the longest after which the connection is tried again.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(3600);

/// Returns the address of a path. The kernel would replace an empty one by an abstract name, which no permissions guard.
pub(crate) fn address(operation: Operation, path: &Path) -> Result<SocketAddrUnix> {
    let fail =
        |errno, limit: &str| Err(failed(operation, "the path", errno, format!("{}{limit}", path.display())));
    if path.as_os_str().is_empty() {
        return fail(Errno::NOENT, "the empty path");
    }
    match SocketAddrUnix::new(path) {
        Err(errno @ Errno::NAMETOOLONG) => fail(errno, ": the path of a socket has at most 108 bytes"),
        Err(errno) => fail(errno, ": the path of a socket has no byte 0"),
        Ok(address) => Ok(address),
    }
}

/// Returns true if the path leads to a socket.
fn is_socket(path: &Path) -> bool {
    stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket)
}

/// Returns true if the path is a socket that a process has left. Disturbs no process that listens there: the kernel refuses a
/// connection of another type.
pub(crate) fn is_stale(path: &Path, address: &SocketAddrUnix) -> bool {
    let probe = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        connect(&socket, address)
    };
    is_socket(path) && probe() == Err(Errno::CONNREFUSED)
}

/// Returns the error for a stale socket.
pub(crate) fn stale(operation: Operation, path: &Path, call: &'static str, name: &'static str) -> Error {
    let path = path.display().to_string();
    Error::of_extension(operation, PeerError::StaleSocket { path, call, name })
}

/// Explains an error of `connect`.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::CONNREFUSED => ": the path is not a socket",
        Errno::ACCESS => ": only the user that created the listener may connect",
        Errno::PROTOTYPE => ": the listener there is not a listener of gpu-vmm",
        _ => "",
    }
}

mod child;
#[cfg(test)]
mod tests;
