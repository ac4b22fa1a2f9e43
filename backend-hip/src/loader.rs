//! Finds AMD's HIP runtime at run time, and its functions in it.
//!
//! The order: the file that `GPU_VMM_HIP_LIBRARY` names, and then nothing else; a copy that the process has loaded
//! already, since two copies know nothing of each other's memory; the versioned names, newest first; the folders of
//! ROCm. Version 5 is not among the names: on Linux its virtual memory functions are there and do nothing, and 5.2 has
//! them with another structure.
//!
//! A library that was loaded stays loaded: the runtime has threads of its own.
#![allow(unsafe_code)] // loading a library runs its code, and a symbol is whatever its name says

use crate::ffi;
use crate::ffi::hsa::Hsa;
use crate::library::Library;
use crate::quirks;
use gpu_vmm_core::{Detail, Error, LoadAttempt, Operation, Result, Vendor};
use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that names the library to load, in place of all others.
const OVERRIDE: &str = "GPU_VMM_HIP_LIBRARY";

cfg_if::cfg_if! {
    if #[cfg(unix)] {
        use libloading::os::unix::{ RTLD_LOCAL, RTLD_NOW};

        /// Newest first; the name without a version can be any version's.
        const NAMES: [&str; 3] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

        /// The name of the run-time compiler that belongs to a version of HIP.
        pub(crate) fn compiler_name(version: u32) -> String {
            format!("libhiprtc.so.{}", version / 10_000_000)
        }

        pub(crate) fn folders() -> Vec<PathBuf> {
            let rocm = std::env::var_os("ROCM_PATH").map(|path| PathBuf::from(path).join("lib"));
            rocm.into_iter().chain([PathBuf::from("/opt/rocm/lib")]).collect()
        }

        fn open(name: &OsString) -> std::result::Result<Library, libloading::Error> {
            // SAFETY: AMD's runtime is made to be loaded; its initialisers ask nothing of who loads it.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        }

        fn already_loaded(name: &OsString) -> Option<Library> {
            // SAFETY: with RTLD_NOLOAD nothing is loaded, so nothing is run.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()
        }
    } else if #[cfg(windows)] {
        use libloading::os::windows::{LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32};

        /// The display driver installs them into the system's folder, the HIP SDK into its own.
        const NAMES: [&str; 2] = ["amdhip64_7.dll", "amdhip64_6.dll"];

        /// The name of the run-time compiler that belongs to a version of HIP.
        pub(crate) fn compiler_name(version: u32) -> String {
            format!("hiprtc{:02}{:02}.dll", version / 10_000_000, version / 100_000 % 100)
        }

        /// Of the HIP SDK. A relative one would depend on the current folder, and is left out.
        pub(crate) fn folders() -> Vec<PathBuf> {
            let sdk = std::env::var_os("HIP_PATH").map(|path| PathBuf::from(path).join("bin"));
            sdk.into_iter().filter(|folder| folder.is_absolute()).collect()
        }

        /// A name is looked for in the system's folder and nowhere else: by itself Windows would take a file of that
        /// name from the program's folder, the current one, or one in PATH as well. What is named with its folders gets
        /// what it depends on from beside it.
        fn open(name: &OsString) -> std::result::Result<Library, libloading::Error> {
            let flags = if std::path::Path::new(name).is_absolute() {
                LOAD_LIBRARY_SEARCH_SYSTEM32 | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
            } else {
                LOAD_LIBRARY_SEARCH_SYSTEM32
            };
            // SAFETY: AMD's runtime is made to be loaded; its initialisers ask nothing of who loads it.
            unsafe { Library::load_with_flags(name, flags) }
        }

        fn already_loaded(name: &OsString) -> Option<Library> {
            Library::open_already_loaded(name).ok()
        }
    } else {
        compile_error!("AMD's HIP runtime exists on Linux and Windows alone");
    }
}

/// The table of HIP's functions: the ones without which nothing works, and the ones that not every version has.
macro_rules! symbols {
    (required: $($required:ident)*; optional: $($optional:ident)*;) => {
        /// HIP's functions, each by its own name.
        #[allow(non_snake_case)]
        pub(crate) struct Symbols {
            $(pub(crate) $required: ffi::$required,)*
            $(pub(crate) $optional: Option<ffi::$optional>,)*
            /// Functions of the runtime below, where they can be reached.
            pub(crate) hsa: Option<Hsa>,
        }

        impl Symbols {
            fn find(library: &Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: HIP's function of this name has this type in every version from 5.2 on, and the library
                    // that it is copied from is never unloaded.
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

/// A library that was loaded and can be used.
pub(crate) struct Loaded {
    pub(crate) hip: Symbols,
    /// The name under which it was found.
    pub(crate) name: String,
    /// What `hipRuntimeGetVersion` answers.
    pub(crate) version: u32,
}

/// Loads the first library of the search order that is there, and refuses it where it is too old.
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
    // Never unloaded, refused or not.
    std::mem::forget(library);
    let hip = found.map_err(|symbol| refuse(format!("it has no function {symbol}")))?;
    let mut version = 0;
    // SAFETY: the function writes one integer, to the one that it is given.
    let code = unsafe { (hip.hipRuntimeGetVersion)(&raw mut version) };
    let version = u32::try_from(version).unwrap_or(0);
    if code != ffi::hipError_t::hipSuccess || version < quirks::OLDEST {
        let version = quirks::readable(version);
        return Err(refuse(format!(
            "it is version {version} (hipRuntimeGetVersion answered {}); virtual memory management works on Linux from 6.1 on",
            code.0
        )));
    }
    Ok(Loaded { hip, name, version })
}

/// Whether this process has loaded HIP's runtime, this library or another one.
pub(crate) fn is_loaded() -> bool {
    NAMES.iter().any(|name| already_loaded(&OsString::from(name)).is_some())
}

fn search(tried: &mut Vec<LoadAttempt>) -> Option<(Library, String)> {
    if let Some(path) = std::env::var_os(OVERRIDE) {
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

/// Loads one library, or records what the loader said.
pub(crate) fn attempt(name: OsString, tried: &mut Vec<LoadAttempt>) -> Option<(Library, String)> {
    let shown = name.display().to_string();
    match open(&name) {
        Ok(library) => Some((library, shown)),
        Err(error) => {
            // The loader's own text is in the source of libloading's error.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tried.push(LoadAttempt { library: shown, answer: cause.unwrap_or_else(|| error.to_string()) });
            None
        }
    }
}
