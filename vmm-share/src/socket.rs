//! Packets with descriptors over a socket, with a limit for each wait.
//!
//! The sockets are of type `SOCK_SEQPACKET`: connected, ordered, and the kernel keeps the boundaries of messages. The mode
//! `O_NONBLOCK` stays as it is, because all processes that have the socket share it.

use crate::PeerError;
use crate::message::{MAX_BYTES, MAX_DESCRIPTORS};
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Error, Operation, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The space for the descriptors of one message.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// The pause before another attempt to send descriptors: the kernel does not report when it accepts more.
const PAUSE: Duration = Duration::from_millis(1);

/// A wait with a time limit, which begins at its creation.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub(crate) operation: Operation,
    /// The awaited event, as in [`PeerError::TimedOut`].
    what: &'static str,
    limit: Duration,
    since: Instant,
}

impl Wait {
    /// Begins a wait. `what` is the awaited event, as in [`PeerError::TimedOut`].
    #[must_use]
    pub fn new(operation: Operation, what: &'static str, limit: Duration) -> Self {
        Self { operation, what, limit, since: Instant::now() }
    }

    /// Returns this wait for another event, with the same limit and beginning.
    pub(crate) const fn then(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    /// Returns the time that is left.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`] if none is left.
    pub fn left(&self) -> Result<Duration> {
        let Self { operation, what, limit, since } = *self;
        let left = limit.checked_sub(since.elapsed()).filter(|left| !left.is_zero());
        left.ok_or_else(|| Error::of_extension(operation, PeerError::TimedOut { what, waited: limit }))
    }

    /// Waits until poll reports one of `events` for the socket, or its end.
    pub(crate) fn until(&self, socket: BorrowedFd<'_>, events: PollFlags) -> Result<()> {
        loop {
            // A duration beyond the kernel's clock is no limit.
            let left = Timespec::try_from(self.left()?).ok();
            match poll(&mut [PollFd::from_borrowed_fd(socket, events)], left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(failed(self.operation, "poll", errno, self.what)),
            }
        }
    }

    fn gone(&self, errno: Errno) -> Error {
        Error::of_extension(self.operation, PeerError::Gone { why: errno.to_string() })
    }
}

/// Sends a packet: the whole of it, or nothing.
pub(crate) fn send(socket: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>], wait: &Wait) -> Result<()> {
    loop {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(failed(
                wait.operation,
                "sendmsg",
                Errno::TOOMANYREFS,
                format!("{} descriptors", fds.len()),
            ));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait.until(socket, PollFlags::OUT)?,
            // The user has RLIMIT_NOFILE descriptors in flight. Some of them must be received first.
            Err(Errno::TOOMANYREFS) => std::thread::sleep(PAUSE.min(wait.left()?)),
            Err(errno @ (Errno::PIPE | Errno::CONNRESET)) => return Err(wait.gone(errno)),
            Err(errno) => {
                let context = format!("{} bytes with {} descriptors", packet.len(), fds.len());
                return Err(failed(wait.operation, "sendmsg", errno, context));
            }
        }
    }
}

/// One packet that was received.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    /// Closed on exec, and when dropped.
    pub(crate) fds: Vec<OwnedFd>,
    /// What is wrong with the packet, if it is incomplete or too large.
    pub(crate) cut: Option<Cut>,
}

/// Why a packet is incomplete or too large.
#[derive(Debug)]
pub(crate) enum Cut {
    /// Its sender has made it too large.
    TooLarge(String),
    /// This process has no room for all of its descriptors.
    NoDescriptors { received: usize },
}

/// Waits for a packet.
///
/// # Errors
///
/// [`PeerError::Gone`] at the end of the socket, after all packets have been received.
pub(crate) fn receive(socket: BorrowedFd<'_>, wait: &Wait) -> Result<Packet> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut reset = None;
    loop {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait.until(socket, PollFlags::IN)?;
                continue;
            }
            // The peer closed before it had read everything. The kernel reports that once, before the peer's own packets.
            Err(errno @ Errno::CONNRESET) if reset.is_none() => {
                reset = Some(errno);
                continue;
            }
            Err(errno @ (Errno::PIPE | Errno::CONNRESET)) => return Err(wait.gone(errno)),
            Err(errno) => return Err(failed(wait.operation, "recvmsg", errno, wait.what)),
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(
                |beside| if let RecvAncillaryMessage::ScmRights(fds) = beside { Some(fds) } else { None },
            )
            .flatten()
            .collect();
        if received.bytes == 0 && fds.is_empty() && is_at_end(socket) {
            let why = reset.map(|errno| errno.to_string()).unwrap_or_default();
            return Err(Error::of_extension(wait.operation, PeerError::Gone { why }));
        }
        bytes.truncate(received.bytes);
        return Ok(Packet { bytes, cut: cut(received.flags, fds.len()), fds });
    }
}

/// Returns true if the peer has closed its end. Does not block. A received length of 0 does not prove it: a packet can be empty.
pub(crate) fn is_at_end(socket: BorrowedFd<'_>) -> bool {
    let mut ask = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ask, Some(&now)).is_ok_and(|ends| ends != 0)
}

/// Returns what is wrong with a packet, if it is incomplete or too large.
fn cut(flags: ReturnFlags, received: usize) -> Option<Cut> {
    if flags.contains(ReturnFlags::TRUNC) {
        Some(Cut::TooLarge(format!("it is longer than {MAX_BYTES} bytes")))
    } else if received > MAX_DESCRIPTORS || received == MAX_DESCRIPTORS && flags.contains(ReturnFlags::CTRUNC)
    {
        // For alignment, the space may hold more than `MAX_DESCRIPTORS`.
        Some(Cut::TooLarge(format!("it has more than {MAX_DESCRIPTORS} descriptors")))
    } else if flags.contains(ReturnFlags::CTRUNC) {
        Some(Cut::NoDescriptors { received })
    } else {
        None
    }
}
