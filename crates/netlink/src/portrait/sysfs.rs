//! What sysfs alone has of a link: settings of its queues.
//!
//! Sysfs shows the links of the namespace in which it was mounted. That is seldom known of `/sys`, so
//! it is mounted once more, nowhere.

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
use crate::{Error, Link, Netns};

/// Files of a link that are no aspects of their own.
const LEFT_OUT: &[&[&str]] = &[
    // What the kernel's description of a link tells, too, or tells better.
    &["addr_len", "address", "broadcast", "flags", "group", "ifalias", "link_mode", "mtu"],
    &["name_assign_type", "addr_assign_type", "netdev_group", "proto_down", "tx_queue_len", "type"],
    // The moment.
    &["carrier", "carrier_changes", "carrier_down_count", "carrier_up_count", "dormant", "duplex"],
    &["ifindex", "iflink", "operstate", "speed", "testing", "uevent"],
    // Names of the hardware.
    &["dev_id", "dev_port", "phys_port_id", "phys_port_name", "phys_switch_id"],
    // Of a queue: counters, and what the kernel finds out by itself.
    &["tx_timeout", "inflight", "limit", "stall_cnt", "stall_max"],
];

/// The links of a namespace, as sysfs shows them. It does not keep the namespace alive.
#[derive(Debug)]
pub struct NetSysfs {
    mount: OwnedFd,
}

impl NetSysfs {
    /// Mounts sysfs for a namespace, where nobody sees it.
    ///
    /// # Errors
    /// When the process may mount nothing.
    pub fn mount(netns: &Netns) -> Result<Self, Error> {
        let mounted = netns.run(mount_here)?;
        let mount = mounted.map_err(|error| Error::io("mount sysfs", &error))?;
        Ok(Self { mount })
    }

    /// The folder with a folder of files for each link. This process alone can read it, as long as `self` lives.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/class/net", self.mount.as_raw_fd()))
    }

    /// What the files of a link tell. `None`: it was renamed or went meanwhile.
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
        let index = fs::read_to_string(folder.join("ifindex")).ok()?;
        (index.trim_end().parse() == Ok(link.index)).then_some(aspects)
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Reads the files of a folder. Some can't be read, as of a link that is down.
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
    // SAFETY: the kind is a text that lives for ever.
    let context = opened(unsafe { syscall(SYS_fsopen, KIND.as_ptr(), FSOPEN_CLOEXEC) })?;
    // SAFETY: the descriptor is open, and this command has neither key nor value.
    let made =
        unsafe { syscall(SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, NULL, NULL, 0) };
    checked(made)?;
    // SAFETY: the descriptor is open, the rest are numbers.
    opened(unsafe { syscall(SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, ATTRIBUTES) })
}

fn checked(outcome: c_long) -> io::Result<c_long> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

/// Owns the descriptor that a system call returned.
#[expect(unsafe_code, reason = "a system call returns descriptors as numbers")]
fn opened(outcome: c_long) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(checked(outcome)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for this caller, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
