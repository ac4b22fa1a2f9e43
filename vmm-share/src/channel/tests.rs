//! Messages that a channel transfers, and channels whose peer breaks the protocol.

mod bad;
mod child;
mod gone;
mod malformed;

use super::*;
use crate::PeerError;
use crate::message::{MAX_BYTES, MAX_DESCRIPTORS};
use gpu_vmm_core::Operation;
use gpu_vmm_testkit::forked::{Child, alone};
use rustix::io::fcntl_getfd;
use rustix::net::{listen, socket};
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::net::UnixStream;

const LATE: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(20);

/// Returns a channel that has sent its greeting, and the socket at its other end.
fn channel_and_socket() -> (Channel, OwnedFd) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Channel::from_socket(one, Allowed::same_user()).unwrap(), other)
}

/// Returns the same, after the other end has sent its greeting too.
fn greeted_channel_and_socket() -> (Channel, OwnedFd) {
    let (channel, other) = channel_and_socket();
    let hello = codec::encode(&Message::Hello { nonce: [7; 16] }, TO_ANYBODY, 0, 0).unwrap();
    put(&other, &hello, &[]);
    (channel, other)
}

/// Sends a packet that no channel would send.
fn put(socket: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) {
    socket::send(socket.as_fd(), packet, fds, &Wait::new(Operation::Publish, "reading", LATE)).unwrap();
}

fn receive(channel: &mut Channel) -> Result<(Message, Vec<OwnedFd>)> {
    channel.receive(&Wait::new(Operation::Receive, "message", LATE))
}

/// A pipe. Its reading end shows whether the writing end is closed in every process.
struct Tracer {
    reading: PipeReader,
    writing: PipeWriter,
}

impl Tracer {
    fn new() -> Self {
        let (reading, writing) = pipe().unwrap();
        Self { reading, writing }
    }

    #[track_caller]
    fn assert_closed_elsewhere(mut self) {
        drop(self.writing);
        rustix::io::ioctl_fionbio(&self.reading, true).unwrap();
        assert_eq!(self.reading.read(&mut [0]).unwrap(), 0);
    }
}

fn revision(revision: u64) -> Message {
    Message::Applied { revision }
}

#[test]
fn messages_and_descriptors_arrive_in_order() {
    alone(|| {
        let (mut one, mut other) = Channel::pair().unwrap();
        let tracers: Vec<Tracer> = (0..MAX_DESCRIPTORS).map(|_| Tracer::new()).collect();
        for count in [0, 1, 2, MAX_DESCRIPTORS] {
            let fds: Vec<_> = tracers[..count].iter().map(|tracer| tracer.writing.as_fd()).collect();
            one.send(Operation::Publish, &revision(count as u64), &fds).unwrap();
            other.send(Operation::Publish, &Message::Removed(vec![count as u64; 1000]), &fds).unwrap();
        }
        for count in [0, 1, 2, MAX_DESCRIPTORS] {
            let (message, fds) = receive(&mut other).unwrap();
            assert_eq!((message, fds.len()), (revision(count as u64), count));
            let (message, fds) = receive(&mut one).unwrap();
            assert_eq!((message, fds.len()), (Message::Removed(vec![count as u64; 1000]), count));
            for (fd, tracer) in fds.into_iter().zip(&tracers) {
                assert_eq!(fcntl_getfd(&fd).unwrap(), FdFlags::CLOEXEC);
                PipeWriter::from(fd).write_all(b"mine").unwrap();
                assert_eq!((&tracer.reading).read(&mut [0; 8]).unwrap(), 4);
            }
        }
        tracers.into_iter().for_each(Tracer::assert_closed_elsewhere);
    });
}

#[test]
fn unused_end_of_pair_can_move() {
    alone(|| {
        let (mut ours, theirs) = Channel::pair().unwrap();
        assert_eq!((ours.wait(), theirs.wait()), (LATE, LATE), "the default limit");
        let socket = theirs.into_socket();
        // An inherited socket stays open on exec until the channel sets `FD_CLOEXEC`.
        rustix::io::fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        let mut theirs = Channel::from_socket(socket, Allowed::same_user()).unwrap();
        assert_eq!(fcntl_getfd(&theirs).unwrap(), FdFlags::CLOEXEC);
        ours.send(Operation::Publish, &revision(1), &[]).unwrap();
        theirs.send(Operation::Publish, &revision(2), &[]).unwrap();
        assert_eq!(receive(&mut theirs).unwrap().0, revision(1));
        assert_eq!(receive(&mut ours).unwrap().0, revision(2));

        // An end counts as used after it has sent, and after it has received.
        for sends in [true, false] {
            let (mut ours, mut theirs) = Channel::pair().unwrap();
            if sends {
                ours.send(Operation::Publish, &revision(1), &[]).unwrap();
            } else {
                theirs.send(Operation::Publish, &revision(1), &[]).unwrap();
                receive(&mut ours).unwrap();
            }
            let mut theirs = Channel::from_socket(theirs.into_socket(), Allowed::same_user()).unwrap();
            let error = ours.send(Operation::Publish, &revision(2), &[]).unwrap_err().to_string();
            assert!(error.contains("after this end had been used"), "{error}");
            receive(&mut theirs).unwrap_err();
        }
    });
}

#[test]
fn no_other_socket_makes_a_channel() {
    alone(|| {
        let open = |family, kind| socket(family, kind, None).unwrap();
        let listening = open(AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::bind(&listening, &SocketAddrUnix::new_unnamed()).unwrap();
        listen(&listening, 1).unwrap();
        for (socket, part) in [
            (File::open("/dev/null").unwrap().into(), "ENOTSOCK"),
            (UnixStream::pair().unwrap().0.into(), "EPROTOTYPE (91): it is of kind 1 "),
            (open(AddressFamily::INET, SocketType::STREAM), "EPROTOTYPE"),
            (open(AddressFamily::UNIX, SocketType::SEQPACKET), "ENOTCONN"),
            (listening, "ENOTCONN"),
        ] {
            let error = Channel::from_socket(socket, Allowed::same_user()).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("a connected Unix socket"), "{error}");
        }
    });
}

#[test]
fn channel_to_refused_process_is_closed() {
    alone(|| {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let error = Channel::from_socket(one, Allowed::process(1)).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::NotAllowed { pid, .. }) if *pid == std::process::id()),
            "{error}"
        );
        // Nothing was sent, not even a greeting.
        let error = socket::receive(other.as_fd(), &Wait::new(Operation::Receive, "end", LATE)).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::Gone { .. })), "{error}");
    });
}

#[test]
fn oversized_message_is_not_sent() {
    alone(|| {
        let (mut one, mut other) = Channel::pair().unwrap();
        let error =
            one.send(Operation::Publish, &Message::Removed(vec![u64::MAX; MAX_BYTES / 10]), &[]).unwrap_err();
        assert!(error.to_string().contains("more than the limit of 32768 bytes per message"), "{error}");
        assert!(error.to_string().contains("sendmsg answered EMSGSIZE"), "{error}");
        let fds = vec![other.as_fd(); MAX_DESCRIPTORS + 1];
        let error = one.send(Operation::Publish, &Message::End, &fds).unwrap_err();
        assert!(error.to_string().contains("more than the limit of 128 descriptors per message"), "{error}");
        assert!(error.to_string().ends_with("(129 descriptors)"), "{error}");
        one.send(Operation::Publish, &revision(1), &[]).unwrap();
        assert_eq!(receive(&mut other).unwrap().0, revision(1));
        // The number of the message and the revision take a byte each, and the length of the text takes three.
        let longest =
            |more| Message::Refused { revision: 0, why: "x".repeat(MAX_BYTES - Header::BYTES - 5 + more) };
        one.send(Operation::Publish, &longest(1), &[]).unwrap_err();
        one.send(Operation::Publish, &longest(0), &[]).unwrap();
        assert_eq!(receive(&mut other).unwrap().0, longest(0));
    });
}
