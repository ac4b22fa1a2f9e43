//! A channel between a process and a program that it starts.

use super::{CREATE, Channel};
use crate::Allowed;
use gpu_vmm_core::{DriverError, Error, Result};
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

impl Channel {
    /// Starts a program whose standard input is the other end of a new channel. The program calls
    /// [`from_stdin`](Self::from_stdin).
    ///
    /// Afterwards the command has a null input: as long as it had the socket, the peer's death would not be seen.
    ///
    /// ```
    /// # mod gpu_vmm { pub use gpu_vmm_share as share; }
    /// use gpu_vmm::share::Channel;
    /// use std::process::Command;
    ///
    /// let (channel, mut child) = Channel::spawn(&mut Command::new("true"))?;
    /// # child.wait().unwrap();
    /// # drop(channel);
    /// # Ok::<(), gpu_vmm_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Detail::Driver`](gpu_vmm_core::Detail::Driver) with the kernel's error, for example if the program does not exist.
    pub fn spawn(command: &mut Command) -> Result<(Self, Child)> {
        let (ours, theirs) = Self::pair()?;
        let spawned = command.stdin(Stdio::from(theirs.into_socket())).spawn();
        command.stdin(Stdio::null());
        let child =
            spawned.map_err(|error| system("spawn", &error, command.get_program().display().to_string()))?;
        Ok((ours, child))
    }

    /// Returns the channel of a program that [`spawn`](Self::spawn) has started. It allows the same user only.
    ///
    /// # Errors
    ///
    /// Those of [`from_socket`](Self::from_socket), for example if the standard input is not a channel.
    pub fn from_stdin() -> Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| system("fcntl", &error, "standard input".to_owned()))?;
        Self::from_socket(socket, Allowed::same_user())
    }
}

fn system(call: &'static str, error: &io::Error, context: String) -> Error {
    Error::driver(CREATE, DriverError::system(call, error), context)
}
