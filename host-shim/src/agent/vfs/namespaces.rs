//! Where network namespaces are found.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt, path::PathBuf};

use netlink::NetnsId;

/// The namespaces that the entries of `folders` are, or have as `ns/net` as processes do in `/proc`:
/// one path of each. `dev` is the device of the file system that they all are on.
pub(super) fn namespaces(folders: &[PathBuf], dev: u64) -> BTreeMap<NetnsId, PathBuf> {
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found = BTreeMap::new();
    for entry in entries.filter_map(Result::ok) {
        let of_process = entry.path().join("ns/net");
        for path in [of_process, entry.path()] {
            if let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
                && metadata.dev() == dev
            {
                found.entry(NetnsId::from(&metadata)).or_insert(path);
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use netlink::Netns;

    use super::*;

    #[test]
    fn shared_namespace_is_found_once() {
        let own = Netns::current().unwrap().id();
        let found = namespaces(&["/proc".into(), "/nowhere".into()], own.dev);
        assert!(found[&own].ends_with("ns/net"));
        assert!(found.values().all(|path| path != Path::new("/proc/mounts")), "is none");
    }
}
