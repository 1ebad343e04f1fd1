//! The kubelet's checkpoint file, which lists the devices of each container.
//!
//! It includes ordinary init containers, which PodResources omits. Its form may change with the kubelet, so it only
//! completes the sentence of a refusal; no decision depends on it.

use std::{fs::File, io::Read, path::Path};

use serde::Deserialize;

/// The file's name in the kubelet's folder for device plugins.
const NAME: &str = "kubelet_internal_checkpoint";
/// The longest file that is read, in bytes: more than any node has.
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

/// The devices of a container.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    pub container_name: String,
    pub resource_name: String,
}

/// A container of the pod with devices of one of these resources. `None`: there is none, or the file cannot be read.
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

    /// As kubelet 1.20 and later write it.
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
