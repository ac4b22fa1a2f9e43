//! One piece of memory at several addresses in turn, and several pieces at one address in turn.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{Access, Bytes, PhysicalMemory, Region};
use gpu_vmm_testkit::TestKit;

cases! { "map":
    /// One piece can be mapped, used and unmapped at one address twenty times, and keeps its bytes in between.
    twenty_times_at_one_address,
    /// One piece can be mapped at addresses of three reservations in turn, and keeps its bytes.
    in_turn_at_three_addresses,
    /// Three pieces that are mapped at one address in turn each show their own bytes.
    three_pieces_in_turn,
    /// The pieces of a range can be mapped again in another order, and each keeps its bytes.
    in_another_order,
    /// A range can be assembled from the pieces of two other ranges without copying a byte.
    put_together_from_others,
}

fn twenty_times_at_one_address<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(2);
    let mut region = subject.space(2).build().unwrap();
    for round in 0..20 {
        subject.open(&mut region, Bytes(0), &memory);
        if round > 0 {
            subject.check(&region, Bytes(0), memory.size(), round - 1);
        }
        subject.write(&mut region, Bytes(0), memory.size(), round);
        subject.check(&region, Bytes(0), memory.size(), round);
        region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    }
}

fn in_turn_at_three_addresses<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(2);
    let mut regions: Vec<Region<B>> = (0..3).map(|_| subject.space(2).build().unwrap()).collect();
    for (region, round) in regions.iter_mut().zip(0..) {
        subject.open(region, Bytes(0), &memory);
        if round > 0 {
            subject.check(region, Bytes(0), memory.size(), round - 1);
        }
        subject.write(region, Bytes(0), memory.size(), round);
        region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    }
}

fn three_pieces_in_turn<B: TestKit>(subject: &Subject<B>) {
    let pieces: Vec<PhysicalMemory<B>> = (0..3).map(|_| subject.piece(2)).collect();
    let mut region = subject.space(2).build().unwrap();
    for writes in [true, false] {
        for (memory, seed) in pieces.iter().zip(0..) {
            subject.open(&mut region, Bytes(0), memory);
            if writes {
                subject.write(&mut region, Bytes(0), memory.size(), seed);
            }
            subject.check(&region, Bytes(0), memory.size(), seed);
            region.unmap(Bytes(0), memory.size(), idle()).unwrap();
        }
    }
}

fn in_another_order<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(6).build().unwrap();
    let pieces = [1, 2, 3].map(|granules| subject.piece(granules));
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut end = Bytes(0);
        for index in order {
            let (memory, seed) = (&pieces[index], index as u64);
            subject.open(&mut region, end, memory);
            if order == [0, 1, 2] {
                subject.write(&mut region, end, memory.size(), seed);
            }
            end += memory.size();
        }
        end = Bytes(0);
        for index in order {
            subject.check(&region, end, pieces[index].size(), index as u64);
            end += pieces[index].size();
        }
        region.unmap(Bytes(0), end, idle()).unwrap();
    }
}

fn put_together_from_others<B: TestKit>(subject: &Subject<B>) {
    let mut sources: Vec<Region<B>> = (0..2)
        .map(|_| {
            let mut source = subject.space(4).build().unwrap();
            for end in [1, 2, 4] {
                source.grow_to(subject.granules(end)).unwrap();
            }
            source
        })
        .collect();
    for (source, seed) in sources.iter_mut().zip([1, 100]) {
        let length = source.end();
        subject.write(source, Bytes(0), length, seed);
    }
    let free = subject.free();
    let mut region = subject.space(8).build().unwrap();
    for source in &sources {
        for mapping in source.mappings() {
            region.map(region.end(), mapping.memory).unwrap();
        }
    }
    assert_eq!(subject.free(), free);
    drop(sources);
    region.set_access(Bytes(0), region.end(), subject.device, Access::Read).unwrap();
    subject.check(&region, Bytes(0), subject.granules(4), 1);
    subject.check(&region, subject.granules(4), subject.granules(4), 100);
}
