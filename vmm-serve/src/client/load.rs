//! Regions from files, and files of regions.
#![allow(unsafe_code)] // copies between mapped memory and files

use super::file::{self, Contents};
use super::{Client, CreateOptions, Lease};
use crate::ServeError;
use gpu_vmm_core::extend::{ChunkContents, Segment, files};
use gpu_vmm_core::{Address, Backend, Bytes, Error, Operation, Result, StagingRing};
use std::fs::File;
use std::io;
use std::path::Path;
use tempfile::Builder;

#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;

impl<B: Backend> Client<B> {
    /// Creates a region with the contents of a file, commits it and returns its write lease. The file is one of
    /// [safetensors](https://github.com/huggingface/safetensors), of any program, or one that [`Lease::save`] has written; the latter
    /// is loaded at the address that its region had, unless `options` have another one.
    ///
    /// `name` is needed for files of other programs. Their tensors become parts of the layout, aligned to 256 bytes, and their
    /// metadata notes. Several threads read the file and copy it to the device.
    ///
    /// # Errors
    ///
    /// Those of [`Client::create`]; [`ServeError::BadFile`] for other files, and for elements of less than 8 bits; [`Detail::File`] if the
    /// file cannot be read. There is then no region.
    pub fn load(
        &self,
        path: impl AsRef<Path>,
        name: Option<&str>,
        options: &CreateOptions,
    ) -> Result<Lease<B>> {
        const OPERATION: Operation = Operation::LoadRegion;
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| files::failed(OPERATION, "open", path, &error))?;
        let bad = |why: String| {
            let path = path.display().to_string();
            Error::of_extension(OPERATION, ServeError::BadFile { path, why })
        };
        let contents = file::read(&file).map_err(bad)?;
        let name = name.or(contents.name.as_deref());
        let name = name.ok_or_else(|| bad("it has no name for the region; pass one".to_owned()))?;
        if contents.size.is_zero() {
            return Err(bad("it has no contents".to_owned()));
        }
        let mut options = *options;
        options.address = options.address.or(contents.address.map(Address));
        let mut lease = self.create(name, contents.size, &options)?;
        fill(OPERATION, &mut lease, &file, path, &contents)?;
        lease.commit(Some(&contents.layout))?;
        Ok(lease)
    }
}

/// Copies the file's data to the places of a new region.
fn fill<B: Backend>(
    operation: Operation,
    lease: &mut Lease<B>,
    file: &File,
    path: &Path,
    contents: &Contents,
) -> Result<()> {
    let region = lease.region_mut();
    let Some(device) = region.mapping_at(Bytes::ZERO).map(|mapping| mapping.memory.device()) else {
        return Ok(());
    };
    let ring = ring(region.backend(), contents.size, StagingRing::<B>::CHUNK)?;
    let places = contents.places.iter().filter(|(_, length)| !length.is_zero());
    let address = region.address();
    let segments: Vec<Segment> = places
        .map(|(offset, length)| Segment { address: address + *offset, length: *length, device })
        .collect();
    let give = |offset: Bytes, bytes: &mut [u8]| {
        let read = files::read_exact_at(file, bytes, contents.begin + offset.0);
        read.map_err(|error| files::failed(operation, "pread", path, &error))?;
        Ok(ChunkContents::Bytes)
    };
    // SAFETY: the region is one reservation, all of which is mapped with write access for its device, and no other code has it.
    unsafe { ring.send(&segments, &give) }
}

/// Returns a ring with no more threads than the bytes need.
fn ring<B: Backend>(backend: &B, size: Bytes, chunk: Bytes) -> Result<StagingRing<B>> {
    let chunks = usize::try_from(size.0.div_ceil(chunk.0)).unwrap_or(usize::MAX);
    StagingRing::new(backend, StagingRing::<B>::threads().min(chunks).max(1), chunk)
}

impl<B: Backend> Lease<B> {
    /// Writes the region, with its layout, name and address, to a file of safetensors, from which [`Client::load`] makes the same
    /// region again. The file of that name is replaced when the new one is completely on the disk. Returns its size.
    ///
    /// Parts whose elements follow each other are tensors for other readers of the format; the bytes between them are tensors
    /// with names that begin with `gpu_vmm.gap.`.
    ///
    /// # Errors
    ///
    /// [`ServeError::BadFile`] if the layout does not fit into a header of the format; [`Detail::File`] if the disk is full or the file
    /// cannot be written; the driver's error. There is then no new file, and the old one is unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        const OPERATION: Operation = Operation::SaveRegion;
        let path = path.as_ref();
        let fail = |call, error: io::Error| files::failed(OPERATION, call, path, &error);
        let region = self.region();
        let size = region.end();
        let header = file::header(self.name(), region.address().0, size, self.layout()).map_err(|why| {
            let path = path.display().to_string();
            Error::of_extension(OPERATION, ServeError::BadFile { path, why })
        })?;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = Builder::new().prefix(".gpu-vmm-").tempfile_in(folder);
        let temporary = temporary.map_err(|error| fail("open", error))?;
        let file = temporary.as_file();
        files::write_all_at(file, &header, 0).map_err(|error| fail("pwrite", error))?;
        let begin = header.len() as u64;
        let take = |offset: Bytes, bytes: &[u8]| {
            files::write_all_at(file, bytes, begin + offset.0).map_err(|error| fail("pwrite", error))?;
            files::start_writing(file, begin + offset.0, bytes.len() as u64);
            Ok(())
        };
        self.fetch(StagingRing::<B>::CHUNK, &take)?;
        file.sync_all().map_err(|error| fail("fsync", error))?;
        temporary.persist(path).map_err(|error| fail("rename", error.error))?;
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| fail("fsync", error))?;
        Ok(Bytes(begin) + size)
    }

    /// Passes all bytes of the region to `take`, in chunks of this size, in any order and from several threads at once.
    pub(super) fn fetch(
        &self,
        chunk: Bytes,
        take: &(dyn Fn(Bytes, &[u8]) -> Result<()> + Sync),
    ) -> Result<()> {
        let region = self.region();
        let (size, first) = (region.end(), region.mapping_at(Bytes::ZERO));
        let Some(device) = first.map(|mapping| mapping.memory.device()) else { return Ok(()) };
        let segments = [Segment { address: region.address(), length: size, device }];
        // SAFETY: the region is one reservation, all of which is mapped with read access for its device. Nothing writes to an epoch;
        // to new memory writes this lease alone, which is borrowed.
        unsafe { ring(region.backend(), size, chunk)?.fetch(&segments, take) }
    }
}
