//! Probes the kernel's abilities by using them in a network namespace of their own.

use std::{io, thread};

use netlink::{Guard, Limit, Link, Police, Request, Rtnl, VethEnd, nftables::Nftables};
use nix::sched::{CloneFlags, unshare};

use crate::driver::{Ability, Refused};

/// Name of the link for probes.
const PORT: &str = "port";

/// Abilities of this kernel for any link. Drivers probe what only they need.
#[derive(Clone, Debug)]
pub struct KernelAbilities {
    /// Filters on a link's ingress.
    pub guard: Ability,
    /// nftables rules by which a bridge drops what has not passed a port's filter.
    pub ingress_bypass: Ability,
    /// Limits of what a link sends.
    pub(crate) token_bucket: Ability,
    /// Limits of what a link receives.
    pub police: Ability,
}

impl KernelAbilities {
    /// Probes all abilities.
    ///
    /// # Errors
    /// The process may not create a network namespace, or a veth pair in it.
    pub fn probe() -> Result<Self, Refused> {
        in_hidden_netns(|rtnl, port| {
            Ok(Self {
                guard: probe_guard(rtnl, port),
                ingress_bypass: probe_ingress_bypass(),
                token_bucket: probe_token_bucket(rtnl, port),
                police: probe_police(rtnl, port),
            })
        })
    }
}

/// Runs `probe` in a temporary network namespace with the ifindex of a link to try things on.
///
/// Uses a thread of its own that ends afterwards: `unshare` changes the thread's namespace, and a pool's thread would
/// keep it.
///
/// # Errors
/// The process may not create a network namespace or a veth pair in it, or `probe` fails.
pub(crate) fn in_hidden_netns<T: Send + 'static>(
    probe: impl FnOnce(&mut Rtnl, u32) -> Result<T, netlink::Error> + Send + 'static,
) -> Result<T, Refused> {
    let worker = thread::spawn(|| {
        let refused = |source: io::Error| {
            Refused::new("make a network namespace to probe the kernel in", source)
        };
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| refused(errno.into()))?;
        try_here(probe).map_err(|error| Refused::new("probe the kernel", error))
    });
    worker.join().unwrap_or_else(|_| Err(Refused::because("probing the kernel panicked")))
}

fn try_here<T>(
    probe: impl FnOnce(&mut Rtnl, u32) -> Result<T, netlink::Error>,
) -> Result<T, netlink::Error> {
    let mut rtnl = Rtnl::open()?;
    rtnl.change(Request::add_veth(&VethEnd::new(PORT), &VethEnd::new("peer")))?;
    let port = find(&mut rtnl, PORT)?;
    probe(&mut rtnl, port.index)
}

/// Returns the link of that name, which this probe has just created.
pub fn find(rtnl: &mut Rtnl, name: &str) -> Result<Link, netlink::Error> {
    Ok(rtnl.link_by_name(name)?.unwrap_or_default())
}

fn probe_guard(rtnl: &mut Rtnl, port: u32) -> Ability {
    let set = rtnl.traffic_control().set_guard(port, &Guard::default(), false);
    set.map(drop).map_err(|error| {
        format!(
            "the kernel is built without CONFIG_NET_CLS_BPF or CONFIG_NET_SCH_INGRESS ({error})"
        )
    })
}

fn probe_ingress_bypass() -> Ability {
    let required = Nftables::open().and_then(|mut nftables| nftables.require_ingress(PORT));
    required.map_err(|error| {
        format!(
            "the kernel is built without CONFIG_NF_TABLES_NETDEV or CONFIG_NF_TABLES_BRIDGE ({error})"
        )
    })
}

fn probe_token_bucket(rtnl: &mut Rtnl, port: u32) -> Ability {
    let limit = Limit { rate_bits: 1_000_000_000, burst_bits: 1_000_000, queue_bits: 1_000_000 };
    rtnl.traffic_control()
        .set_queue_limit(port, Some(limit))
        .map_err(|error| format!("the kernel is built without CONFIG_NET_SCH_TBF ({error})"))
}

fn probe_police(rtnl: &mut Rtnl, port: u32) -> Ability {
    let police = Police { rate_bits: 1_000_000_000, burst_bits: 1_000_000 };
    rtnl.traffic_control().set_police(port, police, false).map_err(|error| {
        format!(
            "the kernel is built without CONFIG_NET_ACT_POLICE, CONFIG_NET_CLS_MATCHALL or CONFIG_NET_SCH_INGRESS \
             ({error})"
        )
    })
}
