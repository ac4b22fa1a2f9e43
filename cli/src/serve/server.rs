//! The server as a process.

use super::workers::Workers;
use super::{path, store};
use crate::args::serve::ServeArguments;
use crate::{CliResult, choose, say};
use gpu_vmm::AnyBackend;
use gpu_vmm::serve::{Server, ServerOptions};
use gpu_vmm::share::Listener;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use std::fs::Permissions;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The wait in which a signal can go unnoticed that arrives just before it.
const BREATH: Duration = Duration::from_millis(500);

/// The descriptor that systemd passes.
const PASSED: i32 = 3;

pub(super) fn run(options: &ServeArguments) -> CliResult {
    let (ends, saves) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::clone(&ends))?;
    }
    flag::register(SIGUSR1, Arc::clone(&saves))?;
    allow_descriptors();
    let mut server = server(options)?;
    let path = server.listener().path().to_owned();
    let vendor = server.info().vendor;
    let mut workers = Workers::new(&path, &vendor)?;
    plan(options, &mut workers)?;
    say(&format!("keeping memory of {vendor} at {}", path.display()));
    notify("READY=1");
    let mut saved = Instant::now();
    while !ends.load(Ordering::SeqCst) && !server.is_over() {
        if saves.swap(false, Ordering::SeqCst)
            || options.save_every.is_some_and(|every| saved.elapsed() >= every)
        {
            saved = Instant::now();
            match &options.store {
                Some(folder) => workers.save(folder),
                None => say("error: SIGUSR1 saves the regions to a folder; name it by --store"),
            }
        }
        workers.step();
        server.step(if workers.are_busy() { BREATH / 10 } else { BREATH })?;
    }
    notify("STOPPING=1");
    Ok(())
}

/// Starts a server, or takes over from one.
fn server(options: &ServeArguments) -> CliResult<Server<AnyBackend>> {
    let mut limits = ServerOptions::default();
    limits.budget = options.budget;
    limits.program_limit = options.program_limit;
    for (user, limit) in &options.user_limit {
        match user {
            Some(user) => drop(limits.user_limits.insert(*user, *limit)),
            None => limits.user_limit = Some(*limit),
        }
    }
    limits.answer_within = options.answer_within;
    limits.clients = options.clients as usize;
    if options.replace {
        let path = path(options.socket.as_deref())?;
        return Ok(Server::take_over(choose::backend(options.backend)?, path, limits)?);
    }
    let listener = listener(options)?;
    Ok(Server::new(choose::backend(options.backend)?, listener, limits))
}

/// Permits as many open descriptors as the system's administrator allows: each handle takes one.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If it fails, the limit is as before, and the errors of clients say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Returns the socket that systemd has passed, or a new one.
fn listener(options: &ServeArguments) -> CliResult<Listener> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") == Some(std::process::id()) {
        if number("LISTEN_FDS") != Some(1) {
            return Err("the service manager passes several sockets; pass one".into());
        }
        return Ok(Listener::from_socket(passed())?);
    }
    let path = path(options.socket.as_deref())?;
    let listener = Listener::replace_stale(&path)?;
    open_to_others(&path, options)?;
    Ok(listener)
}

/// Returns the descriptor that systemd has passed.
#[allow(unsafe_code)]
fn passed() -> OwnedFd {
    // SAFETY: systemd has opened this descriptor for this process, which LISTEN_PID names, and nothing else here takes it.
    unsafe { OwnedFd::from_raw_fd(PASSED) }
}

fn open_to_others(path: &Path, options: &ServeArguments) -> CliResult {
    if let Some(group) = options.group {
        chown(path, None, Some(group)).map_err(|error| format!("{}: its group: {error}", path.display()))?;
    }
    let permissions = Permissions::from_mode(options.mode);
    Ok(std::fs::set_permissions(path, permissions)
        .map_err(|error| format!("{}: its mode: {error}", path.display()))?)
}

/// Plans what is loaded at the start.
fn plan(options: &ServeArguments, workers: &mut Workers) -> CliResult {
    for text in &options.load {
        match text.split_once('=') {
            // A file's name may have the sign too.
            Some((name, file)) if !Path::new(text).exists() => workers.load(Path::new(file), Some(name)),
            _ => workers.load(Path::new(text), None),
        }
    }
    // What another server has is there already.
    if let Some(folder) = options.store.as_ref().filter(|_| !options.replace) {
        let files = store::files(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        files.iter().for_each(|file| workers.load(file, None));
    }
    Ok(())
}

/// Tells systemd, if it has started this process.
fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    // Without an answer, systemd reports the start as failed, with its reason.
    let _ = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
}
