//! Memory that a server keeps, in processes that come and go.

use crate::case::cases;
use crate::fork_server::Child;
use crate::leaks;
use crate::library::folder::Folder;
use crate::library::pool::{write_at, wrong_at};
use crate::library::sharing::or_cannot_share;
use crate::library::tools::{has, idle, write};
use crate::peer::Peer;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Bytes, Properties, Result};
use gpu_vmm_pool::Pool;
use gpu_vmm_serve::{
    Client, CreateOptions, Lease, LeaseEvent, QuotaOptions, RenewContents, Server, ServerOptions,
};
use gpu_vmm_share::Listener;
use gpu_vmm_testkit::TestKit;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

cases! { "serve":
    /// Bytes that a process has written and committed before it was killed are there for the next process, at the same address.
    contents_outlive_their_writer with takes_part,
    /// A reader keeps the bytes of its epoch while another process commits the next one, and then maps that at the same address.
    a_new_epoch_in_place with takes_part,
    /// A new server process takes over while a client has a lease: the client's memory stays, and it commits to the new server.
    a_new_server_takes_over with takes_part,
    /// Pools of two processes need more memory together than their server has for them: what one lets sleep goes to the other, and its bytes
    /// are there at their addresses when it wakes.
    programs_share_a_budget with takes_part,
}

const SEED: u64 = 700;
const WAIT: Duration = Duration::from_secs(60);
const NAME: &str = "weights";
const PAGE: Bytes = Bytes::mib(2);

/// What another process does.
#[derive(Serialize, Deserialize)]
enum Role {
    /// Keeps memory until it is killed or replaced.
    Server,
    /// Takes over from the server.
    NextServer,
    /// Creates the region, and is killed.
    Creator,
    /// Replaces the contents when the region has a reader.
    Writer,
    /// Divides this much memory among programs.
    BudgetServer(u64),
    /// Has a block of this size, which sleeps and wakes.
    Sleeper(u64),
}

fn start<B: TestKit>(subject: &Subject<B>, role: Role, path: &Path) -> Child {
    let mut child = subject.child();
    child.send((role, path));
    child.receive::<()>();
    child
}

fn takes_part<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (role, path): (Role, PathBuf) = peer.receive();
    let backend = subject.backend.clone();
    match role {
        Role::Server => {
            run(Server::new(backend, Listener::bind(&path).unwrap(), ServerOptions::default()), peer)
        }
        Role::BudgetServer(budget) => {
            let mut options = ServerOptions::default();
            options.budget = Some(Bytes(budget));
            run(Server::new(backend, Listener::bind(&path).unwrap(), options), peer)
        }
        Role::Sleeper(size) => sleeper(subject, &connect(subject, &path), Bytes(size), peer),
        Role::NextServer => run(Server::take_over(backend, &path, ServerOptions::default()).unwrap(), peer),
        Role::Creator => {
            let lease = create(subject, &connect(subject, &path));
            peer.send(());
            peer.send(lease.region().address().0);
            peer.receive::<()>();
        }
        Role::Writer => {
            let client = connect(subject, &path);
            peer.send(());
            // The reader has mapped the region.
            peer.receive::<()>();
            let mut lease = client.write(NAME, WAIT).unwrap();
            assert!(has(subject, lease.region(), SEED));
            let size = lease.region().end();
            lease.renew(subject.units(0), size, RenewContents::Undefined, idle()).unwrap();
            write(subject, lease.region_mut(), SEED + 1);
            assert_eq!(lease.commit(None).unwrap(), 2);
        }
    }
}

fn run<B: TestKit>(mut server: Server<B>, peer: &Peer) {
    peer.send(());
    while !server.is_over() {
        server.step(WAIT).unwrap();
    }
}

fn connect<B: TestKit>(subject: &Subject<B>, path: &Path) -> Client<B> {
    Client::connect(&subject.backend, path).unwrap()
}

fn try_create<B: TestKit>(subject: &Subject<B>, client: &Client<B>) -> Result<Lease<B>> {
    let mut options = CreateOptions::default();
    options.memory = Properties::on(subject.device);
    client.create(NAME, subject.units(3), &options)
}

/// Creates and commits the region with a pattern. Skips the case if the device cannot share memory.
fn create<B: TestKit>(subject: &Subject<B>, client: &Client<B>) -> Lease<B> {
    let mut lease = imported(or_cannot_share(subject, try_create(subject, client)));
    write(subject, lease.region_mut(), SEED);
    assert_eq!(lease.commit(None).unwrap(), 1);
    lease
}

fn sleeper<B: TestKit>(subject: &Subject<B>, client: &Client<B>, size: Bytes, peer: &Peer) {
    let pool = Pool::builder(&subject.backend).device(subject.device).page(PAGE).build().unwrap();
    let quota = client.connect_pool(&pool, patient("sleeper")).unwrap();
    let block = pool.tagged(NAME).unwrap().alloc(size).unwrap();
    let (device, at) = (subject.device, block.address());
    write_at(&subject.backend, device, at, size, SEED);
    quota.let_sleep(NAME).unwrap();
    peer.send(());
    // The other process has had the memory.
    peer.receive::<()>();
    assert_eq!(quota.wake(NAME).unwrap(), size);
    assert_eq!((block.address(), wrong_at(&subject.backend, device, at, size, SEED)), (at, 0));
}

fn patient<B: TestKit>(name: &str) -> QuotaOptions<B> {
    let mut options = QuotaOptions::default();
    (options.name, options.wait) = (name.to_owned(), WAIT);
    options
}

fn programs_share_a_budget<B: TestKit>(subject: &Subject<B>) {
    let known = subject.backend.devices().iter().find(|known| known.id == subject.device);
    if known.is_none_or(|known| known.uuid.is_none() || known.no_virtual_memory.is_some()) {
        skip("programs name a device to the server by its UUID, and suspend virtual memory");
    }
    let folder = Folder::new();
    let path = folder.file("socket");
    let server = start(subject, Role::BudgetServer(10 * PAGE.0), &path);
    let mut other = start(subject, Role::Sleeper(6 * PAGE.0), &path);
    let pool = Pool::builder(&subject.backend).device(subject.device).page(PAGE).build().unwrap();
    let quota = connect(subject, &path).connect_pool(&pool, patient("awake")).unwrap();
    let block = pool.alloc(Bytes(8 * PAGE.0)).unwrap();
    write_at(&subject.backend, subject.device, block.address(), block.size(), SEED + 1);
    assert_eq!(wrong_at(&subject.backend, subject.device, block.address(), block.size(), SEED + 1), 0);
    assert!(quota.granted() >= block.size() && pool.stats().held <= quota.granted().0);
    other.send(());
    drop(block);
    other.finish();
    drop((quota, pool));
    end(server);
}

fn contents_outlive_their_writer<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("socket");
    let server = start(subject, Role::Server, &path);
    let mut creator = start(subject, Role::Creator, &path);
    let address: u64 = creator.receive();
    creator.kill();
    creator.finish_by(libc::SIGKILL);
    let client = connect(subject, &path);
    for _ in 0..2 {
        let lease = imported(client.read(NAME, WAIT).unwrap());
        assert_eq!(lease.region().address().0, address);
        assert!(has(subject, lease.region(), SEED), "the bytes are lost");
        lease.close(idle()).unwrap();
    }
    end(server);
}

fn a_new_epoch_in_place<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("socket");
    let server = start(subject, Role::Server, &path);
    let client = connect(subject, &path);
    create(subject, &client).close(idle()).unwrap();
    let mut writer = start(subject, Role::Writer, &path);
    let mut lease = imported(client.read(NAME, WAIT).unwrap());
    let address = lease.region().address();
    writer.send(());
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::NewEpoch(2)));
    assert!(has(subject, lease.region(), SEED), "the epoch changed under its reader");
    assert_eq!(lease.apply(idle()).unwrap(), 2);
    let lease = imported(lease);
    assert_eq!(lease.region().address(), address);
    assert!(has(subject, lease.region(), SEED + 1), "the new epoch has other bytes");
    writer.finish();
    lease.close(idle()).unwrap();
    end(server);
}

fn a_new_server_takes_over<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let path = folder.file("socket");
    let first = start(subject, Role::Server, &path);
    let client = connect(subject, &path);
    let mut lease = create(subject, &client);
    lease.renew(subject.units(0), subject.units(3), RenewContents::Copy, idle()).unwrap();
    let mut lease = imported(lease);
    let second = start(subject, Role::NextServer, &path);
    first.finish();
    assert!(has(subject, lease.region(), SEED), "the bytes are lost");
    write(subject, lease.region_mut(), SEED);
    assert_eq!(lease.commit(None).unwrap(), 2);
    lease.close(idle()).unwrap();
    let lease = imported(client.read(NAME, WAIT).unwrap());
    assert!(has(subject, lease.region(), SEED), "the new server has other bytes");
    lease.close(idle()).unwrap();
    end(second);
}

/// Counts the memory that a lease has just imported, which HIP 6 does not release.
fn imported<B: TestKit>(lease: Lease<B>) -> Lease<B> {
    lease.region().mappings().for_each(|_| leaks::counts_import());
    lease
}

/// Ends the server, and the memory with it.
fn end(server: Child) {
    server.kill();
    server.finish_by(libc::SIGKILL);
}
