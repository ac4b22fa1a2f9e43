//! A terminal of a given width, and the lines that a program draws on it.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

pub(super) struct Terminal {
    slave: File,
    reader: JoinHandle<String>,
}

impl Terminal {
    pub(super) fn new(columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut master = File::from(master);
        let reader = std::thread::spawn(move || {
            let mut drawn = Vec::new();
            // The end of a terminal is reported as an error.
            let _ = master.read_to_end(&mut drawn);
            String::from_utf8_lossy(&drawn).into_owned()
        });
        Self { slave, reader }
    }

    /// Connects the command's output to the terminal.
    pub(super) fn attach(&self, command: &mut Command) {
        command.env("TERM", "xterm");
        for set in [Command::stdout::<Stdio>, Command::stderr::<Stdio>] {
            set(command, self.slave.try_clone().unwrap().into());
        }
    }

    /// Returns each drawn line, including progress bars, after all programs have closed the terminal.
    pub(super) fn lines(self) -> Vec<String> {
        drop(self.slave);
        let drawn = self.reader.join().unwrap();
        let mut text = String::new();
        let mut rest = drawn.chars();
        while let Some(char) = rest.next() {
            match char {
                // An escape sequence ends with a letter.
                '\u{1b}' => while rest.next().is_some_and(|char| !char.is_ascii_alphabetic()) {},
                char => text.push(char),
            }
        }
        text.split(['\r', '\n']).map(str::to_owned).collect()
    }
}
