//! The room on the disk. A build that runs out of it fails late, and of its many errors few name the disk.

use crate::workspace::Workspace;

/// An empty clone needs `gigabytes` for a chore: says so where the disk has less left. Nothing is said once the release
/// build is there, since most of the room is taken by then.
pub(crate) fn warn(workspace: &Workspace, gigabytes: u64) {
    if workspace.library_folder().join("liboutrigger.so").exists() {
        return;
    }
    let Ok(disk) = rustix::fs::statvfs(workspace.root()) else {
        return;
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize) / 1_000_000_000;
    if free < gigabytes {
        eprintln!(
            "warning: {free} GB are free on the disk of {}; an empty clone takes about {gigabytes} GB",
            workspace.root().display()
        );
    }
}
