//! The guard of a port: a filter at the representor's ingress, before the bridge sees a frame. On a card that
//! carries out filters, flower filters also limit what the card forwards in hardware to what the guard lets pass.

use std::collections::BTreeMap;

use netlink::{CardGuardState, Error, GuardState, Rtnl, gone_is_done};
use parking_lot::Mutex;
use vf_alloc::FunctionId;

use crate::{
    counters::Drops,
    driver::{Reading, Refused},
    eswitch::Representor,
    fabric::guard::{describe, wanted},
};
use model::{AntiSpoofing, PortSettings};

/// What the guard covers: a sentence for people.
pub(super) const WHERE: &str = "in software, for frames that the kernel sees; for frames that the card forwards by itself \
                                only where the card carries out filters";

/// The reasons why cards refused ports' filters. The kernel alone guards these ports.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<FunctionId, String>>);

impl Refusals {
    fn of(&self, port: &Representor) -> Option<String> {
        self.0.lock().get(&port.vf).cloned()
    }

    /// Records or clears a refusal. Logs it when it is new or has changed.
    fn note(&self, port: &Representor, refusal: Option<Error>) {
        let Some(refusal) = refusal.map(|error| error.to_string()) else {
            self.0.lock().remove(&port.vf);
            return;
        };
        let known = self.0.lock().insert(port.vf, refusal.clone());
        if known.as_ref() != Some(&refusal) {
            tracing::warn!(port = port.name, refusal, "the card refused the port's filters");
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
        GuardState::AsWanted if !port.offloads_filters => Reading::in_place(describe(&wanted)),
        GuardState::AsWanted => Reading::in_place(describe(&wanted)).and(&by_card(
            found.by_card,
            refusals.of(port),
            settings.anti_spoofing,
        )),
        GuardState::Otherwise => Reading::missing("the filter differs"),
        GuardState::Missing => Reading::missing("any frame may be sent"),
    })
}

/// What the card of a port forwards in hardware. `refused`: why it did not take the port's filters.
fn by_card(found: CardGuardState, refused: Option<String>, wanted: AntiSpoofing) -> Reading {
    match (found, refused) {
        (CardGuardState::AsWanted, _) if wanted == AntiSpoofing::Off => {
            Reading::in_place("so may the card by itself")
        }
        (CardGuardState::AsWanted, _) => {
            Reading::in_place("the card forwards by itself what is so for sure")
        }
        (CardGuardState::Limited, _) => Reading::in_place(
            "the card forwards nothing by itself, because the kernel limits what is sent",
        ),
        (CardGuardState::Closed, Some(why)) => Reading::in_place(format!(
            "in software alone: the card forwards nothing by itself, because it refused further filters ({why})"
        )),
        (CardGuardState::Missing, Some(why)) => Reading::in_place(format!(
            "in software alone: what the card forwards by itself is not filtered, because it refused ({why})"
        )),
        (CardGuardState::Closed, None) => Reading::missing("the card forwards nothing by itself"),
        (CardGuardState::Missing, None) => {
            Reading::missing("what the card forwards by itself is not filtered")
        }
        _ => Reading::missing("the card forwards other frames by itself"),
    }
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("filter what comes in at {}", port.name), error)
}

/// The packets that filters at the ingress dropped, by link. Drops by other programs' filters there count, too.
pub(super) fn drops(rtnl: &mut Rtnl) -> Result<BTreeMap<u32, Drops>, Refused> {
    let drops = rtnl.traffic_control().drops();
    let drops = drops.map_err(|error| Refused::new("count what the guards have dropped", error))?;
    let of_port = |drops: netlink::Drops| Drops { guard: drops.by_filters, ..Drops::default() };
    Ok(drops.into_iter().map(|(index, drops)| (index, of_port(drops))).collect())
}
