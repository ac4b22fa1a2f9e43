//! Many malformed messages, generated from one seed.

use super::*;
use crate::PeerError;
use gpu_vmm_testkit::Random;

const SEED: u64 = 5;
const MESSAGES: usize = if cfg!(miri) { 60 } else { 10_000 };

/// Makes random bytes, random content behind a valid header, or a valid message that is changed and cut.
fn make(random: &mut Random, nonce: Nonce, descriptors: usize) -> Vec<u8> {
    let why = String::from_utf8_lossy(&random.bytes(60)).into_owned();
    let message = match random.below(4) {
        0 => Message::Removed((0..random.below(20)).map(|_| random.next()).collect()),
        1 => Message::Refused { revision: random.next(), why },
        2 => Message::Hello { nonce },
        _ => revision(random.next()),
    };
    let mut packet = codec::encode(&message, nonce, 1, descriptors).unwrap();
    match random.below(3) {
        0 => random.bytes(200),
        1 => {
            packet.truncate(Header::BYTES);
            packet.extend(random.bytes(100));
            packet
        }
        _ => {
            for _ in 0..=random.below(3) {
                let at = random.below(packet.len());
                packet[at] = random.next() as u8;
            }
            packet.truncate(packet.len() / 2 + random.below(packet.len()));
            packet
        }
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_malformed_messages_leave_nothing_behind() {
    alone(|| {
        let mut random = Random(SEED);
        let tracer = Tracer::new();
        let before = open_files();
        let (mut refused, mut taken) = (0, 0);
        for index in 0..MESSAGES {
            let (mut channel, other) = greeted_channel_and_socket();
            let fds = vec![tracer.writing.as_fd(); random.below(4)];
            put(&other, &make(&mut random, channel.ours, fds.len()), &fds);
            drop(other);
            match receive(&mut channel) {
                Ok(_) => taken += 1,
                Err(error) if matches!(error.extension(), Some(PeerError::BadMessage { .. })) => refused += 1,
                // The channel reports a peer that sends an empty packet and closes as gone.
                Err(error) if matches!(error.extension(), Some(PeerError::Gone { .. })) => {
                    assert!(fds.is_empty())
                }
                Err(error) => panic!("seed {SEED}, message {index}: {error}"),
            }
        }
        assert_eq!(open_files(), before);
        tracer.assert_closed_elsewhere();
        // Some of the messages are valid, and enough are not.
        assert!(refused > MESSAGES / 2 && taken > 0, "{refused} refused, {taken} taken");
    });
}

#[test]
fn the_decoder_takes_any_bytes() {
    let mut random = Random(SEED);
    for _ in 0..MESSAGES {
        crate::fuzz::decode(&make(&mut random, TO_ANYBODY, 0));
        crate::fuzz::decode(&random.bytes(100));
    }
}
