//! Names and explanations of errno values.

use super::address_limit;
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::File;
use std::io::Read;

/// Returns the name of an errno that the system calls of gpu-vmm can return.
pub(super) fn name(errno: Errno) -> Cow<'static, str> {
    Cow::Borrowed(match errno {
        Errno::ACCESS => "EACCES",
        Errno::ADDRINUSE => "EADDRINUSE",
        Errno::AGAIN => "EAGAIN",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::CANCELED => "ECANCELED",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::CONNRESET => "ECONNRESET",
        Errno::DQUOT => "EDQUOT",
        Errno::EXIST => "EEXIST",
        Errno::FAULT => "EFAULT",
        Errno::FBIG => "EFBIG",
        Errno::INTR => "EINTR",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::ISDIR => "EISDIR",
        Errno::LOOP => "ELOOP",
        Errno::MFILE => "EMFILE",
        Errno::MSGSIZE => "EMSGSIZE",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTCONN => "ENOTCONN",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTSOCK => "ENOTSOCK",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::PERM => "EPERM",
        Errno::PIPE => "EPIPE",
        Errno::PROTOTYPE => "EPROTOTYPE",
        Errno::ROFS => "EROFS",
        Errno::SRCH => "ESRCH",
        Errno::STALE => "ESTALE",
        Errno::TOOMANYREFS => "ETOOMANYREFS",
        other => return Cow::Owned(format!("errno {}", other.raw_os_error())),
    })
}

/// Explains what an errno means for a call, with advice if any is known.
pub(super) fn explanation(call: &'static str, errno: Errno) -> Cow<'static, str> {
    match errno {
        Errno::MFILE => Cow::Borrowed("the process has as many open files as RLIMIT_NOFILE allows"),
        Errno::FBIG => {
            Cow::Borrowed("the file would exceed RLIMIT_FSIZE (ulimit -f) or the limit of the file system")
        }
        Errno::NOMEM if matches!(call, "mmap" | "mprotect" | "munmap") => {
            match mapping_limit().or_else(address_limit::limit) {
                Some(text) => Cow::Owned(text),
                None => Cow::Borrowed("no such range of addresses is free, or the system is out of memory"),
            }
        }
        _ => {
            let text = std::io::Error::from(errno).to_string();
            Cow::Owned(text.split(" (os error").next().unwrap_or_default().to_owned())
        }
    }
}

/// Explains an `ENOMEM` that the kernel returned because the process has too many mappings, and returns `None` for any other.
pub(super) fn mapping_limit() -> Option<String> {
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let have = count_mappings()?;
    // A new mapping in the middle of another one adds two.
    (have + 2 >= limit).then(|| {
        format!("the process has {have} mappings and the kernel allows {limit}; raise vm.max_map_count")
    })
}

/// Counts the mappings of this process. The buffer is small and on the stack: at the limit, a large allocation may fail too.
fn count_mappings() -> Option<usize> {
    let mut maps = File::open("/proc/self/maps").ok()?;
    let mut buffer = [0u8; 4096];
    let mut lines = 0;
    loop {
        match maps.read(&mut buffer).ok()? {
            0 => return Some(lines),
            read => lines += buffer.iter().take(read).filter(|byte| **byte == b'\n').count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_names_match_kernel_header() {
        macro_rules! is_named {
            ($($name:ident)*) => {
                $(assert_eq!(name(Errno::from_raw_os_error(libc::$name)), stringify!($name));)*
            };
        }
        is_named!(
            EACCES EADDRINUSE EAGAIN EBADF EBUSY ECANCELED ECONNREFUSED ECONNRESET EDQUOT EEXIST EFAULT EFBIG EINTR EINVAL
            EIO EISDIR ELOOP EMFILE EMSGSIZE ENAMETOOLONG ENFILE ENODEV ENOENT ENOMEM ENOSPC ENOSYS ENOTCONN
            ENOTDIR ENOTSOCK EOPNOTSUPP EOVERFLOW EPERM EPIPE EPROTOTYPE EROFS ESRCH ESTALE ETOOMANYREFS
        );
    }

    #[test]
    fn mapping_enomem_is_explained() {
        for call in ["mmap", "mprotect", "munmap"] {
            let text = explanation(call, Errno::NOMEM);
            assert_eq!(text, "no such range of addresses is free, or the system is out of memory", "{call}");
            assert_eq!(explanation(call, Errno::PERM), "Operation not permitted");
        }
        assert_eq!(explanation("ftruncate", Errno::NOMEM), "Cannot allocate memory");
    }

    #[test]
    fn counts_this_process_mappings() {
        let counted = count_mappings().unwrap();
        let listed = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        assert!(counted.abs_diff(listed) < 50, "{counted} counted, {listed} listed");
        assert!(mapping_limit().is_none());
    }
}
