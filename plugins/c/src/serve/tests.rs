//! Clients of a server in a thread of this process, on host memory. `tests/serve.c` has processes of their own.
#![allow(clippy::unwrap_used)]

use super::lease::*;
use super::parts::*;
use super::*;
use crate::handles;
use crate::region::{Region, gpu_vmm_region_read, gpu_vmm_region_size, gpu_vmm_region_write};
use crate::status::{
    GPU_VMM_ACCESS_DENIED, GPU_VMM_ADDRESS_TAKEN, GPU_VMM_BUSY, GPU_VMM_FILE, GPU_VMM_INVALID_ARGUMENT,
    GPU_VMM_NO_LISTENER, GPU_VMM_NOT_FOUND, GPU_VMM_OK, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_RANGE,
    GPU_VMM_PEER, GPU_VMM_TIMED_OUT,
};
use crate::tensor::{gpu_vmm_dlpack_delete, gpu_vmm_region_dlpack};
use crate::tests::last_error;
use crate::texts::gpu_vmm_string_free;
use gpu_vmm::Vendor;
use gpu_vmm::dlpack::{DLDataType, TensorView};
use gpu_vmm::serve::{Layout as Described, Server, ServerOptions};
use gpu_vmm::share::Listener;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

const UNIT: u64 = Bytes::mib(2).0;
const WAIT: u64 = 20_000; // milliseconds

/// A server and a client of it.
struct Served {
    client: *mut Client,
    backend: *mut Backend,
    path: PathBuf,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(name: &str, budget: Option<Bytes>) -> Self {
        let path = std::env::temp_dir().join(format!("gpu-vmm-c-serve-{name}-{}", std::process::id()));
        let listener = Listener::replace_stale(&path).unwrap();
        let mut options = ServerOptions::default();
        options.budget = budget;
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut server = Server::new(host.clone(), listener, options);
        let ends = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !watched.load(Ordering::Acquire) {
                server.step(Duration::from_millis(10)).unwrap();
            }
        });
        let backend = handles::add(Backend(host)).unwrap();
        let text = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut client = null_mut();
        // SAFETY: the backend and the text live during the call, and the place is writable.
        assert_eq!(unsafe { gpu_vmm_connect(backend, text.as_ptr(), &raw mut client) }, GPU_VMM_OK);
        Self { client, backend, path, ends, thread: Some(thread) }
    }

    fn create(&self, name: &CStr, size: u64) -> Result<*mut Lease, Status> {
        let mut lease = null_mut();
        let options = CreateOptions { handle: UNIT, ..zeros() };
        // SAFETY: the client lives as long as `self`, and the place is writable.
        let status = unsafe {
            gpu_vmm_client_create(self.client, name.as_ptr(), size, &raw const options, &raw mut lease)
        };
        if status == GPU_VMM_OK { Ok(lease) } else { Err(status) }
    }

    fn open(&self, name: &CStr, kind: u32, milliseconds: u64) -> Result<*mut Lease, Status> {
        let mut lease = null_mut();
        // SAFETY: as above.
        let status =
            unsafe { gpu_vmm_client_open(self.client, name.as_ptr(), kind, milliseconds, &raw mut lease) };
        if status == GPU_VMM_OK { Ok(lease) } else { Err(status) }
    }

    fn status(&self) -> serde_json::Value {
        let mut text = null_mut();
        // SAFETY: as above; the text is freed once.
        unsafe {
            assert_eq!(gpu_vmm_client_status(self.client, &raw mut text), GPU_VMM_OK, "{}", last_error());
            let value = serde_json::from_str(CStr::from_ptr(text).to_str().unwrap()).unwrap();
            gpu_vmm_string_free(text);
            value
        }
    }

    /// Waits until the server has this number of clients with a lease.
    fn until_clients(&self, count: usize) {
        let since = Instant::now();
        loop {
            let status = self.status();
            if status["clients"].as_array().unwrap().len() == count {
                return;
            }
            assert!(since.elapsed() < Duration::from_millis(WAIT), "{status}");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join);
        // SAFETY: nothing uses them any more.
        unsafe {
            gpu_vmm_client_free(self.client);
            crate::backend::gpu_vmm_close(self.backend);
        }
    }
}

fn zeros() -> CreateOptions {
    CreateOptions {
        memory: crate::tests::of_device(0),
        mode: 0,
        group: 0,
        has_group: false,
        address: 0,
        handle: 0,
        reserved: [0; 4],
    }
}

fn region(lease: *const Lease) -> *mut Region {
    let mut region = null_mut();
    // SAFETY: the lease exists, and the place is writable.
    assert_eq!(unsafe { gpu_vmm_lease_region(lease, &raw mut region) }, GPU_VMM_OK);
    region
}

fn write(lease: *const Lease, text: &[u8]) -> Status {
    // SAFETY: the lease exists, and the text has this size.
    unsafe { gpu_vmm_region_write(region(lease), 0, text.as_ptr().cast(), text.len() as u64) }
}

fn read<const N: usize>(lease: *const Lease) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: as above.
    let status = unsafe { gpu_vmm_region_read(region(lease), 0, bytes.as_mut_ptr().cast(), N as u64) };
    assert_eq!(status, GPU_VMM_OK, "{}", last_error());
    bytes
}

fn commit(lease: *const Lease, layout: *const Layout) -> u64 {
    let mut epoch = 0;
    // SAFETY: the lease and the layout exist, and the place is writable.
    let status = unsafe { gpu_vmm_lease_commit(lease, layout, &raw mut epoch) };
    assert_eq!(status, GPU_VMM_OK, "{}", last_error());
    epoch
}

fn state(lease: *const Lease) -> (u32, u64) {
    let (mut kind, mut epoch) = (7, 7);
    // SAFETY: as above.
    assert_eq!(unsafe { gpu_vmm_lease_state(lease, &raw mut kind, &raw mut epoch) }, GPU_VMM_OK);
    (kind, epoch)
}

fn tensor(lease: *const Lease, read_only: bool) -> Result<*mut std::ffi::c_void, Status> {
    let (shape, mut tensor) = ([5_i64], null_mut());
    // SAFETY: the region exists, and the places are valid.
    let status = unsafe {
        let (region, place) = (region(lease), &raw mut tensor);
        gpu_vmm_region_dlpack(region, 0, 1, 8, 1, 1, shape.as_ptr(), null(), read_only, true, place)
    };
    if status == GPU_VMM_OK { Ok(tensor) } else { Err(status) }
}

#[test]
fn contents_and_layout_survive_their_lease() {
    let served = Served::new("contents", None);
    let lease = served.create(c"a/weights", 2 * UNIT).unwrap();
    assert_eq!((write(lease, b"first"), state(lease)), (GPU_VMM_OK, (GPU_VMM_LEASE_WRITE, 0)));
    let (mut layout, shape, strides) = (null_mut(), [2_i64, 3], [3_i64, 1]);
    let part = Part {
        name: c"bias".as_ptr(),
        offset: 256,
        code: 2,
        bits: 32,
        lanes: 1,
        ndim: 2,
        shape: shape.as_ptr(),
        strides: strides.as_ptr(),
        reserved: [0; 4],
    };
    // SAFETY: the objects are freed after their last use, and the places are writable.
    unsafe {
        assert_eq!(gpu_vmm_layout_new(&raw mut layout), GPU_VMM_OK);
        let scalar = Part { name: c"a".as_ptr(), ndim: 0, shape: null(), strides: null(), ..part };
        for part in [scalar, Part { offset: 0, ..part }, part] {
            assert_eq!(gpu_vmm_layout_set_part(layout, &raw const part), GPU_VMM_OK);
        }
        for note in [c"07", c"08"] {
            assert_eq!(gpu_vmm_layout_set_note(layout, c"digest".as_ptr(), note.as_ptr()), GPU_VMM_OK);
        }
        assert_eq!(commit(lease, layout), 1);
        gpu_vmm_layout_free(layout);
        assert_eq!(write(lease, b"x"), GPU_VMM_ACCESS_DENIED);
        assert_eq!(gpu_vmm_lease_close(lease), GPU_VMM_OK, "{}", last_error());
        assert_eq!(served.status()["clients"], serde_json::json!([]));
        let mut size = 7;
        assert_eq!(gpu_vmm_region_size(region(lease), &raw mut size), GPU_VMM_OK);
        assert_eq!(size, 0);
        assert_eq!(gpu_vmm_lease_close(lease), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "release import: the lease is closed");
        gpu_vmm_lease_free(lease);

        let lease = served.open(c"a/weights", GPU_VMM_LEASE_READ, 0).unwrap();
        assert_eq!((read(lease), state(lease)), (*b"first", (GPU_VMM_LEASE_READ, 1)));
        assert_eq!(gpu_vmm_lease_layout(lease, &raw mut layout), GPU_VMM_OK);
        let (mut parts, mut notes) = (0, 0);
        assert_eq!(gpu_vmm_layout_sizes(layout, &raw mut parts, &raw mut notes), GPU_VMM_OK);
        assert_eq!((parts, notes), (2, 1));
        let mut found = part;
        assert_eq!(gpu_vmm_layout_part(layout, 1, &raw mut found), GPU_VMM_OK);
        assert_eq!((CStr::from_ptr(found.name), found.offset, found.ndim), (c"bias", 256, 2));
        assert_eq!((found.code, found.bits, found.lanes), (2, 32, 1));
        assert_eq!(std::slice::from_raw_parts(found.shape, 2), shape);
        assert_eq!(std::slice::from_raw_parts(found.strides, 2), strides);
        assert_eq!(gpu_vmm_layout_find_part(layout, c"a".as_ptr(), &raw mut found), GPU_VMM_OK);
        assert!(found.ndim == 0 && found.shape.is_null() && found.strides.is_null());
        assert_eq!(gpu_vmm_layout_part(layout, 2, &raw mut found), GPU_VMM_NOT_FOUND);
        let (mut key, mut note) = (null(), null());
        assert_eq!(gpu_vmm_layout_note(layout, 0, &raw mut key, &raw mut note), GPU_VMM_OK);
        assert_eq!((CStr::from_ptr(key), CStr::from_ptr(note)), (c"digest", c"08"));
        assert_eq!(gpu_vmm_layout_find_note(layout, c"digest".as_ptr(), &raw mut note), GPU_VMM_OK);
        assert_eq!(CStr::from_ptr(note), c"08");
        assert_eq!(gpu_vmm_layout_find_note(layout, c"b".as_ptr(), &raw mut note), GPU_VMM_NOT_FOUND);
        gpu_vmm_layout_free(layout);
        gpu_vmm_lease_free(lease);
    }
}

#[test]
fn lease_ends_with_its_last_tensor() {
    let served = Served::new("tensor", None);
    let lease = served.create(c"a", UNIT).unwrap();
    assert_eq!(write(lease, b"first"), GPU_VMM_OK);
    commit(lease, null());
    assert_eq!(tensor(lease, false), Err(GPU_VMM_ACCESS_DENIED));
    let shown = tensor(lease, true).unwrap();
    // SAFETY: the lease and the tensor are freed after their last use.
    unsafe {
        assert_eq!(gpu_vmm_lease_close(lease), GPU_VMM_BUSY);
        assert_eq!(state(lease), (GPU_VMM_LEASE_WRITE, 1));
        gpu_vmm_lease_free(lease);
        assert_eq!(served.status()["clients"][0]["lease"], "write");
        // The memory is still mapped here.
        assert_eq!(served.open(c"a", GPU_VMM_LEASE_READ, 0), Err(GPU_VMM_ADDRESS_TAKEN));
        gpu_vmm_dlpack_delete(shown, true);
    }
    served.until_clients(0);
    let lease = served.open(c"a", GPU_VMM_LEASE_READ, 0).unwrap();
    assert_eq!(read(lease), *b"first");
    // SAFETY: as above.
    unsafe { gpu_vmm_lease_free(lease) };
}

#[test]
fn writer_replaces_whole_handles() {
    let served = Served::new("renew", None);
    let lease = served.create(c"a", 3 * UNIT).unwrap();
    assert_eq!(write(lease, b"first"), GPU_VMM_OK);
    assert_eq!(commit(lease, null()), 1);
    let shown = tensor(lease, true).unwrap();
    let mut range = crate::observer::Range { offset: 7, length: 7 };
    // SAFETY: the lease and the tensor are freed after their last use, and the places are writable.
    unsafe {
        assert_eq!(gpu_vmm_lease_renew(lease, 1, UNIT, true, &raw mut range), GPU_VMM_OK, "{}", last_error());
        assert_eq!((range.offset, range.length), (0, 2 * UNIT));
        assert_eq!(read(lease), *b"first");
        assert_eq!(write(lease, b"other"), GPU_VMM_OK);
        // Tensors have the new contents, at the same address.
        let data = (*shown.cast::<gpu_vmm::dlpack::DLManagedTensorVersioned>()).dl_tensor.data;
        assert_eq!(std::slice::from_raw_parts(data.cast::<u8>(), 5), b"other");
        assert_eq!(gpu_vmm_lease_downgrade(lease), GPU_VMM_OK, "{}", last_error());
        assert_eq!((read(lease), state(lease)), (*b"first", (GPU_VMM_LEASE_READ, 1)));
        let status = gpu_vmm_lease_renew(lease, 0, 1, true, &raw mut range);
        assert_eq!((status, range.length), (GPU_VMM_ACCESS_DENIED, 0));
        assert_eq!(gpu_vmm_lease_commit(lease, null(), null_mut()), GPU_VMM_ACCESS_DENIED);
        assert_eq!(gpu_vmm_lease_downgrade(lease), GPU_VMM_ACCESS_DENIED);
        gpu_vmm_dlpack_delete(shown, true);
        gpu_vmm_lease_free(lease);
        let lease = served.open(c"a", GPU_VMM_LEASE_WRITE, 0).unwrap();
        let status = gpu_vmm_lease_renew(lease, 0, 3 * UNIT + 1, true, null_mut());
        assert_eq!(status, GPU_VMM_OUT_OF_RANGE);
        gpu_vmm_lease_free(lease);
    }
}

#[test]
fn events_and_descriptor_are_reported() {
    let served = Served::new("events", None);
    let lease = served.create(c"a", UNIT).unwrap();
    commit(lease, null());
    let (mut event, mut fd, mut epoch) = (7, 7, 7);
    // SAFETY: the lease is freed after its last use, and the places are writable.
    unsafe {
        assert_eq!(gpu_vmm_lease_next(lease, 0, &raw mut event), GPU_VMM_OK);
        assert_eq!(event, GPU_VMM_LEASE_EVENT_NONE);
        assert_eq!(gpu_vmm_lease_apply(lease, &raw mut epoch), GPU_VMM_OK);
        assert_eq!(epoch, 1);
        assert_eq!(gpu_vmm_lease_fd(lease, &raw mut fd), GPU_VMM_OK);
        assert_eq!(gpu_vmm_client_drop(served.client, c"a".as_ptr()), GPU_VMM_OK);
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut polled, 1, WAIT as i32), 1);
        assert_eq!(gpu_vmm_lease_next(lease, 0, &raw mut event), GPU_VMM_OK);
        assert_eq!(event, GPU_VMM_LEASE_EVENT_DROPPED);
        assert_eq!(gpu_vmm_client_drop(served.client, c"a".as_ptr()), GPU_VMM_NOT_FOUND);
        assert_eq!(gpu_vmm_lease_renew(lease, 0, 1, false, null_mut()), GPU_VMM_NOT_FOUND);
        drop(served);
        assert_eq!(gpu_vmm_lease_next(lease, WAIT, &raw mut event), GPU_VMM_OK);
        assert_eq!(event, GPU_VMM_LEASE_EVENT_SERVER_GONE);
        assert_eq!(gpu_vmm_lease_close(lease), GPU_VMM_OK, "{}", last_error());
        gpu_vmm_lease_free(lease);
    }
}

#[test]
fn errors_have_their_statuses() {
    let served = Served::new("errors", Some(Bytes(2 * UNIT)));
    let lease = served.create(c"a", UNIT).unwrap();
    assert_eq!(served.open(c"a", GPU_VMM_LEASE_READ, 0), Err(GPU_VMM_NOT_FOUND));
    commit(lease, null());
    assert_eq!(served.open(c"b", GPU_VMM_LEASE_READ, 0), Err(GPU_VMM_NOT_FOUND));
    assert_eq!(served.open(c"a", GPU_VMM_LEASE_WRITE, 0), Err(GPU_VMM_TIMED_OUT));
    assert_eq!(served.create(c"a", UNIT), Err(GPU_VMM_BUSY));
    assert_eq!(served.create(c"c", 2 * UNIT), Err(GPU_VMM_OUT_OF_MEMORY));
    assert_eq!(served.create(c"c", 0), Err(GPU_VMM_INVALID_ARGUMENT));
    assert_eq!(served.create(c"../c", UNIT), Err(GPU_VMM_INVALID_ARGUMENT));
    assert_eq!(served.open(c"a", 2, 0), Err(GPU_VMM_INVALID_ARGUMENT));
    let (mut made, client) = (null_mut(), served.client);
    for (options, text) in [
        (CreateOptions { mode: 0o700, ..zeros() }, "create region: mode is 700"),
        (CreateOptions { mode: 1 << 16, ..zeros() }, "create region: mode is 200000"),
        (CreateOptions { reserved: [0, 0, 0, 1], ..zeros() }, "create region: reserved is not zero"),
    ] {
        // SAFETY: the client exists, and the places are valid.
        let status =
            unsafe { gpu_vmm_client_create(client, c"d".as_ptr(), UNIT, &raw const options, &raw mut made) };
        assert_eq!(status, GPU_VMM_INVALID_ARGUMENT);
        assert!(last_error().starts_with(text), "{}", last_error());
    }
    let mut other = null_mut();
    let path = CString::new(served.path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the texts are strings, the objects are freed after their last use, and the places are writable.
    unsafe {
        let user = libc::geteuid();
        let status = gpu_vmm_connect_user(served.backend, path.as_ptr(), user + 1, &raw mut other);
        assert_eq!(status, GPU_VMM_ACCESS_DENIED);
        assert_eq!(gpu_vmm_connect_user(served.backend, path.as_ptr(), user, &raw mut other), GPU_VMM_OK);
        gpu_vmm_client_free(other);
        let status = gpu_vmm_connect(served.backend, c"/no/such/socket".as_ptr(), &raw mut other);
        assert!(status == GPU_VMM_NO_LISTENER && other.is_null());
        gpu_vmm_lease_free(lease);
    }
}

#[test]
fn status_describes_region_and_client() {
    let served = Served::new("status", Some(Bytes(8 * UNIT)));
    let options = CreateOptions { mode: 0o640, group: 4711, has_group: true, handle: UNIT, ..zeros() };
    let (mut lease, mut address) = (null_mut(), 0);
    // SAFETY: the client exists, and the places are valid.
    unsafe {
        let (client, place) = (served.client, &raw mut lease);
        let status = gpu_vmm_client_create(client, c"a".as_ptr(), UNIT + 1, &raw const options, place);
        // Only root can give a region to a group that is not its own.
        let is_member = libc::geteuid() == 0;
        assert_eq!(status, if is_member { GPU_VMM_OK } else { GPU_VMM_ACCESS_DENIED }, "{}", last_error());
        if !is_member {
            return;
        }
        crate::region::gpu_vmm_region_address(region(lease), &raw mut address);
    }
    commit(lease, null());
    let status = served.status();
    let (found, client) = (&status["regions"][0], &status["clients"][0]);
    for (field, value) in [
        ("name", serde_json::json!("a")),
        ("address", address.into()),
        ("size", (2 * UNIT).into()),
        ("handles", 2.into()),
        ("epoch", 1.into()),
        ("mode", "640".into()),
        ("group", 4711.into()),
        ("readers", 0.into()),
        ("has_writer", true.into()),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
    assert_eq!(client["process"], std::process::id());
    assert_eq!((&client["region"], &client["lease"]), (&"a".into(), &"write".into()));
    assert_eq!(status["server"]["held"], 2 * UNIT);
    assert_eq!(status["server"]["budget"], 8 * UNIT);
    assert_eq!(status["server"]["vendor"], "host");
    // SAFETY: the lease is not used any more.
    unsafe { gpu_vmm_lease_free(lease) };
}

#[test]
fn saved_region_is_loaded_at_its_address() {
    let served = Served::new("saved", None);
    let folder = std::env::temp_dir().join(format!("gpu-vmm-c-saved-region-{}", std::process::id()));
    let path = CString::new(folder.as_os_str().as_bytes()).unwrap();
    let lease = served.create(c"a/b", UNIT).unwrap();
    assert_eq!(write(lease, b"first"), GPU_VMM_OK);
    commit(lease, null());
    let (mut address, mut size, mut loaded) = (0, 0, null_mut());
    let (client, text) = (served.client, path.as_ptr());
    // SAFETY: the objects are freed after their last use, the texts are strings, and the places are writable.
    unsafe {
        let load = |name, options: *const CreateOptions, place: *mut *mut Lease| {
            gpu_vmm_client_load(client, text, name, options, place)
        };
        crate::region::gpu_vmm_region_address(region(lease), &raw mut address);
        assert_eq!(gpu_vmm_lease_save(lease, text, &raw mut size), GPU_VMM_OK, "{}", last_error());
        assert_eq!(size, std::fs::metadata(&folder).unwrap().len());
        let elsewhere = CreateOptions { address: address + (1 << 36), ..zeros() };
        assert_eq!(load(null(), &raw const elsewhere, &raw mut loaded), GPU_VMM_BUSY);
        assert_eq!(load(c"c".as_ptr(), null(), &raw mut loaded), GPU_VMM_ADDRESS_TAKEN);
        gpu_vmm_lease_free(lease);
        assert_eq!(gpu_vmm_client_drop(client, c"a/b".as_ptr()), GPU_VMM_OK);
        assert_eq!(load(null(), null(), &raw mut loaded), GPU_VMM_OK, "{}", last_error());
        let mut found = 0;
        crate::region::gpu_vmm_region_address(region(loaded), &raw mut found);
        assert_eq!((found, read(loaded), state(loaded).1), (address, *b"first", 1));
        let mut other = null_mut();
        assert_eq!(load(c"d".as_ptr(), &raw const elsewhere, &raw mut other), GPU_VMM_OK, "{}", last_error());
        crate::region::gpu_vmm_region_address(region(other), &raw mut found);
        assert_eq!((found, read(other)), (elsewhere.address, *b"first"));
        let nowhere = c"/no/such/folder/file".as_ptr();
        assert_eq!(gpu_vmm_lease_save(other, nowhere, &raw mut size), GPU_VMM_FILE);
        std::fs::write(&folder, b"no tensors").unwrap();
        let mut none = null_mut();
        assert_eq!(load(c"e".as_ptr(), null(), &raw mut none), GPU_VMM_FILE);
        assert!(none.is_null());
        gpu_vmm_lease_free(loaded);
        gpu_vmm_lease_free(other);
    }
    std::fs::remove_file(&folder).unwrap();
}

/// The caller must not free a lease's region; nothing breaks if it does.
#[test]
fn freed_region_leaves_its_lease_usable() {
    let served = Served::new("freed", None);
    let lease = served.create(c"a", UNIT).unwrap();
    let named = region(lease);
    // SAFETY: the objects are freed after their last use; a pointer to a freed one is refused.
    unsafe {
        crate::region::gpu_vmm_region_free(named);
        assert_eq!(write(lease, b"x"), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(commit(lease, null()), 1);
        gpu_vmm_lease_free(lease);
    }
    served.until_clients(0);
}

#[test]
fn malformed_layouts_are_refused() {
    let view = TensorView::new(Bytes(0), DLDataType::F32, [2, 2]);
    let layout = |name: &str, view: TensorView| Described {
        parts: [(name.to_owned(), view)].into(),
        ..Described::default()
    };
    let noted = |key: &str, note: &str| Described {
        notes: [(key.to_owned(), note.to_owned())].into(),
        ..Described::default()
    };
    assert!(Layout::of(&layout("a", view.clone())).is_ok());
    for wrong in [
        layout("a", TensorView { strides: Some(vec![1]), ..view.clone() }),
        layout("a", TensorView::new(Bytes(0), DLDataType::F32, [1; 33])),
        layout("a\0b", view),
        noted("a\0", "b"),
        noted("a", "\0"),
    ] {
        assert_eq!(Layout::of(&wrong).unwrap_err().status, GPU_VMM_PEER);
    }
}

#[test]
fn invalid_parts_are_refused() {
    let (mut layout, shape) = (null_mut(), [1_i64; 33]);
    let part = Part {
        name: c"a".as_ptr(),
        offset: 0,
        code: 2,
        bits: 32,
        lanes: 1,
        ndim: 1,
        shape: shape.as_ptr(),
        strides: null(),
        reserved: [0; 4],
    };
    // SAFETY: the layout is freed after its last use, and the pointers are null or valid.
    unsafe {
        assert_eq!(gpu_vmm_layout_new(&raw mut layout), GPU_VMM_OK);
        for wrong in [
            Part { name: null(), ..part },
            Part { name: c"\xff".as_ptr(), ..part },
            Part { ndim: -1, ..part },
            Part { ndim: 33, ..part },
            Part { shape: null(), ..part },
            Part { reserved: [1, 0, 0, 0], ..part },
        ] {
            assert_eq!(gpu_vmm_layout_set_part(layout, &raw const wrong), GPU_VMM_INVALID_ARGUMENT);
        }
        let mut parts = 7;
        assert_eq!(gpu_vmm_layout_sizes(layout, &raw mut parts, null_mut()), GPU_VMM_OK);
        assert_eq!(parts, 0);
        gpu_vmm_layout_free(layout);
    }
}
