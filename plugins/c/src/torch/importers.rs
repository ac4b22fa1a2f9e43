//! The permission for other processes to take descriptors from this one.
//!
//! Where the kernel restricts tracing to ancestors (`kernel.yama.ptrace_scope=1`), `pidfd_getfd` is restricted as well. A process may
//! admit all processes of its user, which then may trace it too. So this one does that only while it shares memory.
//!
//! Uses unsafe code: a call of the system.
#![allow(unsafe_code)]

use gpu_vmm::Operation;
use gpu_vmm::extend::Lock;
use std::sync::OnceLock;

/// Processes of the same user may take descriptors from this one while a value of this type exists.
pub(super) struct Importers(());

/// The number of values.
static COUNT: OnceLock<Lock<usize>> = OnceLock::new();

impl Importers {
    pub(super) fn admit() -> Self {
        count(|count| {
            *count += 1;
            if *count == 1 {
                set(true);
            }
        });
        Self(())
    }
}

impl Drop for Importers {
    fn drop(&mut self) {
        count(|count| {
            *count -= 1;
            if *count == 0 {
                set(false);
            }
        });
    }
}

/// Changes the number and the permission in one hold. A forked child has no permission of its parent, and changes none.
fn count(change: impl FnOnce(&mut usize)) {
    if let Ok(mut count) = COUNT.get_or_init(Lock::default).lock(Operation::ExportMemory) {
        change(&mut count);
    }
}

/// Sets or ends the permission. A kernel without the restriction does not know the call.
fn set(admits: bool) {
    #[cfg(target_os = "linux")]
    {
        let whom = if admits { libc::PR_SET_PTRACER_ANY } else { 0 };
        // SAFETY: the call changes a permission of this process alone.
        let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, whom, 0, 0, 0) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = admits;
}

#[cfg(test)]
pub(super) fn admitted() -> usize {
    let mut now = 0;
    count(|count| now = *count);
    now
}
