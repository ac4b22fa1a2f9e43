//! A number for the running thread that takes one instruction: in a shared library, an access to a thread-local variable is a call.
#![allow(unsafe_code)] // reads a register

/// Returns a number that no other running thread has, and that is not zero: the address of the system's block for the thread.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#[inline]
pub(crate) fn this_thread() -> usize {
    use std::arch::asm;

    let block: usize;
    // SAFETY: the ABI of x86-64 has the thread's block begin with its own address, and that of AArch64 has the address in this
    // register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, fs:0", out(reg) block, options(pure, readonly, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("mrs {}, tpidr_el0", out(reg) block, options(pure, nomem, nostack, preserves_flags));
    }
    block
}

/// Returns a number that no other running thread has, and that is not zero: an address of the thread's own.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
#[inline]
pub(crate) fn this_thread() -> usize {
    std::thread_local! { static OWN: u8 = const { 0 }; }
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

#[cfg(test)]
mod tests {
    use super::this_thread;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn running_threads_have_different_numbers() {
        let all_run = Barrier::new(8);
        let number = || {
            let first = this_thread();
            all_run.wait();
            assert_eq!(this_thread(), first);
            first
        };
        let mut numbers: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(number)).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Result<_, _>>()
        })
        .expect("no thread panics");
        numbers.push(this_thread());
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 9);
        assert!(!numbers.contains(&0));
    }
}
