//! Rule 4: a hint is a wish, and the answer is compared.

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Error, Placement, Workbench};

cases! { "place":
    /// exact and free.
    exact_and_free,
    /// exact and taken.
    exact_and_taken,
    /// prefer.
    prefer,
    /// aligned.
    aligned,
    /// sizes are rounded.
    sizes_are_rounded,
    /// addresses are free.
    addresses_are_free,
}

fn exact_and_free<B: Workbench>(subject: &Subject<B>) {
    let region = subject.region(8).build().unwrap();
    let base = region.address();
    drop(region);
    let region = subject.region(8).at(Placement::Exact(base)).build().unwrap();
    assert_eq!((region.address(), region.reserved()), (base, subject.units(8)));
}

fn exact_and_taken<B: Workbench>(subject: &Subject<B>) {
    let first = subject.region(8).build().unwrap();
    for units in [0, 1, 7] {
        let wanted = first.address().checked_add(subject.units(units)).unwrap();
        let error = subject.region(8).at(Placement::Exact(wanted)).build().unwrap_err();
        let Error::AddressTaken { wanted: told, offered, .. } = error else { panic!("{error}") };
        assert_eq!(told, wanted);
        assert_ne!(offered, wanted);
        // What was offered has been given back.
        let there = subject.region(8).at(Placement::Exact(offered)).build().unwrap();
        assert_eq!(there.address(), offered);
    }
}

fn prefer<B: Workbench>(subject: &Subject<B>) {
    let first = subject.region(8).build().unwrap();
    let base = first.address();
    let second = subject.region(8).at(Placement::Prefer(base)).build().unwrap();
    assert_ne!(second.address(), base);
    drop((first, second));
    let third = subject.region(8).at(Placement::Prefer(base)).build().unwrap();
    assert_eq!(third.address(), base);
}

fn aligned<B: Workbench>(subject: &Subject<B>) {
    for alignment in [Bytes(1), subject.unit(), Bytes::mib(64), Bytes::gib(1), Bytes::gib(16)] {
        let mut regions = Vec::new();
        for _ in 0..3 {
            let mut region = subject.region(3).alignment(alignment).build().unwrap();
            assert!(region.address().is_aligned_to(alignment), "{} for {alignment}", region.address());
            region.grow_to(subject.units(3)).unwrap();
            region.write(subject.units(3) - Bytes(4), b"last").unwrap();
            regions.push(region);
        }
    }
}

fn sizes_are_rounded<B: Workbench>(subject: &Subject<B>) {
    let region =
        gpu_vmm_core::Region::builder(&subject.backend).reserve(subject.unit() + Bytes(1)).build().unwrap();
    assert_eq!(region.reserved(), subject.units(2));
}

fn addresses_are_free<B: Workbench>(subject: &Subject<B>) {
    let before = subject.free();
    let region = gpu_vmm_core::Region::builder(&subject.backend).reserve(Bytes::gib(1024)).build().unwrap();
    assert_eq!(region.reserved(), Bytes::gib(1024));
    assert_eq!(subject.free(), before);
}
