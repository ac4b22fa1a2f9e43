//! New contents at the same addresses.

use crate::support::{ServerProcess, UNIT, WAIT, fill, idle, publish, value};
use gpu_vmm_core::Bytes;
use gpu_vmm_serve::{LeaseEvent, RenewContents};
use std::time::Duration;

#[test]
fn reader_maps_a_new_epoch_in_place() {
    let server = ServerProcess::start();
    drop(publish(&server.client(), "a", 3, 10));
    let writer = server.elsewhere(|client| {
        ServerProcess::until(&client, |region| region.readers > 0);
        let mut lease = client.write("a", WAIT).unwrap();
        // One handle of three, with its contents.
        let renewed = lease.renew(UNIT, Bytes(1), RenewContents::Copy, idle()).unwrap();
        assert_eq!(renewed, UNIT..Bytes(2 * UNIT.0));
        assert_eq!(value(&lease), 10);
        lease.region_mut().fill(UNIT, UNIT, 77).unwrap();
        assert_eq!(lease.commit(None).unwrap(), 2);
        assert!(lease.region_mut().fill(UNIT, UNIT, 78).is_err());
        lease.renew(Bytes(0), Bytes(3 * UNIT.0), RenewContents::Undefined, idle()).unwrap();
        fill(&mut lease, 20);
        assert_eq!(lease.commit(None).unwrap(), 3);
    });
    let mut lease = server.client().read("a", Duration::ZERO).unwrap();
    let address = lease.region().address();
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::NewEpoch(2)));
    writer.finish();
    // Until it is applied, nothing has changed.
    assert_eq!((value(&lease), lease.epoch(), lease.is_behind()), (10, 1, true));
    assert_eq!(lease.apply(idle()).unwrap(), 2);
    let mut bytes = [0; 1];
    lease.region().read(UNIT, &mut bytes).unwrap();
    assert_eq!((bytes[0], lease.region().address()), (77, address));
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::NewEpoch(3)));
    lease.apply(idle()).unwrap();
    assert_eq!((value(&lease), lease.epoch(), lease.region().address()), (20, 3, address));
    assert_eq!(lease.next(Duration::ZERO).unwrap(), None);
    lease.close(idle()).unwrap();
    assert_eq!(server.idle().held, 3 * UNIT.0);
}

#[test]
fn late_reader_skips_epochs() {
    let server = ServerProcess::start();
    drop(publish(&server.client(), "a", 2, 0));
    let writer = server.elsewhere(|client| {
        ServerProcess::until(&client, |region| region.readers > 0);
        let mut lease = client.write("a", WAIT).unwrap();
        for epoch in 2..=50 {
            lease.renew(Bytes(0), Bytes(2 * UNIT.0), RenewContents::Undefined, idle()).unwrap();
            fill(&mut lease, epoch);
            assert_eq!(lease.commit(None).unwrap(), u64::from(epoch));
        }
    });
    let mut lease = server.client().read("a", Duration::ZERO).unwrap();
    writer.finish();
    // The first epoch that the server has offered, and then the last one; no others are kept.
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::NewEpoch(2)));
    assert_eq!(server.status().server.held, 3 * 2 * UNIT.0);
    lease.apply(idle()).unwrap();
    assert_eq!(value(&lease), 2);
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::NewEpoch(50)));
    lease.apply(idle()).unwrap();
    assert_eq!(value(&lease), 50);
}

#[test]
fn uncommitted_writer_changes_nothing() {
    let server = ServerProcess::start();
    drop(publish(&server.client(), "a", 2, 5));
    for kill in [false, true] {
        let (ready, go) = std::io::pipe().unwrap();
        let writer = server.elsewhere(|client| {
            use std::io::Write;
            let mut lease = client.write("a", WAIT).unwrap();
            lease.renew(Bytes(0), Bytes(2 * UNIT.0), RenewContents::Undefined, idle()).unwrap();
            fill(&mut lease, 66);
            (&go).write_all(&[0]).unwrap();
            if kill {
                std::thread::sleep(WAIT);
            }
        });
        use std::io::Read;
        (&ready).read_exact(&mut [0]).unwrap();
        match kill {
            true => drop(writer),
            false => writer.finish(),
        }
        let lease = server.client().write("a", WAIT).unwrap();
        assert_eq!((value(&lease), lease.epoch()), (5, 1));
        lease.close(idle()).unwrap();
        assert_eq!(server.idle().held, 2 * UNIT.0);
    }
}
