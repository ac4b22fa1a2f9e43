//! Full and read-only disks: mounts in a namespace that ends with the run. They need no privileges if the system allows
//! user namespaces.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// A disk of one page, which `out` fills. Its files are copied back to the folder that it was mounted on.
const FULL: &str = r#"
mount -t tmpfs -o size=4k none disk && cp out disk/out || exit 99
"$0" "$@"
status=$?
cp -a disk left && umount disk && rm -r disk && mv left disk || exit 98
exit $status
"#;

const READ_ONLY: &str = r#"
mount --bind disk disk && mount -o remount,bind,ro disk || exit 99
exec "$0" "$@"
"#;

/// Why nothing can be mounted here; `None` if mounts work.
static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
    let mut unshare = Command::new("unshare");
    unshare.args(["-rm", "mount", "-t", "tmpfs", "none", "/tmp"]).stdin(Stdio::null());
    match unshare.output() {
        Err(error) => Some(format!("unshare cannot be run: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
});

/// Returns the command in a folder whose `disk` is full.
pub(super) fn full(program: &Path) -> Result<Command, String> {
    in_namespace(FULL, program)
}

/// Returns the command in a folder whose `disk` is read-only.
pub(super) fn read_only(program: &Path) -> Result<Command, String> {
    in_namespace(READ_ONLY, program)
}

fn in_namespace(script: &str, program: &Path) -> Result<Command, String> {
    if let Some(reason) = &*REFUSED {
        return Err(format!("cannot mount in a new namespace: {reason}"));
    }
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script]).arg(program);
    Ok(command)
}
