//! The frame of every function that returns a status: counts, delays and fails calls as the settings and `hsa_sim_fail` say.

use crate::abi::Status;
use crate::settings::settings;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Defines HSA functions: exported under their C names, and passed through [`enter`].
macro_rules! hsa {
    ($($(#[$meta:meta])* pub unsafe fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As the function's header requires: each pointer is null, or valid for the function's reads and writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::abi::Status {
            const CALL: usize = $crate::calls::index(stringify!($name));
            if let Some(status) = $crate::calls::enter(CALL) {
                return status;
            }
            $body
        }
    )* };
}

/// The functions that can be counted, delayed and made to fail.
pub(crate) const NAMES: &[&str] = &[
    "hsa_agent_get_info",
    "hsa_agent_iterate_isas",
    "hsa_amd_agent_iterate_memory_pools",
    "hsa_amd_agent_memory_pool_get_info",
    "hsa_amd_agents_allow_access",
    "hsa_amd_memory_async_copy",
    "hsa_amd_memory_async_copy_on_engine",
    "hsa_amd_memory_async_copy_rect",
    "hsa_amd_memory_copy_engine_status",
    "hsa_amd_memory_get_preferred_copy_engine",
    "hsa_amd_memory_lock_to_pool",
    "hsa_amd_memory_pool_allocate",
    "hsa_amd_memory_pool_free",
    "hsa_amd_memory_pool_get_info",
    "hsa_amd_memory_unlock",
    "hsa_amd_pointer_info",
    "hsa_amd_portable_close_dmabuf",
    "hsa_amd_portable_export_dmabuf",
    "hsa_amd_portable_export_dmabuf_v2",
    "hsa_amd_profiling_async_copy_enable",
    "hsa_amd_profiling_get_async_copy_time",
    "hsa_amd_profiling_get_dispatch_time",
    "hsa_amd_profiling_set_profiler_enabled",
    "hsa_amd_queue_cu_set_mask",
    "hsa_amd_queue_set_priority",
    "hsa_amd_signal_async_handler",
    "hsa_amd_signal_create",
    "hsa_amd_signal_value_pointer",
    "hsa_amd_vmem_address_free",
    "hsa_amd_vmem_address_reserve",
    "hsa_amd_vmem_address_reserve_align",
    "hsa_amd_vmem_export_shareable_handle",
    "hsa_amd_vmem_get_access",
    "hsa_amd_vmem_get_alloc_properties_from_handle",
    "hsa_amd_vmem_handle_create",
    "hsa_amd_vmem_handle_release",
    "hsa_amd_vmem_import_shareable_handle",
    "hsa_amd_vmem_map",
    "hsa_amd_vmem_retain_alloc_handle",
    "hsa_amd_vmem_set_access",
    "hsa_amd_vmem_unmap",
    "hsa_code_object_reader_create_from_memory",
    "hsa_code_object_reader_destroy",
    "hsa_executable_agent_global_variable_define",
    "hsa_executable_create_alt",
    "hsa_executable_destroy",
    "hsa_executable_freeze",
    "hsa_executable_get_symbol_by_name",
    "hsa_executable_iterate_symbols",
    "hsa_executable_load_agent_code_object",
    "hsa_executable_symbol_get_info",
    "hsa_init",
    "hsa_isa_get_info_alt",
    "hsa_iterate_agents",
    "hsa_memory_copy",
    "hsa_memory_deregister",
    "hsa_memory_register",
    "hsa_queue_create",
    "hsa_queue_destroy",
    "hsa_shut_down",
    "hsa_signal_create",
    "hsa_signal_destroy",
    "hsa_status_string",
    "hsa_system_get_info",
    "hsa_system_get_major_extension_table",
    "hsa_amd_coherency_set_type",
    "hsa_amd_enable_logging",
    "hsa_amd_agent_set_async_scratch_limit",
    "hsa_amd_register_system_event_handler",
    "hsa_agent_extension_supported",
    "hsa_system_extension_supported",
    "hsa_amd_ipc_memory_create",
    "hsa_amd_ipc_memory_attach",
    "hsa_amd_ipc_memory_detach",
    "hsa_amd_ais_file_read",
    "hsa_amd_ais_file_write",
    "hsa_amd_image_create",
    "hsa_amd_interop_map_buffer",
    "hsa_amd_interop_unmap_buffer",
    "hsa_amd_svm_attributes_get",
    "hsa_amd_svm_attributes_set",
    "hsa_amd_svm_prefetch_async",
    "hsa_ext_image_create",
    "hsa_ext_image_create_with_layout",
    "hsa_ext_image_data_get_info",
    "hsa_ext_image_destroy",
    "hsa_ext_image_export",
    "hsa_ext_image_import",
    "hsa_ext_sampler_create",
    "hsa_ext_sampler_create_v2",
    "hsa_ext_sampler_destroy",
    "hsa_amd_external_semaphore_handle_close",
    "hsa_amd_external_semaphore_handle_open",
    "hsa_amd_image_create_v2",
    "hsa_amd_interop_map_buffer_with_size",
    "hsa_amd_ipc_signal_attach",
    "hsa_amd_ipc_signal_create",
    "hsa_amd_memory_async_batch_copy",
    "hsa_amd_queue_get_info",
    "hsa_amd_svm_discard_batch_async",
    "hsa_amd_vmem_export_fabric_handle",
    "hsa_amd_vmem_import_fabric_handle",
    "hsa_executable_get_info",
    "hsa_ext_image_create_v2",
    "hsa_ext_image_data_get_info_v2",
    "hsa_ext_image_destroy_v2",
    "hsa_ext_image_mipmap_array_get_level",
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Returns the index of a function in [`NAMES`], at compile time: a function that is not listed does not compile.
pub(crate) const fn index(name: &str) -> usize {
    let mut at = 0;
    while at < NAMES.len() {
        if same(NAMES[at].as_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    assert!(at < NAMES.len(), "list the function in NAMES");
    at
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    a.len() == b.len() && at == a.len()
}

/// The planned failure of one call, as one word so that all threads see it at once: the index of its function in [`NAMES`]
/// plus 1, the number of earlier calls (16 bits each), and the status. 0 means none.
static PLANNED: AtomicU64 = AtomicU64::new(0);

const fn planned(call: usize, after: u16, status: Status) -> u64 {
    (call as u64 + 1) << 48 | (after as u64) << 32 | status.0 as u64
}

/// Plans a failure: after `after` more calls of `name`, the next one returns the status once. Replaces an earlier plan.
/// Returns false, and plans nothing, if there is no such function or the status is success.
pub(crate) fn fail(name: &str, after: u16, status: Status) -> bool {
    let call = NAMES.iter().position(|listed| *listed == name).filter(|_| status != Status::SUCCESS);
    PLANNED.store(call.map_or(0, |call| planned(call, after, status)), Relaxed);
    call.is_some()
}

/// Cancels the planned failure. Returns true if it had not happened.
pub(crate) fn fail_none() -> bool {
    PLANNED.swap(0, Relaxed) != 0
}

/// Returns the status of the planned failure, if it applies to this call.
fn planned_failure(call: usize) -> Option<Status> {
    /// Decrements the number of earlier calls.
    const ONE_LESS: u64 = 1 << 32;
    let is_mine = |word: &u64| *word >> 48 == call as u64 + 1;
    let is_now = |word: u64| (word >> 32) as u16 == 0;
    if !is_mine(&PLANNED.load(Relaxed)) {
        return None;
    }
    let next = |word: u64| is_mine(&word).then(|| if is_now(word) { 0 } else { word - ONE_LESS });
    let before = PLANNED.fetch_update(Relaxed, Relaxed, next).ok()?;
    is_now(before).then_some(Status(before as u32))
}

/// Begins a call. If it returns a status, the call fails with it and does nothing.
pub(crate) fn enter(call: usize) -> Option<Status> {
    let number = COUNTS[call].fetch_add(1, Relaxed) + 1;
    let settings = settings();
    if let Some(delay) = settings.delays.get(&call) {
        std::thread::sleep(*delay);
    }
    let mut failures = settings.failures.iter();
    let failure = failures.find(|failure| failure.call == call && failure.times.contains(number));
    let status = failure.map(|failure| failure.status).or_else(|| planned_failure(call))?;
    trace!("{} number {number}: made to fail with {:#x}", NAMES[call], status.0);
    Some(status)
}

/// Returns the number of calls of a function; `None` if it is not counted.
pub(crate) fn count(name: &str) -> Option<u64> {
    let call = NAMES.iter().position(|listed| *listed == name)?;
    Some(COUNTS[call].load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn texts(folder: &Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                texts(&path, all);
            } else if !path.ends_with("calls.rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// A setting with a name of no function would have no effect.
    #[test]
    fn every_name_is_a_function() {
        let mut all = String::new();
        texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
        let refused = |name: &str| all.lines().any(|line| line.trim() == name);
        for name in NAMES {
            assert!(all.contains(&format!("pub unsafe fn {name}(")) || refused(name), "{name}");
            assert_eq!(NAMES.iter().filter(|other| *other == name).count(), 1, "{name} twice");
        }
    }
}
