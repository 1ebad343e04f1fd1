//! The attachment's wire form between plugin and agent, which has a VF's device under two names: the previous release
//! uses `pciAddress`. During an upgrade, plugin and agent may be of different releases.

use offload_proto::v1;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value};

/// The field's name since this release.
const DEVICE: &str = "device";
/// The field's name in the previous release.
const PREVIOUS_DEVICE: &str = "pciAddress";

pub(super) fn serialize<S: Serializer>(
    attachment: &v1::Attachment,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut document = serde_json::to_value(attachment).map_err(ser::Error::custom)?;
    copy_in_vf(&mut document, DEVICE, PREVIOUS_DEVICE);
    document.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<v1::Attachment>, D::Error> {
    let mut document = Value::deserialize(deserializer)?;
    copy_in_vf(&mut document, PREVIOUS_DEVICE, DEVICE);
    serde_json::from_value(document).map(Box::new).map_err(de::Error::custom)
}

/// Copies a VF's device to another field unless that exists.
fn copy_in_vf(attachment: &mut Value, from: &str, to: &str) {
    let vf = attachment.get_mut("vf").and_then(Value::as_object_mut);
    let copy = |vf: &mut Map<String, Value>| {
        let device = vf.get(from)?.clone();
        Some(vf.entry(to).or_insert(device).is_string())
    };
    vf.and_then(copy);
}
