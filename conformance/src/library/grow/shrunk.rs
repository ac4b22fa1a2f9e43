//! Shrinking from the end.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail};
use gpu_vmm_testkit::TestKit;

cases! { "grow":
    /// Shrinking releases whole handles: the handle that contains the new end stays, and the region reports its actual end.
    shrinks_in_whole_handles,
    /// A region can repeatedly shrink to nothing and grow again at the same address.
    shrinks_to_nothing_and_grows_again,
    /// Memory that is left after shrinking keeps its bytes, and later growth adds other memory.
    what_is_left_is_untouched,
    /// Shrinking to the current size does nothing; shrinking to a larger size is refused.
    no_less_than_nothing,
    /// Shrinking unmaps memory that the caller also holds, and that memory keeps its contents.
    held_pieces_stay,
}

fn shrinks_in_whole_handles<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(16).build().unwrap();
    for units in [2, 4, 8, 16] {
        region.grow_to(subject.units(units)).unwrap();
    }
    let free = subject.free_here();
    let shrunk = region.shrink_to(subject.units(5), idle()).unwrap();
    // 5 units end inside the handle from 4 to 8, which stays.
    assert_eq!((shrunk.end, shrunk.removed), (subject.units(8), subject.units(8)));
    if subject.gives_back_at_once() {
        assert_eq!(subject.free_here(), free + subject.units(8));
    }
    // A read behind the new end is an error.
    refused!(region.read(subject.units(8), &mut [0]), Detail::NotMapped { .. });
}

fn shrinks_to_nothing_and_grows_again<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(8).build().unwrap();
    let address = region.address();
    for seed in 0..3 {
        region.grow_to(subject.units(3)).unwrap();
        subject.write(&mut region, Bytes(0), subject.units(3), seed);
        region.grow_to(subject.units(8)).unwrap();
        subject.check(&region, Bytes(0), subject.units(3), seed);
        let shrunk = region.shrink_to(Bytes(0), idle()).unwrap();
        assert_eq!((shrunk.end, shrunk.removed, region.address()), (Bytes(0), subject.units(8), address));
    }
}

fn what_is_left_is_untouched<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(12).build().unwrap();
    for granules in [4, 6, 12] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    subject.write(&mut region, Bytes(0), subject.granules(12), 1);
    let _ = region.shrink_to(subject.granules(6), idle()).unwrap();
    subject.check(&region, Bytes(0), subject.granules(6), 1);
    region.grow_to(subject.granules(9)).unwrap();
    subject.write(&mut region, subject.granules(6), subject.granules(3), 2);
    subject.check(&region, Bytes(0), subject.granules(6), 1);
    subject.check(&region, subject.granules(6), subject.granules(3), 2);
}

fn no_less_than_nothing<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    let shrunk = region.shrink_to(subject.units(3), idle()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (subject.units(3), Bytes(0)));
    refused!(
        region.shrink_to(subject.units(3) + Bytes(1), idle()),
        Detail::OutOfRange { .. },
        subject.units(3)
    );
    // One byte less does not release a whole handle.
    let shrunk = region.shrink_to(subject.units(3) - Bytes(1), idle()).unwrap();
    assert_eq!((shrunk.end, shrunk.removed), (subject.units(3), Bytes(0)));
}

fn held_pieces_stay<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(6).build().unwrap();
    for granules in [2, 6] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    subject.write(&mut region, Bytes(0), subject.granules(6), 1);
    let memory = region.mapping_at(subject.granules(2)).unwrap().memory.clone();
    let free = subject.free();
    let _ = region.shrink_to(subject.granules(2), idle()).unwrap();
    assert_eq!(subject.free(), free);
    subject.open(&mut region, subject.granules(2), &memory);
    subject.check(&region, Bytes(0), subject.granules(6), 1);
}
