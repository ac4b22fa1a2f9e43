//! One end of the connection between two processes. It carries messages and file descriptors.

use rustix::io::IoSlice;
use rustix::io::IoSliceMut;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long one side waits for the other by default.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end of the connection to another process.
#[derive(Debug)]
pub(crate) struct Peer(UnixStream);

impl Peer {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Sets how long each later receive waits.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(patience))
    }

    /// Sends a message.
    pub(crate) fn try_send(&self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        (&self.0).write_all(&length.to_le_bytes())?;
        (&self.0).write_all(&text)
    }

    /// Waits for a message; a closed connection is an error.
    pub(crate) fn try_receive<T: DeserializeOwned>(&self) -> io::Result<T> {
        let mut length = [0; 4];
        (&self.0).read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        (&self.0).read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Sends a message, in a case.
    pub(crate) fn send(&self, message: impl Serialize) {
        self.try_send(&message).expect("the other process listens");
    }

    /// Waits for a message, in a case.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> T {
        self.try_receive().expect("the other process answers")
    }

    /// Sends a descriptor.
    pub(crate) fn try_send_fd(&self, fd: impl AsFd) -> io::Result<()> {
        send_with(self.0.as_fd(), &[0], &[fd.as_fd()])
    }

    /// Waits for a descriptor; a closed connection is an error.
    pub(crate) fn try_receive_fd(&self) -> io::Result<OwnedFd> {
        let (_, mut fds) = receive_with(self.0.as_fd(), &mut [0])?;
        fds.pop().ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no descriptor came"))
    }

    /// Sends a descriptor, in a case.
    pub(crate) fn send_fd(&self, fd: impl AsFd) {
        self.try_send_fd(fd).expect("the other process listens");
    }

    /// Waits for a descriptor, in a case.
    pub(crate) fn receive_fd(&self) -> OwnedFd {
        self.try_receive_fd().expect("the other process answers")
    }
}

/// The maximum number of descriptors in one message.
const MAX_FDS: usize = 4;

/// Sends bytes and descriptors in one message.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other(format!(
            "{} descriptors exceed the limit of {MAX_FDS} in a message",
            fds.len()
        )));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a message was truncated")) }
}

/// Waits for bytes and the descriptors sent with them; zero bytes mean that the connection is closed.
pub(crate) fn receive_with(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            answer => break answer?,
        }
    };
    let fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, fds.collect()))
}
