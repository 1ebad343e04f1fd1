//! Traffic control: what a link limits, redirects and filters.
//!
//! What is done here takes several requests, or a look at what is there first. Nothing is locked:
//! whoever changes a link's queues keeps others from it.

pub(crate) mod bpf_filter;
pub(crate) mod drops;
mod guard;
mod hook;
pub(crate) mod limit;
pub(crate) mod offload;
pub(crate) mod police;
mod program;
mod redirect;

use std::collections::BTreeMap;

use netlink_packet_route::{RouteNetlinkMessage, tc::TcMessage};

use bpf_filter::Listed;
pub use drops::Drops;
pub use guard::{Guard, Guarding, Senders};
pub use hook::Hook;
pub use limit::{Limit, LimitInForce};
pub use offload::Offload;
pub use police::{Police, PoliceInForce};
pub use redirect::Redirect;

use crate::{Error, Rtnl};

/// The kernel's interface to the queues and filters of the links of one namespace.
#[derive(Debug)]
pub struct TrafficControl<'a> {
    rtnl: &'a mut Rtnl,
}

impl Rtnl {
    /// The interface to what links limit, redirect and filter.
    pub const fn traffic_control(&mut self) -> TrafficControl<'_> {
        TrafficControl { rtnl: self }
    }
}

impl TrafficControl<'_> {
    /// Limits what a link sends, or no longer. There may be no limit to take off.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_egress_limit(&mut self, index: u32, limit: Option<Limit>) -> Result<(), Error> {
        let Some(limit) = limit else {
            return unless_absent(self.rtnl.change(limit::delete(index)));
        };
        self.rtnl.change(limit::set(index, limit))
    }

    /// The limit that [`Self::set_egress_limit`] has set.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn egress_limit(&mut self, index: u32) -> Result<Option<LimitInForce>, Error> {
        let link = self.rtnl.link_by_index(index)?;
        if link.and_then(|link| link.queue).as_deref() != Some("tbf") {
            return Ok(None);
        }
        // The kernel tells no single queue without its handle, so all are listed.
        let of_link = |object| match object {
            RouteNetlinkMessage::NewQueueDiscipline(message) => {
                limit::described_by(&message, index)
            }
            _ => None,
        };
        let listed = self.rtnl.list("list the queues", &limit::list_message(), of_link)?;
        Ok(listed.into_iter().next())
    }

    /// What all links with a limit or with hooks have dropped, by index.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn drops(&mut self) -> Result<BTreeMap<u32, Drops>, Error> {
        let listed =
            self.rtnl.list("list the queues", &limit::list_message(), drops::described_by)?;
        let mut links: BTreeMap<u32, Drops> = BTreeMap::new();
        for (index, drops) in listed {
            let so_far = links.entry(index).or_default();
            *so_far = so_far.and(drops);
        }
        Ok(links)
    }

    /// Of the filters by flower of what comes in at a link, how many are in hardware. A link that is gone has none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn offload(&mut self, index: u32) -> Result<Offload, Error> {
        let message = offload::list_message(index);
        let listed = self.rtnl.list("list the filters of a link", &message, offload::described_by);
        match listed {
            Err(error) if error.is_not_found() => Ok(Offload::default()),
            listed => Ok(listed?.into_iter().collect()),
        }
    }

    /// Redirects frames from hooks that have no redirection yet, all in one send.
    ///
    /// # Errors
    /// The kernel's first refusal. The other redirections are there all the same, where they can be.
    pub fn add_redirects(&mut self, redirects: &[Redirect]) -> Result<(), Error> {
        let requests =
            redirects.iter().flat_map(|to_add| [hook::add(to_add.from.0), redirect::add(to_add)]);
        self.rtnl.batch(&requests.collect::<Vec<_>>())
    }

    /// Redirects frames from a hook, in place of any redirection there is.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_redirect(&mut self, redirect: &Redirect) -> Result<(), Error> {
        self.rtnl.change(hook::add(redirect.from.0))?;
        unless_absent(self.rtnl.change(redirect::delete(redirect)))?;
        self.rtnl.change(redirect::add(redirect))
    }

    /// Drops what may not come in at a link, in place of what was dropped so before.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_guard(&mut self, index: u32, guard: &Guard) -> Result<(), Error> {
        let listed = self.filters(index)?;
        // The kernel would ask that one first. What is added comes before what is there (cls_bpf_change in
        // net/sched/cls_bpf.c).
        let is_behind = listed.first() == Some(&Listed::Other) && has_ours(&listed);
        let mut requests = vec![hook::add(index)];
        requests.extend(is_behind.then(|| bpf_filter::delete(index)));
        requests.push(bpf_filter::set(index, &guard.program()));
        self.rtnl.batch(&requests)
    }

    /// What of that is dropped at a link.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn guarding(&mut self, index: u32, guard: &Guard) -> Result<Guarding, Error> {
        let listed = self.filters(index)?;
        let wanted = Listed::Ours(guard.program().bytes());
        Ok(match has_ours(&listed) {
            false => Guarding::Missing,
            true if listed.first() == Some(&wanted) => Guarding::AsWanted,
            true => Guarding::Otherwise,
        })
    }

    /// Lets anything come in at a link. There may be no guard to take away, or somebody else's filter, which
    /// stays. So do the hooks: others may use them.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn clear_guard(&mut self, index: u32) -> Result<(), Error> {
        match has_ours(&self.filters(index)?) {
            true => unless_absent(self.rtnl.change(bpf_filter::delete(index))),
            false => Ok(()),
        }
    }

    /// Limits what comes in at a link, of what the guard lets in, or no longer. There may be no limit to take off, or
    /// somebody else's filter, which stays; so do the hooks.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_ingress_limit(&mut self, index: u32, limit: Option<Police>) -> Result<(), Error> {
        let found = self.ingress_limit(index)?;
        if found == limit.map(PoliceInForce::from) {
            return Ok(());
        }
        // The kernel changes none that is there (mall_change in net/sched/cls_matchall.c).
        let removal = found.map(|_| police::delete(index));
        let Some(limit) = limit else {
            return removal.map_or(Ok(()), |removal| unless_absent(self.rtnl.change(removal)));
        };
        let requests = [Some(hook::add(index)), removal, Some(police::add(index, limit))];
        self.rtnl.batch(&requests.into_iter().flatten().collect::<Vec<_>>())
    }

    /// The limit that [`Self::set_ingress_limit`] has set.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ingress_limit(&mut self, index: u32) -> Result<Option<PoliceInForce>, Error> {
        Ok(self.list_filters(index, police::described_by)?.into_iter().next())
    }

    /// What stands where the guard does, in the order in which the kernel asks.
    fn filters(&mut self, index: u32) -> Result<Vec<Listed>, Error> {
        self.list_filters(index, bpf_filter::described_by)
    }

    fn list_filters<T>(
        &mut self,
        index: u32,
        described_by: impl Fn(&TcMessage) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let filter = |object| match object {
            RouteNetlinkMessage::NewTrafficFilter(message) => described_by(&message),
            _ => None,
        };
        let message = bpf_filter::list_message(index);
        self.rtnl.list("list the filters of a link", &message, filter)
    }
}

fn has_ours(listed: &[Listed]) -> bool {
    listed.iter().any(|filter| matches!(filter, Listed::Ours(_)))
}

/// The outcome of deleting what need not be there.
fn unless_absent(deleted: Result<(), Error>) -> Result<(), Error> {
    match deleted {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}
