//! The kubelet's checkpoint: its file of which container it gave which devices, beside its socket for device plugins.
//!
//! It has one kind of container that PodResources leaves out: an ordinary init container. The kubelet may change the
//! file's form, so that it only completes the sentence of a refusal: nothing is decided by it.

use std::{fs::File, io::Read, path::Path};

use serde::Deserialize;

/// The file's name in the kubelet's folder for device plugins.
const NAME: &str = "kubelet_internal_checkpoint";
/// Longest file that is read, in bytes: more than that of any node.
const LONGEST: u64 = 16 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
}

/// Devices of a container.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    /// The container's name.
    pub container_name: String,
    /// What they are of.
    pub resource_name: String,
}

/// A container of the pod that was given devices of one of these resources. `None`: there is none, or the file can't be
/// read.
pub(super) fn container_of(folder: &Path, pod_uid: &str, resources: &[String]) -> Option<Entry> {
    let mut text = String::new();
    File::open(folder.join(NAME)).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    let checkpoint: Checkpoint = serde_json::from_str(&text).ok()?;
    let mut entries = checkpoint.data.pod_device_entries?.into_iter();
    entries.find(|it| it.pod_uid == pod_uid && resources.contains(&it.resource_name))
}

#[cfg(test)]
mod unit_tests {
    use std::fs;

    use super::*;

    /// As kubelet 1.20 writes it, and later ones.
    const CHECKPOINT: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"u1","ContainerName":"setup","ResourceName":"dpu-offload.io/gold",
         "DeviceIDs":{"-1":["d000:00:00.1"]},"AllocResp":"CgA="}
    ],"RegisteredDevices":{"dpu-offload.io/gold":["d000:00:00.1"]}},"Checksum":1}"#;

    #[test]
    fn container_is_found_by_pod_and_resource() {
        let folder = tempfile::tempdir().unwrap();
        let found = |uid: &str, resource: &str| {
            let found = container_of(folder.path(), uid, &[resource.to_owned()]);
            found.map(|entry| entry.container_name)
        };
        assert_eq!(found("u1", "dpu-offload.io/gold"), None, "there is no file");
        fs::write(folder.path().join(NAME), CHECKPOINT).unwrap();
        assert_eq!(found("u1", "dpu-offload.io/gold").as_deref(), Some("setup"));
        assert_eq!(found("u2", "dpu-offload.io/gold"), None);
        assert_eq!(found("u1", "dpu-offload.io/silver"), None);
        fs::write(folder.path().join(NAME), r#"{"Data":{"PodDeviceEntries":null}}"#).unwrap();
        assert_eq!(found("u1", "dpu-offload.io/gold"), None);
        fs::write(folder.path().join(NAME), "another form").unwrap();
        assert_eq!(found("u1", "dpu-offload.io/gold"), None);
    }
}
