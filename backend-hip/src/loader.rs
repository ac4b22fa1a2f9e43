//! Finds AMD's HIP runtime at run time, and looks up its functions.
//!
//! The search order:
//!
//! 1. The file that `GPU_VMM_HIP_LIBRARY` names. If the variable is set, nothing else is tried.
//! 2. A copy that the process has already loaded, because two copies do not know each other's memory.
//! 3. The versioned names, newest first.
//! 4. The folders of ROCm.
//!
//! Version 5 is not among the names: on Linux its virtual memory functions exist and do nothing, and 5.2 has them with
//! another structure.
//!
//! A loaded library stays loaded, because the runtime has threads of its own.
#![allow(unsafe_code)] // loading a library runs its code, and the types of symbols are not checked

use crate::ffi;
use crate::ffi::hsa::Hsa;
use crate::library::Library;
use crate::quirks;
use gpu_vmm_core::{Detail, Error, LoadAttempt, Operation, Result, Vendor};
use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that names the only library to try.
const OVERRIDE: &str = "GPU_VMM_HIP_LIBRARY";

cfg_if::cfg_if! {
    if #[cfg(unix)] {
        use libloading::os::unix::{ RTLD_LOCAL, RTLD_NOW};

        /// Newest first; the name without a version can belong to any version.
        const NAMES: [&str; 3] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

        /// The name of a HIP version's run-time compiler.
        pub(crate) fn compiler_name(version: u32) -> String {
            format!("libhiprtc.so.{}", version / 10_000_000)
        }

        pub(crate) fn folders() -> Vec<PathBuf> {
            let rocm = std::env::var_os("ROCM_PATH").map(|path| PathBuf::from(path).join("lib"));
            rocm.into_iter().chain([PathBuf::from("/opt/rocm/lib")]).collect()
        }

        fn open(name: &OsString) -> std::result::Result<Library, libloading::Error> {
            // SAFETY: AMD's runtime is made to be loaded; its initializers require nothing of the caller.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
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

        /// The folder of the HIP SDK. A relative path would depend on the current folder, and is ignored.
        pub(crate) fn folders() -> Vec<PathBuf> {
            let sdk = std::env::var_os("HIP_PATH").map(|path| PathBuf::from(path).join("bin"));
            sdk.into_iter().filter(|folder| folder.is_absolute()).collect()
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
        hipHostFree hipHostMalloc hipMemcpyAsync hipMemsetAsync hipModuleGetFunction hipModuleLaunchKernel hipModuleLoadData
        hipStreamBeginCapture hipStreamCreateWithFlags hipStreamDestroy hipStreamEndCapture hipStreamGetDevice
        hipStreamIsCapturing hipStreamQuery hipStreamWaitEvent hipThreadExchangeStreamCaptureMode;
}

/// A loaded and usable library.
pub(crate) struct Loaded {
    pub(crate) hip: Symbols,
    /// The name that was loaded.
    pub(crate) name: String,
    /// The result of `hipRuntimeGetVersion`.
    pub(crate) version: u32,
}

/// Loads the first library of the search order that exists, and refuses it if it is too old.
pub(crate) fn load() -> Result<Loaded> {
    let mut tried = Vec::new();
    let (library, name) = search(&mut tried).ok_or_else(|| {
        Error::new(
            Operation::Open,
            Detail::LibraryNotFound {
                vendor: Vendor::Hip,
                what: "AMD's HIP runtime, 6.1 or later",
                variable: OVERRIDE,
                tried,
            },
        )
    })?;
    let refuse = |reason| {
        Error::new(
            Operation::Open,
            Detail::LibraryRefused { vendor: Vendor::Hip, library: name.clone(), reason },
        )
    };
    let found = Symbols::find(&library);
    // The library is never unloaded, whether it is refused or not.
    std::mem::forget(library);
    let hip = found.map_err(|symbol| refuse(format!("it lacks the function {symbol}")))?;
    let mut version = 0;
    // SAFETY: the function writes one integer.
    let code = unsafe { (hip.hipRuntimeGetVersion)(&raw mut version) };
    let version = u32::try_from(version).unwrap_or(0);
    if code != ffi::hipError_t::hipSuccess || version < quirks::OLDEST {
        let version = quirks::readable(version);
        return Err(refuse(format!(
            "it is version {version} (hipRuntimeGetVersion returned {}); virtual memory management on Linux needs 6.1 or later",
            code.0
        )));
    }
    Ok(Loaded { hip, name, version })
}

/// Whether this process has loaded the HIP runtime under one of its usual names.
pub(crate) fn is_loaded() -> bool {
    NAMES.iter().any(|name| already_loaded(&OsString::from(name)).is_some())
}

fn search(tried: &mut Vec<LoadAttempt>) -> Option<(Library, String)> {
    // The loader would take an empty name for this program.
    if let Some(path) = std::env::var_os(OVERRIDE).filter(|path| !path.is_empty()) {
        return attempt(path, tried);
    }
    let names = NAMES.map(OsString::from);
    for name in &names {
        if let Some(library) = already_loaded(name) {
            return Some((library, name.display().to_string()));
        }
    }
    let in_folders =
        folders().into_iter().flat_map(|folder| names.clone().map(|name| folder.join(name).into()));
    names.iter().cloned().chain(in_folders).find_map(|name| attempt(name, tried))
}

/// Loads one library, or records the loader's error.
pub(crate) fn attempt(name: OsString, tried: &mut Vec<LoadAttempt>) -> Option<(Library, String)> {
    let shown = name.display().to_string();
    match open(&name) {
        Ok(library) => Some((library, shown)),
        Err(error) => {
            // The loader's own text is the source of libloading's error.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tried.push(LoadAttempt { library: shown, answer: cause.unwrap_or_else(|| error.to_string()) });
            None
        }
    }
}
