//! Messages on standard error.

/// Prints one line for an interesting call, if `HSA_SIM_TRACE` is set.
macro_rules! trace {
    ($($text:tt)*) => {
        if $crate::settings::settings().trace {
            eprintln!("hsa-sim: {}", format_args!($($text)*));
        }
    };
}

/// Ends the process: doing nothing for an unsupported request would hide the error.
pub(crate) fn stop(why: std::fmt::Arguments<'_>) -> ! {
    eprintln!("hsa-sim: {why}");
    std::process::abort()
}

/// Starts a thread of the simulator. A panic in it ends the process: HIP would wait forever otherwise.
pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    struct Alarm;
    impl Drop for Alarm {
        fn drop(&mut self) {
            if std::thread::panicking() {
                stop(format_args!("a thread of the simulator died"));
            }
        }
    }
    let body = || {
        let _alarm = Alarm;
        body();
    };
    match std::thread::Builder::new().name(name.to_owned()).spawn(body) {
        Ok(thread) => thread,
        Err(error) => stop(format_args!("a thread cannot be started: {error}")),
    }
}
