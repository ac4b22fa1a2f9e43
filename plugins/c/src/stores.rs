//! The stores that keep the contents of suspended memory.

use crate::call::held;
use crate::status::{CallResult, Failure};
use gpu_vmm::extend::{InstanceId, Lock};
use gpu_vmm::{AnyBackend, Backend as _, BackingStore, Bytes, Detail, Operation, StagingRing};
use std::ffi::OsStr;
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, MutexGuard, Weak};

/// The environment variable for the number of threads that copy at a time.
const THREADS: &str = "GPU_VMM_COPY_THREADS";

/// The largest number of threads that the variable can set.
const MAX_THREADS: usize = 256;

/// How often a store is chosen again for contents that grow meanwhile.
const CHOICES: usize = 16;

/// The stores of a pool or a region. Stores that are slow to create are created on first use and kept.
#[derive(Debug, Default)]
pub(crate) struct Stores(Lock<Made>);

#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Whether the ring is the one of all regions of the backend.
    shares_ring: bool,
    ring: Option<Arc<StagingRing<AnyBackend>>>,
    /// In ordinary memory that is freed after each suspension, and in memory that stays.
    host: Option<BackingStore<AnyBackend>>,
    host_kept: Option<BackingStore<AnyBackend>>,
    pinned: Vec<BackingStore<AnyBackend>>,
}

/// Creates the staging ring of this process's size.
pub(crate) fn ring(backend: &AnyBackend) -> CallResult<StagingRing<AnyBackend>> {
    let threads = match std::env::var_os(THREADS) {
        None => StagingRing::<AnyBackend>::threads(),
        Some(text) => parse_threads(&text.to_string_lossy())?,
    };
    Ok(StagingRing::new(backend, threads, StagingRing::<AnyBackend>::CHUNK)?)
}

/// A ring for as long as a region uses it, and the backend that it copies with.
type SharedRing = (InstanceId, Weak<StagingRing<AnyBackend>>);

/// The rings of regions, one for each backend: an engine has thousands of regions, and a ring has 8 MiB for each core.
static RINGS: LazyLock<Lock<Vec<SharedRing>>> = LazyLock::new(Lock::default);

/// Returns the ring of all regions of a backend. Regions that copy at the same time take turns.
fn shared_ring(backend: &AnyBackend) -> CallResult<Arc<StagingRing<AnyBackend>>> {
    // In a forked child, the list is the parent's: a region there has a ring of its own.
    let Ok(mut rings) = RINGS.lock(Operation::KeepContents) else { return Ok(Arc::new(ring(backend)?)) };
    let shared = rings.iter().find(|(instance, _)| *instance == backend.instance());
    if let Some(ring) = shared.and_then(|(_, ring)| ring.upgrade()) {
        return Ok(ring);
    }
    let made = Arc::new(ring(backend)?);
    rings.retain(|(_, ring)| ring.strong_count() > 0);
    rings.push((backend.instance(), Arc::downgrade(&made)));
    Ok(made)
}

fn parse_threads(text: &str) -> CallResult<usize> {
    let number = text.trim().parse().ok().filter(|threads| (1..=MAX_THREADS).contains(threads));
    number.ok_or_else(|| Failure::invalid(format!("{THREADS} is {text:?}; expected 1 to {MAX_THREADS}")))
}

/// Returns the text behind a prefix: on Unix any bytes.
fn behind<'a>(prefix: &str, text: &'a OsStr) -> Option<&'a OsStr> {
    #[cfg(unix)]
    let rest = text.as_bytes().strip_prefix(prefix.as_bytes()).map(OsStr::from_bytes);
    #[cfg(not(unix))]
    let rest = text.to_str()?.strip_prefix(prefix).map(OsStr::new);
    rest
}

impl Stores {
    /// Returns the stores of a region, whose ring is the one of all regions of its backend.
    pub(crate) fn of_region() -> Self {
        Self(Lock::new(Made { shares_ring: true, ..Made::default() }))
    }

    /// Locks the stores. The caller holds the lock until the contents are in the chosen store, so that no other thread chooses
    /// the same free space.
    pub(crate) fn lock(&self) -> CallResult<MutexGuard<'_, Made>> {
        held(&self.0, Operation::KeepContents)
    }
}

impl Made {
    /// Saves contents to the store that `keep` names, with space for what `contents` returns. If other threads add memory between the two,
    /// the store is chosen again.
    pub(crate) fn save<T>(
        &mut self,
        backend: &AnyBackend,
        keep: Option<&OsStr>,
        contents: impl Fn() -> CallResult<Bytes>,
        mut save: impl FnMut(&BackingStore<AnyBackend>) -> gpu_vmm::Result<T>,
    ) -> CallResult<gpu_vmm::Result<T>> {
        let mut choices = 0;
        loop {
            let saved = save(&self.store(backend, keep, &contents)?);
            let is_full = |error: &gpu_vmm::Error| matches!(error.detail(), Detail::BackingStoreFull { .. });
            if choices == CHOICES || !saved.as_ref().is_err_and(is_full) {
                return Ok(saved);
            }
            choices += 1;
        }
    }

    /// Returns the store that `keep` names, with space for the number of bytes that `contents` returns.
    fn store(
        &mut self,
        backend: &AnyBackend,
        keep: Option<&OsStr>,
        contents: impl FnOnce() -> CallResult<Bytes>,
    ) -> CallResult<BackingStore<AnyBackend>> {
        let Some(keep) = keep else { return Ok(BackingStore::nothing()) };
        Ok(match keep.to_str() {
            Some("host") => self.host(backend, |made| &mut made.host, Bytes::ZERO)?,
            Some("host-kept") => self.host(backend, |made| &mut made.host_kept, Bytes(u64::MAX))?,
            Some("pinned") => self.pinned(backend, contents()?)?,
            Some("file") => BackingStore::file(std::env::temp_dir(), self.ring(backend)?),
            _ => {
                if let Some(folder) = behind("file:", keep) {
                    BackingStore::file(PathBuf::from(folder), self.ring(backend)?)
                } else if let Some(folders) = behind("files:", keep) {
                    BackingStore::files(std::env::split_paths(folders), self.ring(backend)?)?
                } else {
                    return Err(Failure::invalid(format!(
                        "suspend: keep is {keep:?}; expected null (nowhere), \"host\", \"host-kept\", \
                         \"pinned\", \"file\", \"file:FOLDER\" or \"files:FOLDERS\""
                    )));
                }
            }
        })
    }

    fn ring(&mut self, backend: &AnyBackend) -> CallResult<Arc<StagingRing<AnyBackend>>> {
        if let Some(ring) = &self.ring {
            return Ok(Arc::clone(ring));
        }
        let made = if self.shares_ring { shared_ring(backend)? } else { Arc::new(ring(backend)?) };
        Ok(Arc::clone(self.ring.insert(made)))
    }

    /// Returns the store in ordinary memory that `place` holds, or a new one that keeps up to `most` bytes after each resume.
    fn host(
        &mut self,
        backend: &AnyBackend,
        place: impl Fn(&mut Self) -> &mut Option<BackingStore<AnyBackend>>,
        most: Bytes,
    ) -> CallResult<BackingStore<AnyBackend>> {
        if let Some(store) = place(self) {
            return Ok(store.clone());
        }
        let made = BackingStore::pageable_keeping(self.ring(backend)?, most);
        Ok(place(self).insert(made).clone())
    }

    /// Returns the size of the host memory that the stores have taken, the ring's buffers included.
    pub(crate) fn host_memory(&self) -> Bytes {
        let stores = self.host.iter().chain(&self.host_kept).chain(&self.pinned);
        let ring = self.ring.iter().map(|ring| ring.size());
        stores.map(BackingStore::host_memory).chain(ring).sum()
    }

    /// Frees the host memory that holds no contents. Returns its size.
    pub(crate) fn trim(&mut self) -> CallResult<Bytes> {
        let before = self.host_memory();
        if let Some(store) = &self.host_kept {
            store.trim()?;
        }
        self.free_empty_pinned();
        if self.host_memory() == self.ring.iter().map(|ring| ring.size()).sum() {
            // Suspended contents are copied back through the ring, and none exist in ordinary memory.
            let (shares_ring, pinned) = (self.shares_ring, std::mem::take(&mut self.pinned));
            *self = Self { shares_ring, pinned, ..Self::default() };
        }
        Ok(before - self.host_memory())
    }

    fn free_empty_pinned(&mut self) {
        self.pinned.retain(|store| store.free() != store.capacity());
    }

    /// Returns the smallest page-locked store with enough free space, or else a new one. The store stays for the next
    /// suspension, because creating and releasing page-locked memory takes longer than copying.
    fn pinned(&mut self, backend: &AnyBackend, most: Bytes) -> CallResult<BackingStore<AnyBackend>> {
        let fitting = self.pinned.iter().filter(|store| store.free() >= Some(most));
        if let Some(store) = fitting.min_by_key(|store| store.free()) {
            return Ok(store.clone());
        }
        // The empty stores are too small, and the host may not have memory for both.
        self.free_empty_pinned();
        let store = BackingStore::pinned(backend, most.max(Bytes(1)))?;
        self.pinned.push(store.clone());
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use gpu_vmm::Vendor;

    #[test]
    fn contents_that_grow_meanwhile_get_another_store() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let region = || {
            let mut region = gpu_vmm::Region::builder(&host).reserve(Bytes::mib(4)).build().unwrap();
            region.grow_to(Bytes::mib(4)).unwrap();
            std::cell::RefCell::new(region)
        };
        let suspend = |region: &std::cell::RefCell<gpu_vmm::Region<_>>, sizes: &[u64]| {
            let sizes = std::cell::RefCell::new(sizes.iter());
            let contents = || Ok(Bytes::mib(*sizes.borrow_mut().next().unwrap()));
            Made::default().save(&host, Some("pinned".as_ref()), contents, |store| {
                region.borrow_mut().suspend(store, gpu_vmm::WaitFor::all_devices())
            })
        };
        assert_eq!(suspend(&region(), &[1, 2, 4]).unwrap().unwrap().memory, Bytes::mib(4));
        // Not for ever: another thread may add memory faster than this one saves it.
        let error = suspend(&region(), &[1; CHOICES + 1]).unwrap().unwrap_err();
        assert!(matches!(error.detail(), Detail::BackingStoreFull { .. }), "{error}");
    }

    #[test]
    fn second_suspension_gets_own_pinned_memory() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut made = Made::default();
        let size = Bytes::mib(4);
        let mut region = gpu_vmm::Region::builder(&host).reserve(size).build().unwrap();
        region.grow_to(size).unwrap();
        let mut pinned = || made.store(&host, Some("pinned".as_ref()), || Ok(size)).unwrap();
        region.suspend(&pinned(), gpu_vmm::WaitFor::all_devices()).unwrap();
        // The first one is full, although it is large enough.
        assert_eq!(pinned().free(), Some(size));
        region.resume().unwrap();
        drop(pinned());
        assert_eq!(made.pinned.len(), 2);
    }

    #[test]
    fn kept_memory_is_reported_and_freed() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut made = Made::default();
        assert_eq!(made.host_memory(), Bytes::ZERO);
        let mut region = gpu_vmm::Region::builder(&host).reserve(Bytes::mib(8)).build().unwrap();
        region.grow_to(Bytes::mib(8)).unwrap();
        let done = || gpu_vmm::WaitFor::all_devices();
        let kept = made
            .store(&host, Some("host-kept".as_ref()), || unreachable!("its size is not asked for"))
            .unwrap();
        let ring = made.host_memory();
        assert!(!ring.is_zero());
        for _ in 0..2 {
            region.suspend(&kept, done()).unwrap();
            assert_eq!(made.host_memory(), ring + Bytes::mib(8));
            region.resume().unwrap();
            assert_eq!(made.host_memory(), ring + Bytes::mib(8));
        }
        // Contents stay, and so does the ring through which they come back.
        region.suspend(&kept, done()).unwrap();
        assert_eq!(made.trim().unwrap(), Bytes::ZERO);
        region.resume().unwrap();
        assert_eq!(made.trim().unwrap(), ring + Bytes::mib(8));
        assert_eq!(made.host_memory(), Bytes::ZERO);
        // Memory that is not kept is freed by the resume.
        let host_store =
            made.store(&host, Some("host".as_ref()), || unreachable!("its size is not asked for")).unwrap();
        region.suspend(&host_store, done()).unwrap();
        region.resume().unwrap();
        assert_eq!(made.host_memory(), ring);
        made.pinned(&host, Bytes::mib(1)).unwrap();
        assert_eq!(made.trim().unwrap(), ring + Bytes::mib(1));
    }

    #[test]
    fn contents_can_be_spread_over_several_folders() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut made = Made::default();
        let folder = std::env::temp_dir();
        let folders = std::env::join_paths([&folder, &folder]).unwrap().into_string().unwrap();
        let mut store =
            |keep: &str| made.store(&host, Some(keep.as_ref()), || unreachable!("its size is not asked for"));
        let store_there = store(&format!("files:{folders}")).unwrap();
        let mut region = gpu_vmm::Region::builder(&host).reserve(Bytes::mib(16)).build().unwrap();
        region.grow_to(Bytes::mib(16)).unwrap();
        for offset in [0, 5, 15].map(Bytes::mib) {
            region.write(offset, &offset.0.to_le_bytes()).unwrap();
        }
        region.suspend(&store_there, gpu_vmm::WaitFor::all_devices()).unwrap();
        region.resume().unwrap();
        for offset in [0, 5, 15].map(Bytes::mib) {
            let mut found = [0; 8];
            region.read(offset, &mut found).unwrap();
            assert_eq!(found, offset.0.to_le_bytes());
        }
        let missing = folder.join("gpu-vmm-no-such-folder");
        let several = [[&missing, &folder], [&folder, &missing]].map(|folders| {
            format!("files:{}", std::env::join_paths(folders).unwrap().into_string().unwrap())
        });
        for keep in several.into_iter().chain([format!("file:{}", missing.display())]) {
            let error = region.suspend(&store(&keep).unwrap(), gpu_vmm::WaitFor::all_devices()).unwrap_err();
            assert!(error.to_string().contains("gpu-vmm-no-such-folder"), "{error}");
        }
    }

    #[test]
    fn regions_of_one_backend_share_a_ring() {
        let [host, other] = [(); 2].map(|()| AnyBackend::open(Vendor::Host).unwrap());
        let ring = |stores: &Stores, backend| stores.lock().unwrap().ring(backend).unwrap();
        let regions = [(); 3].map(|()| Stores::of_region());
        let first = ring(&regions[0], &host);
        assert!(Arc::ptr_eq(&first, &ring(&regions[1], &host)));
        assert!(!Arc::ptr_eq(&first, &ring(&regions[2], &other)));
        assert!(!Arc::ptr_eq(&first, &ring(&Stores::default(), &host)), "a pool has its own");
        let gone = Arc::downgrade(&first);
        drop((regions, first));
        assert!(gone.upgrade().is_none(), "it ends with its last region");
        assert!(!Arc::ptr_eq(&ring(&Stores::of_region(), &host), &ring(&Stores::default(), &host)));
    }

    #[test]
    fn the_number_of_threads_is_checked() {
        assert_eq!([" 3 ", "1", "256"].map(|text| parse_threads(text).unwrap()), [3, 1, 256]);
        let text = parse_threads("257").unwrap_err().text;
        assert_eq!(text, "GPU_VMM_COPY_THREADS is \"257\"; expected 1 to 256");
        for text in ["0", "257", "-1", "many", ""] {
            assert!(parse_threads(text).is_err(), "{text:?}");
        }
    }

    /// Another process, since all threads of one have the same environment.
    #[test]
    fn wrong_thread_count_in_environment_fails() {
        const NAME: &str = "stores::tests::wrong_thread_count_in_environment_fails";
        if std::env::var(THREADS).is_ok_and(|threads| threads == "none") {
            let host = AnyBackend::open(Vendor::Host).unwrap();
            let failure = ring(&host).map(drop).unwrap_err();
            assert_eq!(failure.text, "GPU_VMM_COPY_THREADS is \"none\"; expected 1 to 256");
            return;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = again.args([NAME, "--exact"]).env(THREADS, "none").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn empty_pinned_store_is_enlarged() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut made = Made::default();
        let capacities = |made: &Made| made.pinned.iter().map(BackingStore::capacity).collect::<Vec<_>>();
        made.pinned(&host, Bytes::mib(1)).unwrap();
        let small = capacities(&made);
        assert_eq!(small.len(), 1);
        // A store that is exactly large enough serves again, and so does one for less.
        for size in [Bytes::mib(1), Bytes::mib(1) - Bytes(1), Bytes::ZERO] {
            made.pinned(&host, size).unwrap();
            assert_eq!(capacities(&made), small, "{size}");
        }
        made.pinned(&host, Bytes::mib(1) + Bytes(1)).unwrap();
        let large = capacities(&made);
        assert!(large.len() == 1 && large[0] > small[0], "{large:?}");
    }

    #[test]
    fn contents_take_the_tightest_pinned_store() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut made = Made::default();
        let sizes = [2, 8, 4].map(Bytes::mib);
        made.pinned = sizes.map(|size| BackingStore::pinned(&host, size).unwrap()).into();
        for (contents, expected) in [(3, 4), (1, 2), (5, 8)].map(|(one, other)| (Bytes::mib(one), other)) {
            assert_eq!(made.pinned(&host, contents).unwrap().capacity(), Some(Bytes::mib(expected)));
        }
        assert_eq!(made.pinned.len(), sizes.len());
    }
}
