//! The server that grants the pools of this program their budgets.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::{held, status};
use crate::properties::check_reserved;
use crate::status::{CallResult, Failure, Status};
use crate::texts;
use gpu_vmm::extend::Lock;
use gpu_vmm::pool::Pool as Blocks;
use gpu_vmm::serve::{Client, Quota, QuotaOptions};
use gpu_vmm::share::Allowed;
use gpu_vmm::{AnyBackend, Operation};
use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// The environment variable with the path of the server of a program's pools.
pub(crate) const VARIABLE: &str = "GPU_VMM_POOL_SERVER";

pub(crate) const OPERATION: Operation = Operation::ConnectPool;

/// How the pools of a program take part in a server's budget. All zeros, as after `= {0}`, is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProgramOptions {
    /// The program's name in lists and errors, a string; null for the name of its executable file.
    pub name: *const c_char,
    /// Programs of a lower priority are asked first for memory, and their requests wait longer: -128 to 127. Those above 0 are for the
    /// server's own user and for root.
    pub priority: i32,
    /// The effective user that the server must have, if `has_user` is true; else this process's.
    pub user: u32,
    /// Whether the server has the user `user`.
    pub has_user: bool,
    /// How long a request waits for memory that other programs have, in milliseconds; 0 for 10 seconds.
    pub wait_ms: u64,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

/// The server of the pools that are created from now on.
#[derive(Clone, Debug)]
struct PoolServer {
    path: PathBuf,
    allowed: Allowed,
    options: QuotaOptions<AnyBackend>,
}

/// The program's own choice; none before the first call. `Some(None)` is no server, whatever the environment says.
static SERVER: LazyLock<Lock<Option<Option<PoolServer>>>> = LazyLock::new(Lock::default);

impl PoolServer {
    /// Reads a path and options.
    ///
    /// # Safety
    ///
    /// As for [`gpu_vmm_set_pool_server`].
    unsafe fn read(path: PathBuf, from: *const ProgramOptions) -> CallResult<Self> {
        let mut options = QuotaOptions::default();
        // SAFETY: null or initialized options, as the caller guarantees.
        let Some(from) = (unsafe { from.as_ref() }) else {
            return Ok(Self { path, allowed: Allowed::same_user(), options });
        };
        check_reserved("set pool server", from.reserved)?;
        // SAFETY: null or a string, as the caller guarantees.
        if let Some(name) = unsafe { texts::optional("name", from.name)? } {
            name.clone_into(&mut options.name);
        }
        options.priority = i8::try_from(from.priority).map_err(|_| {
            Failure::invalid(format!("set pool server: priority is {}; expected -128 to 127", from.priority))
        })?;
        if from.wait_ms > 0 {
            options.wait = Duration::from_millis(from.wait_ms);
        }
        let allowed = if from.has_user { Allowed::user(from.user) } else { Allowed::same_user() };
        Ok(Self { path, allowed, options })
    }

    fn of_environment() -> Option<Self> {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        let (allowed, options) = (Allowed::same_user(), QuotaOptions::default());
        Some(Self { path: path.into(), allowed, options })
    }
}

/// Connects a new pool to the server that the program or the environment has chosen, if there is one.
pub(crate) fn connect(
    backend: &AnyBackend,
    blocks: &Blocks<AnyBackend>,
) -> CallResult<Option<Quota<AnyBackend>>> {
    let chosen = held(&SERVER, OPERATION)?.clone();
    let Some(server) = chosen.unwrap_or_else(PoolServer::of_environment) else { return Ok(None) };
    let client = Client::connect_to(backend, &server.path, server.allowed)?;
    Ok(Some(client.connect_pool(blocks, server.options)?))
}

/// Lets the server at a path, `gpu-vmm serve`, divide the memory of its devices between the pools of this program, which are created from
/// now on, and those of other programs: also the pools that serve PyTorch and CuPy. Null options mean the default. A null path: new pools
/// have no server. Before the first call, the server is the one at the path in the environment variable GPU_VMM_POOL_SERVER, if that is set.
///
/// The call does not connect. A pool connects when it is created, which fails with the statuses of gpu_vmm_connect, and with
/// GPU_VMM_INVALID_ARGUMENT for a priority that is not allowed. Linux only.
///
/// # Safety
///
/// `path` is null or a string. `options` is null or points to initialized options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_set_pool_server(
    path: *const c_char,
    options: *const ProgramOptions,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let server = unsafe {
            match texts::optional_os("path", path)? {
                None => None,
                Some(path) => Some(PoolServer::read(PathBuf::from(path), options)?),
            }
        };
        *held(&SERVER, OPERATION)? = Some(server);
        Ok(())
    })
}
