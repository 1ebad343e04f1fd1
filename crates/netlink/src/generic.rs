//! Generic netlink: families without a protocol of their own, such as devlink and ethtool.

use std::{ffi::CStr, io};

use netlink_bindings::nlctrl::{
    CtrlAttrs, IterableCtrlAttrs, IterableMcastGroupAttrs, OpGetfamilyDo,
};
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::{
    datagram::{Object, append_message},
    error::RefusalCause,
    socket::{KernelSocket, Outgoing},
};

/// `GENL_ID_CTRL`, the family that describes the other families.
const CONTROL: u16 = 0x10;

/// A message of a generic family; `payload` is the command's header and attributes.
#[derive(Clone, Debug)]
pub(crate) struct GenericMessage {
    pub(crate) family: u16,
    pub(crate) payload: Vec<u8>,
}

impl Outgoing for GenericMessage {
    fn append_to(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32) {
        append_message(datagram, self.family, flags, sequence, &self.payload);
    }
}

/// Splits an object of a generic family into its command and its attributes.
///
/// # Errors
/// If the payload is shorter than the header.
pub(crate) fn of_family(object: Object<'_>) -> Result<(u8, &[u8]), String> {
    match object.payload {
        [command, _version, _, _, attributes @ ..] => Ok((*command, attributes)),
        _ => Err("a message without a header".to_owned()),
    }
}

/// The kernel's numbers for a family and its multicast groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) id: u16,
    groups: Vec<(String, u32)>,
}

impl Family {
    pub(crate) fn find(socket: &mut KernelSocket, name: &CStr) -> Result<Self, RefusalCause> {
        let mut payload = Vec::new();
        drop(OpGetfamilyDo::encode_request(&mut payload).push_family_name(name));
        let question = GenericMessage { family: CONTROL, payload };
        socket.get(&question, |object| {
            let (_command, attributes) = of_family(object)?;
            Ok(Self::described_by(CtrlAttrs::new(attributes)))
        })
    }

    pub(crate) fn described_by(attributes: IterableCtrlAttrs<'_>) -> Self {
        let mut family = Self::default();
        for attribute in attributes.flatten() {
            match attribute {
                CtrlAttrs::FamilyId(id) => family.id = id,
                CtrlAttrs::McastGroups(groups) => {
                    family.groups = groups.flatten().filter_map(|group| group_of(&group)).collect();
                }
                _ => {}
            }
        }
        family
    }

    /// The number of one of its multicast groups.
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(group, _)| group == name).map(|(_, id)| *id)
    }
}

fn group_of(group: &IterableMcastGroupAttrs<'_>) -> Option<(String, u32)> {
    Some((text(group.get_name().ok()?), group.get_id().ok()?))
}

pub(crate) fn open_socket() -> io::Result<KernelSocket> {
    KernelSocket::open(NETLINK_GENERIC)
}

pub(crate) fn text(bytes: &CStr) -> String {
    bytes.to_string_lossy().into_owned()
}
