//! The spans and events that the pool reports to the crate `tracing`.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm_core::{BackingStore, Bytes, Stream, WaitFor};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The reported spans and events: a name with its fields.
type Told = (String, BTreeMap<&'static str, String>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[derive(Clone, Default)]
struct Listener {
    told: Arc<Mutex<Vec<Told>>>,
    spans: Arc<AtomicU64>,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "gpu_vmm_pool"
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

#[test]
fn a_subscriber_is_told() {
    let listener = Listener::default();
    let _here = tracing::subscriber::set_default(listener.clone());
    let told = || std::mem::take(&mut *listener.told.lock().unwrap());
    let fields = |fields: &[(&'static str, &str)]| -> BTreeMap<&'static str, String> {
        fields.iter().map(|(name, value)| (*name, (*value).into())).collect()
    };

    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).budget(Bytes::mib(16)).build().unwrap();
    let (alignment, stream) = (Bytes(256), Stream::DEFAULT);
    let block = pool.request(Bytes::mib(4)).alignment(alignment).stream(stream).alloc().unwrap();
    let supply = ("supply".to_owned(), fields(&[("bytes", "4194304"), ("tag", "\"\"")]));
    let mapped = fields(&[("pages", "2"), ("from_elsewhere", "0"), ("created", "2")]);
    assert_eq!(told(), [supply, ("mapped".to_owned(), mapped)]);

    drop(block);
    let _same = pool.request(Bytes::mib(4)).alignment(alignment).stream(stream).alloc().unwrap();
    assert!(told().is_empty(), "nothing had to be done");
    drop(pool.request(Bytes::mib(12)).alignment(alignment).stream(stream).alloc().unwrap());
    told();
    let tagged = pool.tagged("other").unwrap();
    let other = tagged.request(Bytes::mib(4)).alignment(alignment).stream(stream).alloc().unwrap();
    let moved = fields(&[("pages", "2"), ("from_elsewhere", "2"), ("created", "0")]);
    assert_eq!(told()[1..], [("mapped".to_owned(), moved)]);

    pool.request(Bytes::mib(32)).alignment(alignment).stream(stream).alloc().unwrap_err();
    let (name, short) = told().pop().unwrap();
    assert_eq!(
        (&*name, &*short["requested"], &*short["operation"]),
        ("out of memory", "33554432", "\"allocate\"")
    );

    pool.suspend("other", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    pool.resume("other").unwrap();
    drop(other);
    pool.trim(Bytes::ZERO).unwrap();
    let names: Vec<_> = told().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["suspend", "resume", "trim", "given back"]);
}
