//! Syntax of names that host and DPU check by the same rules.

use std::ops::RangeInclusive;

/// Longest container id, in bytes. The id is part of file names of runtimes and agents.
pub const CONTAINER_ID_LIMIT: usize = 253;

/// Most interfaces of one call.
pub const MOST_INTERFACES: usize = 64;

/// The container id of host ports, which are attachments without a container: no runtime may use it.
pub const HOST_PORT_CONTAINER: &str = "host-port";

/// Whether CNI accepts `text` as a container id: a letter or digit, then letters, digits, `_`, `.` and `-`, all ASCII,
/// at most [`CONTAINER_ID_LIMIT`] bytes.
#[must_use]
pub fn is_container_id(text: &str) -> bool {
    let is_later = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.len() <= CONTAINER_ID_LIMIT
        && text.bytes().all(is_later)
}

/// The rule for interface names, for messages.
pub const INTERFACE_NAMES: &str =
    "1 to 15 visible ASCII characters without / : and %, and not . .. all or default";

/// Names that the kernel's sysctl and sysfs trees reserve: `all` and `default` are in `/proc/sys/net/ipv4/conf`
/// (net/ipv4/devinet.c, `sysctl_dev_name_is_allowed`).
const RESERVED_NAMES: [&str; 4] = [".", "..", "all", "default"];

/// Whether the kernel accepts `text` as an interface name and keeps it unchanged: `%` would be a pattern. See
/// [`INTERFACE_NAMES`].
#[must_use]
pub fn is_interface_name(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%');
    (1..=15).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !RESERVED_NAMES.contains(&text)
}

/// Whether `prefix` with a number of two digits is an interface name.
#[must_use]
pub fn is_interface_name_prefix(prefix: &str) -> bool {
    !prefix.is_empty() && is_interface_name(&format!("{prefix}99"))
}

/// Parses a PCI address, `domain:bus:device.function` in hexadecimal, such as `0000:03:00.2`. Returns it in lower case.
/// Domains may have more than four digits.
#[must_use]
pub fn device(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let is_address = is_hexadecimal(domain, 4..=8)
        && is_hexadecimal(bus, 2..=2)
        && is_hexadecimal(device, 2..=2)
        && is_hexadecimal(function, 1..=1);
    is_address.then(|| text.to_ascii_lowercase())
}

fn is_hexadecimal(part: &str, lengths: RangeInclusive<usize>) -> bool {
    lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Formats a duration, such as `5m12s`, `3h4m` or `12d`.
#[must_use]
pub fn seconds(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m{}s", seconds / MINUTE, seconds % MINUTE),
        HOUR..DAY => format!("{}h{}m", seconds / HOUR, seconds % HOUR / MINUTE),
        _ => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_are_those_of_cni() {
        for id in ["a", "0", "sandbox-1", "a_.-", &"a".repeat(253)] {
            assert!(is_container_id(id), "{id}");
        }
        for id in ["", "-a", ".a", "_a", "..", "a/b", "a b", "a\n", "\u{e4}", &"a".repeat(254)] {
            assert!(!is_container_id(id), "{id:?}");
        }
    }

    #[test]
    fn interface_names_are_the_kernels() {
        for name in ["eth0", "net1.100", "0123456789abcde"] {
            assert!(is_interface_name(name), "{name}");
        }
        for name in
            ["", ".", "..", "all", "default", "a/b", "a:b", "a b", "eth%d", "a\u{1}", "\u{e0}"]
        {
            assert!(!is_interface_name(name), "{name:?}");
        }
        assert!(!is_interface_name("0123456789abcdef"));
    }

    #[test]
    fn devices_are_whole() {
        assert_eq!(device("0000:03:00.2").as_deref(), Some("0000:03:00.2"));
        assert_eq!(device("10000:E1:00.0").as_deref(), Some("10000:e1:00.0"));
        for text in ["", "03:00.2", "0000:03:00", "0000.03.00.2", "0000:03:00.2/x", "g000:00:00.0"]
        {
            assert_eq!(device(text), None, "{text}");
        }
    }
}
