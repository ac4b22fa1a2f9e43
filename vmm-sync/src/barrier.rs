//! A pair of memory barriers, one of which costs nothing: the other makes every running thread of the process pass one.
#![allow(unsafe_code)] // calls the kernel

use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};
use std::time::Duration;

/// Keeps the compiler from moving memory accesses across.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Returns true if [`heavy`] works here. Registers the process with the kernel at the first call, which takes milliseconds. No
/// thread waits for another one's registration: a child that is forked meanwhile would wait for ever.
pub(crate) fn can_wait_for_all() -> bool {
    static CAN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if CAN.load(Ordering::Relaxed) == UNKNOWN {
        let can = membarrier(REGISTER_PRIVATE_EXPEDITED);
        CAN.store(if can { YES } else { NO }, Ordering::Relaxed);
    }
    CAN.load(Ordering::Relaxed) == YES
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
