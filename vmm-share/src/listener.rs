//! Where other processes can connect to.

#[cfg(doc)]
use crate::PeerError;
use crate::channel::address;
use crate::socket::Wait;
use crate::{Allowed, Channel};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Operation, Result};
use rustix::event::PollFlags;
use rustix::fs::{AtFlags, CWD, Mode, fchmod, statat, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

const LISTEN: Operation = Operation::Listen;
const ACCEPT: Operation = Operation::Accept;

/// How many processes can wait to be accepted.
const BACKLOG: i32 = 128;

/// A Unix socket with a path, to which other processes of the same user can connect.
///
/// The path goes when the listener is dropped by the process that made it. A listener that is killed leaves it; then it
/// has to be removed before another one can be there.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// Whatever becomes the current directory.
    path: PathBuf,
    /// `st_dev` and `st_ino` of what was bound there.
    bound: (u64, u64),
    process: Process,
}

impl Listener {
    /// Listens at this path, which must not exist. The socket there has mode 0600 from its first moment on.
    ///
    /// # Errors
    ///
    /// [`Driver`](gpu_vmm_core::Detail::Driver) where the path exists, is longer than 108 bytes, or the kernel refuses it.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fail = |call, errno| failed(LISTEN, call, errno, path.display());
        let address = address(LISTEN, path)?;
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
        let whole = absolute(path).map_err(|error| fail("getcwd", io(error)))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.map_err(|errno| fail("socket", errno))?;
        // Linux gives what it binds the mode that the socket has, less the umask's.
        let private = Mode::RUSR | Mode::WUSR;
        fchmod(&socket, private).map_err(|errno| fail("fchmod", errno))?;
        bind(&socket, &address).map_err(|errno| match errno {
            Errno::ADDRINUSE => {
                let hint = "the path exists; remove it where no process listens there any more";
                failed(LISTEN, "bind", errno, format!("{}: {hint}", path.display()))
            }
            _ => fail("bind", errno),
        })?;
        let found = statat(CWD, &whole, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| fail("fstatat", errno))?;
        let bound = (found.st_dev, found.st_ino);
        let listener = Self { socket, path: whole, bound, process: Process::current() };
        listen(&listener.socket, BACKLOG).map_err(|errno| fail("listen", errno))?;
        Ok(listener)
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a process that connects. The channel that is made of it has its own limit for each wait.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](PeerError::TimedOut) where nobody came. [`NotAllowed`](PeerError::NotAllowed) where
    /// somebody came who may not; that connection is closed, and the listener can accept others.
    pub fn accept(&self, allowed: Allowed, wait: Duration) -> Result<Channel> {
        let wait = Wait::new(ACCEPT, "connection", wait);
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => return Channel::with(ACCEPT, socket, allowed),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => wait.until(self.socket.as_fd(), PollFlags::IN)?,
                Err(errno) => return Err(failed(ACCEPT, "accept4", errno, self.path.display())),
            }
        }
    }
}

impl AsFd for Listener {
    /// The socket, to poll it: readable when a process waits to be accepted.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The path is the process's that bound it. No other file can have this inode while the socket is open.
        let still = || {
            statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|found| (found.st_dev, found.st_ino) == self.bound)
        };
        if self.process.is_this() && still() {
            // Where it cannot be removed, the next one who binds is told that it is there.
            let _ = unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
