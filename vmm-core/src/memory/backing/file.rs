//! A file for contents of one suspended region.

use crate::memory::direct_file::DirectFile;
use crate::memory::files::failed;
use crate::types::{Bytes, Error, Operation, Result};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that the operating system deletes when this value is dropped or the process ends. It has no name, except on Windows.
#[derive(Debug)]
pub(super) struct File {
    operation: Operation,
    path: PathBuf,
    file: DirectFile,
}

impl File {
    /// Creates a file with disk space for `size` bytes, so that a full disk is an error before anything is copied.
    pub(super) fn new(operation: Operation, directory: &Path, size: Bytes) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".gpu-vmm-{}-{number}.suspended", std::process::id()));
            match create(&path) {
                Ok(file) => {
                    let this = Self { operation, path, file: DirectFile::new(file) };
                    let reserved = this.file.reserve(size.0);
                    reserved.map_err(|error| this.failed(DirectFile::RESERVE, &error))?;
                    return Ok(this);
                }
                // The file belongs to a process of another machine, or to one that was killed before it removed the name.
                Err((_, error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err((call, error)) => return Err(failed(operation, call, &path, &error)),
            }
        }
    }

    fn failed(&self, call: &'static str, error: &io::Error) -> Error {
        failed(self.operation, call, &self.path, error)
    }
}

#[cfg(unix)]
fn create(path: &Path) -> Result<std::fs::File, (&'static str, io::Error)> {
    use std::os::unix::fs::OpenOptionsExt;
    // Other users must not read the contents of a device's memory.
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // If the file system supports it, the file never has a name, so that no file can be left behind.
    #[cfg(target_os = "linux")]
    if let Some(Ok(file)) = path.parent().map(|folder| {
        let flags = libc::O_TMPFILE | libc::O_EXCL;
        options.clone().custom_flags(flags).open(folder)
    }) {
        return Ok(file);
    }
    let file = options.create_new(true).open(path).map_err(|error| ("open", error))?;
    match std::fs::remove_file(path) {
        // `NotFound`: another process has removed the name already.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(("unlink", error)),
        _ => Ok(file),
    }
}

#[cfg(windows)]
fn create(path: &Path) -> Result<std::fs::File, (&'static str, io::Error)> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
    options.open(path).map_err(|error| ("CreateFile", error))
}

impl File {
    pub(super) fn write(&self, at: Bytes, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at.0).map_err(|error| self.failed("write", &error))
    }

    pub(super) fn read(&self, at: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, at.0).map_err(|error| self.failed("read", &error))
    }

    /// Waits for writes that can still fail.
    pub(super) fn settle(&self) -> Result<()> {
        self.file.flush().map_err(|error| self.failed("fdatasync", &error))
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, unsafe_code)] // the limit of a file's size has no safe function
mod tests {
    use super::*;
    use gpu_vmm_testkit::forked::alone;

    impl File {
        /// Opens `/dev/null`, for which the system refuses to wait for a disk.
        pub(in super::super) fn without_disk() -> Self {
            let path = PathBuf::from("/dev/null");
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            Self { operation: Operation::Suspend, path, file: DirectFile::new(file) }
        }
    }

    #[test]
    fn contents_are_in_private_unnamed_file() {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let folder = std::env::temp_dir().join(format!("gpu-vmm-contents-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        alone(|| {
            std::env::set_current_dir(&folder).unwrap();
            // A path without a folder: the file is created with a name, as where the file system has no files without names.
            let taken = |number: u64| format!(".gpu-vmm-{}-{number}.suspended", std::process::id());
            (0..64).for_each(|number| std::fs::write(taken(number), "other").unwrap());
            for folder in [Path::new(""), &folder] {
                let file = File::new(Operation::Suspend, folder, Bytes(4096)).unwrap();
                file.write(Bytes(1), b"contents").unwrap();
                let error = file.read(Bytes(4090), &mut [0; 10]).unwrap_err().to_string();
                assert!(error.contains("suspend") && error.contains("read answered"), "{error}");
            }
            let free = PathBuf::from(taken(64));
            for path in [&free, &folder.join(&free)] {
                let file = create(path).unwrap();
                file.write_all_at(b"contents", 0).unwrap();
                let about = file.metadata().unwrap();
                assert_eq!((about.mode() & 0o777, about.nlink(), path.exists()), (0o600, 0, false));
            }
            for number in 0..64 {
                assert_eq!(std::fs::read(taken(number)).unwrap(), b"other");
            }
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 64, "a file is left behind");
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn full_disk_error_precedes_any_write() {
        alone(|| {
            let limit = libc::rlimit { rlim_cur: 8192, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the process is the test's own; the call sets a limit.
            unsafe { assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0) };
            let folder = std::env::temp_dir();
            let file = File::new(Operation::Suspend, &folder, Bytes(8192)).unwrap();
            file.write(Bytes(1), &[1; 8191]).unwrap();
            file.settle().unwrap();
            let error = file.write(Bytes(8190), &[1; 3]).unwrap_err().to_string();
            assert!(error.contains("write answered EFBIG"), "{error}");
            let error = File::new(Operation::Suspend, &folder, Bytes(8193)).unwrap_err().to_string();
            for part in ["suspend", "fallocate answered EFBIG", &folder.display().to_string()] {
                assert!(error.contains(part), "{part:?} is missing in {error:?}");
            }
        });
    }
}
