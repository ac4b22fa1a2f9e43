//! A server in the process of its clients, which send what no client would.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use super::*;
use crate::protocol::{Create, LeaseKind, Request};
use crate::{Mode, ServeError};
use gpu_vmm_core::{Bytes, DeviceId, Properties};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_share::Channel;
use gpu_vmm_share::extend::{self, Wait};
use gpu_vmm_testkit::forked::alone;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendFlags, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use tempfile::TempDir;

/// The size of the smallest handle.
pub(super) const UNIT: u64 = 64 << 10;

/// A server and its folder.
pub(super) struct Served {
    pub(super) server: Server<HostBackend>,
    _folder: TempDir,
}

impl Served {
    pub(super) fn new(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(folder.path().join("socket")).unwrap();
        let backend = HostConfig::new().granularity(Bytes(UNIT)).open().unwrap();
        Self { server: Server::new(backend, listener, options), _folder: folder }
    }

    /// Lets another server take over from this one, as another process would.
    pub(super) fn successor(&mut self) -> Result<Server<HostBackend>> {
        let (options, path) = (self.server.options.clone(), self.server.listener.path().to_owned());
        std::thread::scope(|scope| {
            let backend = HostConfig::new().granularity(Bytes(UNIT)).open().unwrap();
            let new = scope.spawn(move || Server::take_over(backend, path, options));
            while !self.server.is_over() && !new.is_finished() {
                self.server.step(Duration::from_millis(1)).unwrap();
            }
            new.join().unwrap()
        })
    }

    /// Lets the server do all that it can without waiting for a client, each time in less than a second.
    pub(super) fn run(&mut self) {
        for _ in 0..8 {
            self.step();
        }
        while self.server.connections.values().any(Connection::has_job) {
            self.step();
        }
    }

    pub(super) fn step(&mut self) {
        let since = Instant::now();
        self.server.step(Duration::ZERO).unwrap();
        assert!(since.elapsed() < Duration::from_secs(1), "a step took {:?}", since.elapsed());
    }

    /// Runs until connections are closed.
    fn until_clients_are(&mut self, user: Option<u32>, count: usize) {
        let since = Instant::now();
        while self.server.clients_of(user) != count {
            assert!(since.elapsed() < Duration::from_secs(10), "{}", self.server.clients_of(user));
            self.step();
        }
    }

    /// Connects without a word about versions.
    pub(super) fn connect(&self) -> Channel {
        Channel::connect(self.server.listener.path(), Allowed::same_user(), Duration::from_secs(10)).unwrap()
    }

    /// Connects as clients do.
    pub(super) fn client(&mut self) -> Channel {
        let mut channel = self.connect();
        self.run();
        say(&mut channel, &Request::Hello { lowest: 1, highest: 1 });
        // After many other connections, the server may pause.
        let since = Instant::now();
        let reply = loop {
            self.run();
            match hear(&mut channel) {
                None if since.elapsed() < Duration::from_secs(5) => {}
                reply => break reply,
            }
        };
        assert!(matches!(reply, Some(Reply::Welcome { .. })), "{reply:?}");
        channel
    }

    pub(super) fn creation(&self, name: &str, address: u64, size: u64, handle: u64) -> Request {
        let uuid = self.server.backend.devices()[0].uuid.unwrap();
        Request::Create(Create {
            name: name.to_owned(),
            size,
            address,
            device: uuid,
            kind: Properties::on(DeviceId(0)).into(),
            handle,
            mode: Mode::default(),
            group: None,
        })
    }

    /// Creates and commits a region.
    fn publish(&mut self, name: &str, address: u64, handles: u64) {
        let mut channel = self.client();
        say(&mut channel, &self.creation(name, address, handles * UNIT, 1));
        self.run();
        while !matches!(hear(&mut channel), Some(Reply::Granted { .. })) {}
        for _ in 0..handles.div_ceil(128) {
            while hear(&mut channel).is_none() {
                self.step();
            }
        }
        say(&mut channel, &Request::Commit { layout: false });
        self.run();
        assert_eq!(hear(&mut channel), Some(Reply::Committed { epoch: 1 }));
        say(&mut channel, &Request::Release);
        self.run();
    }

    /// Opens a region to read it, and receives all of it.
    fn read(&mut self, name: &str) -> Channel {
        let mut channel = self.client();
        say(&mut channel, &Request::Open { name: name.to_owned(), kind: LeaseKind::Read, wait_ms: 0 });
        self.run();
        let granted = hear(&mut channel);
        assert!(matches!(granted, Some(Reply::Granted { .. })), "{granted:?}");
        while hear(&mut channel).is_some() {
            self.step();
        }
        channel
    }
}

pub(super) fn say_with(channel: &mut Channel, request: &impl Serialize, descriptors: &[BorrowedFd<'_>]) {
    channel.set_wait(Duration::ZERO);
    // The server may have ended the connection.
    let _ = extend::send(channel, OPERATION, request, descriptors);
}

pub(super) fn say(channel: &mut Channel, request: &Request) {
    say_with(channel, request, &[]);
}

pub(super) fn hear(channel: &mut Channel) -> Option<Reply> {
    extend::receive(channel, &Wait::new(OPERATION, "reply", Duration::ZERO)).ok().map(|(reply, _)| reply)
}

/// Returns a descriptor that takes long to close, unless another one of the same socket is open.
fn slow_to_close() -> OwnedFd {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    while match socket.write(&[0; 1 << 16]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    } {}
    socket.set_nonblocking(false).unwrap();
    set_socket_linger(&socket, Some(Duration::from_secs(3))).unwrap();
    // No code reads it, and it is not reset.
    std::mem::forget(listener);
    socket.into()
}

#[test]
fn slow_descriptors_stop_no_server() {
    let mut served = Served::new(ServerOptions::default());
    served.publish("a", 1 << 40, 1);
    let send_slow = |channel: &mut Channel, request| say_with(channel, request, &[slow_to_close().as_fd()]);
    // With a message that has none, and behind one that ends the connection.
    let mut channel = served.client();
    send_slow(&mut channel, &Request::List);
    send_slow(&mut channel, &Request::List);
    served.run();
    // As a layout.
    let mut channel = served.read("a");
    while channel.is_connected() {
        send_slow(&mut channel, &Request::Commit { layout: true });
        served.run();
        hear(&mut channel);
    }
    // Behind a packet that is no message, and from a client that has gone before it is accepted.
    for is_there in [true, false] {
        let channel = served.connect();
        send(&channel, b"", SendFlags::NOSIGNAL).unwrap();
        send_raw(&channel, b"x", &slow_to_close());
        send_raw(&channel, b"", &slow_to_close());
        let channel = is_there.then_some(channel);
        served.run();
        drop(channel);
        served.run();
    }
    assert_eq!(served.server.connections.len(), 0);
}

fn send_raw(channel: &Channel, bytes: &[u8], descriptor: &OwnedFd) {
    use rustix::io::IoSlice;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(channel, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// A process that loses its leases without a release has the memory once, however often.
#[test]
fn process_that_loses_leases_lingers_once() {
    let mut served = Served::new(ServerOptions::default());
    served.publish("a", 1 << 40, 2);
    served.publish("b", 2 << 40, 1);
    for _ in 0..5 {
        for name in ["a", "b"] {
            drop(served.read(name));
            served.run();
        }
    }
    let sizes = |one: &Lingering<HostBackend>| one.holds().iter().map(|handle| handle.size().0).sum();
    let bytes: Vec<u64> = served.server.lingering.iter().map(sizes).collect();
    assert_eq!(bytes, [2 * UNIT, UNIT]);
}

/// The server cannot send, and the release is behind an earlier message.
#[test]
fn unread_replies_hide_no_release() {
    let mut served = Served::new(ServerOptions::default());
    served.publish("a", 1 << 40, 1);
    let mut channel = served.client();
    // As for a client that reads nothing.
    served.server.connections.values_mut().for_each(|one| one.paused = Some(Instant::now() + 20 * PAUSE));
    say(&mut channel, &Request::Open { name: "a".to_owned(), kind: LeaseKind::Read, wait_ms: 0 });
    served.run();
    say(&mut channel, &Request::Applied { epoch: 1 });
    say(&mut channel, &Request::Release);
    served.run();
    assert!(served.server.connections.values().any(Connection::has_queue));
    drop(channel);
    std::thread::sleep(20 * PAUSE);
    served.run();
    assert_eq!((served.server.connections.len(), served.server.lingering.len()), (0, 0));
}

/// Otherwise no client could connect to drop a region.
#[test]
fn regions_leave_descriptors_for_clients() {
    alone(|| {
        // A child has the files that other tests have open.
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let limit = Some(4 * open + 400);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
        let mut served = Served::new(ServerOptions::default());
        let (mut count, mut channels) = (8000, Vec::new());
        for region in 1..20_u64 {
            let mut channel = served.client();
            say(&mut channel, &served.creation(&region.to_string(), region << 40, count * UNIT, 1));
            served.run();
            match extend::receive(&mut channel, &Wait::new(OPERATION, "reply", Duration::ZERO)) {
                Ok((Reply::Granted { .. }, _)) => channels.push(channel),
                Ok((Reply::Refused(ServeError::Limit { .. }), _)) => count = (count / 2).max(1),
                other => panic!("{other:?}"),
            }
        }
        assert!(!channels.is_empty());
        for _ in 0..10 {
            channels.push(served.client());
        }
    });
}

/// The kernel refuses to poll more descriptors than the limit.
#[test]
fn lowered_limit_ends_no_server() {
    alone(|| {
        let limit = getrlimit(Resource::Nofile);
        let mut served = Served::new(ServerOptions::default());
        let channels: Vec<Channel> = (0..20).map(|_| served.client()).collect();
        setrlimit(Resource::Nofile, Rlimit { current: Some(10), ..limit }).unwrap();
        served.run();
        setrlimit(Resource::Nofile, limit).unwrap();
        served.client();
        assert_eq!(served.server.connections.len(), channels.len() + 1);
    });
}

/// Connections that are refused and say nothing take no room of other users'.
#[test]
fn refused_connections_leave_room_for_other_users() {
    let mut served = Served::new(ServerOptions { clients: 64, ..ServerOptions::default() });
    let mut channels = Vec::new();
    for _ in 0..3 {
        // As many as wait for a listener.
        channels.extend((0..100).map(|_| served.connect()));
        (0..20).for_each(|_| served.step());
    }
    let connected = served.server.connections.len();
    assert!((32..=48).contains(&connected), "{connected}");
    // One that says something receives the reason.
    let user = Some(channels[0].peer().uid);
    channels.clear();
    served.until_clients_are(user, 0);
    let _all: Vec<Channel> = (0..32).map(|_| served.client()).collect();
    let mut channel = served.connect();
    served.run();
    say(&mut channel, &Request::Hello { lowest: 1, highest: 1 });
    std::thread::sleep(2 * PAUSE);
    served.run();
    assert!(matches!(hear(&mut channel), Some(Reply::Refused(ServeError::Limit { limit: 32, .. }))));
    served.until_clients_are(user, 32);
}

#[test]
fn versions_are_negotiated() {
    let mut served = Served::new(ServerOptions::default());
    let (lowest, highest) = crate::protocol::VERSIONS;
    let ask = |served: &mut Served, lowest, highest| {
        let mut channel = served.connect();
        served.run();
        say(&mut channel, &Request::Hello { lowest, highest });
        served.run();
        hear(&mut channel)
    };
    // Older and newer clients that also speak a version of this server.
    for (from, to) in [(lowest, highest), (0, highest), (lowest, highest + 8), (0, u16::MAX)] {
        let reply = ask(&mut served, from, to);
        assert!(matches!(&reply, Some(Reply::Welcome { version, .. }) if *version == highest), "{reply:?}");
    }
    for (from, to) in [(highest + 1, highest + 4), (0, lowest - 1), (highest + 1, lowest), (u16::MAX, 0)] {
        match ask(&mut served, from, to) {
            Some(Reply::Refused(ServeError::Version { client_lowest, server_highest, .. })) => {
                assert_eq!((client_lowest, server_highest), (from, highest));
            }
            reply => panic!("{reply:?}"),
        }
    }
}

/// A client of the first version knows no error of programs.
#[test]
fn errors_fit_the_version() {
    let mut served = Served::new(ServerOptions { user_limit: Some(Bytes(UNIT)), ..ServerOptions::default() });
    let mut channel = served.client();
    say(&mut channel, &served.creation("a", 1 << 40, 2 * UNIT, 0));
    served.run();
    match hear(&mut channel) {
        Some(Reply::Refused(ServeError::NoMemory { requested, why })) => {
            assert!(requested == 2 * UNIT && why.contains("limit of user"), "{why}");
        }
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn layouts_have_a_limit_together() {
    let mut served = Served::new(ServerOptions::default());
    let file = crate::sealed::file(OPERATION, &vec![0; 16 << 20]).unwrap();
    let mut channels = Vec::new();
    for number in 0..65_u64 {
        let mut channel = served.client();
        say(&mut channel, &served.creation(&format!("r{number}"), (1 << 40) + number * UNIT, UNIT, 0));
        served.run();
        assert!(matches!(hear(&mut channel), Some(Reply::Granted { .. })));
        assert!(matches!(hear(&mut channel), Some(Reply::Handles(_))));
        say_with(&mut channel, &Request::Commit { layout: true }, &[file.as_fd()]);
        served.run();
        match hear(&mut channel) {
            Some(Reply::Committed { epoch: 1 }) => assert!(number < 64),
            Some(Reply::Refused(ServeError::Limit { limit, .. })) => {
                assert_eq!((number, limit), (64, 1 << 30))
            }
            reply => panic!("{reply:?}"),
        }
        channels.push(channel);
    }
    // A region that goes with its lease leaves room. A child that another test forks may have the client's end as well.
    served.server.regions.0.remove("r0");
    let first = *served.server.connections.keys().next().unwrap();
    served.server.end(first);
    let last = channels.last_mut().unwrap();
    say_with(last, &Request::Commit { layout: true }, &[file.as_fd()]);
    served.run();
    let reply = hear(last);
    assert!(matches!(reply, Some(Reply::Committed { epoch: 1 })), "{reply:?}");
}
