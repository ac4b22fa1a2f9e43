//! Finds AMD's HIP runtime at run time, and looks up its functions.
//!
//! The search order:
//!
//! 1. The file that `GPU_VMM_HIP_LIBRARY` names. If the variable is set, nothing else is tried.
//! 2. A copy that the process has already loaded, because two copies do not know each other's memory.
//! 3. The folder that `GPU_VMM_HIP_FOLDER` names.
//! 4. The names with a version in the loader's own folders, newest first.
//! 5. The folders of ROCm and of its wheels for Python (`places`).
//! 6. The name without a version in the loader's own folders, because it can belong to any version.
//!
//! A library of steps 3 to 6 that cannot be loaded or used does not end the search. Version 5 is not among the names: on Linux its virtual memory functions exist and do nothing, and 5.2 has them with
//! another structure.
//!
//! A loaded library stays loaded, because the runtime has threads of its own. One that this module has loaded and refused does
//! not count as one that the process has loaded: the next call searches again.
#![allow(unsafe_code)] // loading a library runs its code, and the types of symbols are not checked

use crate::ffi;
use crate::ffi::hsa::Hsa;
use crate::library::Library;
use crate::quirks;
use gpu_vmm_core::{Detail, Error, LoadAttempt, Operation, Result, Vendor};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The environment variable that names the only library to try.
const OVERRIDE: &str = "GPU_VMM_HIP_LIBRARY";

/// A library to try, or the record of a place that has none.
type Candidate = std::result::Result<OsString, LoadAttempt>;

/// The libraries that this module has loaded and refused, by their handles, which stay valid because they stay loaded. Zeros come
/// last. Not a lock: a forked child may find it locked. A library for which there is no room counts as loaded by the process.
static REFUSED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

cfg_if::cfg_if! {
    if #[cfg(unix)] {
        use crate::places::{self, Place};
        use std::os::unix::ffi::OsStrExt;
        use std::path::Path;
        use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};

        /// Newest first. AMD has announced 8; higher numbers are found in ROCm's folders.
        const NAMES: [&str; 4] = ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

        /// The name of a HIP version's run-time compiler.
        pub(crate) fn compiler_name(version: u32) -> String {
            format!("libhiprtc.so.{}", version / 10_000_000)
        }

        /// Returns the paths of a library other than HIP in the places in which HIP is looked for.
        pub(crate) fn paths(name: &str) -> Vec<PathBuf> {
            let places = places::first().into_iter().chain(places::last());
            places.flat_map(|place| place.paths(name).collect::<Vec<_>>()).collect()
        }

        /// Returns the candidates of steps 3 to 6. In the place of one, a place without a library has its record.
        fn candidates() -> Vec<Candidate> {
            let all = |place: Place| match place.hip() {
                paths if paths.is_empty() => {
                    let library = place.name.join("libamdhip64.so*").display().to_string();
                    vec![Err(LoadAttempt { library, answer: "no such file".to_owned() })]
                }
                paths => paths.into_iter().map(|path| Ok(path.into())).collect(),
            };
            let (versions, bare) = NAMES.split_at(NAMES.len() - 1);
            let by_name = |names: &[&str]| names.iter().map(|name| Ok(name.into())).collect::<Vec<_>>();
            let first = places::first().into_iter().flat_map(all).chain(by_name(versions));
            first.chain(places::last().into_iter().flat_map(all)).chain(by_name(bare)).collect()
        }

        /// Returns the folder of the library that has a function.
        fn folder_of(function: *const std::ffi::c_void) -> Option<PathBuf> {
            // SAFETY: pointers, for which null is a value.
            let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
            // SAFETY: the call accepts any address and fills the structure; the library of the name is never unloaded.
            let name = unsafe {
                let is_known = libc::dladdr(function, &raw mut info) != 0 && !info.dli_fname.is_null();
                is_known.then(|| std::ffi::CStr::from_ptr(info.dli_fname))
            }?;
            places::absolute_folder(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())))
        }

        /// Returns the names of the HIP libraries that the process has loaded, whatever their version.
        fn loaded_names() -> Vec<OsString> {
            let mut names: Vec<OsString> = NAMES.iter().map(OsString::from).collect();
            #[cfg(target_os = "linux")]
            names.extend(crate::objects::loaded().into_iter().filter(|name| places::is_hip(Path::new(name))));
            names
        }

        fn open(name: &OsString) -> std::result::Result<Library, libloading::Error> {
            // SAFETY: AMD's runtime is made to be loaded; its initializers require nothing of the caller.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        }

        /// Returns the handle of a library, which stays loaded.
        fn handle(library: Library) -> usize {
            library.into_raw().expose_provenance()
        }

        /// Returns the library of a handle.
        fn again(handle: usize) -> Library {
            // SAFETY: the handle comes from `handle`, and its reference is given to one object, here.
            unsafe { Library::from_raw(std::ptr::with_exposed_provenance_mut(handle)) }
        }

        fn already_loaded(name: &OsString) -> Option<Library> {
            // SAFETY: RTLD_NOLOAD loads nothing, so no code runs.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()
        }
    } else if #[cfg(windows)] {
        use libloading::os::windows::{LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32};

        /// The display driver installs HIP into the system folder, the HIP SDK into its own.
        const NAMES: [&str; 2] = ["amdhip64_7.dll", "amdhip64_6.dll"];

        /// The name of a HIP version's run-time compiler.
        pub(crate) fn compiler_name(version: u32) -> String {
            format!("hiprtc{:02}{:02}.dll", version / 10_000_000, version / 100_000 % 100)
        }

        /// Returns the paths of a library in the folder that the Python package names, and in the folder of the HIP SDK.
        /// A relative path would depend on the current folder, and is ignored.
        pub(crate) fn paths(name: &str) -> Vec<PathBuf> {
            let first = std::env::var_os("GPU_VMM_HIP_FOLDER").map(PathBuf::from);
            let sdk = std::env::var_os("HIP_PATH").map(|path| PathBuf::from(path).join("bin"));
            let folders = first.into_iter().chain(sdk).filter(|folder| folder.is_absolute());
            folders.map(|folder| folder.join(name)).collect()
        }

        /// Returns the candidates of steps 3 to 5.
        fn candidates() -> Vec<Candidate> {
            let in_folders = NAMES.iter().flat_map(|name| paths(name)).map(OsString::from);
            NAMES.iter().map(OsString::from).chain(in_folders).map(Ok).collect()
        }

        fn folder_of(_: *const std::ffi::c_void) -> Option<PathBuf> {
            None
        }

        fn loaded_names() -> Vec<OsString> {
            NAMES.iter().map(OsString::from).collect()
        }

        /// Loads a name from the system folder only: by default Windows would also search the program's folder, the
        /// current folder and PATH. For an absolute path, dependencies may come from the library's folder.
        fn open(name: &OsString) -> std::result::Result<Library, libloading::Error> {
            let flags = if std::path::Path::new(name).is_absolute() {
                LOAD_LIBRARY_SEARCH_SYSTEM32 | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
            } else {
                LOAD_LIBRARY_SEARCH_SYSTEM32
            };
            // SAFETY: AMD's runtime is made to be loaded; its initializers require nothing of the caller.
            unsafe { Library::load_with_flags(name, flags) }
        }

        /// Returns the handle of a library, which stays loaded.
        fn handle(library: Library) -> usize {
            library.into_raw() as usize
        }

        /// Returns the library of a handle.
        fn again(handle: usize) -> Library {
            // SAFETY: the handle comes from `handle`, and its reference is given to one object, here.
            unsafe { Library::from_raw(handle as _) }
        }

        fn already_loaded(name: &OsString) -> Option<Library> {
            Library::open_already_loaded(name).ok()
        }
    } else {
        compile_error!("AMD's HIP runtime exists only on Linux and Windows");
    }
}

/// The table of HIP's functions: required ones, and ones that some versions lack.
macro_rules! symbols {
    (required: $($required:ident)*; optional: $($optional:ident)*;) => {
        /// HIP's functions, under their own names.
        #[allow(non_snake_case)]
        pub(crate) struct Symbols {
            $(pub(crate) $required: ffi::$required,)*
            $(pub(crate) $optional: Option<ffi::$optional>,)*
            /// Functions of ROCr, if they can be found through HIP.
            pub(crate) hsa: Option<Hsa>,
        }

        impl Symbols {
            fn find(library: &Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: HIP's function of this name has this type in every version since 5.2, and the library is
                    // never unloaded.
                    $($required: unsafe { *library.get(stringify!($required)).map_err(|_| stringify!($required))? },)*
                    // SAFETY: as above.
                    $($optional: unsafe { library.get(stringify!($optional)) }.ok().map(|found| *found),)*
                    hsa: Hsa::find(library),
                })
            }
        }
    };
}

symbols! {
    required:
        hipDeviceCanAccessPeer hipDeviceGetAttribute hipDeviceGetName hipDeviceSynchronize hipDeviceTotalMem hipFree
        hipGetDevice hipGetDeviceCount hipGetErrorName hipGetErrorString hipGetLastError hipInit hipMalloc
        hipMemAddressFree hipMemAddressReserve hipMemCreate hipMemExportToShareableHandle hipMemGetAccess
        hipMemGetAllocationGranularity hipMemGetInfo hipMemImportFromShareableHandle hipMemMap hipMemRelease
        hipMemSetAccess hipMemUnmap hipMemcpy hipMemset hipPointerGetAttributes hipRuntimeGetVersion hipSetDevice hipStreamSynchronize;
    optional:
        hipDeviceGetUuid hipEventCreateWithFlags hipEventDestroy hipEventQuery hipEventRecord hipEventSynchronize
        hipGetDevicePropertiesR0600 hipGraphDestroy hipGraphExecDestroy hipGraphInstantiateWithFlags hipGraphLaunch
        hipHostFree hipHostMalloc hipMemGetAddressRange hipMemGetAllocationPropertiesFromHandle
        hipMemRetainAllocationHandle hipMemcpyAsync hipMemsetAsync hipModuleGetFunction hipModuleLaunchKernel hipModuleLoadData
        hipStreamBeginCapture hipStreamCreateWithFlags hipStreamDestroy hipStreamEndCapture hipStreamGetDevice
        hipStreamIsCapturing hipStreamQuery hipStreamWaitEvent hipThreadExchangeStreamCaptureMode;
}

/// A loaded and usable library.
pub(crate) struct Loaded {
    pub(crate) hip: Symbols,
    /// The name that was loaded.
    pub(crate) name: String,
    /// The folder of its file, if it is known.
    pub(crate) folder: Option<PathBuf>,
    /// The result of `hipRuntimeGetVersion`.
    pub(crate) version: u32,
}

/// Loads the first library of the search order that can be used. A library that the user names, or that the process has
/// already loaded, is refused if it cannot be used.
pub(crate) fn load() -> Result<Loaded> {
    let mut tried = Vec::new();
    // The loader would take an empty name for this program.
    let named = std::env::var_os(OVERRIDE).filter(|path| !path.is_empty());
    let (only, candidates) = match named {
        Some(path) => (found(path, &mut tried), Vec::new()),
        None => (loaded_before(), candidates()),
    };
    if let Some(only) = only {
        let library = only.name.clone();
        return only.usable().map_err(|reason| {
            Error::new(Operation::Open, Detail::LibraryRefused { vendor: Vendor::Hip, library, reason })
        });
    }
    for candidate in candidates {
        let path = match candidate {
            Ok(path) => path,
            Err(missing) => {
                tried.push(missing);
                continue;
            }
        };
        let Some(found) = found(path, &mut tried) else { continue };
        let library = found.name.clone();
        match found.usable() {
            Ok(loaded) => return Ok(loaded),
            Err(answer) => tried.push(LoadAttempt { library, answer }),
        }
    }
    let what = "AMD's HIP runtime, 6.1 or later";
    let missing = Detail::LibraryNotFound { vendor: Vendor::Hip, what, variable: OVERRIDE, tried };
    Err(Error::new(Operation::Open, missing))
}

/// A library that was found.
struct OpenedLibrary {
    library: Library,
    name: String,
    /// Whether the process had loaded it before.
    was_loaded: bool,
}

impl OpenedLibrary {
    /// Returns the functions and the version of the library, or why it cannot be used.
    fn usable(self) -> std::result::Result<Loaded, String> {
        let answer = usable(&self.library, &self.name);
        // The library is never unloaded, whether it can be used or not.
        let handle = handle(self.library);
        if answer.is_err() && !self.was_loaded {
            refuse(handle);
        }
        answer
    }
}

/// Notes a library that this module has loaded and refused.
fn refuse(handle: usize) {
    let _ = REFUSED.iter().find(|place| {
        let before = place.compare_exchange(0, handle, Ordering::Relaxed, Ordering::Relaxed);
        before.is_ok() || before == Err(handle)
    });
}

fn is_refused(handle: usize) -> bool {
    REFUSED.iter().any(|place| place.load(Ordering::Relaxed) == handle)
}

fn usable(library: &Library, name: &str) -> std::result::Result<Loaded, String> {
    let hip = Symbols::find(library).map_err(|symbol| format!("it lacks the function {symbol}"))?;
    let mut version = 0;
    // SAFETY: the function writes one integer.
    let code = unsafe { (hip.hipRuntimeGetVersion)(&raw mut version) };
    let version = u32::try_from(version).unwrap_or(0);
    if code != ffi::hipError_t::hipSuccess || version < quirks::OLDEST {
        let version = quirks::readable(version);
        return Err(format!(
            "it is version {version} (hipRuntimeGetVersion returned {}); virtual memory management on Linux needs 6.1 or later",
            code.0
        ));
    }
    let folder = folder_of(hip.hipRuntimeGetVersion as *const std::ffi::c_void);
    Ok(Loaded { hip, name: name.to_owned(), folder, version })
}

/// Whether this process has loaded the HIP runtime under one of its usual names, other than by attempts that were refused.
pub(crate) fn is_loaded() -> bool {
    loaded_before().is_some()
}

fn loaded_before() -> Option<OpenedLibrary> {
    loaded_names().into_iter().find_map(|name| {
        let library = loaded_by_process(&name)?;
        Some(OpenedLibrary { library, name: name.display().to_string(), was_loaded: true })
    })
}

/// Returns a library if the process has loaded it, other than by an attempt of this module that ended with a refusal.
fn loaded_by_process(name: &OsString) -> Option<Library> {
    let handle = already_loaded(name).map(handle)?;
    let library = again(handle);
    // Dropping it releases the reference that was just taken.
    (!is_refused(handle)).then_some(library)
}

/// Loads one library, or records the loader's error.
fn found(name: OsString, tried: &mut Vec<LoadAttempt>) -> Option<OpenedLibrary> {
    let was_loaded = loaded_by_process(&name).is_some();
    let (library, name) = attempt(name, tried)?;
    Some(OpenedLibrary { library, name, was_loaded })
}

/// Loads one library, or records the loader's error.
pub(crate) fn attempt(name: OsString, tried: &mut Vec<LoadAttempt>) -> Option<(Library, String)> {
    let shown = name.display().to_string();
    match open(&name) {
        Ok(library) => Some((library, shown)),
        Err(error) => {
            // The loader's own text is the source of libloading's error.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let mut answer = cause.unwrap_or_else(|| error.to_string());
            // glibc says the same of a file for another processor. A missing dependency has a message with its own name.
            let path = std::path::Path::new(&name);
            let is_missing = answer.starts_with(&shown) && answer.ends_with("No such file or directory");
            if path.is_absolute() && path.exists() && is_missing {
                answer.push_str(" (the file exists: it is for another processor)");
            }
            tried.push(LoadAttempt { library: shown, answer });
            None
        }
    }
}
