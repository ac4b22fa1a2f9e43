//! Peers that do not read, do not write, or are gone.

use super::*;
use crate::PeerError;
use gpu_vmm_core::Operation;
use gpu_vmm_testkit::forked::give_up_root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn silence_error_names_the_missing_message() {
    alone(|| {
        let (mut one, mut other) = Channel::pair().unwrap();
        let error =
            one.receive(&Wait::new(Operation::ImportMemory, "description of a region", SOON)).unwrap_err();
        assert_eq!(error.to_string(), "import memory: no description of a region within 20ms");
        let error = one
            .receive(&Wait::new(Operation::ImportMemory, "description of a region", Duration::ZERO))
            .unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::TimedOut { waited: Duration::ZERO, .. })),
            "{error}"
        );
        // The exchange continues.
        other.send(Operation::Publish, &revision(1), &[]).unwrap();
        assert_eq!(receive(&mut one).unwrap().0, revision(1));
    });
}

#[test]
fn limit_can_exceed_the_clock() {
    alone(|| {
        let (mut one, mut other) = Channel::pair().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                one.receive(&Wait::new(Operation::ImportMemory, "message", Duration::MAX)).unwrap().0
            });
            other.send(Operation::Publish, &revision(1), &[]).unwrap();
            assert_eq!(waiting.join().unwrap(), revision(1));
        });
    });
}

#[test]
fn ungreeted_side_is_sent_nothing() {
    alone(|| {
        let (mut channel, _other) = channel_and_socket();
        channel.set_wait(SOON);
        assert_eq!(channel.wait(), SOON);
        let error = channel.send(Operation::ExportMemory, &Message::End, &[]).unwrap_err();
        assert_eq!(error.to_string(), "export memory: no greeting from the other process within 20ms");
    });
}

#[test]
fn unread_messages_end_at_the_limit() {
    alone(|| {
        let (mut one, mut other) = Channel::pair().unwrap();
        one.set_wait(SOON);
        let message = Message::Removed(vec![u64::MAX; 3000]);
        let mut sent = 0;
        let error = loop {
            match one.send(Operation::ExportMemory, &message, &[]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(
            error.to_string(),
            "export memory: no read of the message by the other process within 20ms"
        );
        // No part of the message that timed out was sent.
        for _ in 0..sent {
            assert_eq!(receive(&mut other).unwrap().0, message);
        }
        one.send(Operation::ExportMemory, &revision(1), &[]).unwrap();
        assert_eq!(receive(&mut other).unwrap().0, revision(1));
    });
}

/// The kernel limits the descriptors that a user has in flight.
#[test]
fn unread_descriptors_end_at_the_limit() {
    alone(|| {
        give_up_root();
        let (mut one, mut other) = Channel::pair().unwrap();
        one.set_wait(SOON);
        let tracer = Tracer::new();
        let fds = [tracer.writing.as_fd(); 10];
        let limit = Rlimit { current: Some(50), maximum: Some(50) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let sent = (0..).find(|_| match one.send(Operation::ExportMemory, &Message::End, &fds) {
            Ok(()) => false,
            Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => true,
            Err(error) => panic!("{error}"),
        });
        // The limit was not the room for bytes.
        let sent = sent.unwrap();
        assert!((1..20).contains(&sent), "{sent} messages under way");
        (0..sent).for_each(|_| drop(receive(&mut other).unwrap()));
        one.send(Operation::ExportMemory, &Message::End, &fds).unwrap();
    });
}

#[test]
fn closed_side_is_gone_after_messages() {
    alone(|| {
        for unread in [false, true] {
            let (mut one, mut other) = Channel::pair().unwrap();
            if unread {
                one.send(Operation::Publish, &revision(8), &[]).unwrap();
            }
            other.send(Operation::Publish, &revision(1), &[]).unwrap();
            other.send(Operation::Publish, &revision(2), &[]).unwrap();
            drop(other);
            assert_eq!(receive(&mut one).unwrap().0, revision(1));
            assert_eq!(receive(&mut one).unwrap().0, revision(2));
            for error in [
                receive(&mut one).unwrap_err(),
                one.send(Operation::Publish, &Message::End, &[]).unwrap_err(),
            ] {
                assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
            }
        }
    });
}

/// The kernel reports once that the other side had not received everything.
#[test]
fn close_with_unread_messages_has_reason() {
    alone(|| {
        let (mut one, other) = Channel::pair().unwrap();
        one.send(Operation::Publish, &revision(8), &[]).unwrap();
        drop(other);
        for expected in [&*Errno::CONNRESET.to_string(), ""] {
            let error = receive(&mut one).unwrap_err();
            assert!(matches!(error.extension(), Some(PeerError::Gone { why }) if why == expected), "{error}");
        }
    });
}

#[test]
fn second_wait_begins_with_the_first() {
    let wait = Wait::new(Operation::Receive, "greeting", SOON);
    std::thread::sleep(SOON);
    let error = wait.then("message").left().unwrap_err();
    assert_eq!(error.to_string(), "receive change: no message within 20ms");
}

#[test]
fn last_messages_arrive_after_failed_send() {
    alone(|| {
        let (mut one, mut other) = Channel::pair().unwrap();
        one.send(Operation::Publish, &revision(8), &[]).unwrap();
        other.send(Operation::Publish, &revision(1), &[]).unwrap();
        drop(other);
        let error = one.send(Operation::Publish, &Message::End, &[]).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
        assert_eq!(receive(&mut one).unwrap().0, revision(1));
    });
}

/// The child is killed while this process waits for it, at each step of an exchange.
#[test]
fn killed_process_is_gone_without_leaks() {
    alone(|| {
        for steps in 0..4 {
            let (mut ours, mut theirs) = Channel::pair().unwrap();
            let tracer = Tracer::new();
            let child = Child::fork(|| {
                for _ in 0..steps {
                    let (message, fds) = receive(&mut theirs).unwrap();
                    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                    theirs.send(Operation::Publish, &message, &fds).unwrap();
                }
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                    .unwrap();
            });
            drop(theirs);
            let end = (0..).find_map(|step| {
                let sent = ours.send(Operation::Publish, &revision(step), &[tracer.writing.as_fd()]);
                sent.and_then(|()| receive(&mut ours)).err().map(|error| (step, error))
            });
            let (step, error) = end.unwrap();
            assert_eq!(step, steps);
            assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
            assert!(!ours.is_connected());
            drop((child, ours));
            tracer.assert_closed_elsewhere();
        }
    });
}

/// Returns the events that poll reports for a channel without waiting: the ones in `events`, and the ones that it always reports.
fn polled(channel: &Channel, events: PollFlags) -> PollFlags {
    let mut poll_fds = [PollFd::new(channel, events)];
    poll(&mut poll_fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    poll_fds[0].revents()
}

#[test]
fn peer_end_is_seen_without_receiving() {
    alone(|| {
        let both = PollFlags::IN | PollFlags::RDHUP;
        let (mut one, mut other) = Channel::pair().unwrap();
        assert_eq!(one.as_raw_fd(), one.as_fd().as_raw_fd());
        assert!(one.is_connected());
        assert_eq!(polled(&one, both), PollFlags::empty());
        other.send(Operation::Publish, &revision(1), &[]).unwrap();
        assert!(one.is_connected());
        assert_eq!(polled(&one, both), PollFlags::IN);
        let copy = other.socket.try_clone().unwrap();
        drop(other);
        assert!(one.is_connected(), "a copy of the other end is open");
        drop(copy);
        for _ in 0..2 {
            assert!(!one.is_connected());
            assert_eq!(polled(&one, both), both | PollFlags::HUP);
            assert_eq!(polled(&one, PollFlags::empty()), PollFlags::HUP, "it is reported unasked");
        }
        assert_eq!(receive(&mut one).unwrap().0, revision(1));
        receive(&mut one).unwrap_err();
        assert!(!one.is_connected());
    });
}

#[test]
fn channel_with_bad_message_is_disconnected() {
    alone(|| {
        let (mut channel, other) = greeted_channel_and_socket();
        assert!(channel.is_connected());
        put(&other, b"nonsense", &[]);
        receive(&mut channel).unwrap_err();
        assert!(!channel.is_connected());
    });
}
