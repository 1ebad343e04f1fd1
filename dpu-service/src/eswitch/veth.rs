//! The virtual card's eswitch: a representor is the other end of a VF's veth pair.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netlink::{Limit, Link, LinkChange, MacAddress, Rtnl};
use vf_alloc::VfId;
use virtual_nic::RepresentorAlias;

use super::{Capability, Eswitch, Finding, Refused, Representor, Unsupported};
use crate::{
    model::{Bandwidth, PortSettings},
    probe::{Ability, KernelAbilities, capability},
};

/// Burst where the request names none: what the rate gives in 10 ms, at least 64 KiB, which is the
/// largest piece that the pod's stack hands over at once.
const BURST_PARTS_PER_SECOND: u64 = 100;
const SMALLEST_BURST: u64 = 64 * 1024 * 8;

/// The kind of queue of a link whose rate is limited.
const LIMITED: &str = "tbf";

const NO_EGRESS_RATE: &str =
    "the virtual card polices nothing that pods send; limit ingress only, or use a real card";

/// The driver.
#[derive(Debug)]
pub struct VethEswitch {
    rtnl: Mutex<Rtnl>,
    token_bucket: Ability,
}

impl VethEswitch {
    /// The driver for the card that is plugged into the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel can't be talked to.
    pub fn open(abilities: &KernelAbilities) -> Result<Self, Refused> {
        let rtnl = Rtnl::open().map_err(|error| Refused::new("open the eswitch", error))?;
        Ok(Self { rtnl: Mutex::new(rtnl), token_bucket: abilities.token_bucket.clone() })
    }

    fn rtnl(&self) -> MutexGuard<'_, Rtnl> {
        self.rtnl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, port: &Representor, change: &LinkChange<'_>) -> Result<(), Refused> {
        let changed = self.rtnl().change_link(port.index, change);
        changed.map_err(|error| Refused::new(format!("change representor {}", port.name), error))
    }
}

/// The VF that a link of that alias represents. `None`: it is none of the card's representors.
#[must_use]
pub fn represented_vf(alias: Option<&str>) -> Option<VfId> {
    alias?.parse().ok().map(|RepresentorAlias(vf)| vf)
}

fn representor(link: Link) -> Option<Representor> {
    Some(Representor {
        vf: represented_vf(link.alias.as_deref())?,
        index: link.index,
        name: link.name,
        mtu: link.mtu,
        up: link.is_up,
        mac: link.mac,
        master: link.master,
        is_limited: link.queue.as_deref() == Some(LIMITED),
    })
}

fn limit(bandwidth: &Bandwidth) -> Option<Limit> {
    let rate_bits = bandwidth.ingress_rate;
    let burst_bits = match bandwidth.ingress_burst {
        0 => (rate_bits / BURST_PARTS_PER_SECOND).max(SMALLEST_BURST),
        burst => burst,
    };
    (rate_bits != 0).then_some(Limit { rate_bits, burst_bits })
}

/// A limit that has gone with its link is off.
fn gone_is_done(outcome: Result<(), netlink::Error>) -> Result<(), netlink::Error> {
    outcome.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

impl Eswitch for VethEswitch {
    fn name(&self) -> &'static str {
        "veth"
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![
            Capability {
                name: "port-mac",
                available: false,
                detail: "a virtual card's MAC address is set by the host".into(),
            },
            capability("ingress-rate", &self.token_bucket),
            capability("egress-rate", &Err(NO_EGRESS_RATE.into())),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        let Bandwidth { ingress_rate, egress_rate, .. } = settings.bandwidth;
        if egress_rate != 0 {
            return Err(Unsupported {
                setting: format!("an egress rate of {egress_rate} bit/s"),
                why: NO_EGRESS_RATE.into(),
            });
        }
        match &self.token_bucket {
            Err(why) if ingress_rate != 0 => Err(Unsupported {
                setting: format!("an ingress rate of {ingress_rate} bit/s"),
                why: why.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        let links = self.rtnl().links();
        let links = links.map_err(|error| Refused::new("list the representors", error))?;
        Ok(links.into_iter().filter_map(representor).collect())
    }

    /// The card names a representor after its VF, so that one question is enough. If somebody renamed
    /// it, its alias finds it.
    fn representor(&self, vf: VfId) -> Result<Option<Representor>, Refused> {
        let named = self.rtnl().link_by_name(&vf.to_string());
        let named = named.map_err(|error| Refused::new(format!("find VF {vf}"), error))?;
        match named.and_then(representor) {
            Some(found) if found.vf == vf => Ok(Some(found)),
            _ => Ok(self.representors()?.into_iter().find(|found| found.vf == vf)),
        }
    }

    fn set_port_mac(&self, _port: &Representor, _mac: MacAddress) -> Result<(), Refused> {
        Ok(())
    }

    fn clear_port_mac(&self, _port: &Representor) -> Result<(), Refused> {
        Ok(())
    }

    fn port_mac(&self, _port: &Representor, _mac: MacAddress) -> Result<Finding, Refused> {
        Ok(Finding::in_place("set by the host"))
    }

    /// What the representor sends is what the pod receives.
    fn set_rate(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<(), Refused> {
        let limited = self.rtnl().set_egress_limit(port.index, limit(bandwidth));
        limited.map_err(|error| Refused::new(format!("limit the rate of {}", port.name), error))
    }

    fn clear_rate(&self, port: &Representor) -> Result<(), Refused> {
        gone_is_done(self.rtnl().set_egress_limit(port.index, None))
            .map_err(|error| Refused::new(format!("take the limit off {}", port.name), error))
    }

    fn rate(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<Finding, Refused> {
        let rate = self.rtnl().egress_rate(port.index);
        let rate =
            rate.map_err(|error| Refused::new(format!("read the rate of {}", port.name), error))?;
        let detail = match rate {
            None => "unlimited".to_owned(),
            Some(rate) => format!("towards the pod {rate} bit/s"),
        };
        // The kernel counts in whole bytes.
        let wanted = limit(bandwidth).map(|limit| limit.rate_bits / 8 * 8);
        Ok(Finding { in_place: rate == wanted, detail })
    }

    fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.change(port, &LinkChange::new().mtu(mtu))
    }

    fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        let change = LinkChange::new();
        self.change(port, &if up { change.up() } else { change.down() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_a_burst_gets_one_that_lets_it_flow() {
        let burst = |ingress_rate, ingress_burst| {
            limit(&Bandwidth { ingress_rate, ingress_burst, ..Bandwidth::default() })
                .map(|limit| limit.burst_bits)
        };
        assert_eq!(burst(0, 0), None);
        assert_eq!(burst(1_000_000, 80_000), Some(80_000));
        assert_eq!(burst(1_000_000, 0), Some(SMALLEST_BURST));
        assert_eq!(burst(10_000_000_000, 0), Some(100_000_000));
    }

    #[test]
    fn only_the_cards_own_representors_count() {
        assert_eq!(represented_vf(Some("virtual-nic representor pf0vf3")), Some(VfId::local(0, 3)));
        for alias in [None, Some(""), Some("virtual-nic d000:00:00.1 pf0vf0"), Some("pf0vf3")] {
            assert_eq!(represented_vf(alias), None);
        }
    }
}
