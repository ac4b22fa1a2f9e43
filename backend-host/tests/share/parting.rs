//! How an exchange ends: with a message, without one, or with the process.

use crate::bench::{full, machine, seen, shared};
use crate::child::{alone, is_child, start};
use crate::forger::{Forger, Say};
use crate::left::Left;
use crate::{LONG, units};
use gpu_vmm_core::{Error, Operation, WaitFor};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Channel, Event, Exporter, ImportOptions, ReleaseOutcome};
use gpu_vmm_testkit::FaultInject;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const IDLE: WaitFor<'static> = WaitFor::all_devices();
const SHORT: Duration = Duration::from_millis(5);

#[test]
fn importer_releases_on_request() {
    alone("parting::importer_releases_on_request", || {
        let (here, there) = (machine(), FaultInject::new(machine()));
        let region = full(&here);
        let before = Left::now(&there);
        let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
        exporter.request_release().unwrap();
        exporter.request_release().unwrap();
        assert!(matches!(
            exporter.wait_released(SHORT).as_ref().map_err(Error::extension),
            Err(Some(PeerError::TimedOut { .. }))
        ));
        assert_eq!(imported.next(LONG).unwrap(), Some(Event::ReleaseRequested));
        assert_eq!(imported.next(SHORT).unwrap(), None, "it is asked once");
        assert!(exporter.is_connected() && imported.is_connected());
        imported.release(IDLE).unwrap();
        assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Released);
        assert_eq!(exporter.wait_released(SHORT).unwrap(), ReleaseOutcome::Released);
        assert!(!exporter.is_connected());
        let error = exporter.publish(&region).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::Gone { why, .. }) if why.contains("has released the memory")),
            "{error}"
        );
        drop(exporter);
        assert_eq!(Left::now(&there), before);
    });
}

/// The first of the importer's messages is no release, and its end has arrived when the limit is over.
#[test]
fn release_wait_ends_at_the_limit() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let (mut exporter, imported) = shared(&region, &ImportOptions::new(), &there);
    imported.release(IDLE).unwrap();
    let error = exporter.wait_released(Duration::ZERO).unwrap_err();
    assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");
    assert_eq!(exporter.wait_released(Duration::ZERO).unwrap(), ReleaseOutcome::Released);
}

#[test]
fn importer_reports_memory_it_keeps() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let region = full(&here);
    let (mut exporter, imported) = shared(&region, &ImportOptions::new(), &there);
    exporter.wait_applied(LONG).unwrap();
    there.fail_calls(&[Operation::Unmap]);
    imported.release(IDLE).unwrap_err();
    there.stop();
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Kept);
    assert!(!exporter.is_connected());
    for error in [exporter.publish(&region).unwrap_err(), exporter.request_release().unwrap_err()] {
        let why = "it keeps the memory and has ended the exchange";
        assert!(matches!(error.extension(), Some(PeerError::Gone { why: told }) if told == why), "{error}");
    }
}

#[test]
fn dropped_importer_is_gone() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let region = full(&here);
    let (mut exporter, imported) = shared(&region, &ImportOptions::new(), &there);
    drop(imported);
    assert_eq!(there.live().handles, 0);
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Gone);
    assert!(matches!(
        exporter.request_release().as_ref().map_err(Error::extension),
        Err(Some(PeerError::Gone { .. }))
    ));
}

#[test]
fn send_finds_importer_gone() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let (mut exporter, imported) = shared(&region, &ImportOptions::new(), &there);
    drop(imported);
    let error = exporter.request_release().unwrap_err();
    assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Gone);
}

/// A change that was sent in part cannot be sent again.
#[test]
fn importer_that_reads_nothing_is_dropped() {
    let host = machine();
    let mut region = full(&host);
    let memory = region.mapping_at(units(3)).unwrap().memory.clone();
    let (forger, mut channel) = Forger::new();
    // Long enough for the messages that the socket has room for.
    channel.set_wait(Duration::from_secs(2));
    let mut exporter = Exporter::share(channel, &region).unwrap();
    let error = loop {
        region.unmap(units(3), units(1), IDLE).unwrap();
        let removed = exporter.publish(&region);
        region.map(units(3), &memory).unwrap();
        if let Err(error) = removed.and_then(|_| exporter.publish(&region)) {
            break error;
        }
    };
    assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");
    assert!(!exporter.is_connected(), "although the socket is open");
    for error in [exporter.publish(&region).unwrap_err(), exporter.wait_released(LONG).unwrap_err()] {
        assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
    }
    drop(forger);
}

#[test]
fn memory_outlives_its_exporter() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let before = seen(&region);
    let (exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    drop((exporter, region, here));
    for _ in 0..2 {
        assert_eq!(imported.next(LONG).unwrap(), Some(Event::Gone));
        assert!(!imported.is_connected());
    }
    assert_eq!(seen(imported.region()), before);
    imported.region_mut().write(units(6), b"still").unwrap();
    imported.release(IDLE).unwrap();
}

#[test]
fn importer_releases_after_exporter_is_gone() {
    let (here, there) = (machine(), FaultInject::new(machine()));
    let region = full(&here);
    for fails in [false, true] {
        let (exporter, imported) = shared(&region, &ImportOptions::new(), &there);
        drop(exporter);
        assert!(!imported.is_connected());
        if fails {
            there.fail_calls(&[Operation::Unmap]);
        }
        // The importer has not received the end of the exchange. The send finds it.
        let released = imported.release(IDLE);
        there.stop();
        assert_eq!(released.is_err(), fails, "{released:?}");
        assert!(fails || there.live().handles == 0);
    }
}

#[test]
fn publish_reports_the_end_first() {
    let host = machine();
    let mut region = full(&host);
    let lie = Say::Applied { revision: 1 };
    for (said, expected) in [
        (&lie, "revision 1"),
        (&Say::Released, "it has released the memory"),
        (&Say::Kept, "it keeps the memory and has ended the exchange"),
    ] {
        let (mut forger, channel) = Forger::new();
        let mut exporter = Exporter::share(channel, &region).unwrap();
        region.unmap(units(3), units(1), IDLE).unwrap();
        forger.say(said, &[]);
        let error = exporter.publish(&region).unwrap_err();
        assert!(error.operation() == Operation::Publish && error.to_string().contains(expected), "{error}");
        let is_bad = matches!(error.extension(), Some(PeerError::BadMessage { .. }));
        assert_eq!(is_bad, matches!(said, Say::Applied { .. }), "{error}");
        assert!(!exporter.is_connected());
        region = full(&host);
    }
}

#[test]
fn received_change_is_applied_without_exporter() {
    let (here, there) = (machine(), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new().reserve(units(32)), &there);
    region.grow_to(units(12)).unwrap();
    exporter.publish(&region).unwrap();
    let told = imported.next(LONG).unwrap();
    assert!(matches!(told, Some(Event::Changed(_))), "{told:?}");
    drop(exporter);
    assert_eq!(imported.next(LONG).unwrap(), Some(Event::Gone));
    assert!(imported.is_behind());
    imported.apply(IDLE).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
}

/// Ends the child without a message, by a signal that a process cannot catch.
fn die() -> ! {
    // SAFETY: ends this process, which was started for that.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("a process that was killed goes on");
}

fn childs_channel() -> Channel {
    Channel::from_stdin().unwrap()
}

/// Waits for the end of the peer, without receiving anything.
fn wait_for_the_end(of: &impl AsFd) {
    let limit = Timespec::try_from(LONG).unwrap();
    assert_eq!(poll(&mut [PollFd::new(of, PollFlags::empty())], Some(&limit)).unwrap(), 1, "it goes on");
}

#[test]
fn an_importer_that_is_killed_is_gone() {
    let host = machine();
    if is_child() {
        let _imported = ImportOptions::new().receive(&host, childs_channel()).unwrap();
        die();
    }
    let region = full(&host);
    let (ours, theirs) = Channel::pair().unwrap();
    let mut child = start("parting::an_importer_that_is_killed_is_gone", theirs.into_socket());
    let mut exporter = Exporter::share(ours, &region).unwrap();
    wait_for_the_end(&exporter);
    assert!(!exporter.is_connected());
    assert_eq!(exporter.wait_released(LONG).unwrap(), ReleaseOutcome::Gone);
    exporter.wait_applied(SHORT).unwrap();
    child.wait().unwrap();
    assert_eq!(seen(&region), seen(&full(&host)));
}

#[test]
fn exporter_refuses_unasked_answer() {
    let host = machine();
    let region = full(&host);
    for (lie, words) in [
        (Say::Applied { revision: 1 }, "it answers revision 1; the last one sent is 0"),
        (Say::Refused { revision: u64::MAX, why: String::new() }, "it answers revision 18446744073709551615"),
        (Say::ReleaseRequested, "a request to release the memory came instead of an answer"),
        (Say::End, "the end of a description came instead of an answer"),
        (Say::Hello { nonce: [1; 16] }, "a second greeting"),
    ] {
        let (mut forger, channel) = Forger::new();
        let mut exporter = Exporter::share(channel, &region).unwrap();
        forger.say(&lie, &[]);
        let error = exporter.wait_applied(LONG).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::BadMessage { .. }))
                && error.to_string().contains(words),
            "{error}"
        );
        assert!(!exporter.is_connected(), "although the socket is open: {error}");
        for error in [
            exporter.wait_applied(LONG).unwrap_err(),
            exporter.publish(&region).unwrap_err(),
            exporter.request_release().unwrap_err(),
            exporter.wait_released(LONG).unwrap_err(),
        ] {
            let broken = "the exchange has ended with an error";
            assert!(matches!(error.extension(), Some(PeerError::Gone { why }) if why == broken), "{error}");
        }
    }
    // Terminal control sequences, and more text than is useful.
    let (mut forger, channel) = Forger::new();
    let mut exporter = Exporter::share(channel, &region).unwrap();
    let why = format!("\x1b[31mno\r\n{}", "!".repeat(2000));
    forger.say(&Say::Refused { revision: 0, why }, &[]);
    let error = exporter.wait_applied(LONG).unwrap_err().to_string();
    assert!(error.contains("refused: [31mno!!!") && error.len() < 1100, "{error:?}");
    // An answer to a revision that was already answered, and one with a descriptor.
    let (mut forger, channel) = Forger::new();
    let mut exporter = Exporter::share(channel, &region).unwrap();
    forger.say(&Say::Applied { revision: 0 }, &[]);
    exporter.wait_applied(LONG).unwrap();
    forger.say(&Say::Applied { revision: 0 }, &[]);
    let error = exporter.wait_released(LONG).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("it answers revision 0; the last one sent is 0, the last one applied Some(0)"),
        "{error}"
    );
    let (mut forger, channel) = Forger::new();
    let mut exporter = Exporter::share(channel, &region).unwrap();
    forger.say(&Say::Applied { revision: 0 }, &[std::io::stdin().as_fd()]);
    let error = exporter.wait_applied(LONG).unwrap_err();
    assert!(
        error.to_string().contains("1 descriptors came with an answer to a description, which has 0"),
        "{error}"
    );
}

#[test]
fn endless_messages_end_at_the_limit() {
    let host = machine();
    let mut region = full(&host);
    let (mut forger, channel) = Forger::new();
    let mut exporter = Exporter::share(channel, &region).unwrap();
    region.unmap(units(3), units(1), IDLE).unwrap();
    exporter.publish(&region).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The peer refuses the first description repeatedly, and never answers the change.
            let refused = Say::Refused { revision: 0, why: String::new() };
            while !over.load(Ordering::Relaxed) {
                forger.say(&refused, &[]);
            }
        });
        let settled = exporter.wait_applied(SHORT);
        let parted = exporter.wait_released(SHORT);
        over.store(true, Ordering::Relaxed);
        assert!(
            matches!(
                settled.as_ref().map_err(Error::extension),
                Err(Some(PeerError::TimedOut { waited: SHORT, .. }))
            ),
            "{settled:?}"
        );
        assert!(
            matches!(
                parted.as_ref().map_err(Error::extension),
                Err(Some(PeerError::TimedOut { waited: SHORT, .. }))
            ),
            "{parted:?}"
        );
    });
}
