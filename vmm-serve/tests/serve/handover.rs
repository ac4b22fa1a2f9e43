//! A server that is replaced while clients go on.

use crate::support::{ServerProcess, UNIT, WAIT, fill, idle, options, publish, value};
use gpu_vmm_core::Bytes;
use gpu_vmm_serve::{Layout, LeaseEvent, RenewContents, Server, ServerOptions};
use std::time::Duration;

#[test]
fn clients_go_on_with_a_new_server() {
    let mut server = ServerProcess::start();
    let client = server.client();
    // A writer with new memory, a reader behind by one epoch, and a client that waits for the write lease.
    let reader = server.elsewhere(|client| {
        let mut lease = client.read("a", WAIT).unwrap();
        while value(&lease) != 9 {
            assert!(matches!(lease.next(WAIT).unwrap(), Some(LeaseEvent::NewEpoch(_))));
            lease.apply(idle()).unwrap();
        }
        assert_eq!(lease.layout().notes["round"], "2");
    });
    let waiting = server.elsewhere(|client| {
        ServerProcess::until(&client, |region| region.has_writer && region.epoch > 0);
        let lease = client.write("a", WAIT).unwrap();
        assert_eq!(value(&lease), 9);
    });
    let mut lease = publish(&client, "a", 3, 1);
    ServerProcess::until(&client, |region| region.readers == 1 && region.waiting == 1);
    lease.renew(UNIT, UNIT, RenewContents::Copy, idle()).unwrap();
    let before = server.status();
    for _ in 0..3 {
        server = server.replace();
        let after = server.status();
        assert_eq!((&after.regions, &after.clients), (&before.regions, &before.clients));
        assert_eq!((after.server.held, after.server.old), (before.server.held, before.server.old));
        assert_ne!(after.server.process, before.server.process);
    }
    lease.renew(Bytes(0), Bytes(3 * UNIT.0), RenewContents::Undefined, idle()).unwrap();
    fill(&mut lease, 9);
    let mut layout = Layout::default();
    layout.notes.insert("round".to_owned(), "2".to_owned());
    assert_eq!(lease.commit(Some(&layout)).unwrap(), 2);
    reader.finish();
    lease.close(idle()).unwrap();
    waiting.finish();
    assert_eq!(server.idle().held, 3 * UNIT.0);
    // The path belongs to the last server.
    drop(publish(&client, "b", 1, 5));
    assert_eq!(value(&client.read("b", Duration::ZERO).unwrap()), 5);
}

#[test]
fn failed_replacement_leaves_the_server() {
    let server = ServerProcess::start();
    let client = server.client();
    drop(publish(&client, "a", 2, 3));
    // A process that cannot import the memory: it has another granularity.
    for _ in 0..3 {
        let path = server.path();
        let child = gpu_vmm_testkit::forked::Child::fork(|| {
            let _ = Server::take_over(failing(), &path, ServerOptions::default()).unwrap_err();
        });
        child.finish();
        assert_eq!(value(&client.read("a", WAIT).unwrap()), 3);
    }
    drop(client.create("b", UNIT, &options()).unwrap());
    assert_eq!(server.idle().held, 2 * UNIT.0);
}

/// A backend with another granularity than the server's.
fn failing() -> gpu_vmm_host::HostBackend {
    gpu_vmm_host::HostConfig::new().granularity(Bytes::mib(64)).open().unwrap()
}
