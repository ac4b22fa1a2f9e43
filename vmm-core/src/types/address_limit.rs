//! The limit of a process's address space.

#[cfg(unix)]
use super::Bytes;

/// Describes the limit of the process's address space, if there is one.
#[cfg(unix)]
pub(super) fn limit() -> Option<String> {
    let limit = Bytes(rustix::process::getrlimit(rustix::process::Resource::As).current?);
    let used = used().map(|used| format!(", of which {used} are in use")).unwrap_or_default();
    Some(format!("the limit of the process's address space (ulimit -v) is {limit}{used}"))
}

#[cfg(not(unix))]
pub(super) fn limit() -> Option<String> {
    None
}

/// Returns the size of the process's address space.
#[cfg(unix)]
fn used() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(pages.checked_mul(rustix::param::page_size() as u64)?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_address_space_in_use_is_known() {
        assert!(used().is_some_and(|used| used > Bytes::mib(1)));
    }
}
