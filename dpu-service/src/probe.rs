//! What this kernel can do, found out by doing it where nobody sees: in a namespace of its own.

use std::{io, thread};

use netlink::{Bridge, BridgePort, FrameFilter, Limit, Link, Rtnl, VethEnd};
use nix::sched::{CloneFlags, unshare};

use crate::driver::{Ability, Refused};

/// What this kernel can do.
#[derive(Clone, Debug)]
pub struct KernelAbilities {
    /// Bridges that keep VLANs apart.
    pub(crate) vlan_filtering: Ability,
    /// Bridge ports that drop frames from other stations than their own.
    pub(crate) locked_ports: Ability,
    /// Filters of the frames that come in at a link.
    pub(crate) frame_filter: Ability,
    /// Limits of what a link sends.
    pub(crate) token_bucket: Ability,
}

impl KernelAbilities {
    /// Finds out.
    ///
    /// # Errors
    /// When the process may make no network namespace, or no bridge or veth pair in it.
    pub fn probe() -> Result<Self, Refused> {
        let worker = thread::spawn(|| {
            let refused = |source: io::Error| {
                Refused::new("make a network namespace to probe the kernel in", source)
            };
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| refused(errno.into()))?;
            probe_here().map_err(|error| Refused::new("probe the kernel", error))
        });
        worker.join().unwrap_or_else(|_| Err(Refused::because("probing the kernel panicked")))
    }
}

fn probe_here() -> Result<KernelAbilities, netlink::Error> {
    let mut rtnl = Rtnl::open()?;
    rtnl.add_bridge("bridge", &Bridge::default())?;
    rtnl.add_veth(&VethEnd::new("port"), &VethEnd::new("peer"))?;
    let (bridge, port) = (find(&mut rtnl, "bridge")?, find(&mut rtnl, "port")?);
    rtnl.set_master(port.index, Some(bridge.index))?;
    Ok(KernelAbilities {
        vlan_filtering: probe_vlan_filtering(&mut rtnl),
        locked_ports: probe_locked_ports(&mut rtnl, port.index),
        frame_filter: probe_frame_filter(&mut rtnl, port.index),
        token_bucket: probe_token_bucket(&mut rtnl, port.index),
    })
}

fn find(rtnl: &mut Rtnl, name: &str) -> Result<Link, netlink::Error> {
    Ok(rtnl.link_by_name(name)?.unwrap_or_default())
}

fn probe_vlan_filtering(rtnl: &mut Rtnl) -> Ability {
    let bridge = Bridge { vlan_filtering: true, default_pvid: Some(0), ..Bridge::default() };
    rtnl.add_bridge("vlans", &bridge).map_err(|error| {
        format!("the kernel is built without CONFIG_BRIDGE_VLAN_FILTERING ({error})")
    })
}

/// Kernels that do not know the setting take it and ignore it, so it is read back.
fn probe_locked_ports(rtnl: &mut Rtnl, port: u32) -> Ability {
    let locked = BridgePort { locked: Some(true), ..BridgePort::default() };
    rtnl.set_bridge_port(port, &locked).map_err(|error| error.to_string())?;
    let port = rtnl.link_by_index(port).map_err(|error| error.to_string())?;
    locked_as_read_back(port.and_then(|link| link.bridge_port).and_then(|port| port.locked))
}

fn locked_as_read_back(locked: Option<bool>) -> Ability {
    if locked == Some(true) { Ok(()) } else { Err("the kernel is older than 5.18".into()) }
}

fn probe_frame_filter(rtnl: &mut Rtnl, port: u32) -> Ability {
    rtnl.set_frame_filter(port, FrameFilter { takes_tagged: false }).map_err(|error| {
        format!(
            "the kernel is built without CONFIG_NET_CLS_BPF or CONFIG_NET_SCH_INGRESS ({error})"
        )
    })
}

fn probe_token_bucket(rtnl: &mut Rtnl, port: u32) -> Ability {
    let limit = Limit { rate_bits: 1_000_000_000, burst_bits: 1_000_000, queue_bits: 1_000_000 };
    rtnl.set_egress_limit(port, Some(limit))
        .map_err(|error| format!("the kernel is built without CONFIG_NET_SCH_TBF ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_ignores_locked_ports_is_told_by_the_version_that_brought_them() {
        assert_eq!(locked_as_read_back(Some(true)), Ok(()));
        for ignored in [None, Some(false)] {
            let why = locked_as_read_back(ignored).unwrap_err();
            assert_eq!(why, "the kernel is older than 5.18");
        }
    }
}
