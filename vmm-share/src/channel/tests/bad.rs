//! Invalid messages. A channel refuses each with its reason, closes its descriptors, and accepts no later message.

use super::*;
use crate::PeerError;
use gpu_vmm_core::{ErrorKind, Operation};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;

/// Makes the first message after the greeting for the channel with this nonce. It is invalid.
type Make = fn(Nonce) -> Vec<u8>;

fn good(nonce: Nonce) -> Vec<u8> {
    codec::encode(&revision(5), nonce, 1, 1).unwrap()
}

fn changed(nonce: Nonce, at: usize, to: u8) -> Vec<u8> {
    let mut packet = good(nonce);
    packet[at] = to;
    packet
}

/// Returns a valid header with an invalid message behind it.
fn with_body(nonce: Nonce, body: &[u8]) -> Vec<u8> {
    let mut packet = good(nonce);
    packet.truncate(Header::BYTES);
    packet.extend(body);
    packet
}

const VERSION_AT: usize = 4;
const DESCRIPTORS_AT: usize = 6;
const NONCE_AT: usize = 8;
const SEQUENCE_AT: usize = 24;

/// The number of [`Message::Removed`] in postcard.
const REMOVED: u8 = 3;

/// A list that announces more elements than any memory can hold.
const LIE: [u8; 11] = [REMOVED, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];

const CASES: [(Make, &str); 18] = [
    (|_| Vec::new(), "0 bytes, fewer than the 32 of a header"),
    (|nonce| good(nonce)[..Header::BYTES - 1].to_vec(), "31 bytes, fewer than the 32 of a header"),
    (|nonce| changed(nonce, 0, b'G'), "it begins with [47, 76, 6d, 6d]"),
    (|nonce| changed(nonce, VERSION_AT, 2), "it has protocol version 2, and 1 was expected"),
    (|nonce| changed(nonce, NONCE_AT, !nonce[0]), "it is of another exchange"),
    (|_| good([9; 16]), "it is of another exchange"),
    (|_| good(TO_ANYBODY), "it is addressed to 00000000000000000000000000000000"),
    (|nonce| changed(nonce, SEQUENCE_AT, 0), "it has number 0, and 1 was expected"),
    (|nonce| changed(nonce, SEQUENCE_AT, 2), "it has number 2, and 1 was expected"),
    (|nonce| changed(nonce, SEQUENCE_AT + 7, 1), "it has number 72057594037927937, and 1 was expected"),
    (|nonce| changed(nonce, DESCRIPTORS_AT, 0), "its header announces 0 descriptors, and 1 came with it"),
    (|nonce| changed(nonce, DESCRIPTORS_AT, 2), "its header announces 2 descriptors, and 1 came with it"),
    (|nonce| [good(nonce), vec![0; 3]].concat(), "3 bytes follow its end"),
    (|nonce| with_body(nonce, &[]), "its content is not a message"),
    (|nonce| with_body(nonce, &[200]), "its content is not a message"),
    (|nonce| with_body(nonce, &LIE), "its content is not a message"),
    (|nonce| [good(nonce), vec![0; MAX_BYTES]].concat(), "it is longer than 32768 bytes"),
    (|nonce| codec::encode(&Message::Hello { nonce: [7; 16] }, nonce, 1, 1).unwrap(), "a second greeting"),
];

#[track_caller]
fn assert_refused(mut channel: Channel, other: &OwnedFd, part: &str) {
    let error = receive(&mut channel).unwrap_err();
    let Some(PeerError::BadMessage { why, .. }) = error.extension() else { panic!("{part:?}: {error}") };
    assert!(why.contains(part), "{part:?} is missing in {why:?}");
    assert_ended(channel, other, why);
}

#[track_caller]
fn assert_ended(mut channel: Channel, other: &OwnedFd, why: &str) {
    // Every later call fails with the same reason, and the other side sees the end of the channel.
    let why = format!("an earlier message was not accepted, so no later one is: {why}");
    for error in [
        receive(&mut channel).unwrap_err(),
        channel.send(Operation::Publish, &Message::End, &[]).unwrap_err(),
    ] {
        assert!(
            matches!(error.extension(), Some(PeerError::BadMessage { why: later }) if later.ends_with(&*why)),
            "{error}"
        );
    }
    let wait = Wait::new(Operation::Receive, "end", LATE);
    let end = std::iter::repeat_with(|| socket::receive(other.as_fd(), &wait)).find_map(Result::err);
    assert!(matches!(end.as_ref().map(Error::extension), Some(Some(PeerError::Gone { .. }))), "{end:?}");
}

#[test]
fn bad_messages_end_the_exchange() {
    alone(|| {
        for (make, part) in CASES {
            let (channel, other) = greeted_channel_and_socket();
            let tracer = Tracer::new();
            put(&other, &make(channel.ours), &[tracer.writing.as_fd()]);
            put(&other, &codec::encode(&revision(6), channel.ours, 2, 1).unwrap(), &[tracer.writing.as_fd()]);
            assert_refused(channel, &other, part);
            tracer.assert_closed_elsewhere();
        }
        // The unchanged message is accepted.
        let (mut channel, other) = greeted_channel_and_socket();
        put(&other, &good(channel.ours), &[other.as_fd()]);
        assert_eq!(receive(&mut channel).unwrap().0, revision(5));
    });
}

#[test]
fn an_empty_message_is_not_the_end() {
    alone(|| {
        let (channel, other) = greeted_channel_and_socket();
        put(&other, &[], &[]);
        assert_refused(channel, &other, "0 bytes");
    });
}

#[test]
fn more_descriptors_than_fit_are_all_closed() {
    alone(|| {
        // The last number is the most that the kernel accepts.
        for count in [MAX_DESCRIPTORS + 1, MAX_DESCRIPTORS + 2, 253] {
            let (channel, other) = greeted_channel_and_socket();
            let tracer = Tracer::new();
            let fds = vec![tracer.writing.as_fd(); count];
            let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
            let mut packet = good(channel.ours);
            packet[DESCRIPTORS_AT..NONCE_AT].copy_from_slice(&(count as u16).to_le_bytes());
            let packet = [rustix::io::IoSlice::new(&packet)];
            rustix::net::sendmsg(&other, &packet, &mut control, rustix::net::SendFlags::empty()).unwrap();
            assert_refused(channel, &other, "it has more than 128 descriptors");
            tracer.assert_closed_elsewhere();
        }
    });
}

#[test]
fn descriptors_without_room_are_all_closed() {
    alone(|| {
        let (mut channel, other) = greeted_channel_and_socket();
        let tracer = Tracer::new();
        let fds = vec![tracer.writing.as_fd(); 8];
        put(&other, &codec::encode(&revision(5), channel.ours, 1, fds.len()).unwrap(), &fds);
        // This process has room for some of the descriptors.
        let next = rustix::io::dup(&other).unwrap().as_raw_fd().unsigned_abs();
        let limit = Rlimit { current: Some(u64::from(next) + 3), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        // The other process has done nothing wrong.
        let error = receive(&mut channel).unwrap_err();
        let text = error.to_string();
        assert_eq!(
            (error.operation(), error.kind()),
            (Operation::Receive, ErrorKind::OutOfDescriptors),
            "{text}"
        );
        assert!(text.contains("3 of the descriptors") && text.contains("RLIMIT_NOFILE"), "{text}");
        assert_ended(channel, &other, &text);
        tracer.assert_closed_elsewhere();
    });
}

#[test]
fn first_message_must_be_a_greeting() {
    alone(|| {
        let hello = Message::Hello { nonce: [7; 16] };
        for (packet, part) in [
            (codec::encode(&revision(1), TO_ANYBODY, 0, 0).unwrap(), "its first message is no greeting"),
            (codec::encode(&hello, TO_ANYBODY, 1, 0).unwrap(), "it has number 1, and 0 was expected"),
            (codec::encode(&hello, [7; 16], 0, 0).unwrap(), "it is of another exchange"),
        ] {
            let (channel, other) = channel_and_socket();
            put(&other, &packet, &[]);
            assert_refused(channel, &other, part);
        }
    });
}

#[test]
fn descriptors_beside_a_greeting_are_refused() {
    alone(|| {
        let (mut channel, other) = channel_and_socket();
        let tracer = Tracer::new();
        let hello = codec::encode(&Message::Hello { nonce: [7; 16] }, TO_ANYBODY, 0, 1).unwrap();
        put(&other, &hello, &[tracer.writing.as_fd()]);
        channel.send(Operation::Publish, &revision(1), &[]).unwrap_err();
        // Its owner decides when they are closed, which can take long.
        drop(channel);
        tracer.assert_closed_elsewhere();
    });
}

#[test]
fn recorded_message_is_never_taken_again() {
    alone(|| {
        let wait = Wait::new(Operation::Receive, "message", LATE);
        let next = |socket: &OwnedFd| socket::receive(socket.as_fd(), &wait).unwrap().bytes;
        // An attacker records the messages between two channels.
        let (mut sender, tap) = channel_and_socket();
        let (mut receiver, relay) = channel_and_socket();
        put(&tap, &next(&relay), &[]);
        sender.send(Operation::Publish, &revision(1), &[]).unwrap();
        sender.send(Operation::Publish, &revision(2), &[]).unwrap();
        let [hello, first, second] = [next(&tap), next(&tap), next(&tap)];
        put(&relay, &hello, &[]);
        put(&relay, &first, &[]);
        assert_eq!(receive(&mut receiver).unwrap().0, revision(1));
        put(&relay, &first, &[]);
        assert_refused(receiver, &relay, "it has number 1, and 2 was expected");

        let (another, relay) = channel_and_socket();
        for packet in [&hello, &first, &second] {
            put(&relay, packet, &[]);
        }
        assert_refused(another, &relay, "it is of another exchange");
    });
}
