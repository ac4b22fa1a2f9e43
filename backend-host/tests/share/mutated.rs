//! Ten thousand mutated messages, sent to real ends that hold real memory.

use crate::bench::{full, machine, seen};
use crate::child::alone;
use crate::forger::{Description, Forger, Say};
use crate::left::Left;
use crate::{UNIT, units};
use gpu_vmm_core::WaitFor;
use gpu_vmm_share::{Exporter, ImportOptions};
use gpu_vmm_testkit::FaultInject;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The number of exchanges with a mutated message.
const EXCHANGES: u64 = 10_000;

/// Limits the wait for the rest of a truncated message.
const SHORT: Duration = Duration::from_millis(1);

/// Random numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// Changes, removes, repeats or adds bytes.
    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len().max(1));
            match self.below(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 if !bytes.is_empty() => drop(bytes.remove(at)),
                3 => bytes.truncate(at),
                4 => bytes.insert(at.min(bytes.len()), self.below(256) as u8),
                _ => {
                    let again = bytes[at.min(bytes.len())..].to_vec();
                    bytes.extend(again);
                }
            }
        }
    }
}

type Packet<'a> = (Vec<u8>, Vec<BorrowedFd<'a>>);

/// Mutates one message of a sequence: its bytes, its descriptors, or its position.
fn spoiled<'a>(numbers: &mut Numbers, mut row: Vec<Packet<'a>>, any: BorrowedFd<'a>) -> Vec<Packet<'a>> {
    let at = numbers.below(row.len());
    match numbers.below(8) {
        0 => drop(row.remove(at)),
        1 => row.insert(at, row[at].clone()),
        2 => {
            let other = numbers.below(row.len());
            row.swap(at, other);
        }
        3 => drop(row[at].1.pop()),
        4 => row[at].1.push(any),
        _ => numbers.spoil(&mut row[at].0),
    }
    row
}

fn packets(description: &Description) -> Vec<Packet<'_>> {
    let messages = description.messages().into_iter();
    messages.map(|(message, descriptors)| (postcard::to_allocvec(&message).unwrap(), descriptors)).collect()
}

/// Returns an exporter's descriptions of a region and of a change of it.
fn heard() -> [Description; 2] {
    let (mut forger, channel) = Forger::new();
    let mut region = full(&machine());
    let mut exporter = Exporter::share(channel, &region).unwrap();
    let first = Description::hear(&mut forger);
    forger.say(&Say::Applied { revision: 0 }, &[]);
    region.unmap(units(3), UNIT, WaitFor::all_devices()).unwrap();
    region.grow_to(units(12)).unwrap();
    exporter.publish(&region).unwrap();
    [first, Description::hear(&mut forger)]
}

#[test]
fn ten_thousand_spoiled_messages_leave_nothing_behind() {
    alone("mutated::ten_thousand_spoiled_messages_leave_nothing_behind", || {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        let null = std::fs::File::open("/dev/null").unwrap();
        let any = std::os::fd::AsFd::as_fd(&null);
        let [first, change] = heard();
        let host = FaultInject::new(machine());
        let region = full(&host);
        let state = seen(&region);
        let before = Left::now(&host);
        let (mut refused, mut taken) = (0, 0);
        for exchange in 0..EXCHANGES {
            let result = match exchange % 3 {
                0 => importer(&host, spoiled(&mut numbers, packets(&first), any), None),
                1 => {
                    let row = spoiled(&mut numbers, packets(&change), any);
                    importer(&host, packets(&first), Some(row))
                }
                _ => exporter(&region, &mut numbers, any),
            };
            if result.is_err() {
                refused += 1
            } else {
                taken += 1
            }
            assert_eq!(Left::now(&host), before, "exchange {exchange}: {result:?}");
        }
        assert_eq!(seen(&region), state);
        // Some mutations are valid, such as another address of the exporter's region.
        assert!(refused > EXCHANGES * 3 / 4 && taken > 0, "{refused} refused, {taken} taken");
    });
}

/// Runs an importer that receives a region and then a change.
fn importer(
    host: &FaultInject<gpu_vmm_host::HostBackend>,
    first: Vec<Packet<'_>>,
    change: Option<Vec<Packet<'_>>>,
) -> gpu_vmm_core::Result<()> {
    let (mut forger, mut channel) = Forger::new();
    channel.set_wait(SHORT);
    for (bytes, descriptors) in &first {
        forger.say_raw(bytes, descriptors);
    }
    let mut imported = ImportOptions::new().reserve(units(16)).receive(host, channel)?;
    let Some(change) = change else { return Ok(()) };
    let state = seen(imported.region());
    for (bytes, descriptors) in &change {
        forger.say_raw(bytes, descriptors);
    }
    let applied = loop {
        match imported.next(SHORT) {
            Err(error) => break Err(error),
            Ok(None) => break imported.apply(WaitFor::all_devices()).map(|_| ()),
            Ok(Some(_)) if !imported.is_behind() => break Ok(()),
            Ok(Some(_)) => {}
        }
    };
    if applied.is_err() {
        assert_eq!(seen(imported.region()), state);
    }
    applied
}

/// Runs an exporter that receives an answer.
fn exporter(
    region: &gpu_vmm_core::Region<FaultInject<gpu_vmm_host::HostBackend>>,
    numbers: &mut Numbers,
    any: BorrowedFd<'_>,
) -> gpu_vmm_core::Result<()> {
    let (mut forger, mut channel) = Forger::new();
    channel.set_wait(SHORT);
    let mut exporter = Exporter::share(channel, region)?;
    let answers = [
        Say::Applied { revision: 0 },
        Say::Refused { revision: 0, why: "no room".to_owned() },
        Say::Released,
        Say::Kept,
    ];
    let answer = postcard::to_allocvec(&answers[numbers.below(answers.len())]).unwrap();
    for (bytes, descriptors) in spoiled(numbers, vec![(answer, Vec::new())], any) {
        forger.say_raw(&bytes, &descriptors);
    }
    exporter.wait_applied(SHORT)?;
    exporter.wait_released(SHORT).map(|_| ())
}
