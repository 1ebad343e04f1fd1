//! The other plugin's interface of pods that get all networks at once.

use super::ledger::{Kind, Ledger, Sandbox, State};
use crate::{Fleet, Netns, scenarios::delegates::kept, violation::Violation};

/// Network and interface of the other plugin.
pub(crate) const NETWORK: &str = "others";
pub(crate) const INTERFACE: &str = "oth1";
/// The DPU's network for its addresses. It has no attachments.
pub(super) const LEASED: &str = "leased";

pub(super) fn leased_network() -> String {
    format!("\n[[network]]\nname = {LEASED:?}\n[[network.subnets]]\ncidr = \"10.66.0.0/24\"\n")
}

/// Checks that each pod with a grant has the interface, and that the agent has no other records.
pub(super) fn violations(fleet: &Fleet, ledgers: &[Ledger]) -> Vec<Violation> {
    let of_host = |host: usize| {
        let ledgers = ledgers.iter().filter(move |ledger| ledger.host == host);
        ledgers.flat_map(Ledger::sandboxes).filter(|sandbox| sandbox.kind == Kind::AtOnce)
    };
    let mut violations = Vec::new();
    for (host, agent) in fleet.agents.iter().enumerate() {
        let offered = of_host(host).filter(|sandbox| is_granted(sandbox));
        let without = offered.filter(|sandbox| !sandbox.netns.as_ref().is_some_and(has_it));
        let reported = |sandbox: &Sandbox| format!("{} has no {INTERFACE}", sandbox.container);
        violations.extend(without.map(|sandbox| Violation::lost(reported(sandbox))));
        let may_have_it =
            |sandbox: &&Sandbox| !matches!(sandbox.ports[0].state, State::Absent | State::Leaving);
        let (kept, wanted) = (kept(agent), of_host(host).filter(may_have_it).count());
        if kept > wanted {
            let what =
                format!("host {host} keeps {kept} interfaces of other plugins for {wanted} pods");
            violations.push(Violation::leaked(what));
        }
    }
    violations
}

fn is_granted(sandbox: &Sandbox) -> bool {
    sandbox.ports[0].grant().is_some()
}

fn has_it(netns: &Netns) -> bool {
    let shown = netns.command("ip").args(["link", "show", INTERFACE]).output();
    shown.is_ok_and(|shown| shown.status.success())
}
