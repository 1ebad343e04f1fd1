//! The PF's settings for a VF, on cards without a DPU: there only the PF can enforce a pod's MAC address and VLAN.

use netlink::{Link, LinkChange, MacAddress, Request, Rtnl, VfLinkState, VfSetting, VfSettings};
use saga::Step;

use super::{MoveError, Plan, VfMove, listed};
use crate::vf_source::PfPort;

/// Sets the PF's port for the pod before the pod has the VF.
pub(super) struct SetPort;

impl Step<VfMove> for SetPort {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "set-port"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        let Some(port) = vf_move.port() else { return check_enforced(&vf_move.spec.plan) };
        let wanted = settings_for(&vf_move.spec.plan)?;
        let (pf, present) = look_at(&mut vf_move.host.rtnl, &port)?;
        if !pf.is_up {
            return Err(MoveError::PfDown(pf.name));
        }
        for setting in wanted.changes_from(&present) {
            if let VfSetting::Mac(_) = setting {
                take_mac(vf_move, &pf, &port)?;
            }
            vf_move.host.rtnl.batch(&[Request::set_vf(pf.index, port.vf, setting)])?;
        }
        Ok(())
    }

    /// A VF with a link is restored by the undo of the step that moves it.
    fn undo(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        if vf_move.spec.original.is_handed_over { reset(vf_move) } else { Ok(()) }
    }
}

/// Restores the PF's settings of a VF that has no link.
pub(super) fn reset(vf_move: &mut VfMove) -> Result<(), MoveError> {
    restore(vf_move, |_| Ok(()))
}

/// Sets the pod's MAC address on the VF itself. After the PF has set one, most drivers refuse any other.
fn take_mac(vf_move: &mut VfMove, pf: &Link, port: &PfPort) -> Result<(), MoveError> {
    let mac = vf_move.spec.plan.mac;
    let Some(link) = vf_move.in_host()?.filter(|link| link.mac != Some(mac)) else { return Ok(()) };
    let change = LinkChange::new().down().mac(mac);
    let rtnl = &mut vf_move.host.rtnl;
    // The driver refuses it while the PF still enforces an earlier pod's address.
    if rtnl.change_link(link.index, &change).is_err() {
        rtnl.batch(&[Request::set_vf(pf.index, port.vf, VfSetting::Mac(None))])?;
        rtnl.change_link(link.index, &change)?;
    }
    Ok(())
}

/// The PF's settings for an unused VF without a recorded state: the driver's defaults.
pub(super) const UNUSED: VfSettings = VfSettings {
    mac: None,
    vlan: 0,
    priority: 0,
    rate_mbit: (0, 0),
    spoof_check: true,
    trust: false,
    link_state: VfLinkState::Auto,
};

/// Restores the PF's settings. The link is restored in between: it can take its own MAC address only while the PF
/// enforces none.
pub(super) fn restore(
    vf_move: &mut VfMove,
    restore_link: impl FnOnce(&mut VfMove) -> Result<(), MoveError>,
) -> Result<(), MoveError> {
    let (Some(port), Some(original)) = (vf_move.port(), vf_move.spec.original.port) else {
        return restore_link(vf_move);
    };
    let own = vf_move.spec.original.mac;
    loosen(&mut vf_move.host.rtnl, &port, &original, own)?;
    restore_link(vf_move)?;
    settle(&mut vf_move.host.rtnl, &port, &original)
}

/// Restores all settings of the PF, but lets the link take its `own` MAC address.
pub(super) fn loosen(
    rtnl: &mut Rtnl,
    port: &PfPort,
    original: &VfSettings,
    own: Option<MacAddress>,
) -> Result<(), MoveError> {
    let (pf, present) = look_at(rtnl, port)?;
    for setting in original.changes_from(&present) {
        match setting {
            VfSetting::Mac(_) => let_go(rtnl, &pf, port, own)?,
            setting => rtnl.batch(&[Request::set_vf(pf.index, port.vf, setting)])?,
        }
    }
    Ok(())
}

/// Restores the remaining settings of the PF once the link has its own MAC address.
pub(super) fn settle(
    rtnl: &mut Rtnl,
    port: &PfPort,
    original: &VfSettings,
) -> Result<(), MoveError> {
    // `IFLA_VF_MAC` is the VF's current address with many drivers, and the enforced one with others.
    let (pf, present) = look_at(rtnl, port)?;
    let left = original.changes_from(&present).into_iter();
    let left = left.filter(|setting| *setting != VfSetting::Mac(None));
    let requests: Vec<_> = left.map(|to| Request::set_vf(pf.index, port.vf, to)).collect();
    Ok(rtnl.batch(&requests)?)
}

/// Stops enforcing a MAC address, or enforces the VF's own where the driver cannot stop.
fn let_go(
    rtnl: &mut Rtnl,
    pf: &Link,
    port: &PfPort,
    own: Option<MacAddress>,
) -> Result<(), MoveError> {
    let hold = |mac| [Request::set_vf(pf.index, port.vf, VfSetting::Mac(mac))];
    match (rtnl.batch(&hold(None)), own) {
        // Some drivers refuse the zero address, which would end the enforcement.
        (Err(_), Some(_)) => Ok(rtnl.batch(&hold(own))?),
        (outcome, _) => Ok(outcome?),
    }
}

/// The PF's link, and its present settings for the VF.
fn look_at(rtnl: &mut Rtnl, port: &PfPort) -> Result<(Link, VfSettings), MoveError> {
    let pf = port.link(&rtnl.links()?).ok_or_else(|| MoveError::NoPf(port.pf.clone()))?;
    let settings = rtnl.vf_settings(pf.index)?;
    let present = settings.get(&port.vf).copied();
    Ok((pf, present.ok_or_else(|| MoveError::NoPort(port.clone()))?))
}

/// Refuses settings that neither the DPU nor a PF would enforce.
fn check_enforced(plan: &Plan) -> Result<(), MoveError> {
    let is_limited = plan.limits_ingress || plan.egress_mbit != 0;
    let wanted = match plan {
        Plan { needs_pf: false, .. } => return Ok(()),
        Plan { vlan, .. } if *vlan != 0 => format!("VLAN {vlan}"),
        Plan { trunk, .. } if !trunk.is_empty() => format!("a trunk of VLANs {}", listed(trunk)),
        Plan { spoof_check: true, .. } => "its own MAC address".into(),
        _ if is_limited => "a rate".into(),
        _ => return Ok(()),
    };
    Err(MoveError::NotEnforced(wanted))
}

/// The PF's settings for the pod's VF.
fn settings_for(plan: &Plan) -> Result<VfSettings, MoveError> {
    if plan.limits_ingress {
        return Err(MoveError::IngressLimit);
    }
    if !plan.trunk.is_empty() {
        return Err(MoveError::Trunk(plan.trunk.clone()));
    }
    Ok(VfSettings {
        mac: Some(plan.mac),
        vlan: plan.vlan,
        rate_mbit: (0, plan.egress_mbit),
        spoof_check: plan.spoof_check,
        ..VfSettings::default()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use offload_proto::v1;

    use super::*;

    fn settings(attachment: v1::Attachment) -> Result<VfSettings, MoveError> {
        settings_for(&plan(attachment))
    }

    fn plan(attachment: v1::Attachment) -> Plan {
        let key = v1::AttachmentKey { interface_name: "eth0".into(), ..Default::default() };
        let mac = "02:00:00:00:00:01".into();
        let attachment = v1::Attachment { key: Some(key), mac, ..attachment };
        Plan::new(&attachment, Duration::ZERO).unwrap()
    }

    #[test]
    fn pf_checks_sender_mac_unless_off() {
        let checks = |level: &str| {
            let anti_spoofing = level.into();
            let attachment = v1::Attachment { anti_spoofing, vlan: 7, ..Default::default() };
            let settings = settings(attachment).unwrap();
            assert_eq!(settings.vlan, 7);
            settings.spoof_check
        };
        assert!(checks("mac"));
        assert!(!checks("off"));
    }

    #[test]
    fn settings_without_enforcement_are_refused() {
        let check = |attachment: v1::Attachment| {
            check_enforced(&plan(attachment)).map_err(|error| error.to_string())
        };
        let free = v1::Attachment { anti_spoofing: "off".into(), ..Default::default() };
        let unkept = v1::Attachment { host_keeps_port: true, ..free.clone() };
        assert_eq!(check(unkept.clone()), Ok(()));
        assert_eq!(check(v1::Attachment { vlan: 7, ..free }), Ok(()), "the DPU keeps it");
        let in_vlan = check(v1::Attachment { vlan: 7, ..unkept.clone() }).unwrap_err();
        assert!(in_vlan.contains("VLAN 7: "), "{in_vlan}");
        let spoofing = v1::Attachment { anti_spoofing: "mac".into(), ..unkept.clone() };
        assert!(check(spoofing).unwrap_err().contains("MAC address: "));
        let bandwidth = Some(v1::Bandwidth { egress_rate: 1, ..Default::default() });
        assert!(check(v1::Attachment { bandwidth, ..unkept }).unwrap_err().contains("to a rate: "));
    }

    #[test]
    fn settings_beyond_a_pf_are_refused() {
        let trunk = v1::Attachment { trunk: vec![200, 201], ..Default::default() };
        let error = settings(trunk).unwrap_err();
        assert!(error.to_string().starts_with("a trunk of VLANs 200, 201 is wanted"), "{error}");
        assert_eq!(error.reason(), offload_proto::Reason::Unsupported);
        let bandwidth = v1::Bandwidth { ingress_rate: 1, ..Default::default() };
        let limited = v1::Attachment { bandwidth: Some(bandwidth), ..Default::default() };
        assert!(matches!(settings(limited), Err(MoveError::IngressLimit)));
    }
}
