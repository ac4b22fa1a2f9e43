//! What is said on the error stream.

/// One line for an interesting call, where `HSA_SIM_TRACE` asks for it.
macro_rules! trace {
    ($($text:tt)*) => {
        if $crate::settings::settings().trace {
            eprintln!("hsa-sim: {}", format_args!($($text)*));
        }
    };
}

/// Ends the process: something was asked for that this simulation cannot do, and doing nothing would be a lie.
pub(crate) fn stop(why: std::fmt::Arguments<'_>) -> ! {
    eprintln!("hsa-sim: {why}");
    std::process::abort()
}

/// A thread of the simulation. If it panics, the process ends: else HIP would wait for it for ever.
pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    struct Alarm;
    impl Drop for Alarm {
        fn drop(&mut self) {
            if std::thread::panicking() {
                stop(format_args!("a thread of the simulation died"));
            }
        }
    }
    let body = || {
        let _alarm = Alarm;
        body();
    };
    match std::thread::Builder::new().name(name.to_owned()).spawn(body) {
        Ok(thread) => thread,
        Err(error) => stop(format_args!("no thread can be had: {error}")),
    }
}
