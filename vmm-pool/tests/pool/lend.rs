//! Blocks that are lent to the types of other libraries: which device, stream, range and state a block accepts.
#![allow(unsafe_code)]

use gpu_vmm_core::extend::{LendMemory, lend_elements};
use gpu_vmm_core::{
    Access, Address, Backend, BackingStore, Bytes, Detail, DeviceId, ErrorKind, Grant, OffsetRange,
    Operation, Result, Stream, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::TestKit;

const OPERATION: Operation = Operation::Copy;
const WRITE: Grant = Grant { device: DeviceId(0), access: Access::ReadWrite };

fn lend(
    block: &Block<HostBackend>,
    offset: u64,
    length: u64,
    grant: Grant,
    stream: Stream<'_>,
) -> Result<Address> {
    block.lend(OPERATION, OffsetRange { offset: Bytes(offset), length: Bytes(length) }, grant, stream)
}

#[track_caller]
fn refused(answer: Result<Address>) -> (ErrorKind, String) {
    let error = answer.unwrap_err();
    assert_eq!(error.operation(), OPERATION);
    (error.kind(), error.to_string())
}

#[test]
fn block_is_lent_for_device_and_streams() {
    let backend = HostConfig::new().devices(2).open().unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let other: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    for size in [1000, 70_000, 3 << 20] {
        let mut block = pool.alloc(Bytes(size)).unwrap();
        let base = block.address();
        assert_eq!(block.lender(OPERATION).unwrap().instance(), backend.instance());
        for (offset, length) in [(0, 0), (0, size), (8, 16), (size - 1, 1), (size, 0)] {
            let address = lend(&block, offset, length, WRITE, Stream::DEFAULT).unwrap();
            assert_eq!(address, base + Bytes(offset), "{offset}, {length} of {size}");
        }
        for (offset, length) in [(0, block.capacity().0 + 1), (block.capacity().0 + 1, 0), (u64::MAX, 2)] {
            let (kind, text) = refused(lend(&block, offset, length, WRITE, Stream::DEFAULT));
            assert!(matches!(kind, ErrorKind::OutOfRange | ErrorKind::InvalidArgument), "{kind:?}: {text}");
        }
        // Another device has no access.
        let grant = Grant { device: DeviceId(1), ..WRITE };
        let error = lend(&block, 8, 8, grant, Stream::DEFAULT).unwrap_err();
        let Detail::NoAccess { device: DeviceId(1), offset: Bytes(8), have: Access::None, need } =
            error.detail()
        else {
            panic!("{error:?}")
        };
        assert_eq!(*need, Access::ReadWrite);
        // The pool waits for no stream of which no use is recorded.
        let (kind, text) = refused(lend(&block, 0, 8, WRITE, other));
        assert!(kind == ErrorKind::Unsupported && text.contains("record_use"), "{text}");
        let (its, asked) = (block.stream().as_raw(), other.as_raw());
        let which = format!("the block is for stream {its:?} and has no use on stream {asked:?} recorded");
        assert!(text.contains(&which), "{text}");
        block.record_use(other).unwrap();
        for stream in [Stream::DEFAULT, other] {
            assert_eq!(lend(&block, 0, size, WRITE, stream).unwrap(), base);
        }
    }
}

#[test]
fn a_suspended_block_is_not_lent() {
    let backend = HostConfig::new().open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap().tagged("kv").unwrap();
    let block = pool.alloc(Bytes::mib(2)).unwrap();
    let store = BackingStore::pinned(&backend, Bytes::mib(4)).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    let (kind, text) = refused(lend(&block, 0, 8, WRITE, Stream::DEFAULT));
    assert!(kind == ErrorKind::Suspended && text.contains("\"kv\""), "{text}");
    pool.resume("kv").unwrap();
    assert_eq!(lend(&block, 0, 8, WRITE, Stream::DEFAULT).unwrap(), block.address());
}

#[test]
fn elements_are_lent_where_they_are_aligned() {
    let backend = HostConfig::new().open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let block = pool.alloc(Bytes(4096)).unwrap();
    let at = |offset: u64, count: usize| {
        lend_elements::<u64>(&block, OPERATION, Bytes(offset), count, WRITE, Stream::DEFAULT)
    };
    for (offset, count) in [(0, 512), (8, 511), (4088, 1), (4096, 0)] {
        assert_eq!(at(offset, count).unwrap(), block.address() + Bytes(offset));
    }
    for offset in [1, 4, 12] {
        let (kind, text) = refused(at(offset, 2));
        assert!(
            kind == ErrorKind::Unsupported && text.contains("u64") && text.contains("8 bytes each"),
            "{text}"
        );
    }
    let (kind, text) = refused(at(0, usize::MAX));
    assert!(kind == ErrorKind::InvalidArgument && text.contains(&usize::MAX.to_string()), "{text}");
    let beyond = block.capacity().0 as usize / 8 + 1;
    assert_eq!(refused(at(0, beyond)).0, ErrorKind::OutOfRange);
    let nothing = lend_elements::<()>(&block, OPERATION, Bytes(0), 3, WRITE, Stream::DEFAULT);
    assert_eq!(refused(nothing).0, ErrorKind::Unsupported);
}
