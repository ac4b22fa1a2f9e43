//! Writing regions to a file: their description and the contents of their memory.
//!
//! The contents pass through the staging ring, whose threads hash and compress them while the devices copy. Memory that is mapped
//! several times is written once. Its owner reads it, through a mapping that the owner may read; without one, the memory is
//! temporarily mapped at other addresses.
#![allow(unsafe_code)] // the ring reads by address

use crate::chunks::{Stream, blocks};
use crate::restore::discard;
use crate::{
    Description, MappingRecord, MemoryRecord, RegionRecord, SnapshotFile, SnapshotStats, SnapshotWriter,
    WriteOptions,
};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::extend::{MappedMemory, Segment, check_same, span};
use gpu_vmm_core::{
    Access, AccessMap, Alignment, Backend, Bytes, MemoryId, Operation, PhysicalMemory, Region, Result,
    StagingRing, WaitFor,
};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A snapshot to be written: the regions and options.
///
/// ```no_run
/// # use gpu_vmm_snapshot::Snapshot;
/// # use gpu_vmm_core::{Backend, WaitFor, Region, Result, StagingRing};
/// # fn example<B: Backend>(weights: &Region<B>, cache: &Region<B>) -> Result<()> {
/// let ring = StagingRing::new(weights.backend(), 2, StagingRing::<B>::CHUNK)?;
/// let snapshot = Snapshot::new(&ring).region(weights).region(cache).compress(true);
/// let written = snapshot.write("model.snapshot", WaitFor::all_devices())?;
/// println!("{} of {}", written.file, written.contents);
/// # Ok(())
/// # }
/// ```
///
/// # Thread safety
///
/// It borrows the regions, so that no thread changes them before it is dropped; their contents can be read at the same time. Several
/// snapshots can be written at the same time, also of one region; those that share a ring take turns.
#[derive(Clone, Debug)]
pub struct Snapshot<'a, B: Backend> {
    ring: &'a StagingRing<B>,
    regions: Vec<&'a Region<B>>,
    options: WriteOptions<'a>,
}

impl<'a, B: Backend> Snapshot<'a, B> {
    /// Creates a snapshot without regions, whose contents pass through `ring`.
    #[must_use]
    pub fn new(ring: &'a StagingRing<B>) -> Self {
        Self { ring, regions: Vec::new(), options: WriteOptions::default() }
    }

    /// Adds a region. Adding it again has no effect.
    #[must_use]
    pub fn region(mut self, region: &'a Region<B>) -> Self {
        if !self.regions.iter().any(|known| std::ptr::eq(*known, region)) {
            self.regions.push(region);
        }
        self
    }

    /// Adds regions.
    #[must_use]
    pub fn regions(self, regions: impl IntoIterator<Item = &'a Region<B>>) -> Self {
        regions.into_iter().fold(self, Self::region)
    }

    /// Sets whether blocks are compressed if that makes them smaller. The default is `false`.
    #[must_use]
    pub fn compress(mut self, whether: bool) -> Self {
        self.options.compress = whether;
        self
    }

    /// Omits blocks that an earlier snapshot in the same folder has. Restoring then needs the files that hold those blocks: the
    /// earlier snapshot or those before it, and only files that hold such a block.
    #[must_use]
    pub fn since(mut self, earlier: &'a SnapshotFile) -> Self {
        self.options.since = Some(earlier);
        self
    }

    /// Writes the snapshot and replaces the file of that name. The old file stays unchanged until the new one is completely on the
    /// disk.
    ///
    /// The call first waits according to `done` for work that still writes to the memory. Bytes written before that are in the
    /// snapshot. No work may write to the memory until this returns: otherwise the snapshot may contain some of its writes. Memory
    /// that is shared with other processes is copied like any other; when restored, it belongs to the restoring process alone.
    ///
    /// # Errors
    ///
    /// [`Detail::ForeignHandle`] for a region of another backend than the ring's, [`Detail::Suspended`], [`Detail::Poisoned`];
    /// [`Detail::File`] if the disk is full or the file cannot be written; the errors of [`SnapshotWriter::create`]; or the
    /// driver's error. There is then no new file, and the old one is unchanged.
    pub fn write(&self, path: impl AsRef<Path>, done: WaitFor<'_>) -> Result<SnapshotStats> {
        let operation = Operation::TakeSnapshot;
        let backend = self.ring.backend();
        let mut capture = Capture { description: Description::of(backend)?, memories: Vec::new() };
        let mut places = HashMap::new();
        for region in &self.regions {
            check_same(operation, region.backend(), backend)?;
            region.check_usable(operation)?;
            capture.add(region, &mut places);
        }
        span!(TakeSnapshot, bytes = capture.description.contents().0);
        let writer = SnapshotWriter::create(path, &capture.description, self.options)?;
        let used = self.regions.iter().flat_map(|region| region.layout());
        let used: AccessMap = used.flat_map(|mapping| mapping.access.grants().collect::<Vec<_>>()).collect();
        let devices = used.grants().map(|grant| grant.device).filter(|device| !device.is_host());
        done.wait(backend, || devices)?;
        let mut scratch = Vec::new();
        let read = capture.read(operation, self.ring, &writer, &mut scratch);
        // Unmap temporary mappings before the new file appears.
        match (read, discard(scratch)) {
            (Ok(()), Ok(())) => writer.finish(),
            (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
            (Err(error), Err(undo)) => Err(error.rollback_failed(undo)),
        }
    }
}

/// The description and the memory to be written.
#[derive(Debug)]
struct Capture<B: Backend> {
    description: Description,
    memories: Vec<Source<B>>,
}

/// Memory to be read, and its address.
#[derive(Debug)]
struct Source<B: Backend> {
    memory: PhysicalMemory<B>,
    /// A mapping through which its owner may read it.
    place: Option<Segment>,
}

impl<B: Backend> Capture<B> {
    fn add(&mut self, region: &Region<B>, places: &mut HashMap<MemoryId, usize>) {
        let mut mappings = Vec::new();
        for MappedMemory { offset, memory, access } in region.layout() {
            let at = *places.entry(memory.id()).or_insert_with(|| {
                let (size, granularity, properties) =
                    (memory.size(), memory.granularity(), memory.properties());
                self.description.memories.push(MemoryRecord { size, granularity, properties });
                self.memories.push(Source { memory: memory.clone(), place: None });
                self.memories.len() - 1
            });
            if access.get(memory.device()) != Access::None {
                let (address, length) = (region.address() + offset, memory.size());
                self.memories[at].place = Some(Segment { address, length, device: memory.device() });
            }
            mappings.push(MappingRecord { offset, memory: at, access });
        }
        self.description.regions.push(RegionRecord { mappings, ..region_record(region) });
    }

    fn read(
        &self,
        operation: Operation,
        ring: &StagingRing<B>,
        writer: &SnapshotWriter,
        scratch: &mut Vec<Region<B>>,
    ) -> Result<()> {
        let mut segments = Vec::with_capacity(self.memories.len());
        for source in &self.memories {
            segments.push(match source.place {
                Some(place) => place,
                None => readable(operation, ring.backend(), &source.memory, scratch)?,
            });
        }
        // SAFETY: each segment is one whole mapping, through which its device may read; the caller of `write` lets no work write
        // meanwhile.
        unsafe { copy(ring, writer, &segments) }
    }
}

/// Returns the record of a region, without its mappings.
pub fn region_record<B: Backend>(region: &Region<B>) -> RegionRecord {
    let settings = region.settings();
    RegionRecord {
        tag: settings.tag.into(),
        address: region.address(),
        reservations: region.reservations().map(|range| range.size).collect(),
        granularity: region.granularity(),
        alignment: Alignment::new(settings.alignment).unwrap_or(region.granularity().into()),
        memory: settings.memory,
        access: settings.access,
        extend_by: settings.extend_by,
        guard: settings.guard,
        portable: settings.portable,
        below: settings.below,
        mappings: Vec::new(),
    }
}

/// Writes a snapshot with this description, as [`Snapshot::write`] does. The segments are the memories of the description, in order.
///
/// # Errors
///
/// The errors of [`SnapshotWriter::create`] and [`SnapshotWriter::finish`], or the driver's error. There is then no new file, and the
/// old one is unchanged.
///
/// # Safety
///
/// Each segment is mapped in one reservation, and its device has read access. No work writes to it during the call.
pub unsafe fn write_segments<B: Backend>(
    ring: &StagingRing<B>,
    path: &Path,
    description: &Description,
    segments: &[Segment],
    options: WriteOptions<'_>,
) -> Result<SnapshotStats> {
    let writer = SnapshotWriter::create(path, description, options)?;
    // SAFETY: the caller ensures it.
    unsafe { copy(ring, &writer, segments) }?;
    writer.finish()
}

/// Copies the contents of all memories to a file.
///
/// # Safety
///
/// As for [`write_segments`].
unsafe fn copy<B: Backend>(
    ring: &StagingRing<B>,
    writer: &SnapshotWriter,
    segments: &[Segment],
) -> Result<()> {
    let stream = Stream::new(segments.iter().map(|segment| segment.length));
    let blocks = Blocks { writer, stream, begun: Mutex::default() };
    // SAFETY: the caller ensures it.
    unsafe { ring.fetch(segments, &|offset, bytes| blocks.take(offset, bytes)) }
}

/// Maps memory at other addresses, where its owner may read it.
fn readable<B: Backend>(
    operation: Operation,
    backend: &B,
    memory: &PhysicalMemory<B>,
    scratch: &mut Vec<Region<B>>,
) -> Result<Segment> {
    let (device, length) = (memory.device(), memory.size());
    let builder = Region::builder(backend).memory(memory.properties()).reserve(length);
    let mut region = builder.alignment(memory.granularity().bytes()).build()?;
    let access = AccessMap::NONE.with(device, Access::Read);
    let wanted = MappedMemory { offset: Bytes::ZERO, memory: memory.clone(), access };
    let mapped = region.apply_layout(operation, &[wanted], WaitFor::all_devices());
    let address = region.address();
    scratch.push(region);
    mapped.map(|()| Segment { address, length, device })
}

/// Assembles blocks from the ring's chunks, since a chunk may not consist of whole blocks.
struct Blocks<'a> {
    writer: &'a SnapshotWriter,
    stream: Stream,
    begun: Mutex<BTreeMap<(usize, u64), Begun>>,
}

/// A block of which some bytes are still missing.
#[derive(Default)]
struct Begun {
    bytes: Vec<u8>,
    here: usize,
}

impl Blocks<'_> {
    /// Takes bytes of one memory.
    fn take(&self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        let (memory, at, size) = self.stream.at(offset);
        let mut rest = bytes;
        for part in blocks(size, self.writer.block_size(), at, bytes.len()) {
            let (here, behind) = rest.split_at(part.length);
            rest = behind;
            if part.length == part.whole {
                self.writer.write_block(memory, part.block, here)?;
                continue;
            }
            let mut all = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let begun = all.entry((memory, part.block)).or_default();
            begun.bytes.resize(part.whole, 0);
            begun.bytes[part.start..part.start + part.length].copy_from_slice(here);
            begun.here += part.length;
            if begun.here == part.whole {
                let whole = all.remove(&(memory, part.block)).unwrap_or_default();
                drop(all);
                self.writer.write_block(memory, part.block, &whole.bytes)?;
            }
        }
        Ok(())
    }
}
