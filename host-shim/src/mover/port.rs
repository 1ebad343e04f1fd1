//! What the PF makes of a VF, on cards without a DPU: there nobody else keeps a pod to its MAC
//! address and its VLAN.

use netlink::{Link, LinkChange, Request, VfSetting, VfSettings};
use saga::Step;

use super::{MoveError, Plan, Scene};
use crate::vf_source::PfPort;

/// Tells the PF what the pod may do, before the pod has the VF.
pub(super) struct SetPort;

impl Step<Scene> for SetPort {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "set-port"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        let Some(port) = scene.port() else { return Ok(()) };
        let wanted = settings_for(&scene.plan)?;
        let (pf, present) = look_at(scene, &port)?;
        if !pf.is_up {
            return Err(MoveError::PfDown(pf.name));
        }
        for setting in wanted.changes_from(&present) {
            if let VfSetting::Mac(_) = setting {
                take_mac(scene, &pf, &port)?;
            }
            scene.host.rtnl.batch(&[Request::set_vf(pf.index, port.vf, setting)])?;
        }
        Ok(())
    }

    /// Whatever has a link is restored with it.
    fn undo(&self, scene: &mut Scene) -> Result<(), MoveError> {
        if scene.original.is_handed_over { restore(scene, |_| Ok(())) } else { Ok(()) }
    }
}

/// Makes the PF treat a VF that has no link as before.
pub(super) struct ResetPort;

impl Step<Scene> for ResetPort {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "reset-port"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        restore(scene, |_| Ok(()))
    }
}

/// Gives the VF the pod's MAC address while it may still change it: once its PF has given it one,
/// most drivers let it have no other.
fn take_mac(scene: &mut Scene, pf: &Link, port: &PfPort) -> Result<(), MoveError> {
    let mac = scene.plan.mac;
    let Some(link) = scene.in_host()?.filter(|link| link.mac != Some(mac)) else { return Ok(()) };
    let change = LinkChange::new().down().mac(mac);
    let rtnl = &mut scene.host.rtnl;
    if rtnl.change_link(link.index, &change).is_err() {
        rtnl.batch(&[Request::set_vf(pf.index, port.vf, VfSetting::Mac(None))])?;
        rtnl.change_link(link.index, &change)?;
    }
    Ok(())
}

/// Makes the PF treat the VF as before, and has its link restored meanwhile: while the PF holds the
/// VF to no MAC address, it can take its own again.
pub(super) fn restore(
    scene: &mut Scene,
    restore_link: impl FnOnce(&mut Scene) -> Result<(), MoveError>,
) -> Result<(), MoveError> {
    let (Some(port), Some(original)) = (scene.port(), scene.original.port) else {
        return restore_link(scene);
    };
    let (pf, present) = look_at(scene, &port)?;
    for setting in original.changes_from(&present) {
        match setting {
            VfSetting::Mac(_) => let_go(scene, &pf, &port)?,
            setting => scene.host.rtnl.batch(&[Request::set_vf(pf.index, port.vf, setting)])?,
        }
    }
    restore_link(scene)?;
    // Of many cards the PF tells the address that the VF has, and of the others that it shall have.
    let (pf, present) = look_at(scene, &port)?;
    let left = original.changes_from(&present).into_iter();
    let left = left.filter(|setting| *setting != VfSetting::Mac(None));
    let requests: Vec<_> = left.map(|to| Request::set_vf(pf.index, port.vf, to)).collect();
    Ok(scene.host.rtnl.batch(&requests)?)
}

/// Holds the VF to no MAC address any more, or, where the driver can't, to its own.
fn let_go(scene: &mut Scene, pf: &Link, port: &PfPort) -> Result<(), MoveError> {
    let own = scene.original.mac;
    let hold = |mac| [Request::set_vf(pf.index, port.vf, VfSetting::Mac(mac))];
    let rtnl = &mut scene.host.rtnl;
    match (rtnl.batch(&hold(None)), own) {
        (Err(_), Some(_)) => Ok(rtnl.batch(&hold(own))?),
        (outcome, _) => Ok(outcome?),
    }
}

/// The PF's link, and what it makes of the VF now.
fn look_at(scene: &mut Scene, port: &PfPort) -> Result<(Link, VfSettings), MoveError> {
    let rtnl = &mut scene.host.rtnl;
    let pf = port.link(&rtnl.links()?).ok_or_else(|| MoveError::NoPf(port.pf.clone()))?;
    let settings = rtnl.vf_settings(pf.index)?;
    let present = settings.get(&port.vf).copied();
    Ok((pf, present.ok_or_else(|| MoveError::Missing(scene.pci_address.clone()))?))
}

/// What a PF is to make of the pod's VF.
fn settings_for(plan: &Plan) -> Result<VfSettings, MoveError> {
    if plan.limits_ingress {
        return Err(MoveError::IngressLimit);
    }
    Ok(VfSettings {
        mac: Some(plan.mac),
        vlan: plan.vlan,
        rate_mbit: (0, plan.egress_mbit),
        spoof_check: true,
        ..VfSettings::default()
    })
}
