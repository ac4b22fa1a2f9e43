//! Messages that no client would send.

use crate::support::{ServerProcess, UNIT, publish, value};
use gpu_vmm_share::{Allowed, Channel};
use gpu_vmm_testkit::Random;
use rustix::net::{SendFlags, send};
use std::time::Duration;

#[test]
fn damaged_messages_disturb_no_other_client() {
    let server = ServerProcess::start();
    drop(publish(&server.client(), "a", 2, 1));
    let mut random = Random(7);
    let connect = || Channel::connect(server.path(), Allowed::same_user(), Duration::from_secs(10)).unwrap();
    let mut held = Vec::new();
    for round in 0..2000 {
        let channel = connect();
        let mut bytes = random.bytes(80);
        if round % 2 == 0 && bytes.len() > 6 {
            bytes[..6].copy_from_slice(b"gvmm\x01\0");
        }
        // The server may have ended the connection already.
        let _ = send(&channel, &bytes, SendFlags::NOSIGNAL);
        held.push(channel);
        if held.len() == 300 {
            held.clear();
        }
    }
    held.clear();
    let lease = server.client().read("a", Duration::ZERO).unwrap();
    assert_eq!(value(&lease), 1);
    assert_eq!(server.status().server.held, 2 * UNIT.0);
}
