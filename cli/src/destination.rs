//! Files that the command writes. Each is complete or unchanged: the content goes to a temporary file in the same
//! folder, which is renamed to the target when all of it is on the disk.
//!
//! A destination is checked before the work begins, so that a missing folder does not cost minutes of work. Between the
//! check and the end no temporary file exists that an interrupt could leave behind.

use crate::CliResult;
use crate::args::refusal;
use crate::interrupts;
use same_file::Handle;
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Checks the target of an option, if it is given, before the work begins: it must be writable and none of the inputs.
pub(crate) fn checked(
    subcommand: &str,
    option: &str,
    target: Option<&Path>,
    inputs: &[&Path],
) -> CliResult<Option<Destination>> {
    let Some(target) = target else { return Ok(None) };
    let destination = Destination::check(target)?;
    match inputs.iter().find(|input| destination.is_input(input)) {
        None => Ok(Some(destination)),
        Some(input) => {
            let (target, input) = (target.display(), input.display());
            let text = format!("{option} {target} is the same file as the input {input}; name another file");
            Err(refusal(subcommand, text).into())
        }
    }
}

/// A target that the command writes to.
#[derive(Debug)]
pub(crate) struct Destination {
    /// The target as the user wrote it.
    named: PathBuf,
    kind: Kind,
    /// The content of a regular file until it is complete.
    content: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    /// Standard output: `-`, or a name of it such as `/dev/stdout`.
    Stdout,
    /// Standard error, by a name such as `/dev/stderr`.
    Stderr,
    /// A pipe or a device. No file can replace it, so it is written to directly.
    Stream { file: File, closed: bool },
    /// A regular file, or a free name, with all links followed.
    Regular(PathBuf),
}

impl Destination {
    /// Checks that the target can be written, and opens it if it is a pipe or a device.
    pub(crate) fn check(named: &Path) -> CliResult<Self> {
        let kind = kind(named).map_err(|error| unwritable(&named.display(), &error))?;
        let destination = Self { named: named.to_owned(), kind, content: Vec::new() };
        if let Kind::Regular(path) = &destination.kind {
            // Only creating a file shows whether the folder takes new files.
            let taken = interrupts::deferred(|| temporary(folder(path)).map(drop));
            taken.map_err(|error| destination.folder_refuses(path, &error))?;
        }
        Ok(destination)
    }

    /// Adds text. Pipes and devices get it at once.
    pub(crate) fn add(&mut self, text: &str) -> CliResult {
        let written = match &mut self.kind {
            Kind::Stdout => io::stdout().write_all(text.as_bytes()),
            Kind::Stderr => io::stderr().write_all(text.as_bytes()),
            Kind::Stream { closed: true, .. } => Ok(()),
            Kind::Stream { file, closed } => match file.write_all(text.as_bytes()) {
                // The reader has closed the pipe, as is usual for standard output.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    *closed = true;
                    Ok(())
                }
                written => written,
            },
            Kind::Regular(_) => {
                self.content.extend_from_slice(text.as_bytes());
                Ok(())
            }
        };
        match written {
            Err(error) if matches!(self.kind, Kind::Stdout) && error.kind() == ErrorKind::BrokenPipe => {
                Ok(())
            }
            Err(error) => Err(unwritable(&self.named.display(), &error)),
            Ok(()) => Ok(()),
        }
    }

    /// Replaces a regular file by the text that was added since the last call.
    pub(crate) fn complete(&mut self) -> CliResult {
        let Kind::Regular(path) = &self.kind else { return Ok(()) };
        let content = std::mem::take(&mut self.content);
        interrupts::deferred(|| {
            let made = temporary(folder(path)).map_err(|error| self.folder_refuses(path, &error))?;
            replace(made, path, &content).map_err(|error| unwritable(&self.named.display(), &error))
        })
    }

    /// True for a regular file, which can be replaced several times.
    pub(crate) fn is_replaced(&self) -> bool {
        matches!(self.kind, Kind::Regular(_))
    }

    /// True if the target is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.kind, Kind::Stdout)
    }

    /// True if the target is this input, which would then be lost. `-` is standard input.
    pub(crate) fn is_input(&self, input: &Path) -> bool {
        let input = if input.as_os_str() == "-" { Handle::stdin().ok() } else { regular(input) };
        let target = match &self.kind {
            Kind::Stdout => Handle::stdout().ok(),
            Kind::Stderr => Handle::stderr().ok(),
            Kind::Stream { .. } => None,
            Kind::Regular(path) => regular(path),
        };
        // A terminal or `/dev/null` may be both.
        let is_file = |handle: &Handle| handle.as_file().metadata().is_ok_and(|found| found.is_file());
        target.filter(is_file).is_some_and(|target| input == Some(target))
    }

    /// True if both targets are one regular file, so that one of the contents would be lost.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Regular(one), Kind::Regular(two)) => {
                one == two || regular(one).is_some_and(|one| regular(two) == Some(one))
            }
            _ => false,
        }
    }

    fn folder_refuses(&self, path: &Path, error: &io::Error) -> Box<dyn std::error::Error> {
        let (named, folder) = (self.named.display(), folder(path).display());
        format!("{named} cannot be written: the folder {folder} accepts no new file: {error}").into()
    }
}

/// Returns the kind of a target.
fn kind(named: &Path) -> io::Result<Kind> {
    if named.as_os_str() == "-" {
        return Ok(Kind::Stdout);
    }
    match std::fs::metadata(named) {
        Ok(found) if found.is_file() => {
            let handle = regular(named);
            // If another file took its place, the reader of the stream would never see it.
            if handle.is_some() && handle == Handle::stdout().ok() {
                return Ok(Kind::Stdout);
            }
            if handle.is_some() && handle == Handle::stderr().ok() {
                return Ok(Kind::Stderr);
            }
            // A rename could replace a read-only file, which its owner does not want.
            File::options().append(true).open(named)?;
            Ok(Kind::Regular(std::fs::canonicalize(named)?))
        }
        // Opening a folder returns the right error.
        Ok(_) => File::options().write(true).open(named).map(|file| Kind::Stream { file, closed: false }),
        Err(error) if error.kind() == ErrorKind::NotFound => followed(named).map(Kind::Regular),
        Err(error) => Err(error),
    }
}

/// Follows links; the last one may name a file that does not exist yet.
fn followed(named: &Path) -> io::Result<PathBuf> {
    // Linux follows as many.
    const MAX_LINKS: usize = 40;
    let mut path = named.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&path) else {
            let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
            let parent = folder(&path);
            let parent = std::fs::canonicalize(parent).map_err(|error| {
                io::Error::new(error.kind(), format!("the folder {}: {error}", parent.display()))
            })?;
            return Ok(parent.join(name));
        };
        path = folder(&path).join(target);
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Returns a handle of a regular file, for comparison. Other files are not opened: opening a pipe waits for its other
/// end.
fn regular(path: &Path) -> Option<Handle> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    is_file.then(|| Handle::from_path(path).ok()).flatten()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a file in the folder. Its name does not contain the target's name, which may have the maximum length
/// already.
fn temporary(folder: &Path) -> io::Result<NamedTempFile> {
    let mut name = tempfile::Builder::new();
    name.prefix(".gpu-vmm-").suffix(".partial");
    // The crate makes files that only their owner can read; this one must have the permissions of any new file.
    name.make_in(folder, |path| File::options().write(true).create_new(true).open(path))
}

fn replace(mut temporary: NamedTempFile, path: &Path, content: &[u8]) -> io::Result<()> {
    let file = temporary.as_file_mut();
    // Before the file has any content that others could read.
    if let Ok(found) = std::fs::metadata(path) {
        keep_rights(file, &found)?;
    }
    file.write_all(content)?;
    // Without this, a crash after the rename could leave an empty file.
    file.sync_all()?;
    temporary.persist(path).map(drop).map_err(|error| error.error)
}

/// Gives the new file the owner and the permissions of the one that it replaces.
fn keep_rights(file: &File, found: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Only the superuser can give files away. For other users the new file becomes theirs.
        let _ = std::os::unix::fs::fchown(file, Some(found.uid()), Some(found.gid()));
    }
    file.set_permissions(found.permissions())
}

/// Returns the error for a failed write.
pub(crate) fn unwritable(what: &dyn Display, error: &std::io::Error) -> Box<dyn std::error::Error> {
    format!("{what} cannot be written: {error}").into()
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn two_names_of_file_are_equal() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two, link, other] = ["one", "two", "link", "other"].map(|name| folder.path().join(name));
        for file in [&one, &other] {
            std::fs::write(file, "before").unwrap();
        }
        std::fs::hard_link(&one, &two).unwrap();
        symlink("one", &link).unwrap();
        let target = |path: &Path| Destination::check(path).unwrap();
        let (first, new) = (target(&one), target(&folder.path().join("new")));
        for (path, expected) in [(&one, true), (&two, true), (&link, true), (&other, false)] {
            assert_eq!(first.is_same(&target(path)), expected, "{}", path.display());
            assert_eq!(first.is_input(path), expected, "{}", path.display());
            assert!(!new.is_same(&target(path)), "a new file is none of them");
        }
        assert!(
            new.is_same(&target(&folder.path().join("./new"))),
            "two names of a file that is not there yet"
        );
        let nothing = target(Path::new("/dev/null"));
        assert!(!nothing.is_same(&target(Path::new("/dev/null"))), "each text is written to a device");
        let kinds = [&first, &new, &nothing].map(|target| (target.is_replaced(), target.is_stdout()));
        assert_eq!(kinds, [(true, false), (true, false), (false, false)]);
        assert!(target(Path::new("-")).is_stdout());
    }

    #[test]
    fn link_is_followed_from_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["from", "to"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let link = folder.path().join("from/link");
        symlink("../to/second", &link).unwrap();
        symlink("file", folder.path().join("to/second")).unwrap();
        let mut target = Destination::check(&link).unwrap();
        target.add("one, ").unwrap();
        target.add("two").unwrap();
        assert!(!folder.path().join("to/file").exists(), "it is not complete");
        target.complete().unwrap();
        let read = || std::fs::read_to_string(folder.path().join("to/file")).unwrap();
        assert_eq!(read(), "one, two");
        target.add("three").unwrap();
        target.complete().unwrap();
        assert_eq!(read(), "three", "the text since the last time");
        symlink("../none/file", folder.path().join("from/dangling")).unwrap();
        let refused = Destination::check(&folder.path().join("from/dangling")).unwrap_err().to_string();
        assert!(
            refused.contains("from/dangling cannot be written: the folder ")
                && refused.contains("none: No such file"),
            "{refused}"
        );
    }

    #[test]
    fn folder_removed_after_check_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let place = std::fs::canonicalize(folder.path()).unwrap().join("place");
        std::fs::create_dir(&place).unwrap();
        let mut target = Destination::check(&place.join("file")).unwrap();
        target.add("text").unwrap();
        std::fs::remove_dir(&place).unwrap();
        let (error, place) = (target.complete().unwrap_err().to_string(), place.display());
        let expected =
            format!("{place}/file cannot be written: the folder {place} accepts no new file: No such");
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn pipe_without_reader_is_no_error() {
        use std::os::unix::fs::OpenOptionsExt;
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        let first = reader();
        let mut target = Destination::check(&pipe).unwrap();
        assert!(!target.is_replaced() && !target.is_stdout());
        target.add("read, ").unwrap();
        let mut begun = [0; 6];
        std::io::Read::read_exact(&mut &first, &mut begun).unwrap();
        assert_eq!(&begun, b"read, ");
        drop(first);
        // A child that another test has just started holds the reader until it executes its program.
        while File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&pipe).is_ok() {
            std::thread::yield_now();
        }
        target.add("lost").unwrap();
        // Nothing more is written, although there is a reader again.
        let mut second = reader();
        target.add("more").unwrap();
        target.complete().unwrap();
        drop(target);
        let mut rest = Vec::new();
        // Without a writer there is an end; a writer that a child still has makes it EAGAIN.
        let _ = std::io::Read::read_to_end(&mut second, &mut rest);
        assert!(rest.is_empty());
    }
}
