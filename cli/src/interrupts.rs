//! Signals that end the process, put off while a temporary file exists, so that an interrupt leaves none.

#[cfg(unix)]
pub(crate) use unix::deferred;

/// Does something that an interrupt does not cut. Windows ends a process at once, and nothing can be done about it.
#[cfg(not(unix))]
pub(crate) fn deferred<T>(action: impl FnOnce() -> T) -> T {
    action()
}

#[cfg(unix)]
mod unix {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
    use signal_hook::{flag, low_level};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, OnceLock};

    /// What the handlers see.
    #[derive(Default, Debug)]
    struct Deferral {
        /// Signals have their default effect.
        idle: Arc<AtomicBool>,
        /// The signal that came meanwhile, or 0.
        came: Arc<AtomicUsize>,
    }

    /// Does something short that a signal does not cut; a signal that came meanwhile ends the process afterwards.
    pub(crate) fn deferred<T>(action: impl FnOnce() -> T) -> T {
        static DEFERRAL: OnceLock<Deferral> = OnceLock::new();
        let deferral = DEFERRAL.get_or_init(install);
        deferral.idle.store(false, Ordering::SeqCst);
        let answer = action();
        deferral.idle.store(true, Ordering::SeqCst);
        let came = deferral.came.swap(0, Ordering::SeqCst);
        if let Ok(signal @ 1..) = i32::try_from(came) {
            // It fails for signals that do not exist only.
            let _ = low_level::emulate_default_handler(signal);
        }
        answer
    }

    fn install() -> Deferral {
        let deferral = Deferral::default();
        let ignored = ignored();
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // `nohup` has had it ignored, and a handler would undo that.
            if ignored & (1 << (signal - 1)) != 0 {
                continue;
            }
            // A signal that cannot be handled has its default effect, as without this.
            let _ = flag::register_conditional_default(signal, Arc::clone(&deferral.idle));
            let _ = flag::register_usize(signal, Arc::clone(&deferral.came), signal.unsigned_abs() as usize);
        }
        // A file above the limit of the process (`ulimit -f`) is then an error of the write, and ends nothing.
        let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
        deferral
    }

    /// The signals that the process ignores, one bit for each; none where the system does not say.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }
}
