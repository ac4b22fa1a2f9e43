//! The socket that other processes connect to.

#[allow(unused_imports)] // named in documentation
use crate::PeerError;
use crate::channel::{address, is_stale, stale};
use crate::socket::Wait;
use crate::{Allowed, Channel};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Error, Operation, Result};
use rustix::event::PollFlags;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, flock, open, statat, unlink,
};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname, listen,
    socket_with,
};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

const LISTEN: Operation = Operation::Listen;
const ACCEPT: Operation = Operation::Accept;

/// The number of connections that can wait for [`Listener::accept`].
const BACKLOG: i32 = 128;

/// A Unix socket with a path, to which other processes of the same user can connect.
///
/// Dropping the listener removes the path, in the process that created it. If that process is killed, the path stays: a stale
/// socket, which must be removed or [replaced](Listener::replace_stale).
///
/// # Thread safety
///
/// Several threads may [accept](Listener::accept) at the same time; each gets connections of its own.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// Absolute, so that it does not depend on the current directory.
    pub(crate) path: PathBuf,
    /// `st_dev` and `st_ino` of the socket at the path, if this process removes it.
    pub(crate) bound: Option<(u64, u64)>,
    process: Process,
}

impl Listener {
    /// Listens at `path`, which must not exist. The socket has mode 0600 from its first moment.
    ///
    /// # Errors
    ///
    /// [`StaleSocket`](PeerError::StaleSocket) if the path is a socket whose process is gone;
    /// [`Driver`](gpu_vmm_core::Detail::Driver) if the path exists otherwise, is longer than 108 bytes, or the kernel refuses it.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
        Self::bind_to(path.as_ref())
    }

    /// Listens at `path` as [`Listener::bind`] does, and replaces a stale socket there: one whose process is gone. Of several
    /// processes that do so at one time, one listens, and the others fail.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::bind`]. Only a stale socket is replaced, and no other file.
    pub fn replace_stale(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bound = Self::bind_to(path);
        let is_stale = |error: &Error| matches!(error.extension(), Some(PeerError::StaleSocket { .. }));
        if !bound.as_ref().is_err_and(is_stale) {
            return bound;
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let fail = |call, errno| failed(LISTEN, call, errno, path.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(parent, flags, Mode::empty()).map_err(|errno| fail("open", errno))?;
        // Otherwise another process that replaces the same socket could remove the new one.
        flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(|errno| fail("flock", errno))?;
        match Self::bind_to(path) {
            Err(error) if is_stale(&error) => {
                unlink(path).map_err(|errno| fail("unlink", errno))?;
                Self::bind_to(path)
            }
            bound => bound,
        }
    }

    fn bind_to(path: &Path) -> Result<Self> {
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
            Errno::ADDRINUSE if is_stale(path, &address) => stale(LISTEN, path, "bind", "EADDRINUSE (98)"),
            Errno::ADDRINUSE => {
                let hint = "the path exists; remove it if no process listens there";
                failed(LISTEN, "bind", errno, format!("{}: {hint}", path.display()))
            }
            _ => fail("bind", errno),
        })?;
        let found = statat(CWD, &whole, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| fail("fstatat", errno))?;
        let bound = Some((found.st_dev, found.st_ino));
        let listener = Self { socket, path: whole, bound, process: Process::current() };
        listen(&listener.socket, BACKLOG).map_err(|errno| fail("listen", errno))?;
        Ok(listener)
    }

    /// Takes over a socket that listens already: one that a service manager passes to this process, such as systemd's
    /// `ListenSequentialPacket`. Dropping the listener leaves the path.
    ///
    /// # Errors
    ///
    /// [`Driver`](gpu_vmm_core::Detail::Driver) if it is no listening Unix socket of type `SOCK_SEQPACKET` with a path.
    pub fn from_socket(socket: OwnedFd) -> Result<Self> {
        let fail = |call, errno| failed(LISTEN, call, errno, "a listening Unix socket is needed");
        let kind = socket_type(&socket).map_err(|errno| fail("getsockopt(SO_TYPE)", errno))?;
        let listens = socket_acceptconn(&socket).map_err(|errno| fail("getsockopt(SO_ACCEPTCONN)", errno))?;
        let address = getsockname(&socket).map_err(|errno| fail("getsockname", errno))?;
        let address = SocketAddrUnix::try_from(address).ok();
        let path = address.as_ref().and_then(SocketAddrUnix::path_bytes);
        let (SocketType::SEQPACKET, true, Some(path)) = (kind, listens, path) else {
            let (call, errno) = ("the socket", Errno::PROTOTYPE);
            return Err(failed(
                LISTEN,
                call,
                errno,
                "a listening Unix socket of kind SOCK_SEQPACKET with a path is needed",
            ));
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        let flags = fcntl_getfl(&socket).map_err(|errno| fail("fcntl(F_GETFL)", errno))?;
        fcntl_setfl(&socket, flags | OFlags::NONBLOCK).map_err(|errno| fail("fcntl(F_SETFL)", errno))?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(|errno| fail("fcntl(F_SETFD)", errno))?;
        Ok(Self { socket, path, bound: None, process: Process::current() })
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
                Ok(socket) => return Channel::accepted(ACCEPT, socket, allowed),
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
                .is_ok_and(|found| Some((found.st_dev, found.st_ino)) == self.bound)
        };
        if self.process.is_this() && still() {
            // If this fails, the next `bind` reports that the path exists.
            let _ = unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
