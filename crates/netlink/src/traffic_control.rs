//! Traffic control: limits, redirections and filters of links.
//!
//! Ingress is what a link receives and egress what it sends, as in the kernel. At a representor this is the reverse of
//! the pod's view: the pod's egress is the representor's ingress.
//!
//! Several operations read first and then send requests. This module takes no lock, so the caller must serialise
//! changes to one link's filters.

pub(crate) mod bpf_filter;
mod by_card;
pub(crate) mod drops;
pub(crate) mod flower;
mod guard;
mod hook;
pub(crate) mod limit;
mod message;
pub(crate) mod offload;
pub(crate) mod police;
mod program;
mod redirect;

use std::collections::BTreeMap;

use netlink_packet_route::{RouteNetlinkMessage, tc::TcMessage};
use nix::errno::Errno;

use bpf_filter::Listed;
pub use drops::Drops;
use flower::{Flower, Found};
pub use guard::{CardGuardState, Guard, GuardState, GuardStates, Senders};
pub use hook::Hook;
pub use limit::{Limit, LimitInForce};
use message::list_ingress_filters;
pub use offload::Offload;
pub use police::{Police, PoliceInForce};
pub use redirect::Redirect;

use crate::{
    error::{Error, gone_is_done},
    rtnl::Rtnl,
};

/// Access to the queueing disciplines and filters of one namespace's links.
#[derive(Debug)]
pub struct TrafficControl<'a> {
    rtnl: &'a mut Rtnl,
}

impl Rtnl {
    /// Traffic control over this socket.
    pub const fn traffic_control(&mut self) -> TrafficControl<'_> {
        TrafficControl { rtnl: self }
    }
}

impl TrafficControl<'_> {
    /// Limits what a link sends. `None` removes the limit, if there is one.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn set_queue_limit(&mut self, index: u32, limit: Option<Limit>) -> Result<(), Error> {
        let Some(limit) = limit else {
            return gone_is_done(self.rtnl.change(limit::delete(index)));
        };
        self.rtnl.change(limit::set(index, limit))
    }

    /// Reads the limit that [`Self::set_queue_limit`] set.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn queue_limit(&mut self, index: u32) -> Result<Option<LimitInForce>, Error> {
        let link = self.rtnl.link_by_index(index)?;
        if link.and_then(|link| link.queue).as_deref() != Some("tbf") {
            return Ok(None);
        }
        // The kernel reports a single queueing discipline only by its handle, so all are listed.
        let of_link = |object| match object {
            RouteNetlinkMessage::NewQueueDiscipline(message) => {
                limit::described_by(&message, index)
            }
            _ => None,
        };
        let listed = self.rtnl.list("list the queues", &limit::list_message(), of_link)?;
        Ok(listed.into_iter().next())
    }

    /// Reads the drop counters of all links that have a limit or hooks, by index.
    ///
    /// # Errors
    /// If the kernel refuses the request.
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

    /// Counts the flower filters of a link's ingress and how many of them are in hardware. A link that does not exist
    /// has none.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn offload(&mut self, index: u32) -> Result<Offload, Error> {
        let message = list_ingress_filters(index);
        let listed = self.rtnl.list("list the filters of a link", &message, offload::described_by);
        match listed {
            Err(error) if error.is_not_found() => Ok(Offload::default()),
            listed => Ok(listed?.into_iter().collect()),
        }
    }

    /// Adds redirections to hooks that have none yet, all in one send.
    ///
    /// # Errors
    /// The first refusal. The other redirections are added where possible.
    pub fn add_redirects(&mut self, redirects: &[Redirect]) -> Result<(), Error> {
        let requests =
            redirects.iter().flat_map(|to_add| [hook::add(to_add.from.0), redirect::add(to_add)]);
        self.rtnl.batch(&requests.collect::<Vec<_>>())
    }

    /// Sets the redirection of a hook, replacing an existing one.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn set_redirect(&mut self, redirect: &Redirect) -> Result<(), Error> {
        self.rtnl.change(hook::add(redirect.from.0))?;
        gone_is_done(self.rtnl.change(redirect::delete(redirect)))?;
        self.rtnl.change(redirect::add(redirect))
    }

    /// Sets the guard of a link's ingress, replacing an earlier one. With `by_card`, the card forwards in hardware what
    /// the guard certainly admits and nothing else. Without it, the card decides.
    ///
    /// Returns the reason if the card refuses its filters. The card then forwards nothing in hardware, or, if it
    /// refuses even that filter, decides itself. The kernel's guard holds either way for frames that reach the kernel.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn set_guard(
        &mut self,
        index: u32,
        guard: &Guard,
        by_card: bool,
    ) -> Result<Option<Error>, Error> {
        let Ingress { first, by_card: found, limit } = self.ingress(index)?;
        // Another program's filter stands before ours, and the kernel would ask it first. A filter that is added again
        // comes first (`cls_bpf_change` in net/sched/cls_bpf.c).
        let is_behind = first.first() == Some(&Listed::Other) && has_ours(&first);
        let mut requests = vec![hook::add(index)];
        requests.extend(is_behind.then(|| bpf_filter::delete(index)));
        requests.push(bpf_filter::set(index, &guard.program()));
        self.rtnl.batch(&requests)?;
        let wanted = by_card::wanted(guard, by_card, limit.is_some());
        Ok(self.set_flowers(index, &found, &wanted).err())
    }

    /// Replaces the card's filters `found` by `wanted`. `wanted[0]` keeps the card from forwarding anything in
    /// hardware; it is added first and deleted last.
    fn set_flowers(&mut self, index: u32, found: &[Found], wanted: &[Flower]) -> Result<(), Error> {
        let is_right = |found: &&Found| found.is_by_card && wanted.contains(&found.flower);
        let right: Vec<_> = found.iter().filter(is_right).map(|found| &found.flower).collect();
        // Delete in reverse and add in order: no admitting filter is ever in place without the filters that take
        // exceptions out of it.
        let surplus =
            found.iter().rev().map(|found| &found.flower).filter(|one| !right.contains(one));
        let missing = wanted.iter().filter(|one| !right.contains(one));
        let deletes = surplus.map(|one| one.delete(index));
        let adds: Vec<_> = missing.map(|one| one.add(index)).collect();
        let changes: Vec<_> = deletes.chain(adds).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let refused = self.rtnl.batch(&changes);
        if refused.is_err() {
            let undone: Vec<_> = wanted.iter().skip(1).rev().map(|one| one.delete(index)).collect();
            // A filter that was refused does not exist, so errors of this cleanup are expected.
            let _ = self.rtnl.batch(&undone);
        }
        refused
    }

    /// Compares a link's filters with `guard`.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn guarding(
        &mut self,
        index: u32,
        guard: &Guard,
        by_card: bool,
    ) -> Result<GuardStates, Error> {
        let Ingress { first, by_card: found, limit } = self.ingress(index)?;
        let program = Listed::Ours(guard.program().bytes());
        let wanted = by_card::wanted(guard, by_card, limit.is_some());
        Ok(GuardStates {
            by_kernel: match has_ours(&first) {
                false => GuardState::Missing,
                true if first.first() == Some(&program) => GuardState::AsWanted,
                true => GuardState::Otherwise,
            },
            by_card: match by_card::compare(&found, &wanted) {
                CardGuardState::AsWanted if by_card && limit.is_some() => CardGuardState::Limited,
                compared => compared,
            },
        })
    }

    /// Removes the guard of a link's ingress, if there is one. Filters of other programs stay, and so do the hooks,
    /// which others may use.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn clear_guard(&mut self, index: u32) -> Result<(), Error> {
        let Ingress { first, by_card, .. } = self.ingress(index)?;
        let mut requests: Vec<_> =
            by_card.iter().rev().map(|found| found.flower.delete(index)).collect();
        requests.extend(has_ours(&first).then(|| bpf_filter::delete(index)));
        match requests.is_empty() {
            true => Ok(()),
            false => gone_is_done(self.rtnl.batch(&requests)),
        }
    }

    /// Limits a link's ingress, after the guard. With `by_card`, the card forwards nothing in hardware from then on,
    /// because hardware forwarding would bypass the limit.
    ///
    /// # Errors
    /// If the kernel or the card refuses.
    pub fn set_police(&mut self, index: u32, wanted: Police, by_card: bool) -> Result<(), Error> {
        let Ingress { limit, by_card: found, .. } = self.ingress(index)?;
        if limit != Some(wanted.into()) {
            // The kernel cannot change an existing matchall filter (`mall_change` in net/sched/cls_matchall.c), so it
            // is replaced.
            let removal = limit.map(|_| police::delete(index));
            let requests = [Some(hook::add(index)), removal, Some(police::add(index, wanted))];
            self.rtnl.batch(&requests.into_iter().flatten().collect::<Vec<_>>())?;
        }
        let nothing = if by_card { by_card::nothing() } else { Vec::new() };
        self.set_flowers(index, &found, &nothing)
    }

    /// Removes the ingress limit of a link, if there is one. Filters of other programs, the hooks and the card's
    /// filters stay; [`Self::set_guard`] decides about the card.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn clear_police(&mut self, index: u32) -> Result<(), Error> {
        match self.police(index)? {
            Some(_) => gone_is_done(self.rtnl.change(police::delete(index))),
            None => Ok(()),
        }
    }

    /// Reads the limit that [`Self::set_police`] set.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn police(&mut self, index: u32) -> Result<Option<PoliceInForce>, Error> {
        Ok(self.ingress(index)?.limit)
    }

    /// Tests whether a link's card accepts the filters of [`Self::set_guard`]. It adds filters that match no real frame
    /// and deletes them. The link keeps its hooks.
    ///
    /// # Errors
    /// The reason of the card's refusal, or of a failed delete.
    pub fn try_card(&mut self, index: u32) -> Result<(), Error> {
        let hooks = self.rtnl.change(hook::add(index));
        let tried = by_card::trials().iter().try_for_each(|trial| self.try_filter(index, trial));
        if tried.is_ok() { Ok(()) } else { hooks.and(tried) }
    }

    fn try_filter(&mut self, index: u32, filter: &Flower) -> Result<(), Error> {
        match self.rtnl.change(filter.add(index)) {
            // A process that died during an earlier test left the filter behind.
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            taken => taken?,
        }
        self.rtnl.change(filter.delete(index))
    }

    fn ingress(&mut self, index: u32) -> Result<Ingress, Error> {
        enum Filter {
            First(Listed),
            ByCard(Found),
            Limit(PoliceInForce),
        }
        let described_by = |message: &TcMessage| {
            let by_card = || flower::described_by(message).map(Filter::ByCard);
            let limit = || police::described_by(message).map(Filter::Limit);
            bpf_filter::described_by(message).map(Filter::First).or_else(by_card).or_else(limit)
        };
        let filter = |object| match object {
            RouteNetlinkMessage::NewTrafficFilter(message) => described_by(&message),
            _ => None,
        };
        let message = list_ingress_filters(index);
        let mut ingress = Ingress::default();
        for listed in self.rtnl.list("list the filters of a link", &message, filter)? {
            match listed {
                Filter::First(listed) => ingress.first.push(listed),
                Filter::ByCard(found) => ingress.by_card.push(found),
                Filter::Limit(limit) => ingress.limit = Some(limit),
            }
        }
        Ok(ingress)
    }
}

#[derive(Default)]
struct Ingress {
    /// Filters with the guard's priority, in the order in which the kernel asks them.
    first: Vec<Listed>,
    /// This program's filters that the card carries out.
    by_card: Vec<Found>,
    /// The filter with the limit's priority.
    limit: Option<PoliceInForce>,
}

fn has_ours(listed: &[Listed]) -> bool {
    listed.iter().any(|filter| matches!(filter, Listed::Ours(_)))
}
