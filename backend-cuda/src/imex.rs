//! The IMEX channel that fabric handles need in addition to the device. This user must be allowed to open it.
//!
//! Without a channel `cuMemCreate` returns `CUDA_ERROR_NOT_PERMITTED`, whatever the device's attribute says. This module only
//! supplies the text of that error: the driver alone decides whether fabric handles work.

use std::path::Path;

/// The kernel module's name for its channels, in /proc/devices and in /dev.
const NAME: &str = "nvidia-caps-imex-channels";

/// Describes this machine's channels.
pub(crate) fn channels() -> String {
    let devices = std::fs::read_to_string("/proc/devices");
    describe(devices, &Path::new("/dev").join(NAME))
}

fn describe(devices: std::io::Result<String>, folder: &Path) -> String {
    let module = match devices {
        Ok(devices) if devices.contains(NAME) => "the kernel module has IMEX channels".to_owned(),
        Ok(_) => format!("the kernel module has no IMEX channels (no {NAME} in /proc/devices)"),
        Err(error) => format!("/proc/devices: {error}"),
    };
    format!("{module}, and {}", nodes(folder))
}

/// Returns the first channel that can be opened, or the system's error for the first that cannot.
fn nodes(folder: &Path) -> String {
    let shown = folder.display();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return format!("{shown}: {error}"),
    };
    let mut channels: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    channels.sort();
    let mut refusal = None;
    for channel in &channels {
        match std::fs::File::options().read(true).write(true).open(channel) {
            Ok(_) => return format!("{} can be opened", channel.display()),
            Err(error) => {
                refusal.get_or_insert_with(|| format!("{}: {error}", channel.display()));
            }
        }
    }
    refusal.unwrap_or_else(|| format!("{shown} is empty"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_state_has_its_words() {
        let folder = std::env::temp_dir().join(format!("gpu-vmm-imex-{}", std::process::id()));
        let with = |devices: &str| describe(Ok(devices.to_owned()), &folder);
        let text = with("Character devices:\n195 nvidia\n");
        assert!(text.starts_with("the kernel module has no IMEX channels"), "{text}");
        assert!(text.contains("gpu-vmm-imex-") && text.contains("os error 2"), "{text}");

        fs::create_dir(&folder).unwrap();
        let channels = "235 nvidia-caps-imex-channels\n";
        let text = with(channels);
        assert!(
            text.starts_with("the kernel module has IMEX channels") && text.ends_with("is empty"),
            "{text}"
        );
        // A folder can never be opened for writing, even by root.
        fs::create_dir(folder.join("channel0")).unwrap();
        let text = with(channels);
        assert!(text.contains("channel0: ") && text.contains("os error"), "{text}");
        fs::create_dir(folder.join("channel1")).unwrap();
        let text = with(channels);
        assert!(text.contains("channel0: ") && !text.contains("channel1"), "the first refusal: {text}");
        for channel in ["channel3", "channel2"] {
            fs::write(folder.join(channel), "").unwrap();
        }
        let text = with(channels);
        assert!(text.ends_with("channel2 can be opened"), "{text}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
