//! Regions that a server keeps.

use super::{NAME, Role, SEED, WAIT, connect, end, start, takes_part};
use crate::case::cases;
use crate::leaks;
use crate::library::folder::Folder;
use crate::library::sharing::or_cannot_share;
use crate::library::tools::{has, idle, write};
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{Properties, Result};
use gpu_vmm_serve::{Client, CreateOptions, Lease, LeaseEvent, RenewContents};
use gpu_vmm_testkit::TestKit;
use std::path::Path;

cases! { "serve":
    /// Bytes that a process has written and committed before it was killed are there for the next process, at the same address.
    contents_outlive_their_writer with takes_part,
    /// A reader keeps the bytes of its epoch while another process commits the next one, and then maps that at the same address.
    a_new_epoch_in_place with takes_part,
    /// A new server process takes over while a client has a lease: the client's memory stays, and it commits to the new server.
    a_new_server_takes_over with takes_part,
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

/// Creates the region, and is killed.
pub(super) fn creator<B: TestKit>(subject: &Subject<B>, path: &Path, peer: &Peer) {
    let lease = create(subject, &connect(subject, path));
    peer.send(());
    peer.send(lease.region().address().0);
    peer.receive::<()>();
}

/// Replaces the contents when the region has a reader.
pub(super) fn writer<B: TestKit>(subject: &Subject<B>, path: &Path, peer: &Peer) {
    let client = connect(subject, path);
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

/// Counts the memory that a lease has just imported, which HIP 6 does not release.
fn imported<B: TestKit>(lease: Lease<B>) -> Lease<B> {
    lease.region().mappings().for_each(|_| leaks::counts_import());
    lease
}
