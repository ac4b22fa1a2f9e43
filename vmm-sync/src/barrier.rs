//! A pair of memory barriers, one of which costs nothing: the other makes every running thread of the process pass one.
#![allow(unsafe_code)] // calls the kernel

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

/// Keeps the compiler from moving memory accesses across.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Returns true if [`heavy`] works here. Registers the process with the kernel at the first call.
pub(crate) fn can_wait_for_all() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Makes every running thread of the process pass a memory barrier.
pub(crate) fn heavy() {
    if !membarrier(PRIVATE_EXPEDITED) {
        // A filter for system calls was installed after the registration. A processor's stores are visible to the others long
        // before this is over.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` of linux/membarrier.h.
const PRIVATE_EXPEDITED: i32 = 1 << 3;

/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`.
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Returns true if the kernel has done a command.
#[cfg(all(target_os = "linux", not(miri)))]
fn membarrier(command: i32) -> bool {
    // SAFETY: the call reads and writes no memory of the program.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Returns false: other systems have no such call, or Miri does not know it.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn membarrier(_: i32) -> bool {
    false
}
