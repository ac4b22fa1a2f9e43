//! Finds the CUDA driver's library, checks its version, loads its functions and starts the driver.
//!
//! `libcuda.so.1` is the driver's own name and comes first: a toolkit installs a stub as `libcuda.so`, which exists for linking and
//! returns an error from every call. An opened library is never closed, since a driver leaves threads and exit handlers behind.
//!
//! Unsafe, since it opens a library by name and calls its functions.
#![allow(unsafe_code)]

use crate::error::answer;
use crate::ffi::{CuResult, DriverGetVersion, Functions, GraphFunctions, MulticastFunctions};
use gpu_vmm_core::extend::no_device;
use gpu_vmm_core::{Detail, DriverInfo, Error, LoadAttempt, Operation, Result, Vendor};
use libloading::Error as LoadError;
use std::error::Error as _;
use std::ffi::{OsStr, OsString, c_void};
use std::mem::ManuallyDrop;

/// The environment variable that names the only library to load.
const VARIABLE: &str = "GPU_VMM_CUDA_LIBRARY";

/// The oldest supported driver, CUDA 11.4, as a `cuDriverGetVersion` number.
const OLDEST: u32 = 11_040;

const WHAT: &str = if cfg!(windows) {
    "nvcuda.dll, which comes with NVIDIA's driver"
} else {
    "libcuda, which comes with NVIDIA's driver"
};

cfg_if::cfg_if! {
    if #[cfg(windows)] {
        use libloading::os::windows::{
            LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, Library,
        };
        use std::path::Path;

        const NAMES: &[&str] = &["nvcuda.dll"];

        /// Opens a library. A bare name is searched only in the system folder, where the driver is installed: by default Windows
        /// would also search the program's folder, the current folder and PATH. An absolute path opens that file, and its
        /// dependencies are also searched in the file's folder.
        fn open(name: &OsStr) -> Result<Library, LoadError> {
            let flags = if Path::new(name).is_absolute() {
                LOAD_LIBRARY_SEARCH_SYSTEM32 | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
            } else {
                LOAD_LIBRARY_SEARCH_SYSTEM32
            };
            // SAFETY: the library is NVIDIA's driver or one that the user named as such; its initializers require nothing from the
            // caller.
            unsafe { Library::load_with_flags(name, flags) }
        }

        fn already_loaded(name: &OsStr) -> bool {
            Library::open_already_loaded(name).is_ok()
        }
    } else {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

        const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

        fn open(name: &OsStr) -> Result<Library, LoadError> {
            // SAFETY: the library is NVIDIA's driver or one that the user named as such; its initializers require nothing from the
            // caller.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        }

        fn already_loaded(name: &OsStr) -> bool {
            // SAFETY: RTLD_NOLOAD loads nothing, so no initializer runs.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.is_ok()
        }
    }
}

/// A driver that has been started.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) functions: Functions,
    /// The multicast functions, or the loader's message if the driver lacks one.
    pub(crate) multicast: Result<MulticastFunctions, String>,
    /// The capture functions, or the loader's message if the driver lacks one.
    pub(crate) graphs: Result<GraphFunctions, String>,
    /// `None` for drivers before 11.7.
    #[cfg(unix)]
    pub(crate) mem_get_handle_for_address_range: Option<crate::ffi::MemGetHandleForAddressRange>,
    pub(crate) info: DriverInfo,
    /// Keeps the library open: the functions above are in it.
    _library: ManuallyDrop<Library>,
}

impl Loaded {
    /// Loads and starts the driver.
    pub(crate) fn new() -> Result<Self> {
        let chosen = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let names = match chosen {
            Some(name) => vec![name],
            None => NAMES.iter().map(OsString::from).collect(),
        };
        start(find(&names)?)
    }
}

/// Returns whether this process has loaded the CUDA driver's library.
pub(crate) fn is_loaded() -> bool {
    NAMES.iter().any(|name| already_loaded(OsStr::new(name)))
}

/// A library that has been opened.
#[derive(Debug)]
struct OpenedLibrary {
    library: ManuallyDrop<Library>,
    name: String,
    /// Whether the process, or the one that it was forked from, had loaded it before.
    was_loaded: bool,
}

/// Opens the first library that opens.
fn find(names: &[OsString]) -> Result<OpenedLibrary> {
    let mut tried = Vec::new();
    for file in names {
        let (name, was_loaded) = (file.to_string_lossy().into_owned(), already_loaded(file));
        match open(file) {
            Ok(opened) => return Ok(OpenedLibrary { library: ManuallyDrop::new(opened), name, was_loaded }),
            Err(error) => tried.push(LoadAttempt { library: name, answer: text(&error) }),
        }
    }
    Err(Error::new(
        Operation::Open,
        Detail::LibraryNotFound { vendor: Vendor::Cuda, what: WHAT, variable: VARIABLE, tried },
    ))
}

fn start(OpenedLibrary { library, name, was_loaded }: OpenedLibrary) -> Result<Loaded> {
    let refused = |reason| {
        Error::new(
            Operation::Open,
            Detail::LibraryRefused { vendor: Vendor::Cuda, library: name.clone(), reason },
        )
    };
    let lacks =
        |reason: String| refused(format!("it is not a CUDA driver of version 11.4 or later: {reason}"));

    let version_number = version(&library).map_err(|failure| match failure {
        VersionFailure::Missing(reason) => lacks(reason),
        VersionFailure::Answered(CuResult::DEINITIALIZED) => Error::new(Operation::Open, Detail::Exiting),
        VersionFailure::Answered(result) => {
            refused(format!("cuDriverGetVersion returned {}{}", result.0, advice(result)))
        }
    })?;
    let version = format!("{}.{}", version_number / 1000, version_number % 1000 / 10);
    if version_number < OLDEST {
        return Err(refused(format!(
            "the driver is of CUDA {version}; 11.4 is the oldest supported version"
        )));
    }
    // SAFETY: the addresses are from a library that reports itself as the CUDA driver, of a version that has these functions as
    // declared; it is never closed.
    let functions = unsafe { Functions::load(|symbol| address(&library, symbol)) }.map_err(lacks)?;
    // SAFETY: as above.
    let multicast = unsafe { MulticastFunctions::load(|symbol| address(&library, symbol)) };
    // SAFETY: as above.
    let graphs = unsafe { GraphFunctions::load(|symbol| address(&library, symbol)) };

    #[cfg(unix)]
    let mem_get_handle_for_address_range =
        address(&library, "cuMemGetHandleForAddressRange").ok().map(|found| {
            // SAFETY: the symbol has had this signature in every version that has it; pointers and functions have the same size.
            unsafe { std::mem::transmute::<*mut c_void, crate::ffi::MemGetHandleForAddressRange>(found) }
        });

    // SAFETY: the flags must be zero and are. The call may be made any number of times.
    match unsafe { (functions.init)(0) } {
        CuResult::SUCCESS => {}
        CuResult::NO_DEVICE => {
            return Err(without_device(&answer(&functions, "cuInit", CuResult::NO_DEVICE).to_string()));
        }
        // A driver that was initialized says so in a child that was forked after that, and cannot be initialized there.
        CuResult::NOT_INITIALIZED if was_loaded => return Err(Error::new(Operation::Open, Detail::Forked)),
        CuResult::DEINITIALIZED => return Err(Error::new(Operation::Open, Detail::Exiting)),
        result => {
            let said = answer(&functions, "cuInit", result);
            return Err(refused(format!("{said}{}", advice(result))));
        }
    }
    let info = DriverInfo { version, version_number, library: name };
    Ok(Loaded {
        functions,
        multicast,
        graphs,
        #[cfg(unix)]
        mem_get_handle_for_address_range,
        info,
        _library: library,
    })
}

/// Returns the error for a driver without devices, with the settings that can hide them.
pub(crate) fn without_device(said: &str) -> Error {
    // The driver itself can create /dev/nvidiactl, so that file proves nothing; the kernel's own entries do.
    let module = if cfg!(target_os = "linux") && ["/proc/driver/nvidia", "/dev/dxg"].iter().all(is_missing) {
        "; /proc/driver/nvidia is missing, so NVIDIA's kernel module is not loaded or is hidden by a container"
    } else {
        ""
    };
    no_device(Vendor::Cuda, format!("{said}{module}"), &["CUDA_VISIBLE_DEVICES"])
}

fn is_missing(path: &&str) -> bool {
    !std::path::Path::new(path).exists()
}

enum VersionFailure {
    Missing(String),
    Answered(CuResult),
}

fn version(library: &Library) -> Result<u32, VersionFailure> {
    let address = address(library, "cuDriverGetVersion").map_err(VersionFailure::Missing)?;
    // SAFETY: in every version the symbol takes a pointer to `int` and returns `CUresult`; pointers and functions have the same
    // size, and the address is not null.
    let get_version = unsafe { std::mem::transmute::<*mut c_void, DriverGetVersion>(address) };
    let mut version = 0;
    // SAFETY: the pointer is valid for one int; the call needs no started driver.
    match unsafe { get_version(&raw mut version) } {
        CuResult::SUCCESS => Ok(u32::try_from(version).unwrap_or(0)),
        result => Err(VersionFailure::Answered(result)),
    }
}

/// Returns the address of a symbol, never null, or the loader's message.
fn address(library: &Library, symbol: &'static str) -> Result<*mut c_void, String> {
    // SAFETY: the symbol is read as an address only; the caller gives it a type.
    let found = unsafe { library.get::<*mut c_void>(symbol) }.map_err(|error| text(&error))?;
    if found.is_null() { Err(format!("{symbol} is at address 0")) } else { Ok(*found) }
}

/// Returns what the user can do about a driver that does not start.
fn advice(result: CuResult) -> &'static str {
    match result {
        CuResult::STUB_LIBRARY => {
            "; this is the toolkit's stub for linking, not the driver: take the folder `stubs` out of \
             LD_LIBRARY_PATH, or name the driver's own libcuda.so.1 in GPU_VMM_CUDA_LIBRARY"
        }
        CuResult::SYSTEM_NOT_READY => "; on systems with NVSwitch, nvidia-fabricmanager must run",
        CuResult::SYSTEM_DRIVER_MISMATCH => {
            "; the library and the kernel module are of different versions: load the module again, or reboot"
        }
        CuResult::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "; this is the library for forward compatibility, which this GPU does not allow: take its folder \
             `compat` out of LD_LIBRARY_PATH"
        }
        _ => "",
    }
}

/// Returns the loader's reason, which libloading keeps in the error's source.
fn text(error: &LoadError) -> String {
    match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_every_tried_library_name() {
        let names = ["libno-such-cuda.so.1", "/nowhere/libcuda.so"].map(OsString::from);
        let text = find(&names).unwrap_err().to_string();
        let answer = if cfg!(windows) { "(os error 126)" } else { "cannot open shared object file" };
        for part in names.iter().map(|name| name.to_str().unwrap()).chain([answer, WHAT]) {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        let places = names.each_ref().map(|name| text.find(name.to_str().unwrap()));
        assert!(places.is_sorted(), "not in the order of the attempts: {text:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn wrong_library_is_refused_by_missing_symbol() {
        let error = start(find(&[OsString::from("libm.so.6")]).unwrap()).unwrap_err();
        assert!(
            matches!(error.detail(), Detail::LibraryRefused { library, .. } if library == "libm.so.6"),
            "{error}"
        );
        assert!(error.to_string().contains("undefined symbol: cuDriverGetVersion"), "{error}");
    }

    /// By default Windows searches the program's folder first.
    #[test]
    #[cfg(windows)]
    fn program_folder_is_not_searched_by_name() {
        let system = OsString::from("version.dll");
        let error = start(find(std::slice::from_ref(&system)).unwrap()).unwrap_err();
        assert!(
            matches!(error.detail(), Detail::LibraryRefused { library, .. } if library == "version.dll"),
            "{error}"
        );
        let folder = std::env::current_exe().unwrap().with_file_name("");
        let planted = folder.join("gpu-vmm-planted.dll");
        std::fs::copy(r"C:\Windows\System32\version.dll", &planted).unwrap();
        let by_name = find(&[planted.file_name().unwrap().to_owned()]).map(drop);
        let in_full = find(&[planted.clone().into_os_string()]).map(drop);
        assert!(
            matches!(by_name.as_ref().map_err(Error::detail), Err(Detail::LibraryNotFound { .. })),
            "{by_name:?}"
        );
        assert!(in_full.is_ok(), "{in_full:?}");
    }

    #[test]
    fn a_stub_gets_advice() {
        assert!(advice(CuResult::STUB_LIBRARY).contains("GPU_VMM_CUDA_LIBRARY"));
        assert_eq!(advice(CuResult(999)), "");
    }
}
