//! Fuzz target: hostile devlink datagrams.

use netlink_bindings::nlctrl::CtrlAttrs;

use super::{Codec, DevlinkDevice, DevlinkEvent, device_of, port, rate};
use crate::{datagram::fuzz::checked_objects, generic, watch::Event};

#[test]
fn devlink_datagram() {
    fuzz::target("devlink_datagram", |datagram| {
        let objects = checked_objects(datagram);
        assert!(DevlinkEvent::all_in(datagram).count() <= objects.len() + datagram.len() / 16);
        for object in objects {
            let Ok((_command, attributes)) = generic::of_family(object) else { continue };
            let _family = generic::Family::described_by(CtrlAttrs::new(attributes));
            check_described(&Codec::new(attributes));
        }
    });
}

/// Checks that a description of a port or a rate names the same card as the message.
fn check_described(attributes: &super::Attributes<'_>) {
    let device: Option<DevlinkDevice> = device_of(attributes);
    let _mode = attributes.get_eswitch_mode().ok().and_then(super::EswitchMode::from_number);
    if let Some(port) = port::described_by(attributes) {
        assert_eq!(Some(&port.device), device.as_ref());
        assert!(port.link.is_none_or(|index| index != 0));
    }
    if let Some(rate) = rate::described_by(attributes) {
        assert_eq!(Some(rate.device), device);
    }
}
