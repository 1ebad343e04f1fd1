//! What a port takes from its pod: a filter at the representor's ingress, before the bridge sees a frame; and where
//! the card carries out filters, those by which it forwards nothing by itself that this filter would not let pass.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::{CardGuarding, Error, Guarding, Rtnl};
use vf_alloc::FunctionId;

use crate::{
    counters::Drops,
    driver::{Reading, Refused},
    eswitch::{Representor, gone_is_done},
    fabric::guard::{told, wanted},
    model::{AntiSpoofing, PortSettings},
};

/// What is done where it can be, for people.
pub(super) const WHERE: &str = "in software, where the kernel sees a frame; what a card forwards by itself is kept to \
                                it where the card carries out filters, and not looked at elsewhere";

/// Why cards have refused the filters of ports, which are guarded by the kernel alone then.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<FunctionId, String>>);

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<FunctionId, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, port: &Representor) -> Option<String> {
        self.lock().get(&port.vf).cloned()
    }

    /// A refusal is told once.
    fn note(&self, port: &Representor, refusal: Option<Error>) {
        let Some(refusal) = refusal.map(|error| error.to_string()) else {
            self.lock().remove(&port.vf);
            return;
        };
        let known = self.lock().insert(port.vf, refusal.clone());
        if known.as_ref() != Some(&refusal) {
            tracing::warn!(port = port.name, refusal, "the card does not take the port's filters");
        }
    }
}

pub(super) fn set(
    rtnl: &mut Rtnl,
    refusals: &Refusals,
    port: &Representor,
    settings: &PortSettings,
) -> Result<(), Refused> {
    let (guard, by_card) = (wanted(settings), port.offloads_filters);
    let set = rtnl.traffic_control().set_guard(port.index, &guard, by_card);
    refusals.note(port, set.map_err(|error| refused(port, error))?);
    Ok(())
}

pub(super) fn clear(
    rtnl: &mut Rtnl,
    refusals: &Refusals,
    port: &Representor,
) -> Result<(), Refused> {
    refusals.note(port, None);
    gone_is_done(rtnl.traffic_control().clear_guard(port.index))
        .map_err(|error| refused(port, error))
}

pub(super) fn find(
    rtnl: &mut Rtnl,
    refusals: &Refusals,
    port: &Representor,
    settings: &PortSettings,
) -> Result<Reading, Refused> {
    let wanted = wanted(settings);
    let found = rtnl.traffic_control().guarding(port.index, &wanted, port.offloads_filters);
    let found = found.map_err(|error| refused(port, error))?;
    Ok(match found.by_kernel {
        Guarding::AsWanted if !port.offloads_filters => Reading::in_place(told(&wanted)),
        Guarding::AsWanted => Reading::in_place(told(&wanted)).and(&by_card(
            found.by_card,
            refusals.of(port),
            settings.anti_spoofing,
        )),
        Guarding::Otherwise => Reading::missing("something else is filtered"),
        Guarding::Missing => Reading::missing("any frame may be sent"),
    })
}

/// What a card forwards by itself that carries out filters, or has `refused` to.
fn by_card(found: CardGuarding, refused: Option<String>, wanted: AntiSpoofing) -> Reading {
    match (found, refused) {
        (CardGuarding::AsWanted, _) if wanted == AntiSpoofing::Off => {
            Reading::in_place("so may the card by itself")
        }
        (CardGuarding::AsWanted, _) => {
            Reading::in_place("the card forwards by itself what is so for sure")
        }
        (CardGuarding::Limited, _) => Reading::in_place(
            "the card forwards nothing by itself, for the kernel limits what is sent",
        ),
        (CardGuarding::Closed, Some(why)) => Reading::in_place(format!(
            "in software alone: the card forwards nothing by itself, for it refused to take more ({why})"
        )),
        (CardGuarding::Missing, Some(why)) => Reading::in_place(format!(
            "in software alone: what the card forwards by itself is not looked at, for it refused to ({why})"
        )),
        (CardGuarding::Closed, None) => Reading::missing("the card forwards nothing by itself"),
        (CardGuarding::Missing, None) => {
            Reading::missing("what the card forwards by itself is not looked at")
        }
        _ => Reading::missing("the card forwards other frames by itself"),
    }
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("filter what comes in at {}", port.name), error)
}

/// How many packets were dropped where guards are, by link. What others have dropped there is counted along.
pub(super) fn drops(rtnl: &mut Rtnl) -> Result<BTreeMap<u32, Drops>, Refused> {
    let drops = rtnl.traffic_control().drops();
    let drops = drops.map_err(|error| Refused::new("count what the guards have dropped", error))?;
    let of_port = |drops: netlink::Drops| Drops { guard: drops.by_filters, ..Drops::default() };
    Ok(drops.into_iter().map(|(index, drops)| (index, of_port(drops))).collect())
}
