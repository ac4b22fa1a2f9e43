//! The file that `check` writes.

use super::child::Ran;
use super::kernel::Messages;
use crate::version;
use gpu_vmm_conformance::report::{Machine, Report, System};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of the file's format, as its member `check`.
const FORMAT: u32 = 1;

/// The content of the file, before private data is removed.
#[derive(Serialize, Debug)]
pub(super) struct Check {
    check: u32,
    pub(super) summary: Vec<String>,
    pub(super) gpu_vmm: String,
    pub(super) commit: &'static str,
    pub(super) features: &'static str,
    /// When the check began.
    pub(super) time: String,
    /// How long it took.
    pub(super) seconds: f64,
    /// The limit of `--time`.
    pub(super) limit_seconds: f64,
    pub(super) machine: Machine,
    pub(super) system: System,
    /// Versions of the vendors' parts, as the system's files have them.
    pub(super) versions: BTreeMap<String, String>,
    /// Environment variables that drivers or gpu-vmm read.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) steps: Vec<Done>,
    /// The backends, each as `info --json` describes it.
    pub(super) info: Vec<Value>,
    pub(super) grow: Option<Value>,
    pub(super) conformance: Option<Report>,
    /// The pairs, each as `bench --json` describes it.
    pub(super) bench: Vec<Value>,
    pub(super) soak: Option<Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) endurance: Option<Report>,
    pub(super) kernel: Messages,
}

/// A step that has begun or ended.
#[derive(Serialize, Debug)]
pub(super) struct Done {
    pub(super) name: String,
    /// The arguments of the command.
    pub(super) command: String,
    pub(super) ended: String,
    /// True if the exit status was 0.
    pub(super) is_good: bool,
    pub(super) seconds: f64,
    /// The last lines of its error stream.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) stderr: Vec<String>,
}

impl Check {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            check: FORMAT,
            summary: Vec::new(),
            gpu_vmm: env!("CARGO_PKG_VERSION").to_owned(),
            commit: version::COMMIT,
            features: version::FEATURES,
            time: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            seconds: 0.0,
            limit_seconds: limit.as_secs_f64(),
            machine: Machine::this(),
            system: System::this(),
            versions: versions(),
            settings: settings(std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })),
            steps: Vec::new(),
            info: Vec::new(),
            grow: None,
            conformance: None,
            bench: Vec::new(),
            soak: None,
            endurance: None,
            kernel: Messages::default(),
        }
    }
}

impl Done {
    pub(super) fn began(name: &str, arguments: &[String]) -> Self {
        Self {
            name: name.to_owned(),
            command: arguments.join(" "),
            ended: "it has begun and not ended".to_owned(),
            is_good: false,
            seconds: 0.0,
            stderr: Vec::new(),
        }
    }

    pub(super) fn end(&mut self, ran: std::io::Result<Ran>, time: Duration) -> Vec<u8> {
        self.seconds = time.as_millis() as f64 / 1e3;
        match ran {
            Ok(Ran { ended, stdout, stderr }) => {
                (self.ended, self.is_good, self.stderr) = (ended.to_string(), ended.is_success(), stderr);
                stdout
            }
            Err(error) => {
                self.ended = format!("it cannot be started: {error}");
                Vec::new()
            }
        }
    }
}

/// Reads the versions of the vendors' parts.
fn versions() -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for (name, file) in [
        ("rocm", "/opt/rocm/.info/version"),
        ("amdgpu", "/sys/module/amdgpu/version"),
        ("amdgpu source", "/sys/module/amdgpu/srcversion"),
        ("nvidia", "/sys/module/nvidia/version"),
    ] {
        if let Ok(text) = std::fs::read_to_string(file) {
            versions.insert(name.to_owned(), text.trim().to_owned());
        }
    }
    let nodes = std::fs::read_dir("/sys/class/kfd/kfd/topology/nodes").into_iter().flatten().flatten();
    let mut targets: Vec<String> = nodes
        .filter_map(|node| target(&std::fs::read_to_string(node.path().join("properties")).ok()?))
        .collect();
    targets.sort();
    if !targets.is_empty() {
        versions.insert("targets".to_owned(), targets.join(", "));
    }
    versions
}

/// Returns the instruction set of a node of AMD's kernel driver, such as `gfx90a`; `None` for a processor.
fn target(properties: &str) -> Option<String> {
    let line = properties.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?;
    let number: u32 = line.trim().parse().ok().filter(|number| *number > 0)?;
    Some(format!("gfx{}{:x}{:x}", number / 10_000, number / 100 % 100, number % 100))
}

/// Returns the variables that drivers or gpu-vmm read, without any that could hold a secret.
fn settings(all: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    const BEGIN: &[&str] =
        &["GPU_VMM", "HIP_", "HSA_", "ROCR_", "CUDA_VISIBLE_", "CUDA_DEVICE_", "FAKE_CUDA_"];
    const WHOLE: &[&str] = &[
        "AMD_LOG_LEVEL",
        "AMD_SERIALIZE_COPY",
        "AMD_SERIALIZE_KERNEL",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "GPU_DEVICE_ORDINAL",
        "GPU_MAX_HW_QUEUES",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
    ];
    const SECRET: &[&str] = &["KEY", "TOKEN", "SECRET", "PASS"];
    all.filter(|(name, _)| {
        let is_wanted = BEGIN.iter().any(|begin| name.starts_with(begin)) || WHOLE.contains(&name.as_str());
        is_wanted && !SECRET.iter().any(|word| name.contains(word))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_sets_have_compiler_names() {
        assert_eq!(target("cpu_cores_count 0\ngfx_target_version 90010\n").as_deref(), Some("gfx90a"));
        assert_eq!(target("gfx_target_version 110001").as_deref(), Some("gfx1101"));
        assert_eq!(target("gfx_target_version 90402").as_deref(), Some("gfx942"));
        assert_eq!(target("gfx_target_version 100300").as_deref(), Some("gfx1030"));
        assert_eq!(target("gfx_target_version 91012").as_deref(), Some("gfx9ac"));
        assert_eq!(target("gfx_target_version 0"), None);
        assert_eq!(target("gfx_target_version one"), None);
        assert_eq!(target("cpu_cores_count 8"), None);
    }

    #[test]
    fn driver_settings_are_kept_without_secrets() {
        let all = [
            "HSA_XNACK",
            "HIP_VISIBLE_DEVICES",
            "GPU_VMM_BACKEND",
            "LD_PRELOAD",
            "HSA_TOKEN",
            "PATH",
            "AMD_API_KEY",
        ];
        let kept = settings(all.iter().map(|name| ((*name).to_owned(), "1".to_owned())));
        let names: Vec<&str> = kept.keys().map(String::as_str).collect();
        assert_eq!(names, ["GPU_VMM_BACKEND", "HIP_VISIBLE_DEVICES", "HSA_XNACK", "LD_PRELOAD"]);
        let is_kept = |name: &str| !settings([(name.to_owned(), "1".to_owned())].into_iter()).is_empty();
        for name in ["ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "FAKE_CUDA_VERSION"]
        {
            assert!(is_kept(name), "{name}");
        }
        for name in ["AMD_LOG_LEVEL", "CUDA_LAUNCH_BLOCKING", "GPU_MAX_HW_QUEUES", "LD_LIBRARY_PATH"] {
            assert!(is_kept(name) && !is_kept(&format!("{name}_2")), "{name} as a whole");
        }
        for name in ["HSA_KEY", "HIP_TOKEN", "CUDA_SECRET", "HSA_PASSWORD", "MY_HSA_XNACK", "CUDA_CACHE_PATH"]
        {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn a_step_says_how_it_ended() {
        let mut step = Done::began("grow", &["grow".to_owned(), "--json".to_owned()]);
        assert_eq!((step.name.as_str(), step.command.as_str()), ("grow", "grow --json"));
        assert_eq!((step.ended.as_str(), step.is_good), ("it has begun and not ended", false));
        let refused = std::io::Error::other("no processes are left");
        assert!(step.end(Err(refused), Duration::from_micros(1_234_567)).is_empty());
        assert_eq!(
            (step.ended.as_str(), step.is_good),
            ("it cannot be started: no processes are left", false)
        );
        assert_eq!(step.seconds, 1.234);
    }
}
