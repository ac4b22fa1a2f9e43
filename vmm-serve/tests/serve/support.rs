//! A server, and clients.

use gpu_vmm_core::{Bytes, DeviceId, Error, Properties, Result, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_serve::{
    Client, CreateOptions, Lease, RegionInfo, ServeError, Server, ServerInfo, ServerOptions, Status,
};
use gpu_vmm_share::Listener;
use gpu_vmm_testkit::forked::Child;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// The size of a handle in these tests.
pub(crate) const UNIT: Bytes = Bytes::mib(2);

/// A server in a process of its own, which ends with this value.
pub(crate) struct ServerProcess {
    folder: TempDir,
    child: Child,
}

impl ServerProcess {
    pub(crate) fn start() -> Self {
        Self::with(ServerOptions::default())
    }

    pub(crate) fn with(options: ServerOptions) -> Self {
        Self::again(tempfile::tempdir().unwrap(), options)
    }

    /// Starts a server in the place of one that was killed.
    pub(crate) fn again(folder: TempDir, options: ServerOptions) -> Self {
        let path = folder.path().join("socket");
        let _ = std::fs::remove_file(&path);
        let child = Child::fork(|| {
            let listener = Listener::bind(&path).unwrap();
            run(Server::new(backend(), listener, options));
        });
        let server = Self { folder, child };
        let since = Instant::now();
        while !server.path().exists() {
            assert!(since.elapsed() < WAIT);
            std::thread::sleep(Duration::from_millis(1));
        }
        server
    }

    /// Replaces this server by a new process.
    pub(crate) fn replace(self) -> Self {
        self.replace_with(ServerOptions::default())
    }

    pub(crate) fn replace_with(self, options: ServerOptions) -> Self {
        let (path, (taken, told)) = (self.path(), std::io::pipe().unwrap());
        let child = Child::fork(|| {
            let server = Server::take_over(backend(), &path, options).unwrap();
            (&told).write_all(&[1]).unwrap();
            run(server);
        });
        (&taken).read_exact(&mut [0]).unwrap();
        self.child.finish();
        Self { folder: self.folder, child }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Connects with a backend of its own, as another process would.
    pub(crate) fn client(&self) -> Client<HostBackend> {
        Client::connect(&backend(), self.path()).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        self.client().status().unwrap()
    }

    /// Returns the state of the server when all clients have ended and nothing but regions is held.
    pub(crate) fn idle(&self) -> ServerInfo {
        let since = Instant::now();
        loop {
            let status = self.status();
            if status.clients.is_empty() && status.server.old == 0 {
                return status.server;
            }
            assert!(since.elapsed() < WAIT, "{status:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the number of open descriptors of the server, as soon as it no longer changes.
    pub(crate) fn descriptors(&self) -> usize {
        let count = || std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count();
        let (mut last, mut since) = (count(), Instant::now());
        while since.elapsed() < Duration::from_millis(200) {
            std::thread::sleep(Duration::from_millis(5));
            let now = count();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    }

    /// Waits until the server has as many descriptors: its threads close some later.
    pub(crate) fn until_descriptors_are(&self, count: usize) {
        let since = Instant::now();
        loop {
            let now = self.descriptors();
            if now == count {
                return;
            }
            assert!(since.elapsed() < WAIT, "{now} descriptors instead of {count}");
        }
    }

    /// Starts another process with a client. A child has the mappings that this process has when it forks.
    pub(crate) fn elsewhere(&self, body: impl FnOnce(Client<HostBackend>)) -> Child {
        let path = self.path();
        Child::fork(|| body(Client::connect(&backend(), &path).unwrap()))
    }

    /// Waits until the first region is as wanted.
    pub(crate) fn until(client: &Client<HostBackend>, wanted: impl Fn(&RegionInfo) -> bool) {
        let since = Instant::now();
        while !client.status().unwrap().regions.first().is_some_and(&wanted) {
            assert!(since.elapsed() < WAIT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn kill(self) -> TempDir {
        drop(self.child);
        self.folder
    }
}

/// Stops a process for a while.
pub(crate) fn pause(id: u32, time: Duration) {
    let process = Pid::from_raw(id as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    std::thread::sleep(time);
    kill_process(process, Signal::CONT).unwrap();
}

/// Returns true if a child has ended.
pub(crate) fn has_ended(child: &Child) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ")
}

fn run(mut server: Server<HostBackend>) {
    while !server.is_over() {
        server.step(Duration::from_secs(60)).unwrap();
    }
}

pub(crate) fn backend() -> HostBackend {
    HostConfig::new().open().unwrap()
}

pub(crate) fn options() -> CreateOptions {
    let mut options = CreateOptions::default();
    options.memory = Properties::on(DeviceId(0));
    options.handle = UNIT;
    options
}

/// Creates and commits a region of some handles, each of which has its own bytes.
pub(crate) fn publish(
    client: &Client<HostBackend>,
    name: &str,
    handles: u64,
    value: u8,
) -> Lease<HostBackend> {
    let mut lease = client.create(name, Bytes(handles * UNIT.0), &options()).unwrap();
    fill(&mut lease, value);
    lease.commit(None).unwrap();
    lease
}

/// Fills each handle with a value that depends on its index.
pub(crate) fn fill(lease: &mut Lease<HostBackend>, value: u8) {
    let handles = lease.region().end().0 / UNIT.0;
    for index in 0..handles {
        lease.region_mut().fill(Bytes(index * UNIT.0), UNIT, value.wrapping_add(index as u8)).unwrap();
    }
}

/// Returns the value that all handles have been filled with; panics if they are of several fills.
pub(crate) fn value(lease: &Lease<HostBackend>) -> u8 {
    let handles = lease.region().end().0 / UNIT.0;
    let mut found = None;
    for index in 0..handles {
        for at in [0, UNIT.0 / 2, UNIT.0 - 1] {
            let mut byte = [0];
            lease.region().read(Bytes(index * UNIT.0 + at), &mut byte).unwrap();
            let value = byte[0].wrapping_sub(index as u8);
            assert_eq!(*found.get_or_insert(value), value, "at handle {index}");
        }
    }
    found.unwrap()
}

pub(crate) fn idle() -> WaitFor<'static> {
    WaitFor::all_devices()
}

pub(crate) fn error_of<T>(answer: Result<T>) -> ServeError {
    let error: Error = answer.map(drop).unwrap_err();
    error.extension::<ServeError>().unwrap_or_else(|| panic!("{error}")).clone()
}
