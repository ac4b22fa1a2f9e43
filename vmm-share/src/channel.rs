//! One end of an exchange between two processes, over a Unix socket.
//!
//! Each side begins with a `Hello` that tells a random number, its nonce. From then on each message carries the nonce of
//! the side that it is for, and its number in that direction: what was recorded in another exchange, or sent twice, is
//! not taken. After one message that is not as it must be, nothing is taken from that socket any more.

use crate::PeerError;
use crate::codec::{self, Header, Nonce, TO_ANYBODY};
use crate::message::Message;
use crate::socket::{self, Packet, Wait};
use crate::{Allowed, Credentials};
use gpu_vmm_core::extend::system::{failed, refusal};
use gpu_vmm_core::{Detail, Error, Operation, Result};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, shutdown,
    socket_with, socketpair,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The limit of every wait, where no other is set.
const WAIT: Duration = Duration::from_secs(30);

const CREATE: Operation = Operation::CreateChannel;
const CONNECT: Operation = Operation::Connect;

/// What is waited for where the other side does not read.
const READING: &str = "reading of what was sent";

/// What is waited for before the first message.
const GREETING: &str = "greeting of the other process";

/// One end of an exchange with another process: messages about memory, and the descriptors beside them.
///
/// Over a Unix socket of kind `SOCK_SEQPACKET`, with `SCM_RIGHTS`: this works between containers too, wherever both sides
/// get at the socket. Every wait has a limit, 30 seconds where [`set_wait`](Self::set_wait) does not set another one.
///
/// ```
/// use gpu_vmm_share::Channel;
///
/// let (ours, theirs) = Channel::pair()?;
/// assert_eq!(ours.peer().pid, std::process::id());
/// # drop(theirs);
/// # Ok::<(), gpu_vmm_core::Error>(())
/// ```
///
/// # Processes that fork
///
/// A channel has nothing of a driver, and so it can be used in a forked child, unlike all else in this crate: one of the two
/// processes uses it, and the other one drops its copy. Where both use it, the other side sees numbers that repeat, and
/// refuses them. As long as a copy is open anywhere, the other side does not learn that this one is gone.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: Credentials,
    wait: Duration,
    /// By which this side is addressed.
    ours: Nonce,
    /// By which the other side is addressed, once it is known.
    theirs: Option<Nonce>,
    /// How many messages were sent and received, the greetings included.
    sent: u64,
    received: u64,
    /// Of a pair: set when the other end has been taken out of its channel.
    moved: Option<Arc<AtomicBool>>,
    /// Why nothing is taken from the other side any more.
    broken: Option<String>,
}

impl Channel {
    /// Both ends of a channel, for a child process or another thread.
    ///
    /// A child that is forked keeps one end. A child that executes a program is given the socket of one end, before
    /// either was used, and makes a channel of it with [`from_socket`](Self::from_socket):
    ///
    /// ```
    /// use gpu_vmm_share::{Allowed, Channel};
    /// use std::os::fd::AsFd;
    /// use std::process::{Command, Stdio};
    ///
    /// let (ours, theirs) = Channel::pair()?;
    /// // The command has the socket too, until it is dropped.
    /// let mut child = Command::new("true").stdin(Stdio::from(theirs.into_socket())).spawn().unwrap();
    /// child.wait().unwrap();
    ///
    /// // And in the child:
    /// fn channel() -> gpu_vmm_core::Result<Channel> {
    ///     let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    ///     Channel::from_socket(socket, Allowed::same_user())
    /// }
    /// # drop(ours);
    /// # Ok::<(), gpu_vmm_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`] with what the kernel answers, when too many files are open for example.
    pub fn pair() -> Result<(Self, Self)> {
        let sockets = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (one, other) = sockets.map_err(|errno| failed(CREATE, "socketpair", errno, "SOCK_SEQPACKET"))?;
        let (one, other) = (Self::new(CREATE, one)?, Self::new(CREATE, other)?);
        let moved = Arc::new(AtomicBool::new(false));
        // Each knows the other as if both had greeted.
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

    /// A channel to the process that has a [`Listener`](super::Listener) at `path`. It waits at most `wait` until that
    /// process has room for one more connection.
    ///
    /// # Errors
    ///
    /// [`PeerError::NotAllowed`]; [`PeerError::TimedOut`]; [`Detail::Driver`] where no process listens at the path, or the
    /// path does not belong to this user.
    pub fn connect(path: impl AsRef<Path>, allowed: Allowed, wait: Duration) -> Result<Self> {
        let path = path.as_ref();
        let fail = |call, errno| failed(CONNECT, call, errno, format!("{}{}", path.display(), hint(errno)));
        let address = address(CONNECT, path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|errno| fail("socket", errno))?;
        let wait = Wait::new(CONNECT, "acceptance by the process that listens", wait);
        loop {
            // This limits a wait for room among those who are to be accepted, which poll does not know.
            let limit = Some(wait.left()?.clamp(SHORTEST, LONGEST));
            set_socket_timeout(&socket, Timeout::Send, limit)
                .map_err(|errno| fail("setsockopt(SO_SNDTIMEO)", errno))?;
            match connect(&socket, &address) {
                Ok(()) => return Self::with(CONNECT, socket, allowed),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(fail("connect", errno)),
            }
        }
    }

    /// A channel over a socket that was inherited, or connected in another way. The other end makes a channel of its socket
    /// too.
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`] where it is not a connected Unix socket of kind `SOCK_SEQPACKET`, [`PeerError::NotAllowed`],
    /// and what sending a greeting gives. The socket is closed.
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

    /// The socket, for the program that is started with it; that one makes a channel of it with
    /// [`from_socket`](Self::from_socket).
    ///
    /// This is for an end of [`pair`](Self::pair) while neither end has been used. The exchange of any other channel cannot
    /// be gone on with: a channel that is made of its socket is refused by the other side.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        if let Some(moved) = &self.moved {
            moved.store(true, Ordering::Release);
        }
        self.socket
    }

    /// Who is at the other end, as the kernel knows it. For a pair, and for what is made of its sockets, this is the
    /// process that made the pair.
    #[must_use]
    pub const fn peer(&self) -> Credentials {
        self.peer
    }

    /// The limit of every wait for the other process.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.wait
    }

    /// Sets the limit of every wait for the other process.
    pub const fn set_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Sends a message, with descriptors that the other side gets its own duplicates of. A message that was not sent in
    /// time was not sent at all, and can be sent again.
    pub(crate) fn send(
        &mut self,
        operation: Operation,
        message: &Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let wait = Wait::new(operation, GREETING, self.wait);
        let theirs = self.greeted(&wait)?;
        self.put(theirs, message, fds, &wait.then(READING))
    }

    /// Waits for a message. One that is there already is taken even where the wait is over.
    ///
    /// The kind of the message, and how many descriptors a message of that kind has, is left to the caller to check.
    pub(crate) fn receive(&mut self, wait: &Wait) -> Result<(Message, Vec<OwnedFd>)> {
        self.greeted(wait)?;
        match self.take(self.ours, wait)? {
            (Message::Hello { .. }, _) => Err(self.refuse(wait.operation, "a second greeting".to_owned())),
            message => Ok(message),
        }
    }

    /// A channel over a socket that is sure to be of the right kind, with the greeting of this side sent.
    pub(crate) fn with(operation: Operation, socket: OwnedFd, allowed: Allowed) -> Result<Self> {
        let mut channel = Self::new(operation, socket)?;
        allowed.check(operation, channel.peer)?;
        channel.greet(&Wait::new(operation, READING, channel.wait))?;
        Ok(channel)
    }

    fn new(operation: Operation, socket: OwnedFd) -> Result<Self> {
        let peer = Credentials::of_peer(operation, socket.as_fd())?;
        let ours = codec::new_nonce().map_err(|errno| failed(operation, "getrandom", errno, "16 bytes"))?;
        let (theirs, moved, broken) = (None, None, None);
        Ok(Self { socket, peer, wait: WAIT, ours, theirs, sent: 0, received: 0, moved, broken })
    }

    /// The nonce of the other side, once both have greeted.
    fn greeted(&mut self, wait: &Wait) -> Result<Nonce> {
        if let Some(why) = &self.broken {
            let why = format!("nothing is taken from it any more since an earlier message: {why}");
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
            (Message::Hello { nonce }, _) => Ok(*self.theirs.insert(nonce)),
            _ => Err(self.refuse(wait.operation, "its first message is no greeting".to_owned())),
        }
    }

    fn greet(&mut self, wait: &Wait) -> Result<()> {
        self.put(TO_ANYBODY, &Message::Hello { nonce: self.ours }, &[], wait)
    }

    /// Sends one message to whom it is addressed.
    fn put(&mut self, nonce: Nonce, message: &Message, fds: &[BorrowedFd<'_>], wait: &Wait) -> Result<()> {
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

    /// Receives the next message, which is to have this address.
    fn take(&mut self, nonce: Nonce, wait: &Wait) -> Result<(Message, Vec<OwnedFd>)> {
        let Packet { bytes, fds, cut } = socket::receive(self.socket.as_fd(), wait)?;
        let descriptors = u16::try_from(fds.len()).unwrap_or(u16::MAX);
        let expected = Header { descriptors, nonce, sequence: self.received };
        let message = cut.map_or_else(|| codec::decode(&bytes, expected), Err);
        let message = message.map_err(|why| self.refuse(wait.operation, why))?;
        self.received += 1;
        Ok((message, fds))
    }

    /// Ends the exchange: the other side learns it as soon as it sends or receives.
    fn refuse(&mut self, operation: Operation, why: String) -> Error {
        // Fails where the other side is gone, which is as good.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.broken = Some(why.clone());
        Error::of_extension(operation, PeerError::BadMessage { why })
    }
}

impl AsFd for Channel {
    /// The socket, to poll it: readable when the other side has said something or has gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The shortest limit that the kernel can count, and one that is long enough for a wait that is begun again.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(3600);

/// The address of a path. One of no length would be an abstract name that the kernel makes up, which no permission guards.
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

/// What an answer to `connect` means.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => ": no process listens there, or not yet",
        Errno::CONNREFUSED => ": the process that listened there is gone",
        Errno::ACCESS => ": a listener can be reached by the user that made it",
        Errno::PROTOTYPE => ": what listens there is not gpu-vmm",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
