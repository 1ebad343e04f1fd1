//! An attachment as plugin and agent write it: with the name, too, that the release before has for a VF's device.
//! While a package is replaced, one of the two is still of that release. With the next release this goes.

use offload_proto::v1;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value};

/// What a VF's device is called today.
const DEVICE: &str = "device";
/// What it was called.
const DEVICE_BEFORE: &str = "pciAddress";

pub(super) fn serialize<S: Serializer>(
    attachment: &v1::Attachment,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut document = serde_json::to_value(attachment).map_err(ser::Error::custom)?;
    copy_in_vf(&mut document, DEVICE, DEVICE_BEFORE);
    document.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<v1::Attachment>, D::Error> {
    let mut document = Value::deserialize(deserializer)?;
    copy_in_vf(&mut document, DEVICE_BEFORE, DEVICE);
    serde_json::from_value(document).map(Box::new).map_err(de::Error::custom)
}

/// Gives a VF's device another name beside the one that it has. One that it has already stays.
fn copy_in_vf(attachment: &mut Value, from: &str, to: &str) {
    let vf = attachment.get_mut("vf").and_then(Value::as_object_mut);
    let copy = |vf: &mut Map<String, Value>| {
        let device = vf.get(from)?.clone();
        Some(vf.entry(to).or_insert(device).is_string())
    };
    vf.and_then(copy);
}
