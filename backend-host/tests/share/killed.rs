//! A process that is killed after a number of messages, for each number: the other process detects it and keeps its memory.
//!
//! The child is a real exporter or importer whose channel goes through a relay. The relay passes messages on both ways, and kills
//! the process after the last message that it should pass on.

use crate::bench::{full, machine, seen};
use crate::child::{alone, role, start_as};
use crate::forger::{get, put};
use crate::left::Left;
use crate::{LONG, UNIT, units};
use gpu_vmm_core::{Backend, Region, Result, WaitFor};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Allowed, Channel, Event, Exporter, ImportOptions, ReleaseOutcome};
use gpu_vmm_testkit::FaultInject;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const IDLE: WaitFor<'static> = WaitFor::all_devices();
const TEST: &str = "killed::kill_at_any_message_spares_peer";

/// A greeting, a description of four messages, one of five, and the request to release.
const BY_EXPORTER: usize = 11;
/// A greeting, two answers, and a farewell.
const BY_IMPORTER: usize = 4;

/// One complete exchange, as an exporter.
fn export<B: Backend>(channel: Channel, region: &mut Region<B>) -> Result<ReleaseOutcome> {
    let mut exporter = Exporter::share(channel, region)?;
    exporter.wait_applied(LONG)?;
    region.unmap(units(3), UNIT, IDLE)?;
    region.grow_to(units(12))?;
    exporter.publish(region)?;
    exporter.wait_applied(LONG)?;
    exporter.request_release()?;
    exporter.wait_released(LONG)
}

/// One complete exchange, as an importer. Returns whether the exporter requested the release of the memory.
fn import<B: Backend>(backend: &B, channel: Channel) -> Result<bool> {
    let mut imported = ImportOptions::new().reserve(units(16)).receive(backend, channel)?;
    loop {
        match imported.next(LONG)? {
            Some(Event::Changed(_)) => assert!(imported.apply(IDLE).is_ok()),
            Some(Event::ReleaseRequested) => return imported.release(IDLE).map(|()| true),
            Some(Event::Gone) => {
                // Complete, as first shared or as changed.
                assert_eq!(seen(imported.region()).len(), 4);
                return Ok(false);
            }
            None => panic!("the exporter says nothing"),
        }
    }
}

/// The child: `exporter 3` is killed after it has sent three messages.
fn be(role: &str) {
    let (part, messages) = role.split_once(' ').unwrap();
    let channel = relayed(messages.parse().unwrap());
    let host = machine();
    match part {
        "exporter" => drop(export(channel, &mut full(&host))),
        _ => drop(import(&host, channel)),
    }
    // The relay kills the process, or the parent does.
    std::thread::sleep(LONG);
}

/// Creates a channel to the parent through a relay.
fn relayed(messages: usize) -> Channel {
    let (inner, outer) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let outer = Arc::new(outer);
    let parent = Arc::new(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let (from_parent, to_child) = (Arc::clone(&parent), Arc::clone(&outer));
    std::thread::spawn(move || while pass_on(&from_parent, &to_child) {});
    std::thread::spawn(move || {
        for _ in 0..messages {
            pass_on(&outer, &parent);
        }
        // SAFETY: ends this process, which was started for that.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    Channel::from_socket(inner, Allowed::same_user()).unwrap()
}

/// Passes one packet from one socket to another, whose buffer never fills up. Returns false at the end.
fn pass_on(from: &OwnedFd, to: &OwnedFd) -> bool {
    let Some((packet, descriptors)) = get(from.as_fd(), RecvFlags::empty()) else { return false };
    put(to.as_fd(), &packet, &descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>())
}

/// Runs the other side of a child that is killed after `messages` messages.
fn beside<T>(part: &str, messages: usize, other_side: impl FnOnce(Channel) -> Result<T>) -> Result<T> {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut child = start_as(TEST, &format!("{part} {messages}"), theirs.into_socket());
    let result = other_side(ours);
    let _ = child.kill();
    child.wait().unwrap();
    result
}

#[test]
fn kill_at_any_message_spares_peer() {
    if let Some(role) = role().filter(|role| role.contains(' ')) {
        return be(&role);
    }
    alone(TEST, || {
        let host = FaultInject::new(machine());
        let before = Left::now(&host);
        for messages in 0..=BY_EXPORTER {
            let result = beside("exporter", messages, |channel| import(&host, channel));
            match result {
                Ok(asked) => assert_eq!(asked, messages == BY_EXPORTER, "after {messages} messages"),
                Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                    assert!(messages < 5, "after {messages} messages")
                }
                Err(error) => panic!("after {messages} messages: {error}"),
            }
            assert_eq!(Left::now(&host), before, "an exporter killed after {messages} messages");
        }
        for messages in 0..=BY_IMPORTER {
            let mut region = full(&host);
            let shared = Left::now(&host);
            let result = beside("importer", messages, |channel| export(channel, &mut region));
            match result {
                Ok(how) if messages == BY_IMPORTER => assert_eq!(how, ReleaseOutcome::Released),
                Ok(how) => assert_eq!((how, messages), (ReleaseOutcome::Gone, 3)),
                Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                    assert!(messages <= 3, "after {messages} messages")
                }
                Err(error) => panic!("after {messages} messages: {error}"),
            }
            // The exporter owns its memory again: only its own changes differ.
            let _ = region.shrink_to(units(8), IDLE).unwrap();
            assert_eq!(seen(&region).len(), if messages < 2 { 4 } else { 3 });
            let mut same = full(&host);
            drop(std::mem::replace(&mut region, same));
            assert_eq!(Left::now(&host), shared, "an importer killed after {messages} messages");
            same = region;
            drop(same);
            assert_eq!(Left::now(&host), before);
        }
    });
}
