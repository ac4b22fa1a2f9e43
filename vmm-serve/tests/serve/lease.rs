//! Regions that outlive the clients that made them.

use crate::support::{ServerProcess, UNIT, WAIT, backend, error_of, fill, idle, options, publish, value};
use gpu_vmm_core::dlpack::{DLDataType, TensorView};
use gpu_vmm_core::{Bytes, ErrorKind};
use gpu_vmm_serve::{Client, Layout, LeaseEvent, LeaseKind, ServeError};
use gpu_vmm_share::PeerError;
use std::time::Duration;

#[test]
fn contents_outlive_the_killed_creator() {
    let server = ServerProcess::start();
    let (ready, go) = std::io::pipe().unwrap();
    let creator = server.elsewhere(|client| {
        let mut lease = client.create("llama/rank0", Bytes(3 * UNIT.0 - 5), &options()).unwrap();
        assert_eq!((lease.epoch(), lease.kind()), (0, LeaseKind::Write));
        fill(&mut lease, 7);
        let mut layout = Layout::default();
        layout.parts.insert("w".to_owned(), TensorView::new(UNIT, DLDataType::F32, [2, 3]));
        layout.notes.insert("digest".to_owned(), "x".to_owned());
        assert_eq!(lease.commit(Some(&layout)).unwrap(), 1);
        assert_eq!(lease.layout().parts["w"].shape, [2, 3]);
        use std::io::Write;
        (&go).write_all(&lease.region().address().0.to_le_bytes()).unwrap();
        std::thread::sleep(WAIT);
    });
    let mut address = [0; 8];
    use std::io::Read;
    (&ready).read_exact(&mut address).unwrap();
    drop(creator);
    let lease = server.client().read("llama/rank0", Duration::ZERO).unwrap();
    assert_eq!(lease.region().address().0, u64::from_le_bytes(address));
    assert_eq!((lease.epoch(), lease.region().end(), value(&lease)), (1, Bytes(3 * UNIT.0), 7));
    assert_eq!(lease.layout().notes["digest"], "x");
    let view = &lease.layout().parts["w"];
    assert_eq!((view.offset, view.shape.as_slice(), view.read_only), (UNIT, [2, 3].as_slice(), true));
    lease.close(idle()).unwrap();
    assert_eq!(server.idle().held, 3 * UNIT.0);
}

#[test]
fn read_lease_cannot_write() {
    let server = ServerProcess::start();
    drop(publish(&server.client(), "a", 2, 1));
    let mut lease = server.client().read("a", Duration::ZERO).unwrap();
    let error = lease.region_mut().write(Bytes(0), &[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(matches!(
        error_of(lease.renew(Bytes(0), UNIT, gpu_vmm_serve::RenewContents::Copy, idle())),
        ServeError::ReadLease { .. }
    ));
    assert!(matches!(error_of(lease.commit(None)), ServeError::ReadLease { .. }));
    assert!(matches!(error_of(lease.downgrade(idle())), ServeError::ReadLease { .. }));
}

#[test]
fn uncommitted_region_leaves_nothing() {
    let server = ServerProcess::start();
    let client = server.client();
    let lease = client.create("a", UNIT, &options()).unwrap();
    assert!(matches!(error_of(client.read("a", Duration::ZERO)), ServeError::NotFound { .. }));
    assert!(matches!(error_of(client.create("a", UNIT, &options())), ServeError::Exists { .. }));
    drop(lease);
    assert_eq!(server.idle().held, 0);
    drop(publish(&client, "a", 1, 3));
    assert_eq!(server.idle().held, UNIT.0);
}

#[test]
fn taken_addresses_are_named() {
    let server = ServerProcess::start();
    let client = server.client();
    let lease = publish(&client, "a", 1, 1);
    let error = error_of(client.read("a", Duration::ZERO));
    let ServeError::AddressInUse { address, end, user, .. } = error else { panic!("{error}") };
    assert_eq!((address, end - address), (lease.region().address().0, UNIT.0));
    // The kernel's name of host memory, and its addresses.
    assert!(user.is_some_and(|user| user.contains(&format!("{address:#x}..{end:#x}"))));
}

#[test]
fn reader_waits_for_the_first_commit() {
    let server = ServerProcess::start();
    let reader = server.elsewhere(|client| {
        assert_eq!(value(&client.read("late", WAIT).unwrap()), 9);
    });
    while server.status().clients.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(publish(&server.client(), "late", 2, 9));
    reader.finish();
}

#[test]
fn writers_take_turns() {
    let server = ServerProcess::start();
    let second = server.elsewhere(|client| {
        ServerProcess::until(&client, |region| region.has_writer);
        drop(client.write("a", WAIT).unwrap());
    });
    let client = server.client();
    let first = publish(&client, "a", 1, 1);
    let error = error_of(client.write("a", Duration::from_millis(5)));
    let ServeError::Busy { waited_ms, lease, .. } = error else { panic!("{error}") };
    assert_eq!((waited_ms, lease.as_str()), (5, "write"));
    ServerProcess::until(&client, |region| region.waiting == 1);
    drop(first);
    second.finish();
}

#[test]
fn downgrade_lets_another_writer_in() {
    let server = ServerProcess::start();
    let client = server.client();
    let mut lease = publish(&client, "a", 2, 4);
    lease.renew(Bytes(0), UNIT, gpu_vmm_serve::RenewContents::Undefined, idle()).unwrap();
    lease.region_mut().fill(Bytes(0), UNIT, 99).unwrap();
    lease.downgrade(idle()).unwrap();
    assert_eq!((lease.kind(), value(&lease)), (LeaseKind::Read, 4));
    assert!(!server.status().regions[0].has_writer);
    lease.close(idle()).unwrap();
    assert_eq!(server.idle().held, 2 * UNIT.0);
}

#[test]
fn clients_learn_of_a_drop_and_keep_their_memory() {
    let server = ServerProcess::start();
    let client = server.client();
    let mut lease = publish(&client, "a", 2, 4);
    lease.downgrade(idle()).unwrap();
    client.drop_region("a").unwrap();
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::Dropped));
    assert!(lease.is_dropped());
    assert_eq!(value(&lease), 4);
    let status = server.status();
    assert_eq!((status.server.held, status.server.old, status.regions.len()), (2 * UNIT.0, 2 * UNIT.0, 0));
    assert!(matches!(error_of(client.drop_region("a")), ServeError::NotFound { .. }));
    drop(lease);
    assert_eq!(server.idle().held, 0);
}

#[test]
fn leases_of_a_dropped_region_are_not_those_of_its_successor() {
    let server = ServerProcess::start();
    let client = server.client();
    let mut old = publish(&client, "a", 1, 1);
    old.downgrade(idle()).unwrap();
    client.drop_region("a").unwrap();
    let mut new = publish(&client, "a", 1, 2);
    new.renew(Bytes(0), UNIT, gpu_vmm_serve::RenewContents::Copy, idle()).unwrap();
    let region = server.status().regions.remove(0);
    assert_eq!((region.readers, region.has_writer, region.waiting), (0, true, 0));
    assert_eq!((value(&old), value(&new)), (1, 2));
    drop(old);
    assert_eq!(new.commit(None).unwrap(), 2);
}

#[test]
fn lease_outlives_the_server() {
    let server = ServerProcess::start();
    let mut lease = publish(&server.client(), "a", 1, 6);
    lease.downgrade(idle()).unwrap();
    let folder = server.kill();
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::ServerGone));
    assert_eq!(lease.next(Duration::ZERO).unwrap(), Some(LeaseEvent::ServerGone));
    assert_eq!(value(&lease), 6);
    let error = Client::connect(&backend(), folder.path().join("socket")).unwrap_err();
    assert!(matches!(error.extension(), Some(PeerError::StaleSocket { .. })), "{error}");
    lease.close(idle()).unwrap();
}
