//! A description of a region, or of a change, as a sequence of messages.

use crate::Channel;
use crate::PeerError;
use crate::importer_state::{Claim, MAX_MAPPINGS, MAX_PIECES};
use crate::manifest::Origin;
use crate::message::{Begin, MAX_DESCRIPTORS, MAX_ENTRIES, Message};
use crate::socket::Wait;
use gpu_vmm_core::{Error, Operation, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends a description, with a descriptor for each piece, within the channel's time limit.
///
/// # Errors
///
/// Those of the channel. The peer may then have received some of the messages, so the exchange cannot go on.
pub(crate) fn send(
    channel: &mut Channel,
    operation: Operation,
    (origin, revision): (Origin, u64),
    claim: &Claim,
    descriptors: &[OwnedFd],
) -> Result<()> {
    let wait = Wait::new(operation, "read of the whole description by the other process", channel.wait());
    let mut say = |message: &Message, descriptors: &[BorrowedFd<'_>]| {
        // One limit for all messages, so that a slow reader is not waited for any longer than one that does not read.
        wait.left()?;
        channel.send(operation, message, descriptors)
    };
    // The counts were checked: they are below 2^32.
    let count = |number: usize| number as u32;
    let begin = Begin {
        origin,
        revision,
        base: claim.base,
        end: claim.end,
        removed: count(claim.removed.len()),
        pieces: count(claim.pieces.len()),
        mappings: count(claim.mappings.len()),
    };
    say(&Message::Begin(begin), &[])?;
    for removed in claim.removed.chunks(MAX_ENTRIES) {
        say(&Message::Removed(removed.to_vec()), &[])?;
    }
    let pieces = claim.pieces.chunks(MAX_DESCRIPTORS).zip(descriptors.chunks(MAX_DESCRIPTORS));
    for (pieces, descriptors) in pieces {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        say(&Message::Pieces(pieces.to_vec()), &descriptors)?;
    }
    for mappings in claim.mappings.chunks(MAX_ENTRIES) {
        say(&Message::Mappings(mappings.to_vec()), &[])?;
    }
    say(&Message::End, &[])
}

/// Receives the rest of the description that `begin` started, with the counts that it announced, within the channel's time
/// limit.
///
/// # Errors
///
/// [`PeerError::BadMessage`] for other messages or counts, and the errors of the channel.
pub(crate) fn receive(
    channel: &mut Channel,
    operation: Operation,
    begin: &Begin,
) -> Result<(Claim, Vec<OwnedFd>)> {
    let most = |what, count: u32, most: usize| match count as usize {
        count if count <= most => Ok(count),
        count => bad(operation, format!("{count} {what} are announced, and the limit is {most}")),
    };
    let removed = most("mappings to be removed", begin.removed, MAX_MAPPINGS)?;
    let pieces = most("pieces", begin.pieces, MAX_PIECES)?;
    let mappings = most("mappings", begin.mappings, MAX_MAPPINGS)?;
    let mut claim = Claim { base: begin.base, end: begin.end, ..Claim::default() };
    let mut descriptors = Vec::new();
    let wait = Wait::new(operation, "rest of a description", channel.wait());
    loop {
        let (message, came) = receive_whole(channel, &wait)?;
        match message {
            Message::Removed(list) => {
                append(operation, "mappings to be removed", &mut claim.removed, list, removed)?;
            }
            Message::Pieces(list) => {
                append(operation, "pieces", &mut claim.pieces, list, pieces)?;
                descriptors.extend(came);
            }
            Message::Mappings(list) => {
                append(operation, "mappings", &mut claim.mappings, list, mappings)?;
            }
            Message::End => break,
            other => return out_of_turn(operation, &other, "the rest of a description"),
        }
    }
    let came = (claim.removed.len(), claim.pieces.len(), claim.mappings.len());
    if came != (removed, pieces, mappings) {
        let said = (removed, pieces, mappings);
        let why = format!("{said:?} removals, pieces and mappings were announced, and {came:?} came");
        return bad(operation, why);
    }
    Ok((claim, descriptors))
}

/// Waits for a message, which must have the number of descriptors that its kind needs.
pub(crate) fn receive_whole(channel: &mut Channel, wait: &Wait) -> Result<(Message, Vec<OwnedFd>)> {
    let (message, descriptors) = channel.receive(wait)?;
    let (came, expected) = (descriptors.len(), message.descriptors());
    if came == expected {
        return Ok((message, descriptors));
    }
    bad(wait.operation, format!("{came} descriptors came with {}, which has {expected}", message.name()))
}

/// Returns the error for a message that is not valid at this point.
pub(crate) fn out_of_turn<T>(operation: Operation, message: &Message, instead_of: &str) -> Result<T> {
    bad(operation, format!("{} came instead of {instead_of}", message.name()))
}

fn bad<T>(operation: Operation, why: String) -> Result<T> {
    Err(Error::of_extension(operation, PeerError::BadMessage { why }))
}

/// Appends the items of one message: at least one item, and in total no more than announced.
fn append<T>(
    operation: Operation,
    what: &str,
    to: &mut Vec<T>,
    list: Vec<T>,
    announced: usize,
) -> Result<()> {
    if list.is_empty() {
        return bad(operation, format!("a message with no {what}"));
    }
    if to.len() + list.len() > announced {
        let came = to.len() + list.len();
        return bad(operation, format!("{announced} {what} were announced, and {came} came"));
    }
    to.extend(list);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::SharedMapping;
    use std::time::Duration;

    const OPERATION: Operation = Operation::Publish;

    fn origin() -> Origin {
        Origin { vendor: "host".to_owned(), library: "1".to_owned() }
    }

    #[test]
    fn long_lists_arrive_in_order() {
        // The largest numbers, which take the most bytes.
        let count = 2 * MAX_ENTRIES as u64 + 1;
        let removed: Vec<u64> = (0..count).map(|at| u64::MAX - at).collect();
        let mappings: Vec<_> =
            removed.iter().map(|offset| SharedMapping { offset: *offset, piece: u32::MAX }).collect();
        let claim = Claim { base: 1, end: 2, removed, mappings, ..Claim::default() };
        let (mut ours, mut theirs) = Channel::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut ours, OPERATION, (origin(), 7), &claim, &[]).unwrap());
            let wait = Wait::new(OPERATION, "description", theirs.wait());
            let Message::Begin(begin) = receive_whole(&mut theirs, &wait).unwrap().0 else {
                panic!("a description has a beginning")
            };
            assert_eq!((&begin.origin, begin.revision), (&origin(), 7));
            let (found, descriptors) = receive(&mut theirs, OPERATION, &begin).unwrap();
            assert_eq!((found.base, found.end, descriptors.len()), (1, 2, 0));
            assert_eq!((found.removed, found.mappings), (claim.removed.clone(), claim.mappings.clone()));
        });
    }

    #[test]
    fn as_many_entries_as_are_permitted_arrive() {
        let answer = |removed: usize| {
            let claim = Claim { removed: vec![0; removed], ..Claim::default() };
            let (mut ours, mut theirs) = Channel::pair().unwrap();
            std::thread::scope(|scope| {
                let sender = scope.spawn(move || send(&mut ours, OPERATION, (origin(), 0), &claim, &[]));
                let wait = Wait::new(OPERATION, "description", theirs.wait());
                let Message::Begin(begin) = receive_whole(&mut theirs, &wait).unwrap().0 else {
                    panic!("a description has a beginning")
                };
                let found = receive(&mut theirs, OPERATION, &begin).map(|(claim, _)| claim.removed.len());
                // The sender then fails, because the reader has gone.
                drop(theirs);
                let _ = sender.join().unwrap();
                found
            })
        };
        assert_eq!(answer(MAX_MAPPINGS).unwrap(), MAX_MAPPINGS);
        let error = answer(MAX_MAPPINGS + 1).unwrap_err().to_string();
        let expected = "262145 mappings to be removed are announced, and the limit is 262144";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn late_description_is_named_whole() {
        let (mut ours, _theirs) = Channel::pair().unwrap();
        ours.set_wait(Duration::ZERO);
        let error = send(&mut ours, OPERATION, (origin(), 0), &Claim::default(), &[]).unwrap_err();
        let expected = "no read of the whole description by the other process within 0ns";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    #[test]
    fn slow_reader_ends_at_the_limit() {
        const MESSAGES: usize = 100;
        let claim = Claim { removed: vec![u64::MAX; MESSAGES * MAX_ENTRIES], ..Claim::default() };
        let (mut ours, mut theirs) = Channel::pair().unwrap();
        ours.set_wait(Duration::from_millis(300));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let wait = Wait::new(OPERATION, "message", theirs.wait());
                while theirs.receive(&wait).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let error = send(&mut ours, OPERATION, (origin(), 0), &claim, &[]).unwrap_err();
            assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");
            drop(ours);
        });
    }
}
