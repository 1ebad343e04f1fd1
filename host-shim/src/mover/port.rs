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
        // Most drivers let a VF have no other address once its PF has given it one.
        if let Some(link) = scene.in_host()?.filter(|link| link.mac != wanted.mac) {
            let change = LinkChange::new().down().mac(scene.plan.mac);
            scene.host.rtnl.change_link(link.index, &change)?;
        }
        let (pf, present) = look_at(scene, &port)?;
        if !pf.is_up {
            return Err(MoveError::PfDown(pf.name));
        }
        let requests = wanted.changes_from(&present).into_iter();
        let requests: Vec<_> = requests.map(|to| Request::set_vf(pf.index, port.vf, to)).collect();
        Ok(scene.host.rtnl.batch(&requests)?)
    }

    fn undo(&self, scene: &mut Scene) -> Result<(), MoveError> {
        if scene.was_in_pod()? { Ok(()) } else { reset(scene) }
    }
}

/// Makes the PF treat the VF as before.
pub(super) struct ResetPort;

impl Step<Scene> for ResetPort {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "reset-port"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        reset(scene)
    }
}

fn reset(scene: &mut Scene) -> Result<(), MoveError> {
    let (Some(port), Some(original)) = (scene.port(), scene.original.port) else { return Ok(()) };
    let (pf, present) = look_at(scene, &port)?;
    for setting in original.changes_from(&present) {
        let request = |setting| [Request::set_vf(pf.index, port.vf, setting)];
        let rtnl = &mut scene.host.rtnl;
        match (rtnl.batch(&request(setting)), setting, scene.original.mac) {
            // Some drivers can't take an address back: then it is the VF's own.
            (Err(_), VfSetting::Mac(None), Some(mac)) => {
                rtnl.batch(&request(VfSetting::Mac(Some(mac))))?;
            }
            (outcome, ..) => outcome?,
        }
    }
    Ok(())
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
