//! The arguments of `serve`.

use super::BackendChoice;
use crate::numbers::{some_bytes, some_time};
use clap::{Args, Subcommand};
use gpu_vmm::Bytes;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SERVE: &str = "\
Keep GPU memory that outlives the programs that use it, and ask such a server.

Without a subcommand, the command is the server. It creates memory, keeps it in regions with names, and lends it to \
programs by a Unix socket, at the same address in each. A program that ends or is killed loses its lease and nothing \
else. The server needs no context of a GPU. It runs until it gets SIGTERM or SIGINT; its memory ends with it, except \
for what programs have mapped.

With --replace, a new version of the command takes over from the server that runs: its regions, its memory and its \
clients, which keep their leases.

With --store, the regions in the folder are loaded when the server starts, and SIGUSR1 or --save-every makes it write \
all regions there. Loading and saving run in processes of their own.

Programs can share the memory of a device: their pools get their budgets from the server, which asks for memory back \
when another program needs it, that of the lowest priority first. Set GPU_VMM_POOL_SERVER to the socket's path to connect \
the pools of programs in C, C++ and Python.

Only the user that starts the server can connect. --mode and --group open the socket to others, as for a file; each \
region has a mode of its own.

systemd can start the server at the first connection (ListenSequentialPacket=), and is notified when it is ready.";

#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    #[command(subcommand)]
    pub(crate) query: Option<ServeCommand>,
    /// The socket's path [default: GPU_VMM_SERVER, else gpu-vmm.sock in XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) socket: Option<PathBuf>,
    /// The backend; `any` is the one that GPU_VMM_BACKEND names, else a GPU's, else host memory
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(crate) backend: BackendChoice,
    /// The memory that regions and programs may have together, on each device [default: no limit for regions, the device's
    /// memory for programs]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) budget: Option<Bytes>,
    /// What one program may have on a device
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) program_limit: Option<Bytes>,
    /// What one user may have on a device, by regions and programs; with a user's number, that user alone
    #[arg(long, value_name = "[UID=]SIZE", value_parser = user_limit, allow_hyphen_values = true)]
    pub(crate) user_limit: Vec<(Option<u32>, Bytes)>,
    /// The time in which a program answers when it is asked for memory
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) answer_within: Duration,
    /// The number of clients at one time, of which one user can have half
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=1_000_000), allow_negative_numbers = true)]
    pub(crate) clients: u32,
    /// The permissions of the socket, in octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = socket_mode)]
    pub(crate) mode: u32,
    /// The group of the socket, by its number
    #[arg(long, value_name = "GID")]
    pub(crate) group: Option<u32>,
    /// Replace the server that runs at the socket, with its regions and its clients, which notice a pause
    #[arg(long, conflicts_with_all = ["load", "mode", "group"])]
    pub(crate) replace: bool,
    /// Load this file into a region at the start; `NAME=FILE` for a file without a name for it
    #[arg(long, value_name = "[NAME=]FILE")]
    pub(crate) load: Vec<String>,
    /// The folder of regions that are loaded at the start and saved there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) store: Option<PathBuf>,
    /// Save all regions this often, such as 1h
    #[arg(long, value_name = "TIME", value_parser = some_time, allow_hyphen_values = true, requires = "store")]
    pub(crate) save_every: Option<Duration>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ServeCommand {
    /// List regions, clients and programs, and the memory that they have
    Status(StatusArguments),
    /// List them again whenever they have changed, until an interrupt
    Watch(WatchArguments),
    /// Load a file of safetensors into a new region
    Load(LoadArguments),
    /// Save a region to a file of safetensors
    Save(SaveArguments),
    /// Print a checksum of a region's contents
    Digest(DigestArguments),
    /// Remove a region; programs keep the memory that they have mapped
    Drop(DropArguments),
}

#[derive(Args, Debug)]
pub(crate) struct Server {
    /// The user that the server runs as, by its number [default: this user]
    #[arg(long, value_name = "UID")]
    pub(crate) server_user: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Print one JSON object
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long)]
    pub(crate) prometheus: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) every: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct LoadArguments {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The region's name [default: the name in a file that `save` has written]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The device's ordinal in its backend [default: the first usable one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..), allow_negative_numbers = true)]
    pub(crate) device: Option<u32>,
    /// The region's mode, in octal: read 4 and write 2 for its owner, its group and others
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = region_mode)]
    pub(crate) mode: u16,
}

#[derive(Args, Debug)]
pub(crate) struct SaveArguments {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The region
    #[arg(value_name = "NAME", required_unless_present = "all", requires = "file")]
    pub(crate) name: Option<String>,
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Save all regions into this folder, each in a file of its name
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["name", "file"])]
    pub(crate) all: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct DigestArguments {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The region
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct DropArguments {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The region
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

fn user_limit(text: &str) -> Result<(Option<u32>, Bytes), String> {
    match text.split_once('=') {
        None => Ok((None, some_bytes(text)?)),
        Some((user, size)) => {
            let user =
                user.parse().map_err(|_| format!("{user:?} is no number of a user, as in 1000=20GiB"))?;
            Ok((Some(user), some_bytes(size)?))
        }
    }
}

fn socket_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode & !0o777 == 0 => Ok(mode),
        _ => Err("permissions are three octal digits, as in 660".to_owned()),
    }
}

fn region_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode & !0o666 == 0 => Ok(mode),
        _ => Err("a mode is three octal digits of 6, 4, 2 or 0, as in 640".to_owned()),
    }
}
