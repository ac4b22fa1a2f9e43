//! The `serve` subcommand: the server, and questions to it.

mod report;
mod server;
mod store;
mod workers;

use crate::CliResult;
use crate::args::BackendChoice;
use crate::args::serve::{LoadArguments, SaveArguments, ServeArguments, ServeCommand, Server};
use crate::choose;
use crate::output::Output;
use crate::say;
use gpu_vmm::serve::{Client, CreateOptions, Mode, Status, drop_region, status};
use gpu_vmm::share::Allowed;
use gpu_vmm::{AnyBackend, Properties, WaitFor};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The variable that names the socket.
const VARIABLE: &str = "GPU_VMM_SERVER";

/// The wait for a region that another client is committing.
const SOON: Duration = Duration::from_secs(30);

pub(crate) fn run(options: &ServeArguments) -> CliResult {
    let Some(query) = &options.query else { return server::run(options) };
    let path = path(options.socket.as_deref())?;
    match query {
        ServeCommand::Status(asked) => {
            let found = status(&path, allowed(&asked.server))?;
            let mut output = Output::default();
            match (asked.json, asked.prometheus) {
                (true, _) => report::json(&found, &mut output),
                (_, true) => report::prometheus(&found, &mut output),
                _ => report::text(&found, &mut output),
            }
        }
        ServeCommand::Watch(asked) => watch(&path, allowed(&asked.server), asked.every),
        ServeCommand::Load(asked) => load(&path, options.backend, asked),
        ServeCommand::Save(asked) => save(&path, options.backend, asked),
        ServeCommand::Digest(asked) => {
            let (_, client) = client(&path, options.backend, &asked.server)?;
            let lease = client.read(&asked.name, SOON)?;
            Output::default().line(lease.digest()?)?;
            Ok(lease.close(WaitFor::all_devices())?)
        }
        ServeCommand::Drop(asked) => Ok(drop_region(&path, allowed(&asked.server), &asked.name)?),
    }
}

/// Returns the path of the socket.
fn path(named: Option<&Path>) -> CliResult<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let default = || set("XDG_RUNTIME_DIR").map(|folder| folder.join("gpu-vmm.sock"));
    let path = named.map(Path::to_owned).or_else(|| set(VARIABLE)).or_else(default);
    Ok(path.ok_or_else(|| format!("XDG_RUNTIME_DIR is not set; name the socket by --socket or {VARIABLE}"))?)
}

fn allowed(server: &Server) -> Allowed {
    server.server_user.map_or(Allowed::same_user(), Allowed::user)
}

/// Prints the status whenever it has changed.
fn watch(path: &Path, allowed: Allowed, every: Duration) -> CliResult {
    let mut last: Option<Status> = None;
    let mut output = Output::default();
    loop {
        let mut found = status(path, allowed)?;
        // The client that asks.
        found.server.clients = found.server.clients.saturating_sub(1);
        if last.as_ref() != Some(&found) {
            if last.is_some() {
                output.line("")?;
            }
            report::text(&found, &mut output)?;
            last = Some(found);
        }
        std::thread::sleep(every);
    }
}

fn client(
    path: &Path,
    backend: BackendChoice,
    server: &Server,
) -> CliResult<(AnyBackend, Client<AnyBackend>)> {
    let backend = choose::backend(backend)?;
    let client = Client::connect_to(&backend, path, allowed(server))?;
    Ok((backend, client))
}

fn load(path: &Path, backend: BackendChoice, asked: &LoadArguments) -> CliResult {
    let (backend, client) = client(path, backend, &asked.server)?;
    let mut options = CreateOptions::default();
    options.memory = Properties::on(choose::device(&backend, asked.device));
    // The arguments permit no other bits.
    options.mode = Mode::new(asked.mode).unwrap_or_default();
    let lease = client.load(&asked.file, asked.name.as_deref(), &options)?;
    let (name, size, address) = (lease.name(), lease.region().end(), lease.region().address());
    Output::default().line(format!("{name}: {size:#} at {address}, from {}", asked.file.display()))?;
    Ok(lease.close(WaitFor::all_devices())?)
}

fn save(path: &Path, backend: BackendChoice, asked: &SaveArguments) -> CliResult {
    let (_, client) = client(path, backend, &asked.server)?;
    let mut output = Output::default();
    if let (Some(name), Some(file)) = (&asked.name, &asked.file) {
        return save_one(&client, name, file, &mut output);
    }
    let Some(folder) = &asked.all else { return Ok(()) };
    let mut failed = 0;
    for region in client.status()?.regions {
        // One that is in use at its addresses here, or dropped meanwhile, does not keep the others from being saved.
        let file = folder.join(store::file_name(&region.name));
        if let Err(error) = save_one(&client, &region.name, &file, &mut output) {
            say(&format!("error: {error}"));
            failed += 1;
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} regions were not saved").into()) }
}

fn save_one(client: &Client<AnyBackend>, name: &str, file: &Path, output: &mut Output) -> CliResult {
    let lease = client.read(name, SOON)?;
    let size = lease.save(file)?;
    output.line(format!("{name}: {size:#} in {}", file.display()))?;
    Ok(lease.close(WaitFor::all_devices())?)
}
