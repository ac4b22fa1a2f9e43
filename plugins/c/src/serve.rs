//! Memory of a server, which keeps it when programs end: the connection to the server, and its regions by name.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

mod lease;
mod parts;
mod pools;
mod status_text;

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::properties::{Properties, check_reserved};
use crate::status::{CallResult, Failure, Status};
use crate::texts::{self, check_place, clear, give_box, give_json, object, take_box};
use gpu_vmm::serve::{Client as Connection, CreateOptions as Creates, LeaseKind, Mode};
use gpu_vmm::share::Allowed;
use gpu_vmm::{Address, AnyBackend, Bytes};
use lease::Lease;
use std::ffi::c_char;
use std::time::Duration;

/// A connection to a server that keeps memory when programs end. Calls of several threads run at the same time.
#[derive(Debug)]
pub struct Client(Connection<AnyBackend>);

// SAFETY: no other type has the kind.
unsafe impl Object for Client {
    const KIND: Kind = Kind::Client;
}

/// For gpu_vmm_client_open and gpu_vmm_lease_state: the lease maps the memory read-only. Any number of clients can have one.
pub const GPU_VMM_LEASE_READ: u32 = 0;
/// For gpu_vmm_client_open and gpu_vmm_lease_state: the lease can replace contents. One client can have it.
pub const GPU_VMM_LEASE_WRITE: u32 = 1;

/// The options of a new region of a server. All zeros, as after `= {0}`, is the default: memory of device 0 for this user alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// The device and the kind of the memory. `handle_types` has no effect: the server exports the memory as file descriptors.
    pub memory: Properties,
    /// The users that may read and replace the region, as the permission bits of a file: read 4 and write 2 for its owner, its group
    /// and all others. 0 for the default, 0600.
    pub mode: u32,
    /// The group of the region, if `has_group` is true.
    pub group: u32,
    /// Whether the region has the group `group`, and not the group of this process.
    pub has_group: bool,
    /// The address of the region, which must be free in this process and on the server; 0 for a random one.
    pub address: u64,
    /// The size of a memory handle, rounded up to the granularity; 0 for the default, at most 256 MiB. gpu_vmm_lease_renew replaces whole
    /// handles.
    pub handle: u64,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

impl CreateOptions {
    /// Reads the options; null means the default. Refuses values that this version does not know.
    fn read(from: Option<&Self>) -> CallResult<Creates> {
        let mut options = Creates::default();
        let Some(from) = from else { return Ok(options) };
        check_reserved("create region", from.reserved)?;
        options.memory = Properties::read("create region", Some(&from.memory))?;
        if from.mode != 0 {
            let known = u16::try_from(from.mode).ok().and_then(Mode::new);
            options.mode = known.ok_or_else(|| {
                Failure::invalid(format!(
                    "create region: mode is {:o}; expected read and write bits only, such as 640",
                    from.mode
                ))
            })?;
        }
        options.group = from.has_group.then_some(from.group);
        options.address = (from.address != 0).then_some(Address(from.address));
        options.handle = Bytes(from.handle);
        Ok(options)
    }
}

/// Connects to the server of this user at a path, the path of its socket. `client` keeps the backend open. Free it with
/// gpu_vmm_client_free. Linux only, as all functions of clients and leases.
///
/// Returns GPU_VMM_NO_LISTENER if no server listens at the path, or not yet, GPU_VMM_STALE_SOCKET if the server that listened there is
/// gone, GPU_VMM_ACCESS_DENIED if it is of another user, GPU_VMM_PEER if its memory is another vendor's or it sends invalid data,
/// GPU_VMM_UNSUPPORTED if no version of the protocol is known to both sides, and GPU_VMM_TIMED_OUT if it does not answer.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `client` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_connect(
    backend: *const Backend,
    path: *const c_char,
    client: *mut *mut Client,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { connect(backend, path, Allowed::same_user(), client) }
}

/// Does as gpu_vmm_connect, for a server of the effective user `user` instead of this process's.
///
/// Returns the statuses of gpu_vmm_connect.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `client` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_connect_user(
    backend: *const Backend,
    path: *const c_char,
    user: u32,
    client: *mut *mut Client,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { connect(backend, path, Allowed::user(user), client) }
}

/// Connects to the server at a path, if it is allowed.
///
/// # Safety
///
/// As for [`gpu_vmm_connect`].
unsafe fn connect(
    backend: *const Backend,
    path: *const c_char,
    allowed: Allowed,
    client: *mut *mut Client,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(client) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, path) = (&object("backend", backend)?.0, texts::path("path", path)?);
            give_box("client", client, || Ok(Client(Connection::connect_to(backend, path, allowed)?)))
        }
    })
}

/// Frees a client. Its leases go on. Null does nothing.
///
/// # Safety
///
/// `client` is null or comes from gpu_vmm_connect, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_client_free(client: *mut Client) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(client) }
}

/// Returns the state of the server, the regions that this user may read, and their clients, as JSON: an object with `server`, `regions`,
/// `clients`, `programs` and `devices`. All sizes are bytes. Free it with gpu_vmm_string_free.
///
/// | of | fields |
/// |---|---|
/// | `server` | `version`, `vendor`, `process`; `held`: the memory that it holds or has promised; `old`: the part of it that only clients still use; `budget`, or null; `clients`: the number of connections |
/// | each of `regions` | `name`, `address`, `size`, `handles`: their number; `device`: its UUID; `epoch`: 0 before the first commit; `layout`: its size; `user`, `group`, `mode`: in octal; `readers`, `waiting`: numbers of clients; `has_writer` |
/// | each of `clients` | `process`, `user`, `region`, `lease`: "read" or "write"; `waits`: whether it waits for the lease; `epoch`, `bytes`: the memory that it keeps alive or fills; `lingers`: whether its connection has ended and its process may still map the memory |
/// | each of `programs` | `process`, `user`, `name`: empty for those of other users; `device`, `priority`, `granted`: its part of the budget; `reserved`, `held`, `live`, `can_sleep`, `asleep`: what its pool has, as it said last; `wants`: what it waits for, 0 if it does not; `waited_ms`, `waits_for`: a text; `answers`: whether it has answered the last question; `lingers` |
/// | each of `devices` | `device`, `name`, `budget`; `held`: what regions and programs have; `granted`: the part of programs |
///
/// Returns the statuses of gpu_vmm_connect.
///
/// # Safety
///
/// `client` is null or a client. `json` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_client_status(client: *const Client, json: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        check_place("json", json)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &status_text::of(&object("client", client)?.0.status()?)) }
    })
}

/// Creates a region of at least `size` bytes on the server, by default at a random address that is free in this process and on the server.
/// Null options mean the default. The lease can write to all of its memory. Other clients see the region after the first gpu_vmm_lease_commit; a lease
/// that ends before that leaves nothing. Free the lease with gpu_vmm_lease_free.
///
/// Returns GPU_VMM_BUSY if the server has a region of the name or its limit of regions, GPU_VMM_OUT_OF_MEMORY if the server's budget or
/// the device has no room, GPU_VMM_ADDRESS_TAKEN if the address of the options is not free, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_UNSUPPORTED for a device without a UUID, GPU_VMM_INVALID_ARGUMENT for a name
/// that is none, and the statuses of gpu_vmm_connect.
///
/// # Safety
///
/// `client` is null or a client. `name` is null or a string. `options` is null or points to options. `lease` is null or points to a
/// writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_client_create(
    client: *const Client,
    name: *const c_char,
    size: u64,
    options: *const CreateOptions,
    lease: *mut *mut Lease,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(lease) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (client, name) = (&object("client", client)?.0, texts::required("name", name)?);
            let options = CreateOptions::read(options.as_ref())?;
            give_box("lease", lease, || Lease::new(client.create(name, Bytes(size), &options)?))
        }
    })
}

/// Creates a region with the contents of a safetensors file, and commits it. Its tensors are parts of the layout, aligned to 256 bytes, and
/// its metadata are the notes. A file that gpu_vmm_lease_save has written is loaded at the address that its region had, unless the options
/// have another one. A null name is the name in such a file. Null options mean the default. Free the lease with gpu_vmm_lease_free.
///
/// Returns GPU_VMM_FILE for a file that cannot be read, is malformed, has no contents or no name, or has elements of less than 8 bits, and
/// the statuses of gpu_vmm_client_create. There is then no region.
///
/// # Safety
///
/// `client` is null or a client. `path` is null or a string. `name` is null or a string. `options` is null or points to options. `lease` is
/// null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_client_load(
    client: *const Client,
    path: *const c_char,
    name: *const c_char,
    options: *const CreateOptions,
    lease: *mut *mut Lease,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(lease) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (client, path) = (&object("client", client)?.0, texts::path("path", path)?);
            let (name, options) = (texts::optional("name", name)?, CreateOptions::read(options.as_ref())?);
            give_box("lease", lease, || Lease::new(client.load(path, name, &options)?))
        }
    })
}

/// Opens a region of the server: maps its last epoch at its address, read-only. `kind` is GPU_VMM_LEASE_READ or GPU_VMM_LEASE_WRITE. Waits
/// up to `milliseconds` until the region exists and is committed and, to write, until no other client has its write lease. Free the lease
/// with gpu_vmm_lease_free.
///
/// Returns GPU_VMM_NOT_FOUND, also for a region that this user may not read, GPU_VMM_ACCESS_DENIED for one that this user may not write,
/// GPU_VMM_TIMED_OUT if another client has the write lease, GPU_VMM_ADDRESS_TAKEN if this process uses the region's addresses,
/// GPU_VMM_PEER for a device that this process does not see, and the statuses of gpu_vmm_connect.
///
/// # Safety
///
/// `client` is null or a client. `name` is null or a string. `lease` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_client_open(
    client: *const Client,
    name: *const c_char,
    kind: u32,
    milliseconds: u64,
    lease: *mut *mut Lease,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(lease) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (client, name) = (&object("client", client)?.0, texts::required("name", name)?);
            let (kind, wait) = (kind_of(kind)?, Duration::from_millis(milliseconds));
            give_box("lease", lease, || {
                Lease::new(match kind {
                    LeaseKind::Read => client.read(name, wait)?,
                    LeaseKind::Write => client.write(name, wait)?,
                })
            })
        }
    })
}

/// Removes a region from the server. Clients keep the memory that they have mapped, and gpu_vmm_lease_next reports it to them.
///
/// Returns GPU_VMM_NOT_FOUND, GPU_VMM_ACCESS_DENIED if the region is another user's, and the statuses of gpu_vmm_connect.
///
/// # Safety
///
/// `client` is null or a client. `name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_client_drop(client: *const Client, name: *const c_char) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (client, name) = unsafe { (&object("client", client)?.0, texts::required("name", name)?) };
        Ok(client.drop_region(name)?)
    })
}

/// Reads a kind of lease.
fn kind_of(number: u32) -> CallResult<LeaseKind> {
    match number {
        GPU_VMM_LEASE_READ => Ok(LeaseKind::Read),
        GPU_VMM_LEASE_WRITE => Ok(LeaseKind::Write),
        other => Err(Failure::invalid(format!(
            "open lease: kind is {other}; expected GPU_VMM_LEASE_READ (0) or GPU_VMM_LEASE_WRITE (1)"
        ))),
    }
}

/// Returns the number of a kind of lease.
const fn number_of(kind: LeaseKind) -> u32 {
    match kind {
        LeaseKind::Read => GPU_VMM_LEASE_READ,
        LeaseKind::Write => GPU_VMM_LEASE_WRITE,
    }
}

#[cfg(test)]
mod tests;
