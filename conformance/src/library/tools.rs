//! Helpers that the cases of several groups use.
#![allow(unsafe_code)] // names all streams that a case uses

use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    Bytes, Capability, DeviceId, Error, Feature, PhysicalMemory, Region, RegionBuilder, Stream, WaitFor,
};
use gpu_vmm_testkit::TestKit;

/// Waits for every device that has access.
pub(crate) fn idle() -> WaitFor<'static> {
    WaitFor::all_devices()
}

/// Waits for these streams, on which alone the case has queued work.
pub(crate) const fn streams_idle<'a>(streams: &'a [Stream<'a>]) -> WaitFor<'a> {
    // SAFETY: each case names all streams on which it has queued work.
    unsafe { WaitFor::streams(streams) }
}

impl<B: TestKit> Subject<B> {
    /// `count` times the granularity, for cases with many mappings. CUDA's unit of addresses is sixteen times the
    /// granularity.
    pub(crate) fn granules(&self, count: u64) -> Bytes {
        Bytes(self.granularity().0 * count)
    }

    /// A region with addresses for at least `granules` granules.
    pub(crate) fn space(&self, granules: u64) -> RegionBuilder<'_, B> {
        Region::builder(&self.backend).on(self.device).reserve(self.granules(granules))
    }

    /// `granules` granules of the chosen device's memory in one piece.
    pub(crate) fn piece(&self, granules: u64) -> PhysicalMemory<B> {
        self.piece_on(self.device, granules)
    }

    /// Like [`piece`](Self::piece), of another device.
    #[track_caller]
    pub(crate) fn piece_on(&self, device: DeviceId, granules: u64) -> PhysicalMemory<B> {
        let properties = gpu_vmm_core::Properties::on(device);
        PhysicalMemory::create(&self.backend, self.granules(granules), properties).unwrap()
    }

    /// Maps memory and gives the chosen device read and write access.
    #[track_caller]
    pub(crate) fn open(&self, region: &mut Region<B>, offset: Bytes, memory: &PhysicalMemory<B>) {
        region.map(offset, memory).unwrap();
        region.set_access(offset, memory.size(), self.device, RW).unwrap();
    }

    /// Writes the pattern of a seed with the chosen device.
    #[track_caller]
    pub(crate) fn write(&self, region: &mut Region<B>, offset: Bytes, length: Bytes, seed: u64) {
        region.write_pattern(self.device, offset, length, seed).unwrap();
    }

    /// Fails if the chosen device does not read the pattern of this seed.
    #[track_caller]
    pub(crate) fn check(&self, region: &Region<B>, offset: Bytes, length: Bytes, seed: u64) {
        let wrong = region.count_wrong(self.device, offset, length, seed).unwrap();
        assert_eq!(wrong, 0, "words that differ in {length} at offset {offset}");
    }

    /// The free memory of a device.
    pub(crate) fn free_of(&self, device: DeviceId) -> Bytes {
        self.backend.memory_info(device).unwrap().free
    }

    /// Whether memory is free as soon as its last mapping is gone, even if the addresses stay reserved.
    pub(crate) fn gives_back_at_once(&self) -> bool {
        !self.has_quirk("memory-stays-until-free")
    }
}

/// The chosen device's capability for a feature.
pub(crate) fn capability<B: TestKit>(subject: &Subject<B>, feature: Feature) -> Capability {
    let all = subject.backend.capabilities(subject.device).unwrap();
    all.into_iter().find(|found| found.feature == feature).unwrap()
}

/// A region that maps these pieces in a row, with read and write access for the device of each.
pub(crate) fn mapped<B: TestKit>(subject: &Subject<B>, pieces: &[&PhysicalMemory<B>]) -> Region<B> {
    let size: Bytes = pieces.iter().map(|piece| piece.size()).sum();
    let mut region = Region::builder(&subject.backend).reserve(size).build().unwrap();
    for piece in pieces {
        let offset = region.end();
        region.map(offset, piece).unwrap();
        region.set_access(offset, piece.size(), piece.device(), RW).unwrap();
    }
    region
}

/// Writes the pattern of a seed to a whole region with the chosen device.
pub(crate) fn write<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, seed: u64) {
    region.write_pattern(subject.device, Bytes(0), region.end(), seed).unwrap();
}

/// Whether the chosen device reads the pattern of a seed in the whole region.
pub(crate) fn has<B: TestKit>(subject: &Subject<B>, region: &Region<B>, seed: u64) -> bool {
    region.count_wrong(subject.device, Bytes(0), region.end(), seed).unwrap() == 0
}

/// Fails unless the error's text contains all of these parts.
#[track_caller]
pub(crate) fn assert_names(error: &Error, parts: &[String]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part.as_str()), "{text:?} does not contain {part:?}");
    }
}

/// Fails unless the result is an error of this kind whose text has these numbers, made without a driver call.
macro_rules! refused {
    (@$operation:ident $result:expr, $kind:pat $(, $part:expr)* $(,)?) => {{
        let result = $result.map(drop);
        let operation = result.as_ref().map_err(gpu_vmm_core::Error::operation);
        assert_eq!(operation, Err(gpu_vmm_core::Operation::$operation));
        crate::library::tools::refused!(result, $kind $(, $part)*);
    }};
    ($result:expr, $kind:pat $(, $part:expr)* $(,)?) => {{
        let error = $result.map(drop).unwrap_err();
        assert!(matches!(error.detail(), $kind), "another kind of error: {error:?}");
        assert!(error.driver_error().is_none(), "a driver call was made: {error}");
        crate::library::tools::assert_names(&error, &[$($part.to_string()),*]);
    }};
}

pub(crate) use refused;

pub(crate) fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, got {text}")),
        Err(_) => default,
    }
}
