//! The `snapshot` subcommand: the contents of a snapshot, verified. No driver is opened.

mod text;

use crate::Answer;
use crate::args::SnapshotArguments;
use crate::output::Output;
use crate::progress::Progress;
use gpu_vmm::snapshot::{Description, Earlier, MappingRecord, RegionRecord, SnapshotFile, SnapshotStats};
use gpu_vmm::{Access, AccessMap, Bytes, Error, Properties, Result};
use serde::Serialize;

/// The result of `gpu-vmm snapshot`, as `--json` prints it.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    pub(crate) file: String,
    pub(crate) id: String,
    /// The time of its creation, in seconds since the beginning of 1970 (UTC).
    pub(crate) created: u64,
    /// The version of gpu-vmm that wrote it.
    pub(crate) version: String,
    pub(crate) backend: String,
    pub(crate) driver: String,
    /// The earlier snapshot that it is based on.
    pub(crate) since: Option<FileReport>,
    /// The files in the same folder that hold some of its blocks.
    pub(crate) needs: Vec<FileReport>,
    pub(crate) devices: Vec<DeviceReport>,
    pub(crate) regions: Vec<RegionReport>,
    /// The size of all memory on the devices.
    pub(crate) content_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) blocks: Blocks,
    /// Whether every block matches its checksum.
    pub(crate) verified: bool,
    /// Why `verified` is false.
    pub(crate) error: Option<String>,
}

#[derive(Serialize, Debug)]
pub(crate) struct FileReport {
    pub(crate) file: String,
    pub(crate) id: String,
}

#[derive(Serialize, Debug)]
pub(crate) struct DeviceReport {
    pub(crate) device: u32,
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    pub(crate) granularity_bytes: u64,
    pub(crate) total_bytes: u64,
}

#[derive(Serialize, Debug)]
pub(crate) struct RegionReport {
    pub(crate) tag: String,
    pub(crate) address: String,
    pub(crate) reserved_bytes: u64,
    pub(crate) mapped_bytes: u64,
    pub(crate) guard_bytes: u64,
    pub(crate) portable: bool,
    pub(crate) parts: Vec<PartReport>,
}

/// Consecutive mappings with the same type of memory and the same access.
#[derive(Serialize, Debug)]
pub(crate) struct PartReport {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) mappings: u64,
    pub(crate) memory: String,
    pub(crate) access: Vec<AccessReport>,
}

#[derive(Serialize, Debug)]
pub(crate) struct AccessReport {
    pub(crate) device: String,
    /// `read` or `read and write`.
    pub(crate) access: String,
}

/// The numbers of blocks by how they are stored.
#[derive(Serialize, Debug)]
pub(crate) struct Blocks {
    pub(crate) all: u64,
    pub(crate) zero: u64,
    pub(crate) unchanged: u64,
    pub(crate) stored: u64,
    pub(crate) compressed: u64,
}

pub(crate) fn run(asked: &SnapshotArguments) -> Answer {
    let file = SnapshotFile::open(&asked.file)?;
    let mut output = Output::default();
    let mut report = Report::new(&file);
    if !asked.json {
        text::opening(&report, &mut output)?;
    }
    let verified = verify(&file, &mut Progress::new(!asked.json));
    report.verified = verified.is_ok();
    report.error = verified.as_ref().err().map(Error::to_string);
    if asked.json {
        output.json(&report)?;
    } else {
        text::verdict(&report, &mut output)?;
    }
    Ok(verified.map(drop)?)
}

fn verify(file: &SnapshotFile, progress: &mut Progress) -> Result<SnapshotStats> {
    progress.begin("checking", file.stats().contents);
    let progress = &*progress;
    file.verify(&|done| progress.advance(done))
}

impl Report {
    fn new(file: &SnapshotFile) -> Self {
        let description = file.description();
        let stats = file.stats();
        Self {
            file: file.path().display().to_string(),
            id: description.id.to_string(),
            created: description.created,
            version: description.library.clone(),
            backend: description.vendor.clone(),
            driver: description.driver.clone(),
            since: description.parent.as_ref().map(FileReport::from),
            needs: file.needed().iter().map(FileReport::from).collect(),
            devices: description
                .devices
                .iter()
                .map(|device| DeviceReport {
                    device: device.id.0,
                    name: device.name.clone(),
                    uuid: device.uuid.map(|uuid| uuid.to_string()),
                    granularity_bytes: device.granularity.bytes().0,
                    total_bytes: device.total_memory.0,
                })
                .collect(),
            regions: description.regions.iter().map(|one| RegionReport::new(one, description)).collect(),
            content_bytes: stats.contents.0,
            file_bytes: stats.file.0,
            block_bytes: file.block_size().0,
            blocks: Blocks {
                all: stats.blocks,
                zero: stats.zero,
                unchanged: stats.unchanged,
                stored: stats.stored,
                compressed: stats.compressed,
            },
            verified: false,
            error: None,
        }
    }
}

impl From<&Earlier> for FileReport {
    fn from(earlier: &Earlier) -> Self {
        Self { file: earlier.file.clone(), id: earlier.id.to_string() }
    }
}

impl RegionReport {
    fn new(region: &RegionRecord, description: &Description) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        for mapping in &region.mappings {
            let Some(next) = Part::of(mapping, description) else { continue };
            match parts.last_mut() {
                Some(last) if last.is_followed_by(&next) => {
                    last.length += next.length;
                    last.mappings += 1;
                }
                _ => parts.push(next),
            }
        }
        Self {
            tag: region.tag.clone(),
            address: region.address.to_string(),
            reserved_bytes: region.reserved().0,
            mapped_bytes: parts.iter().map(|part| part.length.0).sum(),
            guard_bytes: region.guard.0,
            portable: region.portable,
            parts: parts.iter().map(Part::report).collect(),
        }
    }
}

/// The mappings of a future [`PartReport`].
struct Part {
    offset: Bytes,
    length: Bytes,
    mappings: u64,
    properties: Properties,
    access: AccessMap,
}

impl Part {
    fn of(mapping: &MappingRecord, description: &Description) -> Option<Self> {
        let memory = description.memories.get(mapping.memory)?;
        let (length, properties) = (memory.size, memory.properties);
        Some(Self { offset: mapping.offset, length, mappings: 1, properties, access: mapping.access })
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.offset + self.length == next.offset
            && (self.properties, self.access) == (next.properties, next.access)
    }

    fn report(&self) -> PartReport {
        let one = |device: String, access: Access| AccessReport { device, access: access.to_string() };
        PartReport {
            offset: self.offset.0,
            bytes: self.length.0,
            mappings: self.mappings,
            memory: self.properties.to_string(),
            access: self.access.grants().map(|grant| one(grant.device.to_string(), grant.access)).collect(),
        }
    }
}
