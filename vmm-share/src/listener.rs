//! The socket that other processes connect to.

#[allow(unused_imports)] // named in documentation
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

/// The number of connections that can wait for [`Listener::accept`].
const BACKLOG: i32 = 128;

/// A Unix socket with a path, to which other processes of the same user can connect.
///
/// Dropping the listener removes the path, in the process that created it. If that process is killed, the path stays, and
/// must be removed before another listener can bind it.
///
/// # Thread safety
///
/// Several threads may [accept](Listener::accept) at the same time; each gets connections of its own.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// Absolute, so that it does not depend on the current directory.
    path: PathBuf,
    /// `st_dev` and `st_ino` of the socket at the path.
    bound: (u64, u64),
    process: Process,
}

impl Listener {
    /// Listens at `path`, which must not exist. The socket has mode 0600 from its first moment.
    ///
    /// # Errors
    ///
    /// [`Driver`](gpu_vmm_core::Detail::Driver) if the path exists, is longer than 108 bytes, or the kernel refuses it.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fail = |call, errno| failed(LISTEN, call, errno, path.display());
        let address = address(LISTEN, path)?;
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
        let whole = absolute(path).map_err(|error| fail("getcwd", io(error)))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.map_err(|errno| fail("socket", errno))?;
        // Linux gives the path the mode of the socket, less the umask.
        let private = Mode::RUSR | Mode::WUSR;
        fchmod(&socket, private).map_err(|errno| fail("fchmod", errno))?;
        bind(&socket, &address).map_err(|errno| match errno {
            Errno::ADDRINUSE => {
                let hint = "the path exists; remove it if no process listens there any more";
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

    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits up to `wait` for a process to connect.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](PeerError::TimedOut); [`NotAllowed`](PeerError::NotAllowed) for a process that `allowed` does not admit,
    /// whose connection is closed. The listener can accept others afterwards.
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
    /// Returns the socket, to wait on with poll: readable when a process has connected and waits for [`Listener::accept`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only the process that bound the path removes it. No other file can have this inode while the socket is open.
        let still = || {
            statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|found| (found.st_dev, found.st_ino) == self.bound)
        };
        if self.process.is_this() && still() {
            // If this fails, the next `bind` reports that the path exists.
            let _ = unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
