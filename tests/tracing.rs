//! The spans and events that are reported to the crate `tracing`.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm::host::HostConfig;
use gpu_vmm::pool::Pool;
use gpu_vmm::share::{Channel, Exporter, ImportOptions};
use gpu_vmm::snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm::{
    Access, BackingStore, BankedRegion, Bytes, DeviceId, MovePath, PhysicalMemory, Properties, Region,
    StagingRing, Stream, WaitFor,
};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of a span or an event, by their names.
type Values = BTreeMap<&'static str, String>;

#[derive(Default)]
struct Fields(Values);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// A subscriber that collects the spans and events of one crate, in the order in which they begin.
#[derive(Clone)]
struct Listener {
    target: &'static str,
    told: Arc<Mutex<Vec<(String, Values)>>>,
    spans: Arc<AtomicU64>,
}

impl Listener {
    fn to(target: &'static str) -> Self {
        Self { target, told: Arc::default(), spans: Arc::default() }
    }

    /// Takes the events that were collected since the last call.
    fn take(&self) -> Vec<(String, Values)> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// Takes only the names.
    fn names(&self) -> Vec<String> {
        self.take().into_iter().map(|(name, _)| name).collect()
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == self.target
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.told.lock().unwrap().push((span.metadata().name().into(), fields.0));
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let name = fields.0.remove("message").unwrap();
        self.told.lock().unwrap().push((name, fields.0));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn fields(fields: &[(&'static str, &str)]) -> Values {
    fields.iter().map(|(name, value)| (*name, (*value).into())).collect()
}

fn span(name: &str, values: &[(&'static str, &str)]) -> (String, Values) {
    (name.to_owned(), fields(values))
}

#[test]
fn pool_reports_its_memory_operations() {
    let listener = Listener::to("gpu_vmm_pool");
    let _here = tracing::subscriber::set_default(listener.clone());

    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).budget(Bytes::mib(16)).build().unwrap();
    let (alignment, stream) = (Bytes(256), Stream::DEFAULT);
    let block = pool.request(Bytes::mib(4)).alignment(alignment).stream(stream).alloc().unwrap();
    let allocate = ("allocate".to_owned(), fields(&[("bytes", "4194304"), ("tag", "\"\"")]));
    let mapped = fields(&[("pages", "2"), ("from_elsewhere", "0"), ("created", "2")]);
    assert_eq!(listener.take(), [allocate, ("mapped".to_owned(), mapped)]);

    drop(block);
    let _same = pool.request(Bytes::mib(4)).alignment(alignment).stream(stream).alloc().unwrap();
    assert!(listener.take().is_empty(), "nothing had to be done");
    drop(pool.request(Bytes::mib(12)).alignment(alignment).stream(stream).alloc().unwrap());
    listener.take();
    let tagged = pool.tagged("other").unwrap();
    let other = tagged.request(Bytes::mib(4)).alignment(alignment).stream(stream).alloc().unwrap();
    let moved = fields(&[("pages", "2"), ("from_elsewhere", "2"), ("created", "0")]);
    assert_eq!(listener.take()[1..], [("mapped".to_owned(), moved)]);

    pool.request(Bytes::mib(32)).alignment(alignment).stream(stream).alloc().unwrap_err();
    let stats = pool.stats();
    let [live, kept, held] = [stats.live, stats.kept, stats.held].map(|bytes| bytes.to_string());
    let short = [
        ("operation", "\"allocate\""),
        ("requested", "33554432"),
        ("live", &live),
        ("kept", &kept),
        ("held", &held),
    ];
    assert_eq!(listener.take().pop().unwrap(), span("out of memory", &short));

    pool.suspend("other", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    pool.resume("other").unwrap();
    drop(other);
    let pages = pool.trim(Bytes::mib(2)).unwrap() / Bytes::mib(2);
    assert!(pages > 0);
    let tag = [("tag", "\"other\"")];
    let trim = span("trim", &[("keep", "2097152")]);
    let given_back = span("given back", &[("pages", &pages.to_string())]);
    assert_eq!(listener.take(), [span("suspend", &tag), span("resume", &tag), trim, given_back]);
}

#[test]
fn region_reports_each_effective_operation() {
    let listener = Listener::to("gpu_vmm_core");
    let _here = tracing::subscriber::set_default(listener.clone());
    let backend = HostConfig::new().devices(2).open().unwrap();
    let done = WaitFor::all_devices;
    let mib2 = Bytes::mib(2);
    let reserve = || Region::builder(&backend).reserve(Bytes::mib(16)).tag("kv").build().unwrap();
    let (mut region, mut other) = (reserve(), reserve());
    let (address, address_of_other) = (region.address(), other.address().to_string());
    let (at, part) = (address.to_string(), (address + mib2).to_string());
    let (at, part): (&str, &str) = (&at, &part);
    let (bytes, tag) = (("bytes", "2097152"), ("tag", "\"kv\""));
    let create = |device| span("create memory", &[bytes, ("device", device)]);
    let grow = |address, to| span("grow", &[("address", address), ("to", to)]);
    listener.take();

    region.grow_to(mib2).unwrap();
    assert_eq!(listener.take(), [grow(at, "2097152"), create("0")]);
    region.grow_to(mib2).unwrap();
    region.grow_to(Bytes::gib(1 << 30)).unwrap_err();
    region.unmap(mib2, mib2, done()).unwrap_err();
    assert!(listener.take().is_empty(), "these calls do nothing or are refused");

    let memory = PhysicalMemory::create(&backend, mib2, Properties::on(DeviceId(0))).unwrap();
    region.map(mib2, &memory).unwrap();
    region.set_access(mib2, mib2, DeviceId(1), Access::Read).unwrap();
    region.unmap(mib2, mib2, done()).unwrap();
    let map = span("map", &[("address", part), bytes]);
    let set_access = span("set access", &[("address", part), bytes, ("device", "1")]);
    let unmap = span("unmap", &[("address", part), bytes]);
    assert_eq!(listener.take(), [create("0"), map, set_access, unmap]);

    region.grow_with(&[memory]).unwrap();
    assert_eq!(region.shrink_to(mib2, done()).unwrap().removed, mib2);
    other.grow_to(mib2).unwrap();
    let shrink = span("shrink", &[("address", at), ("to", "2097152")]);
    let grown = [grow(at, "4194304"), shrink, grow(&address_of_other, "2097152"), create("0")];
    assert_eq!(listener.take(), grown);
    region.swap(Bytes::ZERO, &mut other, Bytes::ZERO, mib2, done()).unwrap();
    region.move_to_device(DeviceId(1), MovePath::Fastest(None), done()).unwrap();
    let swap = span("swap", &[("address", at), ("other", &address_of_other)]);
    let move_to_device = span("move to device", &[("address", at), bytes, ("device", "1")]);
    assert_eq!(listener.take(), [swap, move_to_device, create("1")]);
    region.suspend(&BackingStore::nothing(), done()).unwrap();
    region.suspend(&BackingStore::nothing(), done()).unwrap();
    region.resume().unwrap();
    let [suspend, resume] = ["suspend", "resume"].map(|name| span(name, &[("address", at), bytes, tag]));
    assert_eq!(listener.take(), [suspend, resume, create("1")]);

    let mut banked = BankedRegion::build(Region::builder(&backend).reserve(mib2)).unwrap();
    let banks = [(); 2].map(|()| banked.add_bank(mib2).unwrap());
    listener.take();
    banked.select(banks[1], done()).unwrap();
    banked.select(banks[1], done()).unwrap();
    banked.hide(done()).unwrap();
    let at = banked.address().to_string();
    let select = span("select bank", &[("address", &at), ("bank", "1")]);
    assert_eq!(listener.take(), [select, span("hide bank", &[("address", &at)])]);
}

/// A plain allocation has no handle, and growth moves it.
#[test]
fn plain_region_reports_its_growth() {
    let listener = Listener::to("gpu_vmm_core");
    let _here = tracing::subscriber::set_default(listener.clone());
    let backend = HostConfig::new().without_virtual_memory().open().unwrap();
    let mut region = Region::builder(&backend).build().unwrap();
    for (size, to) in [(Bytes::mib(2), "2097152"), (Bytes::mib(4), "4194304")] {
        let before = region.address().to_string();
        region.grow_to(size).unwrap();
        region.grow_to(size).unwrap();
        assert_eq!(listener.take(), [span("grow", &[("address", &before), ("to", to)])]);
    }
}

#[test]
fn sharing_reports_each_side() {
    let listener = Listener::to("gpu_vmm_share");
    let _here = tracing::subscriber::set_default(listener.clone());
    let backend = HostConfig::new().devices(2).open().unwrap();
    let shareable = Properties::on(DeviceId(0)).shareable();
    let mut region = Region::builder(&backend).reserve(Bytes::mib(16)).memory(shareable).build().unwrap();
    region.grow_to(Bytes::mib(2)).unwrap();

    let (here, there) = Channel::pair().unwrap();
    let mut exporter = Exporter::share(here, &region).unwrap();
    let mut imported = ImportOptions::new().reserve(Bytes::mib(16)).receive(&backend, there).unwrap();
    assert_eq!(listener.names(), ["share region", "receive region"]);
    region.grow_to(Bytes::mib(4)).unwrap();
    assert!(exporter.publish(&region).unwrap());
    imported.next(std::time::Duration::from_secs(10)).unwrap().unwrap();
    imported.apply(WaitFor::all_devices()).unwrap();
    imported.apply(WaitFor::all_devices()).unwrap();
    imported.release(WaitFor::all_devices()).unwrap();
    assert_eq!(listener.names(), ["publish change", "apply change", "release import"]);

    let listener = Listener::to("gpu_vmm_core");
    let _here = tracing::subscriber::set_default(listener.clone());
    let (mut here, mut there) = Channel::pair().unwrap();
    let of_second = Properties::on(DeviceId(1)).shareable();
    let memory = PhysicalMemory::create(&backend, Bytes::mib(2), of_second).unwrap();
    here.send_memory(&backend, &memory).unwrap();
    there.receive_memory(&backend).unwrap();
    let names = ["create memory", "export memory", "import memory"];
    let each = names.map(|name| span(name, &[("bytes", "2097152"), ("device", "1")]));
    assert_eq!(listener.take(), each);
}

#[test]
fn snapshots_report_writing_and_restoring() {
    let listener = Listener::to("gpu_vmm_snapshot");
    let _here = tracing::subscriber::set_default(listener.clone());
    let backend = HostConfig::new().open().unwrap();
    let mut region = Region::builder(&backend).reserve(Bytes::mib(16)).build().unwrap();
    region.grow_to(Bytes::mib(2)).unwrap();
    let ring = StagingRing::new(&backend, 1, Bytes::mib(1)).unwrap();
    let path = std::env::temp_dir().join(format!("gpu-vmm-tracing-{}", std::process::id()));
    Snapshot::new(&ring).region(&region).write(&path, WaitFor::all_devices()).unwrap();
    drop(region);
    let restored = Restore::new().regions(&SnapshotFile::open(&path).unwrap(), &ring);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(restored.unwrap().len(), 1);
    let told = listener.take();
    let expected = [("take snapshot", "bytes", "2097152"), ("restore snapshot", "regions", "1")];
    let expected = expected.map(|(name, key, value)| (name.to_owned(), fields(&[(key, value)])));
    assert_eq!(told, expected);
}
