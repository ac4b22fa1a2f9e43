//! Signals that end the process, deferred while a temporary file exists, so that an interrupt leaves none behind.

#[cfg(unix)]
pub(crate) use unix::{deferred, has_come};

/// Runs an action. On Windows an interrupt ends the process at once and cannot be deferred.
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

    /// The state of the signal handlers.
    #[derive(Default, Debug)]
    struct Deferral {
        /// True while signals have their default effect.
        idle: Arc<AtomicBool>,
        /// The deferred signal, or 0.
        came: Arc<AtomicUsize>,
    }

    static DEFERRAL: OnceLock<Deferral> = OnceLock::new();

    /// Runs an action that signals do not interrupt; a signal that arrives meanwhile ends the process afterwards. An action that is not
    /// short ends once one [has come](has_come).
    pub(crate) fn deferred<T>(action: impl FnOnce() -> T) -> T {
        let deferral = DEFERRAL.get_or_init(install);
        deferral.idle.store(false, Ordering::SeqCst);
        let answer = action();
        deferral.idle.store(true, Ordering::SeqCst);
        let came = deferral.came.swap(0, Ordering::SeqCst);
        if let Ok(signal @ 1..) = i32::try_from(came) {
            // It fails only for signals that do not exist.
            let _ = low_level::emulate_default_handler(signal);
        }
        answer
    }

    /// Returns true if a signal waits for the end of the action.
    pub(crate) fn has_come() -> bool {
        DEFERRAL.get().is_some_and(|deferral| deferral.came.load(Ordering::SeqCst) != 0)
    }

    fn install() -> Deferral {
        let deferral = Deferral::default();
        let ignored = ignored();
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // `nohup` made the process ignore it, and a handler would undo that.
            if ignored & (1 << (signal - 1)) != 0 {
                continue;
            }
            // A signal that cannot be handled keeps its default effect.
            let _ = flag::register_conditional_default(signal, Arc::clone(&deferral.idle));
            let _ = flag::register_usize(signal, Arc::clone(&deferral.came), signal.unsigned_abs() as usize);
        }
        // A write beyond the file size limit (`ulimit -f`) then returns an error and does not end the process.
        let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
        deferral
    }

    /// Returns the signals that the process ignores, one bit each; 0 if the system does not report them.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }
}
