//! Settings that only sysfs has: those of a link's queues.
//!
//! Sysfs shows the links of the namespace in which it was mounted. `/sys` can be of any namespace, so this module
//! mounts a detached sysfs of its own.

use std::{
    ffi::CStr,
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::libc::{
    FSCONFIG_CMD_CREATE, FSMOUNT_CLOEXEC, FSOPEN_CLOEXEC, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, SYS_fsconfig, SYS_fsmount, SYS_fsopen, c_long, syscall,
};

use super::aspects::Aspects;
use crate::{error::Error, link::Link, netns::Netns};

/// Files that are not compared.
const LEFT_OUT: &[&[&str]] = &[
    // Also in the kernel's link description.
    &["addr_len", "address", "broadcast", "flags", "group", "ifalias", "link_mode", "mtu"],
    &["name_assign_type", "addr_assign_type", "netdev_group", "proto_down", "tx_queue_len", "type"],
    // Momentary values.
    &["carrier", "carrier_changes", "carrier_down_count", "carrier_up_count", "dormant", "duplex"],
    &["ifindex", "iflink", "operstate", "speed", "testing", "uevent"],
    // Names of the hardware.
    &["dev_id", "dev_port", "phys_port_id", "phys_port_name", "phys_switch_id"],
    // Files of queues: counters, and values that the kernel adjusts itself.
    &["tx_timeout", "inflight", "limit", "stall_cnt", "stall_max"],
];

/// A detached sysfs mount that shows the links of a namespace. It does not keep the namespace alive.
#[derive(Debug)]
pub struct NetSysfs {
    mount: OwnedFd,
}

impl NetSysfs {
    /// Mounts a detached sysfs for a namespace. No other process sees the mount.
    ///
    /// # Errors
    /// If the process may not mount.
    pub fn mount(netns: &Netns) -> Result<Self, Error> {
        let mounted = netns.run(mount_here)?;
        let mount = mounted.map_err(|error| Error::io("mount sysfs", &error))?;
        Ok(Self { mount })
    }

    /// The folder that contains a folder for each link. Valid only in this process and while `self` lives.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/class/net", self.mount.as_raw_fd()))
    }

    /// Reads the settings of a link. `None`: the link was renamed or removed in the meantime.
    pub(super) fn aspects(&self, link: &Link) -> Option<Aspects> {
        let folder = self.folder().join(&link.name);
        let mut aspects = Aspects::new();
        read_files(&folder, "", &mut aspects);
        for queue in names_in(&folder.join("queues")) {
            let of_queue = format!(" of {queue}");
            let queue = folder.join("queues").join(&queue);
            read_files(&queue, &of_queue, &mut aspects);
            read_files(&queue.join("byte_queue_limits"), &of_queue, &mut aspects);
        }
        // Links are found by name here: check that the name still belongs to this link after reading.
        let index = fs::read_to_string(folder.join("ifindex")).ok()?;
        (index.trim_end().parse() == Ok(link.index)).then_some(aspects)
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Reads the files of a folder. Some are unreadable while the link is down and are left out.
fn read_files(folder: &Path, of_queue: &str, aspects: &mut Aspects) {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if LEFT_OUT.iter().any(|left_out| left_out.contains(&name.as_str())) {
            continue;
        }
        if let Ok(text) = fs::read_to_string(entry.path()) {
            aspects.insert(format!("{name}{of_queue}"), text.trim_end().to_owned());
        }
    }
}

#[expect(unsafe_code, reason = "there are no safe wrappers of these system calls")]
fn mount_here() -> io::Result<OwnedFd> {
    const ATTRIBUTES: u64 =
        MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    const KIND: &CStr = c"sysfs";
    const NULL: *const u8 = std::ptr::null();
    // SAFETY: the type is a static string.
    let context = opened(unsafe { syscall(SYS_fsopen, KIND.as_ptr(), FSOPEN_CLOEXEC) })?;
    // SAFETY: the descriptor is open, and this command has neither key nor value.
    let made =
        unsafe { syscall(SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, NULL, NULL, 0) };
    checked(made)?;
    // SAFETY: the descriptor is open, and the other arguments are numbers.
    opened(unsafe { syscall(SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, ATTRIBUTES) })
}

fn checked(outcome: c_long) -> io::Result<c_long> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

/// Owns the descriptor that a system call returned.
#[expect(unsafe_code, reason = "a system call returns descriptors as numbers")]
fn opened(outcome: c_long) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(checked(outcome)?).map_err(io::Error::other)?;
    // SAFETY: the kernel opened the descriptor for this caller, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
