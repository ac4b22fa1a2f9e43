//! Memory of regions, vectors and blocks for work on raw streams.

use crate::rig::{ONE, Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm::pool::Pool;
use gpu_vmm::{AnyBackend, host::HostBackend};
use gpu_vmm_core::{
    Access, BackingStore, Bytes, Detail, DeviceId, DeviceVec, ErrorKind, Operation, Region, Result, Stream,
    WaitFor,
};
use gpu_vmm_hip::{MaybeHip, MemoryView, MemoryViewMut};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::abi::Code;
use gpu_vmm_testkit::raw::below;
use std::ffi::c_void;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "views::a_raw_stream_uses_them", needs: Needs::Device, run: used },
    Test { name: "views::kernel_argument_points_to_the_address", needs: Needs::Device, run: arguments },
    Test { name: "views::what_the_device_cannot_use_is_refused", needs: Needs::Device, run: refused },
    Test { name: "views::a_stream_of_another_device_is_refused", needs: Needs::TwoDevices, run: foreign },
    Test { name: "views::reading_peer_gets_no_writable_view", needs: Needs::Peers, run: read_only_peer },
];

fn region<B: MaybeHip>(rig: &Rig, backend: &B) -> Region<B> {
    let mut region = Region::builder(backend).reserve(rig.units(2)).build().unwrap();
    region.grow_to(rig.unit()).unwrap();
    region
}

/// Copies numbers on the stream from one view to another, as a program with its own bindings does.
fn copy(rig: &Rig, to: &mut MemoryViewMut<'_, u32>, from: &MemoryView<'_, u32>) {
    let driver = below(&rig.backend, ZERO, None).unwrap();
    let stream = from.stream().as_raw();
    let mut between = vec![0u32; from.len()];
    let (size, bytes) = (size_of_val(&*between), between.as_mut_ptr().cast::<c_void>());
    // SAFETY: both views and the vector have that many numbers, and the copies end before they do.
    unsafe {
        assert_eq!(
            driver.copy_to_host_later(bytes, from.as_ptr().addr() as u64, size, stream),
            Code::SUCCESS
        );
        assert_eq!(driver.stream_synchronize(stream), Code::SUCCESS);
        assert_eq!(
            driver.copy_from_host_later(to.as_mut_ptr().addr() as u64, bytes, size, stream),
            Code::SUCCESS
        );
        assert_eq!(driver.stream_synchronize(stream), Code::SUCCESS);
    }
}

fn used(rig: &Rig) {
    each(rig, &rig.backend);
    each(rig, &AnyBackend::from(rig.backend.clone()));
}

fn each<B: MaybeHip>(rig: &Rig, backend: &B) {
    let own = rig.backend.own_stream(ZERO).unwrap();
    let vec = DeviceVec::from_slice(backend, ZERO, &[1u32, 2, 3]).unwrap();
    let source = MemoryView::of_vec(ZERO, own.stream(), &vec).unwrap();
    assert_eq!(
        (source.len(), source.is_empty(), source.as_ptr()),
        (3, false, vec.as_device_ptr().as_raw().cast_const())
    );

    let mut region = region(rig, backend);
    copy(rig, &mut MemoryViewMut::new(ZERO, own.stream(), &mut region, Bytes(8), 3).unwrap(), &source);
    let mut bytes = [0; 12];
    region.read(Bytes(8), &mut bytes).unwrap();
    assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);

    let pool = Pool::builder(backend).build().unwrap();
    // SAFETY: the registration ends before the stream.
    let registered = unsafe { pool.register_stream(own.stream()) }.unwrap();
    let mut block = registered.alloc(Bytes(16)).unwrap();
    copy(rig, &mut MemoryViewMut::new(ZERO, own.stream(), &mut block, Bytes(4), 3).unwrap(), &source);
    block.read(Bytes(4), &mut bytes).unwrap();
    assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    let other = rig.backend.own_stream(ZERO).unwrap();
    let error = MemoryView::<u32>::new(ZERO, other.stream(), &block, Bytes(4), 3).unwrap_err();
    assert!(error.to_string().contains("call record_use with that stream first"), "{error}");
    let store = BackingStore::pinned(backend, Bytes::mib(32)).unwrap();
    pool.suspend("", &store, WaitFor::all_devices()).unwrap();
    let error = MemoryView::<u32>::new(ZERO, own.stream(), &block, Bytes(4), 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
}

fn arguments(rig: &Rig) {
    let mut region = region(rig, &rig.backend);
    let address = region.address() + Bytes(16);
    let view = MemoryView::<u64>::new(ZERO, Stream::DEFAULT, &region, Bytes(16), 2).unwrap();
    // SAFETY: the argument points to the address in the view.
    assert_eq!(unsafe { view.argument().cast::<u64>().read() }, address.0);
    let view = MemoryViewMut::<u64>::new(ZERO, Stream::DEFAULT, &mut region, Bytes(16), 2).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { view.argument().cast::<u64>().read() }, address.0);
    assert_eq!(format!("{view:?}"), format!("MemoryViewMut(MemoryView of 2 x u64 at {address})"));
}

/// Returns the detail and text of an error, after checking its operation.
#[track_caller]
fn refusal<T: std::fmt::Debug>(answer: Result<T>) -> (Detail, String) {
    let error = answer.unwrap_err();
    assert_eq!(error.operation(), Operation::ViewMemory, "{error}");
    (error.detail().clone(), error.to_string())
}

fn refused(rig: &Rig) {
    let mut region = region(rig, &rig.backend);
    let view =
        |offset, count| refusal(MemoryView::<u32>::new(ZERO, Stream::DEFAULT, &region, Bytes(offset), count));
    let (detail, text) = view(6, 10);
    assert!(matches!(detail, Detail::Unsupported { .. }) && text.contains("offset 6 B"), "{text}");
    let (detail, text) = view(4, rig.unit().0 as usize / 4);
    assert!(matches!(detail, Detail::NotMapped { hole, .. } if hole == rig.unit()), "{text}");
    let (detail, text) = view(0, usize::MAX);
    assert!(matches!(detail, Detail::TooManyElements { element: 4, .. }), "{text}");
    let missing = DeviceId(1000);
    let (detail, text) = refusal(MemoryView::<u32>::new(missing, Stream::DEFAULT, &region, Bytes(0), 1));
    assert!(matches!(detail, Detail::NoSuchDevice { device, .. } if device == missing), "{text}");

    region.set_access(Bytes(0), rig.unit(), ZERO, Access::Read).unwrap();
    MemoryView::<u32>::new(ZERO, Stream::DEFAULT, &region, Bytes(0), 1).unwrap();
    let (detail, text) = refusal(MemoryViewMut::<u32>::new(ZERO, Stream::DEFAULT, &mut region, Bytes(0), 1));
    assert!(matches!(detail, Detail::NoAccess { need: Access::ReadWrite, .. }), "{text}");

    let host = AnyBackend::from(HostBackend::open().unwrap());
    let vec = DeviceVec::from_slice(&host, ZERO, &[1u32]).unwrap();
    let (detail, text) = refusal(MemoryView::of_vec(ZERO, Stream::DEFAULT, &vec));
    assert!(matches!(detail, Detail::Unsupported { .. }) && text.contains("the host backend"), "{text}");
}

fn read_only_peer(rig: &Rig) {
    let region = Region::builder(&rig.backend).on(ZERO).access(ONE, Access::Read);
    let mut vec = DeviceVec::build(region).unwrap();
    vec.push(1u32).unwrap();
    MemoryView::of_vec(ONE, Stream::DEFAULT, &vec).unwrap();
    let (detail, text) = refusal(MemoryViewMut::of_vec(ONE, Stream::DEFAULT, &mut vec));
    assert!(matches!(detail, Detail::NoAccess { device: ONE, need: Access::ReadWrite, .. }), "{text}");
}

fn foreign(rig: &Rig) {
    let (region, own) = (region(rig, &rig.backend), rig.backend.own_stream(ONE).unwrap());
    let (detail, text) = refusal(MemoryView::<u32>::new(ZERO, own.stream(), &region, Bytes(0), 1));
    assert!(matches!(detail, Detail::Unsupported { .. }), "{text}");
    assert!(text.contains("the stream belongs to device 1, not to device 0; pass device 1"), "{text}");
    assert_eq!(rig.current_device(), 0);
}
