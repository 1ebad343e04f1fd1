//! Traffic control: what a link limits, redirects and filters.
//!
//! Ingress is where frames come in at a link, and egress where it sends them, as the kernel says. At a representor that
//! is the other way round of how the VF behind it sees it, and all who speak of pods.
//!
//! What is done here takes several requests, or a look at what is there first. Nothing is locked:
//! whoever changes a link's queues keeps others from it.

pub(crate) mod bpf_filter;
mod by_card;
pub(crate) mod drops;
pub(crate) mod flower;
mod guard;
mod hook;
pub(crate) mod limit;
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
pub use guard::{CardGuarding, Guard, Guarded, Guarding, Senders};
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
    pub fn set_queue_limit(&mut self, index: u32, limit: Option<Limit>) -> Result<(), Error> {
        let Some(limit) = limit else {
            return unless_absent(self.rtnl.change(limit::delete(index)));
        };
        self.rtnl.change(limit::set(index, limit))
    }

    /// The limit that [`Self::set_queue_limit`] has set.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn queue_limit(&mut self, index: u32) -> Result<Option<LimitInForce>, Error> {
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

    /// Drops what may not come in at a link, in place of what was dropped so before. Where it is asked for,
    /// the link's card forwards by itself what may come in for sure, and nothing else; else whatever it likes.
    ///
    /// If the card refuses that, it forwards nothing by itself, or if it refuses even that, whatever it likes: why is
    /// returned.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_guard(
        &mut self,
        index: u32,
        guard: &Guard,
        by_card: bool,
    ) -> Result<Option<Error>, Error> {
        let Ingress { first, by_card: found, limit } = self.ingress(index)?;
        // The kernel would ask that one first. What is added comes before what is there (cls_bpf_change in
        // net/sched/cls_bpf.c).
        let is_behind = first.first() == Some(&Listed::Other) && has_ours(&first);
        let mut requests = vec![hook::add(index)];
        requests.extend(is_behind.then(|| bpf_filter::delete(index)));
        requests.push(bpf_filter::set(index, &guard.program()));
        self.rtnl.batch(&requests)?;
        let wanted = by_card::wanted(guard, by_card, limit.is_some());
        Ok(self.set_flowers(index, &found, &wanted).err())
    }

    /// The first of the `wanted` has the card forward nothing by itself. It comes first and stays to the last.
    fn set_flowers(&mut self, index: u32, found: &[Found], wanted: &[Flower]) -> Result<(), Error> {
        let is_right = |found: &&Found| found.is_by_card && wanted.contains(&found.flower);
        let right: Vec<_> = found.iter().filter(is_right).map(|found| &found.flower).collect();
        // At no moment does what passes stand without what is taken aside of it.
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
            // What was refused is not there to be deleted.
            let _ = self.rtnl.batch(&undone);
        }
        refused
    }

    /// What of that is dropped at a link.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn guarding(&mut self, index: u32, guard: &Guard, by_card: bool) -> Result<Guarded, Error> {
        let Ingress { first, by_card: found, limit } = self.ingress(index)?;
        let program = Listed::Ours(guard.program().bytes());
        let wanted = by_card::wanted(guard, by_card, limit.is_some());
        Ok(Guarded {
            by_kernel: match has_ours(&first) {
                false => Guarding::Missing,
                true if first.first() == Some(&program) => Guarding::AsWanted,
                true => Guarding::Otherwise,
            },
            by_card: match by_card::compare(&found, &wanted) {
                CardGuarding::AsWanted if by_card && limit.is_some() => CardGuarding::Limited,
                compared => compared,
            },
        })
    }

    /// Lets anything come in at a link. There may be no guard to take away, or somebody else's filter, which
    /// stays. So do the hooks: others may use them.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn clear_guard(&mut self, index: u32) -> Result<(), Error> {
        let Ingress { first, by_card, .. } = self.ingress(index)?;
        let mut requests: Vec<_> =
            by_card.iter().rev().map(|found| found.flower.delete(index)).collect();
        requests.extend(has_ours(&first).then(|| bpf_filter::delete(index)));
        match requests.is_empty() {
            true => Ok(()),
            false => unless_absent(self.rtnl.batch(&requests)),
        }
    }

    /// Limits what comes in at a link, of what the guard lets in. Where it is asked for, the link's card forwards
    /// nothing by itself from then on, for that would pass the limit by.
    ///
    /// # Errors
    /// The kernel's refusal, or the card's.
    pub fn set_police(&mut self, index: u32, wanted: Police, by_card: bool) -> Result<(), Error> {
        let Ingress { limit, by_card: found, .. } = self.ingress(index)?;
        if limit != Some(wanted.into()) {
            // The kernel changes none that is there (mall_change in net/sched/cls_matchall.c).
            let removal = limit.map(|_| police::delete(index));
            let requests = [Some(hook::add(index)), removal, Some(police::add(index, wanted))];
            self.rtnl.batch(&requests.into_iter().flatten().collect::<Vec<_>>())?;
        }
        let nothing = if by_card { by_card::nothing() } else { Vec::new() };
        self.set_flowers(index, &found, &nothing)
    }

    /// No longer limits what comes in at a link. There may be no limit to take off, or somebody else's filter, which
    /// stays; so do the hooks, and what the card does: that the guard says.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn clear_police(&mut self, index: u32) -> Result<(), Error> {
        match self.police(index)? {
            Some(_) => unless_absent(self.rtnl.change(police::delete(index))),
            None => Ok(()),
        }
    }

    /// The limit that [`Self::set_police`] has set.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn police(&mut self, index: u32) -> Result<Option<PoliceInForce>, Error> {
        Ok(self.ingress(index)?.limit)
    }

    /// Whether a link's card takes filters of what it may forward by itself and of what it leaves to the kernel,
    /// tried with such as no frame meets and that are taken away again. The link keeps its hooks.
    ///
    /// # Errors
    /// Why it does not, or what can't be taken away.
    pub fn try_card(&mut self, index: u32) -> Result<(), Error> {
        let hooks = self.rtnl.change(hook::add(index));
        let tried = by_card::trials().iter().try_for_each(|trial| self.try_filter(index, trial));
        if tried.is_ok() { Ok(()) } else { hooks.and(tried) }
    }

    fn try_filter(&mut self, index: u32, filter: &Flower) -> Result<(), Error> {
        match self.rtnl.change(filter.add(index)) {
            // Somebody who ended amid this has left it.
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            taken => taken?,
        }
        self.rtnl.change(filter.delete(index))
    }

    /// What filters there are of what comes in at a link.
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
        let message = bpf_filter::list_message(index);
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

/// The filters of what comes in at a link.
#[derive(Default)]
struct Ingress {
    /// What stands where the guard does, in the order in which the kernel asks.
    first: Vec<Listed>,
    /// Ours that the card carries out.
    by_card: Vec<Found>,
    /// What stands where the limit does.
    limit: Option<PoliceInForce>,
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
